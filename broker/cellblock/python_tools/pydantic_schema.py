"""Makes JSON Schemas of Python types, by pydantic, in the form of the Schema Inference specification."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from cellblock.python_tools.pruning import inline_definitions, prune_titles

_Field = core_schema.ModelField | core_schema.DataclassField | core_schema.TypedDictField


def input_json_schema(adapter: TypeAdapter[Any]) -> dict[str, Any]:
    """Describes what the type can be made from; titles and definitions are cleaned up. Raises what pydantic raises."""
    return _cleaned(_Inputs().generate(adapter.core_schema, mode="validation"))


def output_json_schema(adapter: TypeAdapter[Any]) -> dict[str, Any]:
    """Describes what a value of the type is as JSON, every field that is always there `required`. Raises what pydantic
    raises.

    Classes are closed (`additionalProperties: false`) unless the type has a serialiser that may add to them.
    """
    generator = _Outputs(closed=True)
    schema = generator.generate(adapter.core_schema, mode="serialization")
    if generator.unknown:
        schema = _Outputs(closed=False).generate(adapter.core_schema, mode="serialization")
    return _cleaned(schema)


def _cleaned(schema: dict[str, Any]) -> dict[str, Any]:
    return prune_titles(inline_definitions(schema))


class _Inputs(GenerateJsonSchema):
    # A default without a JSON form is no reason to warn: it is the function's own, and stays in Python.
    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - the base class's way

    def literal_schema(self, schema: core_schema.LiteralSchema) -> dict[str, Any]:
        """Gives one form for one choice and for many: `enum`."""
        return _enum(super().literal_schema(schema))

    def enum_schema(self, schema: core_schema.EnumSchema) -> dict[str, Any]:
        return _enum(super().enum_schema(schema))

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> dict[str, Any]:
        made = super().tagged_union_schema(schema)
        # OpenAPI's keyword, with references that inlining would leave without a target.
        made.pop("discriminator", None)
        return made


class _Outputs(_Inputs):
    def __init__(self, *, closed: bool) -> None:
        super().__init__()
        self._closed = closed
        self.unknown = False
        """Says whether a serialiser was met that does not say what it gives."""

    def generate_inner(self, schema: Any) -> dict[str, Any]:
        how: dict[str, Any] = schema.get("serialization") or {}
        if how.get("type") == "any" or ("function" in how and "return_schema" not in how):
            self.unknown = True
        return super().generate_inner(schema)

    def field_is_required(self, field: _Field, total: bool) -> bool:
        """Says whether a field is required: one with a default is in every value all the same."""
        if field["type"] == "typed-dict-field":
            return super().field_is_required(field, total)
        return field.get("serialization_exclude_if") is None

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> dict[str, Any]:
        made = super().default_schema(schema)
        made.pop("default", None)
        return made

    def model_schema(self, schema: core_schema.ModelSchema) -> dict[str, Any]:
        return self._close(super().model_schema(schema))

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> dict[str, Any]:
        return self._close(super().dataclass_schema(schema))

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> dict[str, Any]:
        return self._close(super().typed_dict_schema(schema))

    def _close(self, made: dict[str, Any]) -> dict[str, Any]:
        if self._closed and "properties" in made:
            made.setdefault("additionalProperties", False)
        return made


def _enum(made: dict[str, Any]) -> dict[str, Any]:
    if "const" in made:
        made["enum"] = [made.pop("const")]
    return made
