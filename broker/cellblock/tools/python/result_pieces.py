"""Checks and dumps large values in pieces: native code holds the interpreter for one of them, and between two other
threads have their turn.

What comes out is what pydantic makes of the whole. Cut are lists, dicts, what has no type, and the fields of
TypedDicts, models and dataclasses; what cannot be cut may have `MAX_UNCUT` values.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from functools import cached_property
from itertools import islice
from typing import Any, Final, cast

from pydantic import TypeAdapter
from pydantic_core import SchemaSerializer, SchemaValidator, ValidationError

from cellblock.base.offload.light import weight_of
from cellblock.base.redaction import safe_text

STEP_WEIGHT: Final = 2_000
"""Bounds the values that are checked and dumped at a time: in a millisecond."""

SLICE: Final = 500
"""Bounds the items that are taken at a time, where they are light."""

FIELD_WEIGHT: Final = 1_000
"""Sets how many values a field may have that is not cut out of its value."""

MAX_UNCUT: Final = 200_000
"""Bounds a value that is not cut: so many values take some 50 ms to check, and as long to dump."""

Schema = dict[str, Any]

_UNCONSTRAINED: Final = {
    "any": {"type", "metadata"},
    "list": {"type", "items_schema", "metadata"},
    "dict": {"type", "keys_schema", "values_schema", "metadata"},
    "nullable": {"type", "schema", "metadata"},
    "definition-ref": {"type", "schema_ref", "metadata"},
    "default": {
        "type",
        "schema",
        "metadata",
        "default",
        "default_factory",
        "default_factory_takes_data",
        "copy_default",
        "validate_default",
    },
}
"""Names the keys of a schema that says nothing of its value as a whole."""


class Misfit(Exception):
    """Tells that a value does not fit its type, and where; the text is pydantic's sentence."""

    def __init__(self, place: tuple[int | str, ...], message: str) -> None:
        super().__init__(message)
        self.place = place
        self.message = message


class TooMany(Exception):
    """Tells that a value that cannot be cut has over `MAX_UNCUT` values."""


def values_in(value: object, most: int) -> int:
    """Returns how many values data has, whatever its texts; of what has over `most`, some number over it."""
    return weight_of(value, most, sys.maxsize)


class Pieces:
    """Pieces are one type, with what its values are made of.

    Args:
        schema: Pydantic's core schema.
        definitions: What its references stand for.
        config: Of the model that it is a field of.
        checks: Whether values are validated; what an instance of a model has is not.
    """

    def __init__(
        self,
        schema: Schema,
        definitions: Mapping[str, Schema] | None = None,
        config: Any = None,
        *,
        checks: bool = True,
    ) -> None:
        self._definitions: dict[str, Schema] = {**(definitions or {})}
        if schema["type"] == "definitions":
            self._definitions |= {one["ref"]: one for one in schema["definitions"]}
            schema = schema["schema"]
        self._schema = schema
        self._config = config
        self._checks = checks
        self._children: dict[str, Pieces] = {}

    def dumped(self, value: Any, inside: frozenset[int] = frozenset()) -> Any:
        """Checks a value and gives its JSON data.

        Args:
            value: Of any type.
            inside: The ids of the values that it is cut out of.

        Raises:
            Misfit: It does not fit the type.
            TooMany: A part of it is too much for one piece, and cannot be cut.
            ValueError: It holds itself.
            Exception: Whatever pydantic and a type's own serialisers raise.
        """
        if weight_of(value, STEP_WEIGHT) <= STEP_WEIGHT:
            return self._whole(value)
        node, kind = self._node, cast("Any", type(value))
        match node["type"]:
            case "any" if _plain(node):
                if kind in (list, tuple):
                    return self._list(value, self, inside)
                if kind is dict and all(type(key) is str for key in value):
                    return self._dict(value, self, inside)
                if hasattr(kind, "__pydantic_core_schema__"):
                    form = Pieces(cast("Schema", TypeAdapter(kind).core_schema), checks=False)
                    return form.dumped(value, inside)
                if is_dataclass(kind):
                    return {
                        one.name: _placed(self, getattr(value, one.name), one.name, inside)
                        for one in fields(kind)
                    }
            case "list" if _plain(node) and kind is list:
                return self._list(value, self._child("items_schema", node.get("items_schema", _ANY)), inside)
            case "dict" if _plain(node) and kind is dict:
                return self._dict(
                    value, self._child("values_schema", node.get("values_schema", _ANY)), inside
                )
            case "typed-dict" if "serialization" not in node and kind is dict:
                return self._typed_dict(value, node, inside)
            case "model" | "dataclass" if kind is node["cls"] and not _is_special(node):
                return self._instance(value, node, inside)
            case _:
                pass
        return self._whole(_few(value))

    # ---- inside --------------------------------------------------------------------------------------

    @property
    def _node(self) -> Schema:
        """Returns the schema itself, behind references and what a large value is not: None, or left out."""
        node = self._schema
        while node["type"] in ("nullable", "default", "definition-ref") and _plain(node):
            ref = node.get("schema_ref")
            node = node["schema"] if ref is None else self._definitions[ref]
        return node

    @cached_property
    def _validator(self) -> SchemaValidator:
        return SchemaValidator(self._complete, self._config)

    @cached_property
    def _serializer(self) -> SchemaSerializer:
        return SchemaSerializer(self._complete, self._config)

    @property
    def _complete(self) -> Any:
        if not self._definitions:
            return self._schema
        return {
            "type": "definitions",
            "schema": self._schema,
            "definitions": list(self._definitions.values()),
        }

    def _child(self, name: str, schema: Schema, config: Any = None, *, checks: bool = True) -> Pieces:
        if name not in self._children:
            self._children[name] = Pieces(
                schema, self._definitions, config or self._config, checks=checks and self._checks
            )
        return self._children[name]

    def _whole(self, value: Any) -> Any:
        if self._checks:
            try:
                value = self._validator.validate_python(value)
            except ValidationError as error:
                raise misfit_of(error) from None
        return self._given(value)

    def _given(self, value: Any, without: Collection[str] = ()) -> Any:
        # By alias, as the JSON schema has it; without warnings, for that is checked afterwards.
        excluded = {*without} or None
        return self._serializer.to_python(value, mode="json", by_alias=True, warnings=False, exclude=excluded)

    def _list(self, value: list[Any], items: Pieces, inside: frozenset[int]) -> list[Any]:
        dumped: list[Any] = []
        start, size = 0, SLICE
        while start < len(value):
            part = value[start : start + size]
            if weight_of(part, STEP_WEIGHT) <= STEP_WEIGHT:
                try:
                    dumped += self._whole(part)
                except Misfit as error:
                    [number, *below] = error.place
                    raise Misfit((start + int(number), *below), error.message) from None
                size = min(2 * size, SLICE)
            elif size > 1:
                size //= 2
                continue
            else:
                dumped.append(_placed(items, value[start], start, inside))
            start += len(part)
        return dumped

    def _dict(self, value: dict[Any, Any], values: Pieces, inside: frozenset[int]) -> dict[str, Any]:
        dumped: dict[str, Any] = {}
        entries = iter(value.items())
        while part := dict(islice(entries, SLICE)):
            if weight_of(part, STEP_WEIGHT) <= STEP_WEIGHT:
                dumped |= self._whole(part)
                continue
            for key, item in part.items():
                [name] = self._keys._whole({key: None})
                dumped[name] = _placed(values, item, str(key), inside)
        return dumped

    @cached_property
    def _keys(self) -> Pieces:
        return self._child(
            "keys_schema", {"type": "dict", **{k: v for k, v in self._node.items() if k == "keys_schema"}}
        )

    def _typed_dict(self, value: dict[str, Any], node: Schema, inside: frozenset[int]) -> dict[str, Any]:
        known: dict[str, Schema] = node["fields"]
        large = {
            name: known[name]["schema"]
            for name in known.keys() & value.keys()
            if "validation_alias" not in known[name] and _is_cut(known[name], value[name])
        }
        others = {
            name: {**field, "schema": _ANY} if name in large else field for name, field in known.items()
        }
        key = " ".join(sorted(large))
        rest = self._child(
            key, {**{k: v for k, v in node.items() if k != "ref"}, "fields": others}, node.get("config")
        )
        dumped = rest._whole(_few({**value, **dict.fromkeys(large)}))
        for name, schema in large.items():
            under = known[name].get("serialization_alias", name)
            if under in dumped:
                field = self._child(f"{name}:", schema, node.get("config"))
                dumped[under] = _placed(field, value[name], name, inside)
        return dumped

    def _instance(self, value: Any, node: Schema, inside: frozenset[int]) -> dict[str, Any]:
        known = _fields_of(node)
        large = {name for name, field in known.items() if _is_cut(field, getattr(value, name, None))}
        _few([getattr(value, name, None) for name in known if name not in large])
        light = self._given(value, large)
        dumped: dict[str, Any] = {}
        for name, field in known.items():
            under = field.get("serialization_alias", name)
            if name not in large:
                dumped |= {under: light.pop(under)} if under in light else {}
            elif not field.get("serialization_exclude"):
                form = self._child(name, field["schema"], node.get("config"), checks=False)
                dumped[under] = _placed(form, getattr(value, name), name, inside)
        return dumped | light


_ANY: Final[Schema] = {"type": "any"}

UNTYPED: Final = Pieces(_ANY)
"""Stands for a value without an annotation."""


def pieces_of(adapter: TypeAdapter[Any] | None) -> Pieces:
    """Returns the pieces of a return annotation; None for none that pydantic takes."""
    return UNTYPED if adapter is None else Pieces(cast("Schema", adapter.core_schema))


def misfit_of(error: ValidationError) -> Misfit:
    """Returns the first misfit that pydantic has found."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return Misfit(first["loc"], safe_text(first["msg"]))


def _placed(form: Pieces, value: Any, place: int | str, inside: frozenset[int]) -> Any:
    if id(value) in inside:
        raise ValueError("Circular reference detected (id repeated)")
    try:
        return form.dumped(value, inside | {id(value)})
    except Misfit as error:
        raise Misfit((place, *error.place), error.message) from None


def _plain(node: Schema) -> bool:
    return node.keys() <= _UNCONSTRAINED[node["type"]]


def _is_special(node: Schema) -> bool:
    """Says whether instances are checked again, or are not dumped field by field."""
    config: Schema = node.get("config") or {}
    again = node.get("revalidate_instances", config.get("revalidate_instances", "never"))
    inner = node["schema"]["type"]
    return (
        again != "never"
        or "serialization" in node
        or "serialization" in node["schema"]
        or bool(node.get("root_model"))
        or inner not in ("model-fields", "dataclass-args")
    )


def _fields_of(node: Schema) -> dict[str, Schema]:
    """Returns the fields of a model or a dataclass by name."""
    inner = node["schema"]
    if inner["type"] == "model-fields":
        return inner["fields"]
    return {field["name"]: field for field in inner["fields"]}


def _is_cut(field: Schema, value: object) -> bool:
    """Says whether a field is large, and stands for itself."""
    alone = "serialization" not in field["schema"] and "serialization_exclude_if" not in field
    return alone and weight_of(value, FIELD_WEIGHT) > FIELD_WEIGHT


def _few(value: Any) -> Any:
    if values_in(value, MAX_UNCUT) > MAX_UNCUT:
        raise TooMany
    return value
