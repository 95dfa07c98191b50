"""The schemas of what Python tools return: boxed where it is no object, closed where nothing more may come."""

from __future__ import annotations

import decimal
import enum
from collections.abc import Iterable
from typing import Annotated, Any

import jsonschema
import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel, SerializeAsAny, computed_field, model_serializer

from cellblock.tools.python.annotations import Hints
from cellblock.tools.python.signatures import read_output
from cellblock.tools.python.tool_results import ResultForm


def output_of(annotation: Any) -> ResultForm:
    def give() -> None: ...

    give.__annotations__["return"] = annotation
    form = read_output(Hints(give), label="it")
    if form.schema is not None:
        jsonschema.Draft202012Validator.check_schema(form.schema)
    return form


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


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


class Wrapping(BaseModel):
    a: int

    @model_serializer(mode="wrap")
    def add(self, handler: Any):
        return {**handler(self), "b": 1}


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


class Full(BaseModel):
    by_alias: int = Field(alias="byAlias")
    with_default: int = 3
    hidden: str = Field("", exclude=True)

    @computed_field
    @property
    def double(self) -> int:
        return 2 * self.by_alias


def test_classes_are_closed_unless_more_may_come() -> None:
    full = output_of(Full).schema
    assert full is not None and full["additionalProperties"] is False
    assert list(full["properties"]) == ["byAlias", "with_default", "double"]
    assert full["required"] == ["byAlias", "with_default", "double"]
    assert "default" not in full["properties"]["with_default"]
    for annotation in (Holder, Wrapping, Open):
        schema = output_of(annotation).schema
        assert schema is not None and schema.get("additionalProperties") is not False
