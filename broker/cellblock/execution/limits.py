"""Resolves the limits of one run: what was asked for, within what the configuration allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cellblock.base.errors import InvalidRequest
from cellblock.config.settings import LimitRange, LimitSettings
from cellblock.execution.response import Diagnostic

MIN_MEMORY_BYTES: Final = 8 * 1024 * 1024
"""Below this a script of a few lines does not run."""

KEYS: Final = {
    "timeoutMs": ("timeout_ms", 1),
    "maxMemoryBytes": ("max_memory_bytes", MIN_MEMORY_BYTES),
    "maxLogBytes": ("max_log_bytes", 0),
    "maxToolCalls": ("max_tool_calls", 0),
    "maxCpuMs": ("max_cpu_ms", 1),
}
"""Request key to the setting's name and its least value."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Holds the limits of one run, times in milliseconds and sizes in bytes."""

    timeout_ms: int
    max_cpu_ms: int
    max_memory_bytes: int
    max_log_bytes: int
    max_tool_calls: int


def resolve_limits(
    asked: Mapping[str, Any] | None, settings: LimitSettings, *, message_bytes: int
) -> tuple[Limits, list[Diagnostic]]:
    """Gives the limits of a run, and a warning for each that was asked for above its maximum.

    Keys that are not known are ignored (section 3.2.4). What may be logged in all may be logged in one entry, which is
    one message: so it is at most `message_bytes`, whatever the settings say.

    Raises:
        InvalidRequest: A known limit is no integer, or below its least value.
    """
    values: dict[str, int] = {}
    warnings: list[Diagnostic] = []
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
            setting = "max_message_bytes" if capped else f"limits.{name}.maximum"
            warnings.append(
                Diagnostic(
                    severity="warning",
                    code="LIMIT_CLAMPED",
                    message=f"limits.{key} = {value} is over this host's maximum; {maximum} is in force.",
                    hint=f"Ask for at most {maximum}, or raise {setting} in the configuration.",
                    path=f"/limits/{key}",
                )
            )
        values[name] = min(value, maximum)
    return Limits(**values), warnings
