"""What a Python tool gives: normalised, boxed, checked against what it declares; in large as in small."""

import datetime
import decimal
import enum
import math
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from typing import Annotated, Any, ClassVar, cast

import mcp_types as types
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

from cellblock import tool
from cellblock.base.errors import Certainty, ToolCallError
from cellblock.base.raw_json import weight_of
from cellblock.tools.python.python_tools import read_tool
from cellblock.tools.python.tool_results import STEP_WEIGHT, Values
from cellblock.tools.upstream.wire.results import ToolResult
from support.nesting import listed, nested

from .conftest import Call


class Color(enum.Enum):
    RED = "red"


@dataclass
class Item:
    name: str
    when: datetime.datetime


class Model(BaseModel):
    by_alias: int = Field(alias="byAlias")
    price: decimal.Decimal = decimal.Decimal("1.10")


class Constants(BaseModel, ser_json_inf_nan="constants"):
    NaN: float = math.inf


class Entry(typing_extensions.TypedDict):
    a: int
    b: typing_extensions.NotRequired[int]


class Base(BaseModel):
    a: int = 1


class Derived(Base):
    b: int = 2


UNTYPED = Values({"type": "any"})
NOON = datetime.datetime(2025, 3, 1, 12, tzinfo=datetime.UTC)


def giving(annotation: Any, value: Any) -> Callable[[], Any]:
    def give() -> Any:
        return value

    if annotation is not None:
        give.__annotations__["return"] = annotation
    else:
        del give.__annotations__["return"]
    return give


@pytest.mark.parametrize(
    ("annotation", "value", "given"),
    [
        (int, 7, {"result": 7}),
        (type(None), None, {"result": None}),
        (Item, Item("a", NOON), {"name": "a", "when": "2025-03-01T12:00:00Z"}),
        (Item, {"name": "a", "when": NOON}, {"name": "a", "when": "2025-03-01T12:00:00Z"}),
        (Model, Model(byAlias=1), {"byAlias": 1, "price": "1.10"}),
        (Model | None, None, {"result": None}),
        (Model | None, Model(byAlias=1), {"result": {"byAlias": 1, "price": "1.10"}}),
        (Entry, {"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 2}),
        (list[Color], [Color.RED], {"result": ["red"]}),
        (set[int], {1}, {"result": [1]}),
        (tuple[int, str], (1, "a"), {"result": [1, "a"]}),
        (datetime.timedelta, datetime.timedelta(hours=1), {"result": "PT1H"}),
        (bytes, b"text", {"result": "text"}),
        (Base, Derived(), {"a": 1}),
        (SerializeAsAny[Base], Derived(), {"a": 1, "b": 2}),
        (dict[int, int], {1: 2}, {"1": 2}),
        (float, 3, {"result": 3.0}),
        (float | None, None, {"result": None}),
        (Any, {"a": NOON}, {"a": "2025-03-01T12:00:00Z"}),
        (Any, [1], {"result": [1]}),
        (None, 3, {"result": 3}),
        (None, None, {"result": None}),
        (None, "text", {"result": "text"}),
        (None, Item("a", NOON), {"name": "a", "when": "2025-03-01T12:00:00Z"}),
        pytest.param(None, (n for n in range(2)), {"result": [0, 1]}, id="generator"),
        (dict[str, Any], {"x": math.inf}, {"x": None}),
        (dict[str, Any], {"x": Constants()}, {"x": {"NaN": None}}),
        (dict[str, Any], {"NaN": "Infinity", "a": "\ud800"}, {"NaN": "Infinity", "a": "\ufffd"}),
        (list[float | None], [math.nan, 1.5], {"result": [None, 1.5]}),
        # What cannot be cut may have any size.
        pytest.param(tuple[int, ...], (1,) * 200_001, {"result": [1] * 200_001}, id="long tuple"),
    ],
    ids=repr,
)
async def test_values_are_normalised(call: Call, annotation: Any, value: Any, given: Any) -> None:
    assert await call(giving(annotation, value)) == given


_CIRCLE: list[Any] = []
_CIRCLE.append(_CIRCLE)


@pytest.mark.parametrize(
    ("annotation", "value", "said"),
    [
        (int, "seven", "does not fit what it declares"),
        (Item, Item(5, NOON), "/name"),  # pyright: ignore
        (Item, {"name": "a"}, "/when"),
        (Annotated[int, Field(ge=3)], 1, "greater than or equal to 3"),
        (float, math.nan, "/result"),
        (dict[str, float], {"mean": math.inf}, "/mean"),
        (Entry, {"a": "x"}, "/a"),
        (list[int], None, "does not fit"),
        (Any, object(), "no JSON form"),
        (Any, _CIRCLE, "no JSON form"),
        (Any, nested(10_000, listed, 0), "no JSON form"),
        (bytes, b"\xff", "no JSON form"),
        (None, threading.Lock(), "no JSON form"),
    ],
    ids=[
        "text for int",
        "wrong field of a dataclass",
        "missing",
        "constraint",
        "nan",
        "inf",
        "typed dict",
        "none",
        "object",
        "circle",
        "deep",
        "bytes",
        "lock",
    ],
)
@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
async def test_values_that_do_not_fit_are_the_tools_fault(
    call: Call, annotation: Any, value: Any, said: str, is_async: bool
) -> None:
    give = giving(annotation, value)

    async def give_later() -> Any:
        return value

    give_later.__annotations__ = dict(give.__annotations__)
    with pytest.raises(ToolCallError, match=said) as caught:
        await call(give_later if is_async else give)
    assert caught.value.certainty is Certainty.COMPLETED and caught.value.hint
    assert len(caught.value.message) < 1_000


TEXT = types.TextContent(type="text", text="hello")
IMAGE = types.ImageContent(type="image", data="aGk=", mime_type="image/png")


@pytest.mark.parametrize(
    ("annotation", "value", "content"),
    [
        (types.TextContent, TEXT, [TEXT]),
        (list[types.TextContent | types.ImageContent], [TEXT, IMAGE], [TEXT, IMAGE]),
        (None, (TEXT, IMAGE), [TEXT, IMAGE]),
        (types.CallToolResult, types.CallToolResult(content=[TEXT], is_error=True), [TEXT]),
    ],
    ids=["text", "list", "tuple", "result"],
)
async def test_content_stays_content(call: Call, annotation: Any, value: Any, content: list[Any]) -> None:
    result = await call(giving(annotation, value))
    assert isinstance(result, ToolResult)
    assert types.CallToolResult.model_validate(result.plain()).content == content


A_NUMBER = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
OWN_BOX = {
    "type": "object",
    "title": "LooksLikeABoxOutput",
    "properties": {"result": {"type": "integer"}},
    "required": ["result"],
}


@pytest.mark.parametrize(
    ("schema", "value", "given"),
    [
        (A_NUMBER, {"a": 1}, {"a": 1}),
        ({"type": "array"}, [1], {"result": [1]}),
        (OWN_BOX, {"result": 1}, {"result": 1}),
    ],
    ids=["object", "boxed", "what looks like a box"],
)
async def test_a_result_may_have_an_explicit_schema(
    call: Call, schema: dict[str, Any], value: Any, given: dict[str, Any]
) -> None:
    assert await call(tool(output_schema=schema)(giving(Any, value))) == given


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Any, {"a": "x"}),
        (types.CallToolResult, types.CallToolResult(content=[], structured_content={"a": []})),
    ],
    ids=["data", "content"],
)
async def test_an_explicit_output_schema_is_checked(call: Call, annotation: Any, value: Any) -> None:
    give = tool(output_schema=A_NUMBER)(giving(annotation, value))
    assert read_tool(give).result.schema == A_NUMBER
    with pytest.raises(ToolCallError, match="/a"):
        await call(give)


@dataclass
class Marked(Item):
    marks: list[Color] = field(default_factory=list[Color])


@dataclass
class Odd:
    items: list[Marked]
    made: InitVar[int] = 3
    _hidden: int = 4
    held: ClassVar[int] = 5


class Tree(BaseModel):
    below: list["Tree"] = []


class Page(BaseModel):
    model_config = ConfigDict(extra="allow", ser_json_timedelta="float")
    total: int = 3
    rows: list[Marked] = Field(default=[], serialization_alias="theRows")
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
    def _sorted(self) -> "Checked":
        self.texts.sort()
        return self


class Listing(typing_extensions.TypedDict):
    a: Annotated[list[int], Field(serialization_alias="aList")]
    b: typing_extensions.NotRequired[dict[str, list[Color]]]
    c: int


Roots = RootModel[list[int]]
Json = typing_extensions.TypeAliasType("Json", "dict[str, Json] | list[Json] | str | int")

ITEM = Marked("a", NOON, [Color.RED] * 5)
PAGE = Page.model_validate(
    {"rows": [ITEM] * 5, "times": dict.fromkeys("abcde", datetime.timedelta(seconds=2)), "more": [1] * 9}
)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (list[Color], [Color.RED] * 7),
        (list[Marked], [ITEM, {"name": "b", "when": NOON}] * 3),
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
        (dict[str, dict[str, list[Marked]] | None], {"a": {"b": [ITEM] * 5}, "b": None}),
        (dict, {"a": [1] * 9, 2: [Color.RED] * 9}),
        (Any, [(1, 2, 3, 4), {"a": {"b": [NOON] * 9}}, {1: [1] * 9}, OrderedDict(a=[1] * 9)]),
        (Any, {"page": PAGE, "item": ITEM}),
        (Any, Odd([ITEM] * 5)),
        (Page, PAGE),
        (Page, {"rows": [ITEM] * 5, "more": [1] * 9}),
        (list[Page], [PAGE] * 3),
        (Marked, ITEM),
        (Marked, {"name": "b", "when": NOON, "marks": ["red"] * 9}),
        (Shouting, Shouting(texts=["a"] * 9, more=["a"] * 9)),
        (Whole, Whole(texts=["a"] * 9)),
        (Checked, Checked(texts=["b", "a"] * 9)),
        (Roots, Roots([1] * 9)),
        (Base, Derived()),
        (Listing, {"a": ["1"] * 9, "b": {"x": [Color.RED] * 9}, "c": 3, "d": 4}),
        (Listing, {"a": [], "c": 3}),
        (list[Listing], [{"a": [1] * 9, "c": 3}] * 3),
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
    assert Values(cast("dict[str, Any]", adapter.core_schema)).dumped(value) == whole


@dataclass
class Link:
    """Names what it belongs to."""

    below: Any


@pytest.mark.parametrize("kind", ["list", "dict", "dataclass"])
def test_what_holds_itself_is_told(kind: str) -> None:
    below: list[Any] = []
    circle: Any = {"list": below, "dict": {"below": below}, "dataclass": Link(below)}[kind]
    below.append(circle)
    with pytest.raises(ValueError, match="id repeated"):
        UNTYPED.dumped(circle)
    shared = [1] * 2 * STEP_WEIGHT
    assert UNTYPED.dumped([shared, shared]) == [shared, shared]


def in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cellblock.tools.python.python_calls.is_small", lambda _: False)
    monkeypatch.setattr("cellblock.tools.python.tool_results.STEP_WEIGHT", 3)
    monkeypatch.setattr("cellblock.tools.python.tool_results.SLICE", 2)


@pytest.mark.parametrize(
    ("annotation", "value", "place"),
    [
        (list[Marked], [*[ITEM] * 5, {"name": 5, "when": NOON}], "/5/name"),
        (dict[str, list[int]], {"a": [1] * 9, "b": [*[1] * 8, "x"]}, "/b/8"),
        (dict[str, list[int]], {"a": [1] * 9, 7: [1] * 9}, r"/7/\[key\]"),
        (Listing, {"a": [*[1] * 8, "x"], "c": 3}, "/a/8"),
        (Listing, {"a": [1] * 9}, "/c"),
        (list[Listing], [{"a": [1] * 9, "c": 1}] * 3 + [{"a": [1] * 9, "c": "x"}], "/3/c"),
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


ROWS = [{"name": "a", "when": NOON, "marks": ["red"]}] * 20_000


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Any, {"rows": ROWS}),
        (dict[str, Any], {"rows": ROWS}),
        (dict[str, list[Marked]], {"rows": ROWS}),
        (list[dict[str, int]], [dict.fromkeys(map(str, range(100)), 1)] * 300),
    ],
    ids=["any", "dict of any", "dict of lists", "lists"],
)
async def test_native_code_gets_little_of_lists_and_dicts_at_a_time(
    call: Call, monkeypatch: pytest.MonkeyPatch, annotation: Any, value: Any
) -> None:
    sizes: list[int] = []
    whole: Callable[..., Any] = Values.whole

    def counting(self: Values, value: Any) -> Any:
        sizes.append(weight_of(value, 10 * STEP_WEIGHT))
        return whole(self, value)

    monkeypatch.setattr(Values, "whole", counting)
    await call(giving(annotation, value))
    assert sizes and max(sizes) <= STEP_WEIGHT
