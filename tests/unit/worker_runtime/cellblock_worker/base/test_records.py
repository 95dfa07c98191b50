"""What a record takes and what it refuses; the messages of the wire are in `wire/test_protocol.py`."""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Any, ClassVar, Literal

import pytest

from cellblock_worker.base.records import BadRecord, Like, Record, Within


class Inner(Record):
    n: int


class Base(Record):
    kind: ClassVar[str] = "of the class"
    name: Annotated[str, Within(1, 3)]


class One(Base):
    number: Annotated[int, Within(1, 9)] = 5
    plain: bool = False
    key: Annotated[str, Like("[ab]+")] = "a"
    level: Literal["low", "high"] = "low"
    maybe: Annotated[int, Within(0)] | None = None
    texts: Annotated[list[Annotated[str, Within(0, 2)]], Within(0, 2)] = []  # noqa: RUF012 - each has its own
    inner: Inner | None = None


class Five(IntEnum):
    FIVE = 5


class Text(str):
    pass


FINE: dict[str, list[Any]] = {
    "name": ["a", "abc", "üüü"],
    "number": [1, 9],
    "plain": [True],
    "key": ["ab"],
    "level": ["high"],
    "maybe": [None, 0, 2**53 - 1],
    "texts": [[], ["", "ab"]],
    "inner": [None, Inner(n=-1)],
}

WRONG: dict[str, list[Any]] = {
    "name": ["", "abcd", b"a", 1, None, ["a"], Text("a")],
    "number": [0, 10, 5.0, "5", True, None, Five.FIVE, [5]],
    "plain": [0, 1, "true", None],
    "key": ["", "c", "ab\n", "xab", 1, None],
    "level": ["", "Low", None, 0, ["low"], {}],
    "maybe": [-1, 2**53, False, "0"],
    "texts": [("a",), "ab", {"a": 1}, ["abc"], [1], ["", "", ""], [[]], None],
    "inner": [{"n": 1}, One(name="a"), 1],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in FINE for value in FINE[name]])
def test_what_a_field_takes(name: str, value: Any) -> None:
    given = {"name": "x", name: value}
    assert vars(One.read(given))[name] == value
    assert One(**given) == One.read(given)


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name in WRONG for value in WRONG[name]], ids=repr
)
def test_what_a_field_refuses(name: str, value: Any) -> None:
    with pytest.raises(BadRecord, match=f"^{name}: should be "):
        One.read({"name": "x", name: value})
    with pytest.raises(BadRecord, match=f"^{name}: should be "):
        One(name="x").replace(**{name: value})


def test_all_fields_in_their_order_with_what_is_not_said() -> None:
    assert list(vars(One(level="high", name="a"))) == list(One.fields)
    assert vars(One(name="a")) == {
        "name": "a",
        "number": 5,
        "plain": False,
        "key": "a",
        "level": "low",
        "maybe": None,
        "texts": [],
        "inner": None,
    }
    assert "kind" not in One.fields and One.kind == "of the class"


@pytest.mark.parametrize(
    "extra", [{"more": 1}, {1: 1}, {b"name": 1}, {None: 1}, {"kind": "x"}, {"fields": {}}]
)
def test_nothing_else_is_taken(extra: dict[Any, Any]) -> None:
    with pytest.raises(BadRecord, match="has a field that there is not"):
        One.read({"name": "a", **extra})


def test_what_must_be_said_must_be() -> None:
    with pytest.raises(BadRecord, match=r"^name: is missing"):
        One.read({"number": 1})


def test_no_list_is_anothers() -> None:
    one, other = One(name="a"), One(name="a")
    one.texts.append("x")
    assert (other.texts, One(name="a").texts) == ([], [])


def test_no_value_is_repeated() -> None:
    with pytest.raises(BadRecord) as caught:
        One.read({"name": "SECRET"})
    assert "SECRET" not in str(caught.value)


def test_a_record_is_one_with_what_it_says() -> None:
    one = Inner(n=1)
    assert one == Inner(n=1) != Inner(n=2) and one != {"n": 1} and hash(one) == hash(Inner(n=1))
    assert (one.replace(n=2), one) == (Inner(n=2), Inner(n=1))
    assert repr(one) == "Inner(n=1)"
    with pytest.raises(AttributeError, match="frozen"):
        one.n = 2  # pyright: ignore[reportAttributeAccessIssue]
