"""Checks the `codemode.run` request before a worker is used (Code Mode specification, section 3.2)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from cellblock.base.errors import InvalidRequest
from cellblock.config.settings import CellblockSettings, Grant, TypecheckMode
from cellblock.execution.limits import Limits, resolve_limits
from cellblock.execution.response import Diagnostic

MAX_CAPABILITIES: Final = 200
"""Bounds the servers that one request may name, each of which can cost a search for near names and a warning."""

MAX_CAPABILITY_CHARS: Final = 200
"""Bounds the characters of one name of a requested server."""


class RequestBody(BaseModel):
    """Describes the request as it is on the wire; nothing else is accepted, and nothing is converted."""

    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", strict=True, frozen=True)

    code: str
    """Holds the source of an ES module."""

    limits: dict[str, Any] | None = None
    """Limits by name; unknown names are ignored (section 3.2.4)."""

    requested_capabilities: (
        Annotated[
            list[Annotated[str, Field(max_length=MAX_CAPABILITY_CHARS)]], Field(max_length=MAX_CAPABILITIES)
        ]
        | None
    ) = None
    """Lists the ids of servers that the script will want (section 3.2.3)."""

    grants: Grant | None = None
    """Cellblock's own: what this script may call, of what its client is granted."""

    typecheck: TypecheckMode | None = None
    """Cellblock's own: when this script is type-checked; the configuration says it where this does not."""


_HINTS = {
    "code": "Give the script as the string `code`.",
    "limits": 'Give `limits` as an object such as {"timeoutMs": 1000}.',
    "requestedCapabilities": f"Give `requestedCapabilities` as an array of at most {MAX_CAPABILITIES} server ids, each "
    f"of at most {MAX_CAPABILITY_CHARS} characters.",
    "grants": 'Give `grants` as an object such as {"tools": ["files.read_*"], "readOnly": true}.',
    "typecheck": 'Give `typecheck` as "off", "after" or "before".',
}


_SHOULD_BE = "Input should be "
"""Begins most of pydantic's messages."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """Holds a request that is well-formed, with its limits resolved."""

    code: str
    limits: Limits
    requested: tuple[str, ...]
    warnings: tuple[Diagnostic, ...]
    typecheck: TypecheckMode | None = None
    grants: Grant | None = None


def read_request(raw: Mapping[str, Any], settings: CellblockSettings) -> RunRequest:
    """Checks every field.

    Raises:
        InvalidRequest: A field is missing, unknown, too large or of the wrong type; says which and what is wanted.
    """
    if not isinstance(cast("object", raw), Mapping):
        raise InvalidRequest("The request is no object.", hint=_HINTS["code"])
    try:
        body = RequestBody.model_validate(dict(raw))
    except ValidationError as error:
        raise _refusal(error) from None
    # Lone surrogates can come in a Python string; they have no UTF-8.
    size = len(body.code.encode("utf-8", "surrogatepass"))
    if size > settings.max_code_bytes:
        raise InvalidRequest(
            f"`code` has {size} bytes, over the maximum of {settings.max_code_bytes}.",
            hint="Move data out of the script: let it fetch what it needs through tools.",
        )
    limits, warnings = resolve_limits(body.limits, settings.limits, message_bytes=settings.max_message_bytes)
    requested = tuple(body.requested_capabilities or ())
    return RunRequest(body.code, limits, requested, tuple(warnings), body.typecheck, body.grants)


def request_of(code: object, **fields: object) -> dict[str, Any]:
    """Gives the request that a Python program means: mappings as objects and sequences as arrays, without the
    fields that are None. All else stays as it is, for `read_request` to judge."""
    given = {"code": code} | {name: value for name, value in fields.items() if value is not None}
    return {name: _as_json(value) for name, value in given.items()}


def _as_json(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(cast("Mapping[object, object]", value))
    # A string is a sequence of strings, too, and never meant as that.
    if isinstance(value, Collection) and not isinstance(value, str | bytes):
        return list(cast("Collection[object]", value))
    return value


def _refusal(error: ValidationError) -> InvalidRequest:
    first = error.errors(include_url=False, include_input=False)[0]
    field = str(first["loc"][0]) if first["loc"] else "the request"
    if first["type"] == "extra_forbidden" and len(first["loc"]) > 1:
        inner = str(first["loc"][-1])[:100]
        return InvalidRequest(f"`{field}` has an unknown field {inner!r}.", hint=_HINTS[field])
    if first["type"] == "extra_forbidden":
        return InvalidRequest(
            f"The request has an unknown field {field[:100]!r}.", hint=f"Use only {', '.join(_HINTS)}."
        )
    if first["type"] == "missing":
        return InvalidRequest(f"`{field}` is missing.", hint=_HINTS[field])
    where = ".".join(str(part) for part in first["loc"])
    message, hint = first["msg"], _HINTS.get(field, "Correct the request.")
    if message.startswith(_SHOULD_BE):
        return InvalidRequest(f"`{where}` is not {message.removeprefix(_SHOULD_BE)}.", hint=hint)
    return InvalidRequest(f"`{where}` cannot be used: {message.removeprefix('Value error, ')}.", hint=hint)
