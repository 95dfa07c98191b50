"""Signatures beyond the specification's examples: every kind of callable, annotation, default and result."""

# ruff: noqa: UP007, UP045 - both ways to write a union are meant

from __future__ import annotations

import copy
import datetime
import decimal
import enum
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Annotated, Any, Generic, Literal, NewType, Optional, TypedDict, TypeVar, Union

import jsonschema
import pytest
import typing_extensions
from hypothesis import given, settings, strategies as st
from pydantic import BaseModel, ConfigDict, Field, RootModel, SerializeAsAny, computed_field, model_serializer

from cellblock.base.errors import ConfigError
from cellblock.tools.python.pydantic_schema import MAX_INLINED, inline_definitions, prune_titles
from cellblock.tools.python.signatures import PERMISSIVE_SCHEMA, Hints, read_input, read_output
from cellblock.tools.python.tool_results import ResultForm

T = TypeVar("T")
UserId = NewType("UserId", int)


def input_of(function: Callable[..., Any], **options: Any) -> dict[str, Any]:
    schema = read_input(function, Hints(function), label="it", **options).schema
    jsonschema.Draft202012Validator.check_schema(schema)
    return schema


def output_of(annotation: Any) -> ResultForm:
    def give() -> None: ...

    give.__annotations__["return"] = annotation
    form = read_output(Hints(give), label="it")
    if form.schema is not None:
        jsonschema.Draft202012Validator.check_schema(form.schema)
    return form


def parameter(annotation: Any) -> dict[str, Any]:
    """The schema of one parameter, without its made-up description."""

    def take(value: Any) -> None: ...

    take.__annotations__["value"] = annotation
    shown = dict(input_of(take)["properties"]["value"])
    if shown["description"] == "Parameter value":
        del shown["description"]
    return shown


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Only(enum.Enum):
    ONE = 1


REFERENCE = {"$ref": "#/$defs/Node"}


class Node(BaseModel):
    name: str
    below: list[Node] = []


class Page(BaseModel, Generic[T]):
    items: list[T]


class OldPoint(TypedDict, total=False):
    x: typing_extensions.Required[int]
    y: int


class OldShape(TypedDict):
    points: list[OldPoint]
    names: Optional[dict[str, OldPoint]]


@dataclass
class Pair:
    left: int
    right: int = 0
    more: list[int] = field(default_factory=list)


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


def tagged(kind: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"kind": {"enum": [kind], "type": "string"}},
        "required": ["kind"],
    }


OLD_POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
    "required": ["x"],
    "additionalProperties": False,
}
# `typing`'s TypedDict is taken anywhere but in a class and in itself, where pydantic's own reason says what to do.
TYPED_DICTS: list[tuple[Any, dict[str, Any]]] = [
    (
        OldShape,
        {
            "type": "object",
            "properties": {
                "points": {"type": "array", "items": OLD_POINT},
                "names": {"anyOf": [{"type": "object", "additionalProperties": OLD_POINT}, {"type": "null"}]},
            },
            "required": ["points", "names"],
            "additionalProperties": False,
        },
    ),
    (
        Annotated[list[OldPoint], Field(min_length=1)],
        {"type": "array", "items": OLD_POINT, "minItems": 1},
    ),
    (Union[OldPoint, int], {"anyOf": [OLD_POINT, {"type": "integer"}]}),
    (OldPoint | None, {"anyOf": [OLD_POINT, {"type": "null"}]}),
]


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (Color, {"enum": ["red", "blue"], "type": "string"}),
        (Only, {"enum": [1], "type": "integer"}),
        (UserId, {"type": "integer"}),
        (Any, {}),
        (datetime.datetime, {"type": "string", "format": "date-time"}),
        (
            Annotated[int, Field(ge=1, description="How many")],
            {"type": "integer", "minimum": 1, "description": "How many"},
        ),
        (Literal[1, "a", None], {"enum": [1, "a", None]}),
        (Annotated[str, Field(examples=["a"])], {"type": "string", "examples": ["a"]}),
        (
            tuple[int, str],
            {
                "type": "array",
                "prefixItems": [{"type": "integer"}, {"type": "string"}],
                "minItems": 2,
                "maxItems": 2,
            },
        ),
        (set[int], {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}),
        (
            Page[int],
            {
                "type": "object",
                "properties": {"items": {"type": "array", "items": {"type": "integer"}}},
                "required": ["items"],
            },
        ),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Annotated[Union[Cat, Dog], Field(discriminator="kind")], {"oneOf": [tagged("cat"), tagged("dog")]}),
        *(
            pytest.param(
                *case,
                marks=pytest.mark.skipif("sys.version_info >= (3, 12)", reason="pydantic takes them there"),
            )
            for case in TYPED_DICTS
        ),
    ],
    ids=str,
)
def test_types_of_parameters(annotation: Any, schema: dict[str, Any]) -> None:
    assert parameter(annotation) == schema


def test_a_recursive_model_keeps_its_definition() -> None:
    def take(node: Node) -> Node: ...

    def node(*required: str, **below: Any) -> dict[str, Any]:
        members = {"name": {"type": "string"}, "below": {"type": "array", "items": REFERENCE, **below}}
        return {"type": "object", "properties": members, "required": [*required]}

    taken, given = node("name", default=[]), {**node("name", "below"), "additionalProperties": False}
    assert input_of(take) == {
        "type": "object",
        "properties": {"node": {**REFERENCE, "description": "Parameter node"}},
        "required": ["node"],
        "additionalProperties": False,
        "$defs": {"Node": taken},
    }
    assert output_of(Node).schema == {**given, "$defs": {"Node": given}}
    assert output_of(list[Node]).schema == {
        "type": "object",
        "properties": {"result": {"type": "array", "items": REFERENCE}},
        "required": ["result"],
        "x-dedalus-box": {"field": "result"},
        "$defs": {"Node": given},
    }


@pytest.mark.skipif("sys.version_info >= (3, 12)", reason="pydantic takes them there")
def test_recursive_typed_dicts_fall_back_with_the_reason(told: pytest.LogCaptureFixture) -> None:
    class Tree(TypedDict):
        below: list[Tree]

    def take(tree: Tree) -> None: ...

    take.__annotations__["tree"] = Tree
    assert input_of(take) == PERMISSIVE_SCHEMA
    assert "typing_extensions.TypedDict" in told.text


def test_defaults() -> None:
    def take(
        color: Color = Color.RED,
        day: datetime.date = datetime.date(2025, 3, 1),
        pair: Pair = Pair(1),  # noqa: B008
        limit: int = Field(10, ge=1, description="At most"),
        needed: int = Field(ge=1),
        lock: Any = threading.Lock(),  # noqa: B008
        ratio: float = float("nan"),
        *,
        only: bool = False,
    ) -> None: ...

    schema = input_of(take)
    shown = schema["properties"]
    assert {name: part["default"] for name, part in shown.items() if "default" in part} == {
        "color": "red",
        "day": "2025-03-01",
        "pair": {"left": 1, "right": 0, "more": []},
        "limit": 10,
        "only": False,
    }
    assert shown["limit"] == {"default": 10, "description": "At most", "minimum": 1, "type": "integer"}
    assert schema["required"] == ["needed"]


class Counter:
    """Counts."""

    def up(self, by: int = 1) -> int:
        return by

    @classmethod
    def make(cls, start: int) -> int:
        return start

    @staticmethod
    def two(a: int) -> int:
        return a

    def __call__(self, times: int) -> int:
        return times


def plain(a: int, b: str, *, c: bool) -> int:
    return a


@wraps(plain)
def wrapped(*args: Any, **kwargs: Any) -> Any:
    return plain(*args, **kwargs)


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (Counter().up, ["by"]),
        (Counter.make, ["start"]),
        (Counter.two, ["a"]),
        (Counter(), ["times"]),
        (partial(plain, 1), ["b", "c"]),
        (partial(plain, b="x"), ["a", "b", "c"]),
        (partial(Counter().up), ["by"]),
        (wrapped, ["a", "b", "c"]),
        (lambda: None, []),
        (lambda a, b=2: a, ["a", "b"]),
    ],
    ids=[
        "method",
        "classmethod",
        "staticmethod",
        "object",
        "partial",
        "keyword",
        "of a method",
        "wraps",
        "lambda",
        "untyped",
    ],
)
def test_every_kind_of_callable(function: Any, names: list[str]) -> None:
    schema = input_of(function)
    assert list(schema["properties"]) == names and schema["additionalProperties"] is False
    if function is wrapped:
        assert schema["properties"]["a"]["type"] == "integer"


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda *args: None, "*args"),
        (lambda **rest: None, "**rest"),
        (lambda a, /: None, "positional-only a"),
        (max, "signature cannot be read"),
    ],
    ids=["args", "kwargs", "positional", "builtin"],
)
def test_what_has_no_schema_takes_anything_and_says_why(
    function: Any, reason: str, told: pytest.LogCaptureFixture
) -> None:
    assert input_of(function) == PERMISSIVE_SCHEMA
    assert reason in told.text


def test_types_that_raise_whatever_fall_back(told: pytest.LogCaptureFixture) -> None:
    class Hostile:
        @classmethod
        def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
            raise ZeroDivisionError("hostile hook")

    def take(value: Hostile) -> Hostile: ...

    take.__annotations__.update({"value": Hostile, "return": Hostile})
    assert input_of(take) == PERMISSIVE_SCHEMA
    form = output_of(Hostile)
    assert form.schema is None and form.adapter is None
    assert told.text.count("hostile hook") == 2


def test_local_types_are_found_through_the_closure() -> None:
    class Local(BaseModel):
        a: int

    def take(value: Local) -> Local:
        return Local(a=value.a)

    assert list(input_of(take)["properties"]["value"]["properties"]) == ["a"]


def test_one_unresolved_annotation_does_not_cost_the_others() -> None:
    def give(a: int) -> Nowhere: ...  # noqa: F821 # pyright: ignore

    assert input_of(give)["properties"]["a"]["type"] == "integer"
    assert read_output(Hints(give), label="it").schema is None


# ---- explicit schemas and flattening -------------------------------------------------------------------


def test_explicit_schemas_are_copies() -> None:
    given: dict[str, Any] = {"type": "object", "properties": {"a": {"title": "A"}}}
    schema = input_of(plain, explicit=given)
    given["properties"]["b"] = {}
    assert schema == {"type": "object", "properties": {"a": {"title": "A"}}}
    output = read_output(Hints(plain), label="it", explicit={"type": "array"}).schema
    assert output is not None and output["properties"]["result"] == {"type": "array"}


@pytest.mark.parametrize(
    ("read", "why"),
    [
        *(
            (partial(input_of, plain, explicit=schema), "input_schema of it")
            for schema in ({"type": "array"}, {"type": "objekt"}, {"type": "object", "properties": 3}, {})
        ),
        (
            partial(read_output, Hints(plain), label="it", explicit={"type": "objekt"}),
            "output_schema of it",
        ),
        (partial(input_of, plain, flatten=True), "3 parameters"),
        (partial(input_of, lambda: None, flatten=True), "0 parameters"),
        (partial(input_of, Counter.two, flatten=True), "no class"),
        (partial(input_of, max, flatten=True), "signature"),
    ],
)
def test_what_cannot_be_a_schema_or_be_flattened(read: Callable[[], object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read()


@pytest.mark.parametrize(
    ("annotation", "inner"),
    [
        (int, {"type": "integer"}),
        (None, {"type": "null"}),
        (bytes, {"type": "string", "format": "binary"}),
        (decimal.Decimal, {"type": "string"}),
        (Color, {"type": "string", "enum": ["red", "blue"]}),
        (set[int], {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}),
        (Iterable[int], {"type": "array", "items": {"type": "integer"}}),
        (RootModel[list[int]], {"type": "array", "items": {"type": "integer"}}),
        (
            dict[str, int] | None,
            {"anyOf": [{"type": "object", "additionalProperties": {"type": "integer"}}, {"type": "null"}]},
        ),
    ],
    ids=str,
)
def test_what_is_no_object_is_boxed(annotation: Any, inner: dict[str, Any]) -> None:
    schema = output_of(annotation).schema
    assert schema is not None and schema["x-dedalus-box"] == {"field": "result"}
    assert schema["properties"]["result"] == inner


@pytest.mark.parametrize("annotation", [Any, object, Annotated[Any, Field(description="x")]], ids=str)
def test_what_says_nothing_is_no_schema(annotation: Any) -> None:
    assert output_of(annotation).schema is None


class Base(BaseModel):
    a: int = 1


class Holder(BaseModel):
    base: SerializeAsAny[Base]


class Wrapping(Base):
    @model_serializer(mode="wrap")
    def add(self, handler: Any):
        return {**handler(self), "b": 1}


class Open(Base):
    model_config = ConfigDict(extra="allow")


class Full(BaseModel):
    by_alias: int = Field(alias="byAlias")
    with_default: int = 3
    hidden: str = Field("", exclude=True)

    @computed_field
    @property
    def double(self) -> int:
        return 2 * self.by_alias


def test_classes_are_closed_unless_more_may_come() -> None:
    assert output_of(Full).schema == {
        "type": "object",
        "properties": {
            "byAlias": {"type": "integer"},
            "with_default": {"type": "integer"},
            "double": {"type": "integer", "readOnly": True},
        },
        "required": ["byAlias", "with_default", "double"],
        "additionalProperties": False,
    }
    for annotation in (Holder, Wrapping, Open):
        schema = output_of(annotation).schema
        assert schema is not None and schema.get("additionalProperties") is not False


# ---- titles go and definitions move in, and what a schema accepts stays the same -------------------------


def test_only_titles_of_schemas_are_pruned() -> None:
    data = {"title": "data", "properties": {"title": "data"}}
    schema = {
        "title": "A",
        "properties": {"title": {"title": "Title", "type": "string", "default": data}},
        "patternProperties": {"title": {"title": "B"}},
        "additionalProperties": {"title": "C", "enum": [data], "const": data},
        "items": [{"title": "D"}],
        "prefixItems": [{"title": "E"}, True],
        "anyOf": [{"title": "F", "not": {"title": "G"}}],
        "dependentSchemas": {"title": {"title": "H"}},
        "$defs": {"title": {"title": "I"}},
        "examples": [data],
        "required": ["title"],
        "x-own": {"title": "kept"},
    }
    before = copy.deepcopy(schema)
    assert prune_titles(schema) == {
        "properties": {"title": {"type": "string", "default": data}},
        "patternProperties": {"title": {}},
        "additionalProperties": {"enum": [data], "const": data},
        "items": [{}],
        "prefixItems": [{}, True],
        "anyOf": [{"not": {}}],
        "dependentSchemas": {"title": {}},
        "$defs": {"title": {}},
        "examples": [data],
        "required": ["title"],
        "x-own": {"title": "kept"},
    }
    assert schema == before


def reference(name: str, **beside: Any) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}", **beside}


NODE = {"type": "object", "properties": {"below": {"items": reference("Node")}}}


@pytest.mark.parametrize(
    ("schema", "inlined"),
    [
        pytest.param(
            {
                "properties": {
                    "a": reference("A", description="own", default={}),
                    "b": {"items": reference("B")},
                },
                "$defs": {"A": {"type": "object", "description": "A's"}, "B": {"anyOf": [reference("A")]}},
            },
            {
                "properties": {
                    "a": {"type": "object", "description": "own", "default": {}},
                    "b": {"items": {"anyOf": [{"type": "object", "description": "A's"}]}},
                }
            },
            id="with what stands beside the reference",
        ),
        pytest.param(
            {
                "properties": {"root": reference("Node"), "leaf": reference("Leaf")},
                "$defs": {
                    "Node": {
                        "properties": {"leaf": reference("Leaf"), "below": {"items": reference("Node")}}
                    },
                    "Leaf": {"type": "string"},
                    "Unused": {"properties": {"again": reference("Unused")}},
                },
            },
            {
                "properties": {"root": reference("Node"), "leaf": {"type": "string"}},
                "$defs": {
                    "Node": {
                        "properties": {"leaf": {"type": "string"}, "below": {"items": reference("Node")}}
                    }
                },
            },
            id="recursive ones stay, and others move into them",
        ),
        # MCP wants `type: object` at the root.
        pytest.param(
            {**reference("Node"), "$defs": {"Node": NODE}},
            {**NODE, "$defs": {"Node": NODE}},
            id="a recursive root is spelled out",
        ),
        pytest.param(
            {
                "properties": {
                    "a": {"$ref": "https://example.com/x"},
                    "b": reference("Missing"),
                    "c": reference("A"),
                },
                "$defs": {"A": {"type": "string"}},
            },
            {
                "properties": {
                    "a": {"$ref": "https://example.com/x"},
                    "b": reference("Missing"),
                    "c": {"type": "string"},
                },
            },
            id="other references are left alone",
        ),
    ],
)
def test_definitions_are_inlined(schema: dict[str, Any], inlined: dict[str, Any]) -> None:
    assert inline_definitions(schema) == inlined


def test_definitions_that_double_at_every_step_stay() -> None:
    steps = 64
    definitions: dict[str, Any] = {
        f"D{n}": {"properties": {"a": reference(f"D{n + 1}"), "b": reference(f"D{n + 1}")}}
        for n in range(steps)
    }
    definitions[f"D{steps}"] = {"type": "string"}
    schema = {"properties": {"root": reference("D0")}, "$defs": definitions}
    assert inline_definitions(schema) == schema
    few = {name: body for name, body in definitions.items() if int(name[1:]) > steps - 5}
    inlined = inline_definitions({"properties": {"root": reference(f"D{steps - 4}")}, "$defs": few})
    assert "$defs" not in inlined and str(inlined).count("string") == 16
    assert MAX_INLINED > 16


_NAMES = ["A", "B", "C"]
_LEAVES = st.sampled_from([{"type": "integer"}, {"type": "string"}, {"const": 1}, {}])
_BODIES = st.recursive(
    _LEAVES | st.sampled_from(_NAMES).map(lambda name: {"properties": {"p": reference(name)}}),
    lambda below: st.one_of(
        st.fixed_dictionaries(
            {"properties": st.dictionaries(st.sampled_from(["p", "q"]), below, max_size=2)}
        ),
        st.fixed_dictionaries({"items": below}),
        st.fixed_dictionaries({"anyOf": st.lists(below, min_size=1, max_size=2)}),
    ),
    max_leaves=6,
)
_VALUES = st.recursive(
    st.sampled_from([1, 2, "x", None]),
    lambda below: (
        st.dictionaries(st.sampled_from(["p", "q"]), below, max_size=2) | st.lists(below, max_size=2)
    ),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None)
@given(st.fixed_dictionaries(dict.fromkeys(_NAMES, _BODIES)), st.sampled_from(_NAMES), _VALUES)
def test_what_is_accepted_stays_the_same(definitions: dict[str, Any], root: str, value: Any) -> None:
    schema = {**reference(root), "$defs": definitions}
    inlined = inline_definitions(schema)
    before = jsonschema.Draft202012Validator(schema).is_valid(value)
    assert jsonschema.Draft202012Validator(inlined).is_valid(value) is before


@pytest.mark.parametrize("schema", [True, False])
def test_boolean_schemas_stay(schema: bool) -> None:
    assert prune_titles(schema) is schema
