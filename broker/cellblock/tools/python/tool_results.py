"""Turns what a Python tool returned into what a script gets: plain JSON data that fits the tool's output schema."""

from __future__ import annotations

import math
from typing import Any, Final

import mcp_types as types
from pydantic import TypeAdapter, ValidationError

from cellblock.base.errors import Certainty, ToolCallError
from cellblock.base.json import is_array, is_object
from cellblock.base.offload.light import is_small
from cellblock.base.redaction import safe_text
from cellblock.tools.python.result_pieces import MAX_UNCUT, Misfit, TooMany, misfit_of, pieces_of
from cellblock.tools.schemas.boxing import BOX_FIELD, marked_field
from cellblock.tools.schemas.validation import InputValidator

_ANY: Final[TypeAdapter[Any]] = TypeAdapter(Any)

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
        # Of the adapter itself: its own methods sort out arguments first, which takes as long as the work.
        self._validate = adapter.validator.validate_python if adapter is not None else None
        self._dump = (adapter or _ANY).serializer.to_python
        self._pieces = pieces_of(adapter)
        self._name = name
        self._field = marked_field(schema)
        self._validator = (
            InputValidator(schema, label=name, subject="a result") if schema is not None else None
        )

    def plain(self, value: Any, *, small: bool | None = None) -> Any:
        """Gives JSON data for the script, or a `CallToolResult` where the tool returned one of MCP's content types.

        dataclasses, models, dates, enums, sets, Decimals and so on become what pydantic makes of them in JSON; what
        is no object is boxed.

        Args:
            value: What the function returned.
            small: Whether it is, where that is known: what is large is checked and dumped in pieces.

        Raises:
            ToolCallError: The value has no JSON form, or does not fit the tool's return annotation or output schema.
        """
        if isinstance(value, types.CallToolResult):
            if not value.is_error:
                self._checked(value.structured_content)
            return value
        if self.schema is None:
            content = _as_content(value)
            if content is not None:
                return content
        data: Any = self._dumped(value, is_small(value) if small is None else small)
        if self._field is not None or (self.schema is None and not isinstance(data, dict)):
            data = {self._field or BOX_FIELD: data}
        return self._checked(data)

    def _checked(self, data: Any) -> Any:
        if self._validator is None or (violation := self._validator.check(data)) is None:
            return data
        # JSON has no NaN: null stands for it, where the schema allows null.
        finite = _finite(data)
        if self._validator.check(finite) is None:
            return finite
        raise self._misfit(violation.path, f"expected {violation.expected}, got {violation.received}")

    def _dumped(self, value: Any, small: bool) -> Any:
        try:
            if not small:
                return self._pieces.dumped(value)
            if self._validate is not None:
                value = self._validate(value)
            # By alias, as the schema has it; without warnings, for the schema is checked afterwards.
            return self._dump(value, mode="json", by_alias=True, warnings=False)
        except ValidationError as error:
            raise self._unfit(misfit_of(error)) from None
        except Misfit as error:
            raise self._unfit(error) from None
        except TooMany:
            raise ToolCallError(
                f"{self._name} returned a {type(value).__name__} of over {MAX_UNCUT} values, which cannot be "
                "checked in pieces.",
                hint="Return list[…], dict[…], a TypedDict, a dataclass or a model, which are checked in pieces "
                "where they have no validators of their own; or return less at a time.",
                certainty=Certainty.COMPLETED,
                summary="the result has too many values in one piece",
            ) from None
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


def _finite(value: Any) -> Any:
    """Gives JSON data with null for NaN and infinities; pydantic has capped its depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if is_object(value):
        return {key: _finite(item) for key, item in value.items()}
    if is_array(value):
        return [_finite(item) for item in value]
    return value


def _as_content(value: Any) -> types.CallToolResult | None:
    """Gives MCP content that a tool made itself; the rules of section 5.3.2 then say what a script gets."""
    if isinstance(value, _Block):
        return types.CallToolResult(content=[value])
    if isinstance(value, list | tuple) and value:
        blocks: list[Any] = [*value]
        if all(isinstance(block, _Block) for block in blocks):
            return types.CallToolResult(content=blocks)
    return None
