"""Payloads: what they may hold, and what is taken out of them; parsed JSON, what is counted of bytes and of data,
and bounds of what is kept."""

import json
import math
import timeit
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest
from hypothesis import given, strategies as st
from pydantic import BaseModel

from cellblock.base import payload
from cellblock.base.budget import Budget, OverBudget
from cellblock.base.errors import Certainty, ToolCallError
from cellblock.base.json import is_array, is_object
from cellblock.base.kept import KeptByIdentity, Newest
from cellblock.base.payload import MAX_DEPTH, PayloadError, TooLong, decode, encode, encode_in_steps
from cellblock.base.raw_json import LIGHT_BYTES, LIGHT_CONTAINERS, is_deeper, is_light, is_small, weight_of
from cellblock.run.call_results import MAX_ERROR_TEXT, inexact, unwrap
from cellblock.tools.upstream.wire.results import ToolResult
from support.nesting import listed, nested

plain = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | plain,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(plain, inner, max_size=4),
    max_leaves=30,
)


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


@given(st.text(st.characters(), max_size=20))
def test_lone_surrogates_become_replacement_characters_and_pairs_one_character(text: str) -> None:
    joined = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    encode(text).decode("utf-8")
    assert decode(encode(text)) == joined
    assert decode(encode({text: [text]})) == {joined: [joined]}
    assert decode(json.dumps([text]).encode()) == [joined]


@pytest.mark.parametrize(
    ("around", "opening", "closing"),
    [(listed, "[", "]"), (lambda inner: {"a": inner}, '{"a":', "}")],
    ids=["lists", "objects"],
)
def test_depth_is_capped_the_same_both_ways(around: Callable[[Any], Any], opening: str, closing: str) -> None:
    deepest = nested(MAX_DEPTH, around)
    assert decode(encode(deepest)) == deepest
    for depth in (MAX_DEPTH + 1, 150, 199, 201, 255, 256, 1000, 20_000):
        with pytest.raises(PayloadError):
            encode(nested(depth, around))
        with pytest.raises(PayloadError, match=f"^nested deeper than {MAX_DEPTH} levels$"):
            decode((opening * depth + "1" + closing * depth).encode())


@pytest.mark.parametrize(
    "value",
    [
        *(2**53, 2**63, 2**64, -(2**70)),
        pytest.param(10**400, id="a very large integer"),
        pytest.param(
            [[index, {"a": "[" * 10}] for index in range(500)], id="many brackets that are not deep"
        ),
    ],
)
def test_what_is_large_is_kept(value: Any) -> None:
    assert decode(encode(value)) == value


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_without_a_json_form_become_null(value: float) -> None:
    assert encode(value) == b"null"
    assert decode(encode({"a": [value, 1, "\ud800"]})) == {"a": [None, 1, "�"]}


@pytest.mark.parametrize(
    "number",
    [
        *("1e999", "-1e400", "1E+309", "0.1e999", "1" + "0" * 309 + ".0", "1" * 200 + "e150"),
        *("9" * 300 + "e9", "9" * 310 + ".0", "9" * 400 + ".5", "-" + "9" * 400 + ".0"),
    ],
)
def test_numbers_past_the_range_of_doubles_become_null(number: str) -> None:
    assert decode(f'{{"a": [{number}, 1.5e3, "1e999"]}}'.encode()) == {"a": [None, 1500.0, "1e999"]}
    assert decode(f'["\\ud800", {number}]'.encode()) == ["�", None]


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b" ", b"1 2", b"{", b"\xff", b'"\xff"', b"'a'", b"[1,]", b'{"a":1,}', b"\xef\xbb\xbf1"),
        *(b"NaN", b"[Infinity]", b"-Infinity", b'{"a": NaN}'),
        # What the parser could take very long over, or not survive.
        *(b"1" * 5000, b"[" * 1_000_000, b'{"a":' * 200_000, b"]" * 1000),
    ],
    ids=lambda data: repr(data[:9]),
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
    def seconds(part: str) -> float:
        data = json.dumps(part * ((1 << 20) // len(part))).encode()
        return min(timeit.repeat(lambda: decode(data), number=1))

    # It was over a thousand.
    assert seconds("1" * 249 + "x") < 100 * seconds("ab")


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
        with pytest.raises(PayloadError, match="nested deeper"):
            encode_in_steps(nested(MAX_DEPTH + 1, listed, [0] * 9), 10**9)
        with pytest.raises(TooLong):
            encode_in_steps([0] * 99, 50)


@pytest.mark.slow
@pytest.mark.parametrize("beside", [[], [0] * 20_000])
def test_in_steps_levels_count_from_the_top(beside: list[int]) -> None:
    """Where a part of large data is small, it has the levels that are left."""
    inner = nested(MAX_DEPTH - 20, listed, 0)
    for above in (18, 19):
        value = nested(above - 1, listed, [beside, inner, {"a": inner}])
        assert encode_in_steps(value, 10**9) == encode(value)
    with pytest.raises(PayloadError, match="nested deeper"):
        encode_in_steps([value], 10**9)


def text(value: Any) -> dict[str, Any]:
    return {"type": "text", "text": value}


IMAGE = {"type": "image", "data": "aGk=", "mimeType": "image/png"}


def result(*content: Any, **fields: Any) -> ToolResult:
    return ToolResult.of({"content": list(content), **fields})


def bytes_of(made: ToolResult, **how: Any) -> bytes:
    return unwrap(made, server="s", tool="t", **how).body


def value_of(made: ToolResult, **how: Any) -> Any:
    return json.loads(bytes_of(made, **how))


def kind_of(made: ToolResult, **how: Any) -> str:
    return unwrap(made, server="s", tool="t", **how).kind


@pytest.mark.parametrize("value", [{"a": 1}, {}, [1, None], [], "text", 0, 1.5, False, None])
def test_structured_content_wins_over_content_and_may_be_anything(value: Any) -> None:
    body = json.dumps({"content": [text("not this")], "structuredContent": value}).encode()
    made = ToolResult(body, null_is_value=True)
    assert (value_of(made), kind_of(made)) == (value, "value")
    assert value_of(ToolResult(body)) == ("not this" if value is None else value)
    assert value_of(ToolResult(b'{"structuredContent":[1.50]}')) == [1.5]


def test_a_value_is_the_bytes_that_came() -> None:
    spelled = b'{"a":1.50,"b": 12345678901234567890123,"a" : "\\u0041"}'
    assert bytes_of(ToolResult(b'{"structuredContent":%s}' % spelled)) == spelled
    assert bytes_of(ToolResult(b'{"structuredContent":{"x": 1.0}}'), box="x") == b"1.0"


@pytest.mark.parametrize("others", [[], [text("beside it")]])
def test_blocks_of_unknown_types_give_the_whole_result(others: list[Any]) -> None:
    content = [*others, {"type": "widget", "rows": [None]}]
    made = result(*content, _meta={"a": None}, resultType="complete")
    assert value_of(made) == {"content": content, "isError": False, "_meta": {"a": None}}
    assert kind_of(made) == "result"
    with pytest.raises(ToolCallError, match="beside it" if others else "no message") as caught:
        value_of(result(*content, isError=True))
    assert caught.value.details["result"] == {"content": content, "isError": True}


@pytest.mark.parametrize(
    ("odd", "value"),
    [
        (b'{"content":null,"structuredContent":{"a":1},"isError":null}', {"a": 1}),
        (b'{"content":[{"type":"text","text":"hi","annotations":[]}],"_meta":[]}', "hi"),
        (b'{"content":"hi"}', "hi"),
        (b'{"content":{"type":"text","text":"hi"}}', "hi"),
        (b'{"content":[{"type":"text","text":null}]}', ""),
        (
            b'{"content":[{"type":"image","data":"aGk="}]}',
            {"content": [{"type": "image", "data": "aGk="}], "isError": False},
        ),
        (b"{}", {"content": [], "isError": False}),
    ],
)
def test_what_is_odd_of_a_result_costs_nothing_else(odd: bytes, value: Any) -> None:
    assert value_of(ToolResult(odd)) == value


@pytest.mark.parametrize(
    ("said", "kind"), [('{"a": [1, 2.50]}', "json"), (" [1]", "json"), ("[NaN]", "text"), ("1", "text")]
)
def test_a_text_that_is_a_document_is_parsed_where_that_is_set(said: str, kind: str) -> None:
    made = result(text(said))
    assert kind_of(made, parse_text=True) == kind
    body = bytes_of(made, parse_text=True)
    assert body.decode() == said if kind == "json" else json.loads(body) == said


def test_a_document_that_nests_too_deeply_is_no_value() -> None:
    fits = "[" * 512 + "]" * 512
    assert kind_of(result(text(fits)), parse_text=True) == "json"
    with pytest.raises(PayloadError, match="nests deeper than 512"):
        value_of(result(text(f"[{fits}]")), parse_text=True)


def test_an_error_is_raised_with_its_text_and_the_whole_result() -> None:
    made = result(text("no such"), IMAGE, text("file"), isError=True, structuredContent={"a": 1})
    with pytest.raises(ToolCallError) as caught:
        value_of(made)
    error = caught.value
    assert (error.message, error.certainty) == ("no such\nfile", Certainty.COMPLETED) and error.hint
    assert error.details == {
        "serverId": "s",
        "toolName": "t",
        "certainty": "completed",
        "result": json.loads(made.body),
    }
    with pytest.raises(ToolCallError, match=r'\["it failed"\]'):
        value_of(result(isError=True, structuredContent=["it failed"]))


def test_what_stands_beside_a_value_is_told() -> None:
    assert result(IMAGE, text("a"), structuredContent={"a": 1}).remarks() == [
        "Beside its value the tool gave what scripts do not get: image. "
        'The whole comes with `frontend.profile` at "proxy".'
    ]
    assert result(IMAGE).remarks() == result(text("a"), structuredContent=1).remarks() == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            '{"id": 12345678901234567890123}',
            'The integer at byte 7, behind "id", is beyond 2^53, and rounded as a number: it is 123456789',
        ),
        ('[{"a": [0, -9007199254740993]}]', 'The integer at byte 11, behind "a", is beyond 2^53'),
        (json.dumps('{"ids": [9007199254740992]}'), 'The integer at byte 9, behind "ids", is beyond 2^53'),
        ("-12345678901234567", "The integer at byte 0 is beyond 2^53"),
        ('{"n": 1E+400}', 'The number at byte 6, behind "n", is past the range of numbers, and is Infinity.'),
        ('{"n": 1' + "0" * 400 + "}", 'The integer at byte 6, behind "n", is beyond 2^53'),
        (
            '{"n": 1.5e10, "m": 9007199254740991, "t": "12345678901234567890 1e999", "f": 0.12345678901234567}',
            None,
        ),
        ('"[paper] 12345678901234567 ]"', None),
        ('"{ 12345678901234567 }, in words"', None),
    ],
)
def test_numbers_that_javascript_does_not_have_are_told(body: str, said: str | None) -> None:
    found = inexact(body.encode(), "s", exact=False)
    assert found == said or (found or "").startswith(said or "x")
    assert inexact(body.encode(), "s", exact=True) == (found if "Infinity" in (found or "") else None)


ROWS = [{"share": 0.1234567890123456789, "sku": "12345678901234567890", "count": n} for n in range(9)]
SAID = ', 12345678901234567890,\\" {"id": 12345678901234567890}' * 900


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('"first": 9007199254740991, "last": [-9007199254740993]', ', behind "last", is'),
        ('"a\\"b": 12345678901234567890123', ', behind "b", is'),
        ('"none": 9007199254740991, "e": 1e22', None),
    ],
)
def test_a_long_integer_of_a_large_value_is_told_and_no_other_digits(more: str, said: str | None) -> None:
    body = f"{json.dumps({'rows': ROWS, 'said': SAID})[:-1]}, {more}}}"
    for form in (body, json.dumps(body)):
        found = inexact(form.encode(), "s", exact=False) or ""
        assert (said in found) if said else not found, found
        assert inexact(form.encode(), "s", exact=True) is None


def test_error_texts_are_never_empty_and_never_long() -> None:
    with pytest.raises(ToolCallError, match="no message"):
        value_of(result(isError=True))
    with pytest.raises(ToolCallError) as caught:
        value_of(result(text("x" * 10_000), isError=True))
    assert caught.value.message == "x" * MAX_ERROR_TEXT + "…"


@pytest.mark.parametrize(
    ("data", "depth"),
    [
        (1, 0),
        ([], 1),
        ({"a": {"b": []}}, 3),
        (["[[[", {"]": '\\"["'}], 2),
        (["[", "]", [""]], 2),
        ([{"\\": "[", '\\\\"': {"{": "}"}}], 3),
    ],
)
def test_depth_is_that_of_brackets_out_of_texts(data: Any, depth: int) -> None:
    raw = json.dumps([data] * 3).encode()
    assert is_deeper(raw, depth) and not is_deeper(raw, depth + 1)


def test_each_and_all_together_are_bounded() -> None:
    budget = Budget(each=10, whole=15, of="this client")
    budget.take("a", 10)
    with pytest.raises(OverBudget, match="this client have over 10 bytes"):
        budget.take("a", 1)
    with pytest.raises(OverBudget, match="all together have over 15 bytes"):
        budget.take("b", 6)
    with budget.holding("b", 5), pytest.raises(OverBudget):
        budget.take("c", 1)
    budget.give_back("a", 10)
    assert (budget.total, dict(budget._held)) == (0, {})
    budget.take("b", 10)


@pytest.mark.parametrize(
    ("raw", "light"),
    [
        (b"", True),
        (b'"' + b"x" * (LIGHT_BYTES - 2) + b'"', True),
        (b'"' + b"x" * (LIGHT_BYTES - 1) + b'"', False),
        (b"[" + b"[]," * (LIGHT_CONTAINERS - 2) + b"{}]", True),
        (b"[" + b"{}," * (LIGHT_CONTAINERS - 1) + b"[]]", False),
    ],
)
def test_bytes_and_containers_are_counted(raw: bytes, light: bool) -> None:
    assert is_light(raw) is light


class Model(BaseModel):
    rows: list[int]


@dataclass
class Plain:
    rows: Any


@dataclass(slots=True)
class Slotted:
    rows: Any


@dataclass(slots=True)
class Below(Slotted):
    more: int = 0


class Named(NamedTuple):
    rows: Any


@pytest.mark.parametrize("kind", [list, tuple, set, deque, Plain, Slotted, Below, Named])
def test_data_is_counted_whatever_holds_it(kind: Any) -> None:
    assert is_small(kind([1, 2, 3]))
    assert not is_small(kind([*range(LIGHT_BYTES)]))
    assert not is_small([[{"a": kind([*range(LIGHT_BYTES)])}]])


def test_names_are_counted_in_each_row() -> None:
    rows = 5_000
    assert is_small([{"id": 1, "name": 2}] * 3_000)
    for few, many in (({"a": 1}, {"a" * 16: 1}), ({1: 1}, {("a", "b"): 1})):
        assert weight_of([few] * rows, LIGHT_BYTES) == 1 + 3 * rows
        assert weight_of([many] * rows, LIGHT_BYTES) >= 1 + 4 * rows


def test_models_bytes_and_what_names_itself_are_counted() -> None:
    assert is_small(Model(rows=[1])) and not is_small(Model(rows=[0] * LIGHT_BYTES))
    few, many = bytes(10), bytes(2 * LIGHT_BYTES)
    for kind in (bytes, bytearray, memoryview):
        assert is_small(kind(few)) and not is_small(kind(many))
    loop = Slotted(None)
    loop.rows = [loop]
    assert not is_small(loop)


@pytest.mark.parametrize(
    ("text", "is_what"),
    [("{}", "object"), ('{"a": [1]}', "object"), ("[]", "array"), ("[{}]", "array")]
    + [(text, "neither") for text in ("1", "1.5", '"{}"', "true", "null")],
)
def test_a_value_is_what_its_text_says(text: str, is_what: str) -> None:
    value = json.loads(text)
    assert (is_object(value), is_array(value)) == (is_what == "object", is_what == "array")


def test_each_object_has_its_own_and_the_one_unused_for_longest_goes() -> None:
    make = Mock(side_effect=lambda item, more=0: (len(item), more))
    kept = KeptByIdentity(make, 2)
    one, alike, third = [1], [1], [1, 2]
    assert kept.get_or_make(one, 5) == (1, 5)
    assert kept.get_or_make(alike) == (1, 0)
    assert kept.get_or_make(one) is kept.get_or_make(one, 7)
    assert kept.get_or_make(third) == (2, 0) and len(kept._held) == 2
    assert kept.get_or_make(one) == (1, 5) and make.call_count == 3
    assert kept.get_or_make(alike) == (1, 0) and make.call_args.args[0] is alike


def test_the_value_that_was_set_before_all_others_goes() -> None:
    kept = Newest[str, int](2)
    kept["a"], kept["b"] = 1, 2
    kept["a"] = 3
    kept["c"] = 4
    assert dict(kept) == {"a": 3, "c": 4}
    assert kept.pop("a") == 3 and kept.get("b") is None
    kept["d"] = 5
    assert list(kept) == ["c", "d"]
