"""Makes JSON Schemas of Python types, by pydantic, in the form of the Schema Inference specification: short for a
model's context, without titles, and with definitions where they are used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from cellblock.base.json import is_array, is_object
from cellblock.tools.schemas.document import (
    BELOW_LIST,
    BELOW_ONE,
    IN_PLACE_LIST,
    IN_PLACE_ONE,
    MAPS,
    subschemas,
)

_Field = core_schema.ModelField | core_schema.DataclassField | core_schema.TypedDictField

MAX_INLINED: Final = 2_000
"""Bounds the references that are inlined: definitions that use each other twice double at every step. Past it, all of
them stay in `$defs`."""

_PREFIX: Final = "#/$defs/"
_ONE: Final = IN_PLACE_ONE | BELOW_ONE
_LISTS: Final = IN_PLACE_LIST | BELOW_LIST


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


def prune_titles(schema: Any) -> Any:
    """Gives a copy without the `title` of any subschema; a property that is called `title` stays, and so does data."""
    if not is_object(schema):
        return schema
    return _rebuilt({key: value for key, value in schema.items() if key != "title"}, prune_titles)


def inline_definitions(schema: dict[str, Any]) -> dict[str, Any]:
    """Gives a copy with each definition in place of the references to it, except where it is recursive.

    What is recursive stays in `$defs`. The root itself is never a reference: a recursive one is spelled out once
    there. References that are not to the schema's own `$defs` are left alone.
    """
    definitions: dict[str, Any] = schema.get("$defs") or {}
    if not definitions:
        return dict(schema)
    body = {key: value for key, value in schema.items() if key != "$defs"}
    try:
        return _Inliner(definitions).whole(body)
    except RecursionError:
        return _Inliner(definitions, kept=set(definitions)).whole(body)


class _Inliner:
    def __init__(self, definitions: dict[str, Any], kept: set[str] | None = None) -> None:
        self._definitions = definitions
        self._direct = {name: set(_references(body)) for name, body in definitions.items()}
        self._kept = kept or {name for name in definitions if name in self._reachable(self._direct[name])}
        self._left = MAX_INLINED

    def whole(self, body: dict[str, Any]) -> dict[str, Any]:
        """Inlines a schema. Raises RecursionError: It would become too large."""
        made = self.inlined(body)
        name = _name_of(made)
        if name in self._definitions:
            made = {**self.inlined(self._definitions[name]), **_without_reference(made)}
        used = self._reachable(set(_references(made))) & self._kept
        if used:
            made["$defs"] = {
                name: self.inlined(self._definitions[name]) for name in self._definitions if name in used
            }
        return made

    def inlined(self, schema: Any) -> Any:
        if not is_object(schema):
            return schema
        name = _name_of(schema)
        if name in self._definitions and name not in self._kept:
            self._left -= 1
            if self._left < 0:
                raise RecursionError
            # Keywords beside a reference are a default or a description: they say more than the definition.
            return self.inlined({**self._definitions[name], **_without_reference(schema)})
        return _rebuilt(schema, self.inlined)

    def _reachable(self, names: set[str]) -> set[str]:
        found: set[str] = set()
        left = list(names)
        while left:
            name = left.pop()
            if name in self._definitions and name not in found:
                found.add(name)
                left += self._direct[name]
        return found


def _rebuilt(schema: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Gives a copy with every direct subschema changed; data, such as a default, is left as it is."""
    made: dict[str, Any] = {}
    for key, value in schema.items():
        if key in MAPS and is_object(value):
            made[key] = {name: change(part) for name, part in value.items()}
        elif key in _LISTS and is_array(value):
            made[key] = [change(part) for part in value]
        elif key in _ONE and is_object(value):
            made[key] = change(value)
        else:
            made[key] = value
    return made


def _references(schema: Any) -> Iterator[str]:
    """Gives the definitions that a schema and its subschemas name."""
    if is_object(schema):
        name = _name_of(schema)
        if name is not None:
            yield name
        for _, _, part in subschemas(schema):
            yield from _references(part)


def _name_of(schema: dict[str, Any]) -> str | None:
    reference: object = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith(_PREFIX):
        return reference.removeprefix(_PREFIX)
    return None


def _without_reference(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != "$ref"}
