"""Says what of a changed configuration a running daemon can apply, and what waits for a restart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import BaseModel

from cellblock.base.json import is_object
from cellblock.base.settings.sections import ALL
from cellblock.base.settings.settings import Settings

if TYPE_CHECKING:
    from cellblock.tools.upstream.registry import Change

LIVE: Final = (
    "frontend.declaration_chars",
    "journal",
    "limits.max_cpu_ms",
    "limits.max_log_bytes",
    "limits.max_tool_calls",
    "limits.timeout_ms",
    "pins",
    "policy",
    "typecheck_timeout_ms",
    "upstream.list_wait_ms",
)
"""Names settings of the `cellblock` section that runs after the change go by. All others are of parts that are built
once: workers, sockets, stores, front-ends."""

Model = TypeVar("Model", bound=BaseModel)


def applicable(old: Settings, new: Settings) -> tuple[Settings, list[str], list[str]]:
    """Returns the settings that can be in force without a restart.

    Returns:
        The settings; the names of those that have changed and are in force now; and of those that need a restart.
    """
    before, after = dict(_leaves(old.cellblock.model_dump())), dict(_leaves(new.cellblock.model_dump()))
    differing = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    live = sorted(name for name in differing if _is_live(name))
    section = old.cellblock
    for name in LIVE:
        section = _with(section, new.cellblock, name.split("."))
    applied = new.model_copy(update={"cellblock": section})
    return applied, live, sorted(set(differing) - set(live))


def keeping(old: Settings, new: Settings) -> tuple[Settings, list[str]]:
    """Returns the settings with the old entries of servers that now lack something, and a sentence for each.

    A file of a secret that is written anew, or a keyring that is locked, must not end what runs.
    """
    servers = dict(new.servers)
    kept: list[str] = []
    for name, config in new.servers.items():
        before = old.servers.get(name)
        if (
            config.missing is not None
            and before is not None
            and not before.disabled
            and before.missing is None
        ):
            # What is restricted meanwhile is in force.
            servers[name] = before.under_rules_of(config)
            kept.append(f"server {name} goes on as it was: {config.missing}")
    return (new.model_copy(update={"servers": servers}) if kept else new), kept


def described(change: Change, live: Sequence[str], waiting: Sequence[str]) -> list[str]:
    """Says what has become of a changed configuration, a sentence each, without values."""
    return [
        *(f"server {name} is added" for name in change.added),
        *(f"server {name} has changed; runs in flight keep its old session" for name in change.changed),
        *(f"server {name} is removed; runs in flight keep its session" for name in change.removed),
        *(f"the tools that server {name} may be asked for have changed" for name in change.ruled),
        *(f"cellblock.{name} has changed" for name in live),
        *(f"cellblock.{name} has changed, which needs a restart" for name in waiting),
    ]


def behind(now: Settings, wanted: Settings) -> str:
    """Says what of a configuration is not in force now, without values; nothing where it is."""
    kept = [
        f"server {name} goes on as it was: {config.missing}"
        for name, config in wanted.servers.items()
        if config.missing is not None and now.servers.get(name) != config
    ]
    waiting = applicable(now, wanted)[2]
    return "; ".join([*kept, *(f"cellblock.{name} has changed, which needs a restart" for name in waiting)])


def _is_live(name: str) -> bool:
    return any(name == one or name.startswith(f"{one}.") for one in LIVE)


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if is_object(value):
        for key, below in value.items():
            yield from _leaves(below, path if key == ALL else f"{path}.{key}" if path else key)
    else:
        yield path, value


def _with(old: Model, new: Model, names: Sequence[str]) -> Model:
    """Returns a model with one value, some levels down, of another."""
    name, *below = names
    value = getattr(new, name)
    if below:
        value = _with(getattr(old, name), value, below)
    return old.model_copy(update={name: value})
