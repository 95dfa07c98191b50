"""Settings that Cellblock had once. A file may still name them: each is told, and ignored where that changes nothing of
what is allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from cellblock.base.json import is_object
from cellblock.config.file.problems import Problem

REMOVED: Final[Mapping[str, str | tuple[object, str]]] = {
    "pool.realtime": "Cellblock asks for no real-time priority",
    "replicas": "a balancer finds the broker of a session by state.broker (docs/howto-replicas.md)",
    "upstream.servers.*.single": (
        False,
        "Run this server once, behind HTTP, and give all brokers its url (docs/howto-replicas.md).",
    ),
    "pool.max_warm": "Cellblock uses twice pool.warm",
    "pool.idle_after_ms": "Cellblock uses 60,000",
    "pool.client_queue_size": "Cellblock uses half of pool.queue_size",
    "pool.principal_warm": "Cellblock uses 1",
    "pool.idle_ms": "Cellblock uses 300,000",
    "pool.max_runs": "Cellblock uses 200",
    "pool.max_age_ms": "Cellblock uses 3,600,000",
    "hosts.ray.capacity": "Cellblock uses pool.capacity",
    "hosts.ray.warm": "Cellblock uses pool.warm",
    "hosts.ray.shrink_after_ms": "Cellblock uses 60,000",
    "hosts.ray.drain_ms": "Cellblock uses 60,000",
    "upstream.max_message_bytes": "Cellblock uses twice max_message_bytes",
    "upstream.retry_first_ms": "Cellblock uses 500",
    "upstream.retry_max_ms": "Cellblock uses 30,000",
    "upstream.servers.*.retry_first_ms": "Cellblock uses 500",
    "upstream.servers.*.retry_max_ms": "Cellblock uses 30,000",
    "upstream.list_timeout_ms": "Cellblock uses 20,000",
    "upstream.max_pages": "Cellblock uses 500",
    "upstream.max_tools": "Cellblock uses 2,000",
    "upstream.max_tool_bytes": "Cellblock uses 131,072",
    "upstream.max_definition_bytes": "Cellblock uses 8,388,608",
    "upstream.max_tool_depth": "Cellblock uses 100",
    "upstream.max_tool_values": "Cellblock uses 10,000",
    "upstream.max_name_chars": "Cellblock uses 256",
    "journal.park_after_ms": "a run is parked as soon as nobody who is there can answer",
    "journal.park_tools_after_ms": "a run has its process while tools are at work",
    "upstream.max_description_chars": "Cellblock uses 32,768",
}
"""Maps settings of the section to what Cellblock does instead; `*` stands for any name. Those that may have restricted
or opened something have the value that is always in force, and what to do where a file says another: an error."""


def without_removed(section: object, at: Sequence[str]) -> tuple[object, list[Problem]]:
    """Returns the section of a file, which stands at a path, without settings that are no more, and what is to be said
    of these."""
    problems: list[Problem] = []
    for setting, said in REMOVED.items():
        section = _without(section, setting.split("."), tuple(at), said, problems)
    return section, problems


# ---- inside ------------------------------------------------------------------------------------------


def _without(
    value: object,
    keys: Sequence[str],
    path: tuple[str, ...],
    said: str | tuple[object, str],
    problems: list[Problem],
) -> object:
    if not is_object(value):
        return value
    left: dict[str, Any] = dict(value)
    first, *below = keys
    for key in [*left] if first == "*" else [first] if first in left else []:
        if below:
            left[key] = _without(left[key], below, (*path, key), said, problems)
        else:
            problems.append(_problem((*path, key), said, left.pop(key)))
    return left


def _problem(path: tuple[str, ...], said: str | tuple[object, str], value: object) -> Problem:
    if isinstance(said, str):
        return Problem(path, f"no longer a setting; {said}", "Take it out.", "warning", at_key=True)
    kept, hint = said
    severity = "warning" if value == kept else "error"
    return Problem(path, "no longer a setting", hint, severity, at_key=True)
