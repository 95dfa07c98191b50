"""What a Python tool gives in large: the same as in small, checked and dumped in pieces."""

from __future__ import annotations

import datetime
import decimal
import enum
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import InitVar, dataclass, field
from typing import Annotated, Any, ClassVar

import pytest
import typing_extensions
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    RootModel,
    SerializeAsAny,
    TypeAdapter,
    computed_field,
    field_serializer,
    model_serializer,
    model_validator,
)

from cellblock.base.errors import ToolCallError
from cellblock.tools.python import result_pieces, tool_results
from cellblock.tools.python.result_pieces import MAX_UNCUT, STEP_WEIGHT, Pieces, pieces_of, values_in

Call = Callable[..., Awaitable[Any]]
NOON = datetime.datetime(2025, 3, 1, 12, tzinfo=datetime.UTC)


class Color(enum.Enum):
    RED = "red"


@dataclass
class Item:
    name: str
    when: datetime.datetime
    marks: list[Color] = field(default_factory=list[Color])


@dataclass
class Odd:
    items: list[Item]
    made: InitVar[int] = 3
    _hidden: int = 4
    held: ClassVar[int] = 5


class Model(BaseModel):
    by_alias: int = Field(alias="byAlias")
    price: decimal.Decimal = decimal.Decimal("1.10")


class Base(BaseModel):
    a: int = 1


class Derived(Base):
    b: int = 2


class Tree(BaseModel):
    below: list[Tree] = []


class Page(BaseModel):
    model_config = ConfigDict(extra="allow", ser_json_timedelta="float")
    total: int = 3
    rows: list[Item] = Field(default=[], serialization_alias="theRows")
    left_out: list[int] = Field(default=[1] * 9, exclude=True)
    times: dict[str, datetime.timedelta] = {}
    end: str = "end"

    @computed_field
    @property
    def twice(self) -> int:
        return 2 * self.total


class Shouting(BaseModel):
    texts: list[str]
    more: list[str] = []

    @field_serializer("texts")
    def _shout(self, texts: list[str]) -> list[str]:
        return [text.upper() for text in texts]


class Whole(BaseModel):
    texts: list[str]

    @model_serializer
    def _said(self) -> dict[str, Any]:
        return {"said": self.texts}


class Checked(BaseModel):
    texts: list[str]

    @model_validator(mode="after")
    def _sorted(self) -> Checked:
        self.texts.sort()
        return self


class Entry(typing_extensions.TypedDict):
    a: Annotated[list[int], Field(serialization_alias="aList")]
    b: typing_extensions.NotRequired[dict[str, list[Color]]]
    c: int


Roots = RootModel[list[int]]
Json = typing_extensions.TypeAliasType("Json", "dict[str, Json] | list[Json] | str | int")

ITEM = Item("a", NOON, [Color.RED] * 5)
PAGE = Page.model_validate(
    {"rows": [ITEM] * 5, "times": dict.fromkeys("abcde", datetime.timedelta(seconds=2)), "more": [1] * 9}
)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (list[Color], [Color.RED] * 7),
        (list[Item], [ITEM, {"name": "b", "when": NOON}] * 3),
        (list[Base], [Derived(), Base(a=5)] * 5),
        (list[SerializeAsAny[Base]], [Derived(), Base(a=5)] * 5),
        (list[Model | None], [Model(byAlias=1), None] * 4),
        (list[Tree], [Tree(below=[Tree()])] * 5),
        (Tree, Tree(below=[Tree(below=[Tree()] * 5)] * 5)),
        (list[list[int]], [[1] * 9] * 3),
        (list[float], [1, 2.5] * 3),
        (list[int], []),
        (list[int] | None, [1] * 9),
        (list[int] | None, None),
        (dict[str, Any], {"rows": [{"when": NOON, "x": (1, 2, {3})}] * 5, "n": 1.5}),
        (dict[int, list[int]], {1: [1] * 9, 2: []}),
        (dict[Color, int], {Color.RED: 1}),
        (dict[str, dict[str, list[Item]] | None], {"a": {"b": [ITEM] * 5}, "b": None}),
        (dict, {"a": [1] * 9, 2: [Color.RED] * 9}),
        (Any, [(1, 2, 3, 4), {"a": {"b": [NOON] * 9}}, {1: [1] * 9}, OrderedDict(a=[1] * 9)]),
        (Any, {"page": PAGE, "item": ITEM}),
        (Any, Odd([ITEM] * 5)),
        (Page, PAGE),
        (Page, {"rows": [ITEM] * 5, "more": [1] * 9}),
        (list[Page], [PAGE] * 3),
        (Item, ITEM),
        (Item, {"name": "b", "when": NOON, "marks": ["red"] * 9}),
        (Shouting, Shouting(texts=["a"] * 9, more=["a"] * 9)),
        (Whole, Whole(texts=["a"] * 9)),
        (Checked, Checked(texts=["b", "a"] * 9)),
        (Roots, Roots([1] * 9)),
        (Base, Derived()),
        (Entry, {"a": ["1"] * 9, "b": {"x": [Color.RED] * 9}, "c": 3, "d": 4}),
        (Entry, {"a": [], "c": 3}),
        (list[Entry], [{"a": [1] * 9, "c": 3}] * 3),
        (tuple[int, ...], (1,) * 9),
        (Json, {"a": [{"b": ["c"] * 9}]}),
        (Annotated[list[int], Field(min_length=3)], [1] * 4),
        (Annotated[list[int], PlainSerializer(lambda items: items[::-1])], [1, 2, 3, 4]),
        (Annotated[dict[str, int], Field(max_length=9)], dict.fromkeys("abcdef", 1)),
        (str, "x" * 99),
    ],
)
def test_pieces_are_what_the_whole_is(monkeypatch: pytest.MonkeyPatch, annotation: Any, value: Any) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(annotation)
    whole = adapter.dump_python(adapter.validate_python(value), mode="json", by_alias=True, warnings=False)
    in_small_pieces(monkeypatch)
    assert pieces_of(adapter).dumped(value) == whole


@dataclass
class Link:
    """Names what it belongs to."""

    below: Any


@pytest.mark.parametrize("kind", ["list", "dict", "dataclass"])
def test_what_holds_itself_is_told_at_its_second_sight(kind: str) -> None:
    """Each look at such a value counts thousands of others: a look at every level up to the interpreter's took 4 s."""
    below: list[Any] = []
    circle: Any = {"list": below, "dict": {"below": below}, "dataclass": Link(below)}[kind]
    below.append(circle)
    with pytest.raises(ValueError, match="id repeated"):
        pieces_of(None).dumped(circle)
    shared = [1] * 2 * STEP_WEIGHT
    assert pieces_of(None).dumped([shared, shared]) == [shared, shared]


def in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_results, "is_small", lambda _: False)
    monkeypatch.setattr(result_pieces, "STEP_WEIGHT", 3)
    monkeypatch.setattr(result_pieces, "FIELD_WEIGHT", 2)
    monkeypatch.setattr(result_pieces, "SLICE", 2)


@pytest.mark.parametrize(
    ("annotation", "value", "place"),
    [
        (list[Item], [*[ITEM] * 5, {"name": 5, "when": NOON}], "/5/name"),
        (dict[str, list[int]], {"a": [1] * 9, "b": [*[1] * 8, "x"]}, "/b/8"),
        (dict[str, list[int]], {"a": [1] * 9, 7: [1] * 9}, r"/7/\[key\]"),
        (Entry, {"a": [*[1] * 8, "x"], "c": 3}, "/a/8"),
        (Entry, {"a": [1] * 9}, "/c"),
        (list[Entry], [{"a": [1] * 9, "c": 1}] * 3 + [{"a": [1] * 9, "c": "x"}], "/3/c"),
        (Annotated[list[int], Field(min_length=3)], [1], "its root"),
        (list[int], {"a": [1] * 9}, "its root"),
    ],
)
async def test_what_does_not_fit_is_told_by_its_place(
    call: Call, monkeypatch: pytest.MonkeyPatch, annotation: Any, value: Any, place: str
) -> None:
    in_small_pieces(monkeypatch)
    with pytest.raises(ToolCallError, match=rf"at {place}: "):
        await call(giving(annotation, value))


def giving(annotation: Any, value: Any) -> Callable[[], Any]:
    def give() -> Any:
        return value

    give.__annotations__["return"] = annotation
    return give


MANY = 4_000
ROWS = [{"name": "a", "when": NOON, "marks": ["red"]}] * MANY


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Any, {"rows": ROWS}),
        (dict[str, Any], {"rows": ROWS}),
        (dict[str, list[Item]], {"rows": ROWS}),
        (list[dict[str, int]] | None, [dict.fromkeys(map(str, range(100)), 1)] * 300),
        (Page, Page(rows=[ITEM] * MANY)),
        (Any, Page(rows=[ITEM] * MANY)),
        (Any, Odd([ITEM] * MANY)),
        (Entry, {"a": [1] * 5 * MANY, "b": {"x": [Color.RED] * MANY}, "c": 3}),
    ],
    ids=[
        "any",
        "dict of any",
        "dict of lists",
        "lists",
        "model",
        "model untold",
        "dataclass untold",
        "typed dict",
    ],
)
async def test_native_code_gets_little_at_a_time(
    call: Call, monkeypatch: pytest.MonkeyPatch, annotation: Any, value: Any
) -> None:
    sizes: list[int] = []
    given: Callable[..., Any] = Pieces._given

    def counting(self: Pieces, value: Any, without: frozenset[str] = frozenset()) -> Any:
        kept = {name: item for name, item in vars(value).items() if name not in without} if without else value
        sizes.append(values_in(kept, 10 * MAX_UNCUT))
        return given(self, value, without)

    monkeypatch.setattr(Pieces, "_given", counting)
    await call(giving(annotation, value))
    assert sizes and max(sizes) <= STEP_WEIGHT


async def test_what_cannot_be_cut_has_a_bound(call: Call) -> None:
    few, many = (1,) * 50_000, (1,) * (MAX_UNCUT + 1)
    assert await call(giving(tuple[int, ...], few)) == {"result": [*few]}
    with pytest.raises(
        ToolCallError, match="over 200000 values, which cannot be checked in pieces"
    ) as caught:
        await call(giving(tuple[int, ...], many))
    assert "list[…]" in str(caught.value.hint)
    # Texts may be as long as they are: they are handed on.
    assert await call(giving(tuple[str, ...], ("x" * 10_000_000,))) == {"result": ["x" * 10_000_000]}
