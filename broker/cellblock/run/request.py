"""Checks the `codemode.run` request before a worker is used, and resolves its limits within what the configuration
allows (Code Mode specification, section 3.2)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from cellblock.base.errors import InvalidRequest, first_few, shorten
from cellblock.base.settings.policy import Grant
from cellblock.base.settings.sections import LimitRange, LimitSettings
from cellblock.base.settings.settings import RunSettings, TypecheckMode
from cellblock.run.response import Diagnostic
from cellblock.tools.catalog.naming import SCRIPT_NAME

MAX_CODE_BYTES: Final = 1024 * 1024
"""Caps a script, in UTF-8."""

MAX_CAPABILITIES: Final = 200
"""Bounds the servers that one request may name, each of which can cost a search for near names and a warning."""

MAX_CAPABILITY_CHARS: Final = 200
"""Bounds the characters of one name of a requested server."""


MIN_MEMORY_BYTES: Final = 8 * 1024 * 1024
"""Bounds `maxMemoryBytes` from below: with less, a script of a few lines does not run."""

KEYS: Final = {
    "timeoutMs": ("timeout_ms", 1),
    "maxMemoryBytes": ("max_memory_bytes", MIN_MEMORY_BYTES),
    "maxLogBytes": ("max_log_bytes", 0),
    "maxToolCalls": ("max_tool_calls", 0),
    "maxCpuMs": ("max_cpu_ms", 1),
}
"""Maps the request's key to the setting's name and its least value."""


class RequestBody(BaseModel):
    """Describes the request as it is on the wire; nothing else is accepted, and nothing is converted."""

    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", strict=True, frozen=True)

    code: str
    """Holds the source of an ES module."""

    limits: dict[str, Any] | None = None
    """Holds limits by name; unknown names are ignored (section 3.2.4)."""

    requested_capabilities: (
        Annotated[
            list[Annotated[str, Field(max_length=MAX_CAPABILITY_CHARS)]], Field(max_length=MAX_CAPABILITIES)
        ]
        | None
    ) = None
    """Lists the ids of servers that the script will want (section 3.2.3)."""

    grants: Grant | None = None
    """Adds to the specification what this script may call, of what its client is granted."""

    typecheck: TypecheckMode | None = None
    """Adds to the specification when this script is type-checked; the configuration says it where this does not."""

    durable: bool | None = None
    """Adds to the specification whether the run is written down as it goes, so that it survives the loss of its
    process, and waits for a person whom its client cannot ask."""

    plan: bool | None = None
    """Adds to the specification whether the run stops before each call that is not known to be read-only, until the
    user allows it."""

    reuse: bool | None = None
    """Adds to the specification whether the script may have the process of other runs; false: it has its own, whatever
    the configuration says."""

    propose: Annotated[str, Field(pattern=f"^{SCRIPT_NAME}$", max_length=64)] | None = None
    """Adds to the specification a name, by which the script is proposed to the user to be kept, if it ends well."""

    trace: Literal["full"] | None = None
    """Adds to the specification whether models are shown the whole response, with each call."""


_HINTS = {
    "code": "Give the script as the string `code`.",
    "limits": 'Give `limits` as an object such as {"timeoutMs": 1000}.',
    "requestedCapabilities": f"Give `requestedCapabilities` as an array of at most {MAX_CAPABILITIES} server ids, each "
    f"of at most {MAX_CAPABILITY_CHARS} characters.",
    "grants": 'Give `grants` as an object such as {"tools": ["files.read_*"], "readOnly": true}.',
    "typecheck": 'Give `typecheck` as "off", "after" or "before".',
    "durable": "Give `durable` as true, or leave it out.",
    "plan": "Give `plan` as true, or leave it out.",
    "reuse": "Give `reuse` as false, or leave it out.",
    "propose": "Give `propose` as a name, such as weekly_report, or leave it out.",
    "trace": 'Give `trace` as "full", or leave it out.',
}


_SHOULD_BE = "Input should be "
"""Begins most of pydantic's messages."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Holds the limits of one run, times in milliseconds and sizes in bytes."""

    timeout_ms: int
    max_cpu_ms: int
    max_memory_bytes: int
    max_log_bytes: int
    max_tool_calls: int


@dataclass(frozen=True, slots=True)
class RunRequest:
    """Holds a request that is well-formed, with its limits resolved."""

    code: str
    limits: Limits
    requested: tuple[str, ...]
    warnings: tuple[Diagnostic, ...]
    typecheck: TypecheckMode | None = None
    grants: Grant | None = None
    own_process: bool = False
    durable: bool = False
    plan: bool = False
    has_default_timeout: bool = False
    """Says whether the time in the queue counts for the run's time: its client chose none, and may wait for so long."""


def read_request(raw: Mapping[str, Any], settings: RunSettings) -> RunRequest:
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
    if size > MAX_CODE_BYTES:
        raise InvalidRequest(
            f"`code` has {size} bytes, over the maximum of {MAX_CODE_BYTES}.",
            hint="Move data out of the script: let it fetch what it needs through tools.",
        )
    # Not at the top: what scripts need is imported after a client's `initialize` is answered.
    from cellblock.script.slips import unfenced

    limits, warnings = resolve_limits(body.limits, settings.limits, message_bytes=settings.max_message_bytes)
    requested = tuple(body.requested_capabilities or ())
    return RunRequest(
        unfenced(body.code),
        limits,
        requested,
        tuple(warnings),
        body.typecheck,
        body.grants,
        own_process=body.reuse is False,
        durable=body.durable is True,
        plan=body.plan is True,
        has_default_timeout=(body.limits or {}).get("timeoutMs") is None,
    )


def resolve_limits(
    asked: Mapping[str, Any] | None, settings: LimitSettings, *, message_bytes: int
) -> tuple[Limits, list[Diagnostic]]:
    """Gives the limits of a run, and a warning for each that was asked for above its maximum.

    Keys that are not known are ignored, and told (section 3.2.4). What may be logged in all may be logged in one entry,
    which is one message: so it is at most `message_bytes`, whatever the settings say.

    Raises:
        InvalidRequest: A known limit is no integer, or below its least value.
    """
    values: dict[str, int] = {}
    warnings: list[Diagnostic] = []
    if unknown := [key for key in asked or {} if key not in KEYS]:
        ignored = Diagnostic(
            severity="warning",
            code="LIMIT_UNKNOWN",
            message=f"limits.{shorten(first_few(unknown, 3), 200)} is ignored.",
            hint=f"The limits are {', '.join(KEYS)}.",
            path="/limits",
        )
        warnings.append(ignored)
    for key, (name, least) in KEYS.items():
        allowed: LimitRange = getattr(settings, name)
        capped = key == "maxLogBytes" and allowed.maximum > message_bytes
        maximum = message_bytes if capped else allowed.maximum
        value: object = (asked or {}).get(key)
        if value is None:
            values[name] = min(allowed.default, maximum)
            continue
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidRequest(f"limits.{key} is no integer.", hint=f"Give limits.{key} as a whole number.")
        if value < least:
            raise InvalidRequest(
                f"limits.{key} is {value}, below {least}.", hint=f"Give limits.{key} of {least} or more."
            )
        if value > maximum:
            setting = "max_message_bytes" if capped else f"the maximum of limits.{name}"
            clamped = Diagnostic(
                severity="warning",
                code="LIMIT_CLAMPED",
                message=f"limits.{key} = {value} is over this host's maximum; {maximum} is in force.",
                hint=f"Ask for at most {maximum}, or raise {setting} in the configuration.",
                path=f"/limits/{key}",
            )
            warnings.append(clamped)
        values[name] = min(value, maximum)
    return Limits(**values), warnings


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
    where = [str(part) for part in first["loc"]] or ["the request"]
    message, hint = first["msg"], _HINTS.get(where[0], "Correct the request.")
    if first["type"] == "extra_forbidden" and len(where) > 1:
        said = f"`{where[0]}` has an unknown field {where[-1][:100]!r}."
    elif first["type"] == "extra_forbidden":
        said, hint = f"The request has an unknown field {where[0][:100]!r}.", f"Use only {', '.join(_HINTS)}."
    elif first["type"] == "missing":
        said = f"`{where[0]}` is missing."
    elif message.startswith(_SHOULD_BE):
        said = f"`{'.'.join(where)}` is not {message.removeprefix(_SHOULD_BE)}."
    else:
        said = f"`{'.'.join(where)}` cannot be used: {message.removeprefix('Value error, ')}."
    return InvalidRequest(said, hint=hint)
