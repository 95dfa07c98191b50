"""JSON payloads: what goes in comes out, and what has no JSON form has a defined result."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock.run import payload
from cellblock.run.payload import MAX_DEPTH, PayloadError, TooLong, decode, encode, encode_in_steps

plain = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | plain
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(plain, inner, max_size=4),
    max_leaves=30,
)
any_text = st.text(st.characters(), max_size=20)


def nested(depth: int, wrap: str = "[") -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if wrap == "[" else {"a": value}
    return value


@given(values)
def test_round_trip(value: Any) -> None:
    assert decode(encode(value)) == value


@given(values)
def test_both_agree_with_the_standard_library(value: Any) -> None:
    assert json.loads(encode(value)) == value
    assert decode(json.dumps(value).encode()) == value
    assert decode(json.dumps(value, ensure_ascii=False, indent=1).encode()) == value


@given(
    st.binary(max_size=60) | st.text('[]{}",:0123456789eE+-.\\untrfalsdID \n', max_size=60).map(str.encode)
)
def test_arbitrary_bytes_decode_to_json_data_or_fail(data: bytes) -> None:
    try:
        value = decode(data)
    except PayloadError:
        return
    assert decode(encode(value)) == value


@given(any_text)
def test_lone_surrogates_become_replacement_characters_and_pairs_one_character(text: str) -> None:
    joined = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    encode(text).decode("utf-8")
    assert decode(encode(text)) == joined
    assert decode(encode({text: [text]})) == {joined: [joined]}
    assert decode(json.dumps([text]).encode()) == [joined]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r'"\ud800"', "�"),
        (r'"\udc00\ud800x"', "��x"),
        (r'"\ud83d\ude00"', "😀"),
        (r'{"\ud800": 1}', {"�": 1}),
    ],
)
def test_surrogates_of_javascript(text: str, expected: Any) -> None:
    assert decode(text.encode()) == expected


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 250, 20_000])
@pytest.mark.parametrize("pair", [b"[]", b'{"a":1}'])
def test_a_depth_over_the_cap_is_told_as_such(depth: int, pair: bytes) -> None:
    start, end = (b"[", b"]") if pair == b"[]" else (b'{"a":', b"}")
    with pytest.raises(PayloadError, match=f"^nested deeper than {MAX_DEPTH} levels$"):
        decode(start * depth + b"1" + end * depth)


@pytest.mark.parametrize("wrap", ["[", "{"])
def test_depth_is_capped_the_same_both_ways(wrap: str) -> None:
    deepest = nested(MAX_DEPTH, wrap)
    assert decode(encode(deepest)) == deepest
    for depth in (MAX_DEPTH + 1, 150, 199, 201, 255, 256, 1000, 20_000):
        with pytest.raises(PayloadError):
            encode(nested(depth, wrap))
        opening, closing = ("[", "]") if wrap == "[" else ('{"a":', "}")
        with pytest.raises(PayloadError):
            decode((opening * depth + "1" + closing * depth).encode())


def test_many_brackets_that_are_not_deep_pass() -> None:
    wide = [[index, {"a": "[" * 10}] for index in range(500)]
    assert decode(encode(wide)) == wide


def test_unfinished_depth_is_an_error_and_not_a_crash() -> None:
    for data in (b"[" * 1_000_000, b'{"a":' * 200_000, b"]" * 1000):
        with pytest.raises(PayloadError):
            decode(data)


@pytest.mark.parametrize("data", [b"NaN", b"[Infinity]", b"-Infinity", b'{"a": NaN}'])
def test_words_that_are_no_json_are_refused(data: bytes) -> None:
    with pytest.raises(PayloadError):
        decode(data)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_without_a_json_form_become_null(value: float) -> None:
    assert encode(value) == b"null"
    assert decode(encode({"a": [value, 1]})) == {"a": [None, 1]}
    assert decode(encode({"a": [value, "\ud800"]})) == {"a": [None, "�"]}


@pytest.mark.parametrize(
    "number", ["1e999", "-1e400", "1E+309", "9" * 300 + "e9", "9" * 310 + ".0", "1" * 200 + "e150"]
)
def test_numbers_past_the_range_of_doubles_become_null(number: str) -> None:
    assert decode(f'{{"a": [{number}, 1.5e3, "1e999"]}}'.encode()) == {"a": [None, 1500.0, "1e999"]}
    assert decode(f'["\\ud800", {number}]'.encode()) == ["�", None]


def test_big_integers_are_kept() -> None:
    for value in (2**53, 2**63, 2**64, -(2**70), 10**400):
        assert decode(encode(value)) == value


def test_integers_of_absurd_length_are_refused() -> None:
    with pytest.raises(PayloadError):
        decode(b"1" * 5000)


@pytest.mark.parametrize(
    "data", [b"", b" ", b"1 2", b"{", b"\xff", b'"\xff"', b"'a'", b"[1,]", b'{"a":1,}', b"\xef\xbb\xbf1"]
)
def test_what_is_no_json_is_refused(data: bytes) -> None:
    with pytest.raises(PayloadError):
        decode(data)


def test_what_is_no_data_is_refused() -> None:
    loop: dict[str, Any] = {}
    loop["self"] = loop
    for value in (object(), b"\xff", loop, [lambda: 1]):
        with pytest.raises(PayloadError):
            encode(value)


def test_runs_of_digits_that_are_a_little_too_short_take_no_longer_than_others() -> None:
    def seconds(data: bytes) -> float:
        started = time.perf_counter()
        decode(data)
        return time.perf_counter() - started

    size = 1 << 20
    plain = json.dumps("ab" * (size // 2)).encode()
    digits = json.dumps(("1" * 249 + "x") * (size // 250)).encode()
    ratios = [seconds(digits) / seconds(plain) for _ in range(5)]
    # It was over a thousand.
    assert min(ratios) < 100


@pytest.mark.parametrize(
    "text", ["9" * 400 + ".5", "-" + "9" * 400 + ".0", "1" + "0" * 309 + ".0", "1e400", "0.1e999"]
)
def test_numbers_past_the_range_of_doubles_are_null_however_they_are_written(text: str) -> None:
    assert encode(decode(f'{{"a":[{text}]}}'.encode())) == b'{"a":[null]}'


@given(values)
def test_in_steps_it_is_the_same(value: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(payload, "STEP_WEIGHT", 3)
        assert encode_in_steps(value, 10**9) == encode(value)


def test_in_steps_it_has_the_same_bounds() -> None:
    awkward = [math.nan, "\ud800" * 9, {1: [None] * 9}, ()] * 9
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(payload, "STEP_WEIGHT", 3)
        assert encode_in_steps(awkward, 10**9) == encode(awkward)
        with pytest.raises(PayloadError):
            encode_in_steps([[0] * 9, object()], 10**9)
        deep: Any = [0] * 9
        for _ in range(MAX_DEPTH + 1):
            deep = [deep]
        with pytest.raises(PayloadError, match="nested deeper"):
            encode_in_steps(deep, 10**9)
        with pytest.raises(TooLong):
            encode_in_steps([0] * 99, 50)


@pytest.mark.slow
@pytest.mark.parametrize("beside", [[], [0] * 20_000])
def test_in_steps_levels_count_from_the_top(beside: list[int]) -> None:
    """Where a part of large data is small, it has the levels that are left."""
    inner: Any = 0
    for _ in range(MAX_DEPTH - 20):
        inner = [inner]
    for above in (18, 19):
        value: Any = [beside, inner, {"a": inner}]
        for _ in range(above - 1):
            value = [value]
        assert encode_in_steps(value, 10**9) == encode(value)
    with pytest.raises(PayloadError, match="nested deeper"):
        encode_in_steps([value], 10**9)
