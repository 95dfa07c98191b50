"""Parsed JSON, what is counted of bytes and of data, and bounds of what is kept."""

import json
from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel

from cellblock.base.budget import Budget, OverBudget
from cellblock.base.json import is_array, is_object
from cellblock.base.kept import KeptByIdentity, Newest
from cellblock.base.raw_json import LIGHT_BYTES, LIGHT_CONTAINERS, is_deeper, is_light, is_small


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
    assert (budget.total, budget.held_for("a"), budget.held_for("b")) == (0, 0, 0)
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
    made: list[list[int]] = []

    def make(item: list[int], more: int = 0) -> tuple[int, int]:
        made.append(item)
        return len(item), more

    kept = KeptByIdentity(make, 2)
    one, alike, third = [1], [1], [1, 2]
    assert kept.get_or_make(one, 5) == (1, 5)
    assert kept.get_or_make(alike) == (1, 0)
    assert kept.get_or_make(one) is kept.get_or_make(one, 7)
    assert kept.get_or_make(third) == (2, 0) and kept.size == 2
    assert kept.get_or_make(one) == (1, 5) and len(made) == 3
    assert kept.get_or_make(alike) == (1, 0) and made[3] is alike


def test_the_value_that_was_set_before_all_others_goes() -> None:
    kept = Newest[str, int](2)
    kept["a"], kept["b"] = 1, 2
    kept["a"] = 3
    kept["c"] = 4
    assert dict(kept) == {"a": 3, "c": 4}
    assert kept.pop("a") == 3 and kept.get("b") is None
    kept["d"] = 5
    assert list(kept) == ["c", "d"]
