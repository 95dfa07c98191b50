"""Turns what a Python tool returned into what a script gets: JSON of data that fits the tool's output schema."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from itertools import islice
from typing import Any, Final, cast

import mcp_types as types
from pydantic import TypeAdapter
from pydantic_core import SchemaSerializer, SchemaValidator, ValidationError, from_json

from cellblock.base import payload
from cellblock.base.errors import Certainty, ToolCallError
from cellblock.base.json import is_array
from cellblock.base.raw_json import RawJson, is_deeper, weight_of
from cellblock.base.redaction import safe_text
from cellblock.tools.schemas.boxing import BOX_FIELD, BOX_KEY, boxed_field
from cellblock.tools.schemas.validation import InputValidator
from cellblock.tools.upstream.definitions import shown
from cellblock.tools.upstream.wire.results import ToolResult

STEP_WEIGHT: Final = 20_000
"""Bounds the values that are checked and dumped at a time where they can be cut: in some 10 ms."""

SLICE: Final = 500
"""Bounds the members of a list or dict that are taken at a time, where they are light."""

MAX_CUTS: Final = 5
"""Bounds the lists and dicts in each other that are cut: one that holds itself has no end."""

Schema = dict[str, Any]

_OPEN: Final[Schema] = {"type": "object", "additionalProperties": True}
_ANY: Final[Schema] = {"type": "any"}
_ANY_KEYS: Final = (None, _ANY, {"type": "str"})
_PLAIN: Final = frozenset({"type", "items_schema", "keys_schema", "values_schema", "metadata"})
"""Names the keys of a list's or dict's schema that says nothing of it as a whole."""

_Block = (
    types.TextContent | types.ImageContent | types.AudioContent | types.ResourceLink | types.EmbeddedResource
)


class ResultForm:
    """Normalises and checks the value of one tool; made once, at registration.

    Args:
        schema: The declared output schema, boxed where the value is no object; None for none.
        adapter: Of the return annotation; None where there is none that pydantic takes.
        name: The tool's, for messages.
    """

    def __init__(self, schema: dict[str, Any] | None, adapter: TypeAdapter[Any] | None, name: str) -> None:
        self.schema = schema
        self.adapter = adapter
        self._values = Values(_ANY if adapter is None else cast("Schema", adapter.core_schema))
        self._name = name
        self._field = boxed_field(schema) if schema is not None and BOX_KEY in schema else None
        self._is_open = schema is None or schema == _OPEN
        self._validator = (
            InputValidator(schema, label=name, subject="a result") if schema is not None else None
        )

    def encoded(self, value: Any, most: int, *, small: bool) -> RawJson | ToolResult:
        """Gives the JSON for the script, or a `ToolResult` where the tool returned one of MCP's content types.

        dataclasses, models, dates, enums, sets, Decimals and so on become what pydantic makes of them in JSON; what
        is no object is boxed.

        Args:
            value: What the function returned.
            most: Cap of the JSON, in bytes; no more of it is made.
            small: Whether it is, for sure: what may be large is checked, dumped and encoded in pieces.

        Raises:
            ToolCallError: The value has no JSON form, is over the cap, or does not fit the tool's return annotation or
                output schema.
        """
        if isinstance(value, types.CallToolResult):
            if not value.is_error:
                self._checked(value.structured_content, payload.encode(value.structured_content))
            return _plain(value)
        if self.schema is None:
            content = _as_content(value)
            if content is not None:
                return _plain(content)
        if small and self._is_open and (raw := self._values.plain_json(value)) is not None:
            return RawJson(raw)
        data: Any = self._dumped(value, small)
        if self._field is not None or (self.schema is None and not isinstance(data, dict)):
            data = {self._field or BOX_FIELD: data}
        try:
            raw = payload.encode(data) if small else payload.encode_in_steps(data, most)
        except payload.PayloadError as error:
            raise no_form(self._name, str(error)) from None
        except payload.TooLong as error:
            raise too_large(self._name, error.size, most) from None
        self._checked(data, raw)
        return RawJson(raw)

    def _checked(self, data: Any, raw: bytes) -> None:
        validator = self._validator
        if validator is None or validator.takes_at_once(data, len(raw)):
            return
        # JSON has no NaN: null stands for it, where the schema allows null.
        found = validator.check(data)
        if found is not None and validator.check(from_json(raw)) is not None:
            raise self._misfit(found.path, f"expected {found.expected}, got {found.received}")

    def _dumped(self, value: Any, small: bool) -> Any:
        try:
            return self._values.whole(value) if small else self._values.dumped(value)
        except ValidationError as error:
            raise self._unfit(_first_misfit(error)) from None
        except Misfit as error:
            raise self._unfit(error) from None
        except Exception as error:  # noqa: BLE001 - pydantic and a type's own serialisers raise several kinds
            raise ToolCallError(
                f"{self._name} returned a {type(value).__name__}, which has no JSON form: {safe_text(str(error))}",
                hint="Report this to the tool's authors.",
                certainty=Certainty.COMPLETED,
                summary="the result has no JSON form",
            ) from None

    def _unfit(self, error: Misfit) -> ToolCallError:
        return self._misfit("".join(f"/{part}" for part in error.place), error.message)

    def _misfit(self, path: str, what: str) -> ToolCallError:
        return ToolCallError(
            f"{self._name} returned a value that does not fit what it declares, at {path or 'its root'}: {what}.",
            hint="The tool has run; report this to its authors.",
            certainty=Certainty.COMPLETED,
            summary="the result does not fit the tool's output schema",
        )


def too_large(tool_name: str, size: int, most: int) -> ToolCallError:
    return ToolCallError(
        f"{shown(tool_name)} gave {size} bytes, over the maximum of {most}.",
        hint="Ask for less at a time, for example with a limit or a filter.",
        certainty=Certainty.COMPLETED,
    )


def no_form(tool_name: str, why: str) -> ToolCallError:
    return ToolCallError(
        f"{shown(tool_name)} gave a result that has no JSON form: {why}.",
        hint="The tool has run; report this to its authors.",
        certainty=Certainty.COMPLETED,
    )


class Misfit(Exception):
    """Tells that a value does not fit its type, and where; the text is pydantic's sentence."""

    def __init__(self, place: tuple[int | str, ...], message: str) -> None:
        super().__init__(message)
        self.place = place
        self.message = message


class Values:
    """Checks values of one type and gives their JSON data.

    Native code holds the interpreter. So of long lists and dicts it gets some members at a time, and other threads have
    their turn in between; any other value is one piece.

    Args:
        schema: Pydantic's core schema of the type.
        definitions: What its references stand for.
    """

    def __init__(self, schema: Schema, definitions: Iterable[Schema] = ()) -> None:
        if schema["type"] == "definitions":
            definitions, schema = schema["definitions"], schema["schema"]
        self._schema = schema
        self._definitions = [*definitions]

    def whole(self, value: Any) -> Any:
        """Checks and dumps a value in one go. Raises whatever pydantic and a type's own serialisers raise."""
        # By alias, as the schema has it; without warnings, for the schema is checked afterwards.
        return self._serializer.to_python(self._validate(value), mode="json", by_alias=True, warnings=False)

    def plain_json(self, value: Any) -> bytes | None:
        """Checks an object that is small and gives its JSON; None for what is no object, or to be looked at closer."""
        try:
            raw = self._serializer.to_json(self._validate(value), by_alias=True, warnings=False)
        except Exception:  # noqa: BLE001 - `whole` says what it is
            return None
        # A model may have these two written. One letter alone is found much faster.
        has_names = (b"N" in raw and b"NaN" in raw) or (b"I" in raw and b"Infinity" in raw)
        is_odd = has_names or not raw.startswith(b"{") or is_deeper(raw, payload.MAX_DEPTH)
        return None if is_odd else raw

    def dumped(self, value: Any, cuts: int = MAX_CUTS) -> Any:
        """Checks and dumps a value of any size.

        Raises:
            Misfit: A part of it does not fit.
            Exception: As `whole` does.
        """
        is_cut = cuts > 0 and not _is_light(value) and self._may_be_cut(value)
        if not is_cut:
            return self.whole(value)
        return self._list(value, cuts - 1) if is_array(value) else self._dict(value, cuts - 1)

    # ---- inside --------------------------------------------------------------------------------------

    @cached_property
    def _validate(self) -> Any:
        return SchemaValidator(self._complete).validate_python

    @cached_property
    def _serializer(self) -> SchemaSerializer:
        return SchemaSerializer(self._complete)

    @property
    def _complete(self) -> Any:
        if not self._definitions:
            return self._schema
        return {"type": "definitions", "schema": self._schema, "definitions": self._definitions}

    @cached_property
    def _members(self) -> Values:
        if self._schema["type"] == "any":
            return self
        name = "items_schema" if self._schema["type"] == "list" else "values_schema"
        return Values(self._schema.get(name, _ANY), self._definitions)

    def _may_be_cut(self, value: object) -> bool:
        kind, schema = type(value), self._schema
        if kind not in (list, dict) or schema["type"] not in ("any", kind.__name__):
            return False
        if not _PLAIN.issuperset(schema) or schema.get("keys_schema") not in _ANY_KEYS:
            return False
        return kind is list or all(type(key) is str for key in cast("dict[object, object]", value))

    def _list(self, value: list[Any], cuts: int) -> list[Any]:
        dumped: list[Any] = []
        for start in range(0, len(value), SLICE):
            part = value[start : start + SLICE]
            if not _is_light(part):
                for place, item in enumerate(part, start):
                    dumped.append(self._member(item, place, cuts))
                continue
            try:
                dumped += self.whole(part)
            except ValidationError as error:
                found = _first_misfit(error)
                raise Misfit((start + int(found.place[0]), *found.place[1:]), found.message) from None
        return dumped

    def _dict(self, value: dict[str, Any], cuts: int) -> dict[str, Any]:
        dumped: dict[str, Any] = {}
        entries = iter(value.items())
        while part := dict(islice(entries, SLICE)):
            if _is_light(part):
                dumped |= self.whole(part)
                continue
            for name, item in part.items():
                dumped[name] = self._member(item, name, cuts)
        return dumped

    def _member(self, item: Any, place: int | str, cuts: int) -> Any:
        try:
            return self._members.dumped(item, cuts)
        except ValidationError as error:
            found = _first_misfit(error)
        except Misfit as error:
            found = error
        raise Misfit((place, *found.place), found.message)


def _is_light(value: object) -> bool:
    return weight_of(value, STEP_WEIGHT) <= STEP_WEIGHT


def _first_misfit(error: ValidationError) -> Misfit:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return Misfit(first["loc"], safe_text(first["msg"]))


def _plain(result: types.CallToolResult) -> ToolResult:
    return ToolResult.of(result.model_dump(mode="json", by_alias=True, exclude_none=True))


def _as_content(value: Any) -> types.CallToolResult | None:
    """Gives MCP content that a tool made itself; the rules of section 5.3.2 then say what a script gets."""
    if isinstance(value, _Block):
        return types.CallToolResult(content=[value])
    if isinstance(value, list | tuple) and value:
        blocks: list[Any] = [*value]
        if all(isinstance(block, _Block) for block in blocks):
            return types.CallToolResult(content=blocks)
    return None
