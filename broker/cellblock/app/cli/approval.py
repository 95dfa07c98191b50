"""Approval runs the command `approve`: it shows how a server's tools differ from their pins, and pins them anew."""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from cellblock.app.cli.arguments import UsageError, reading
from cellblock.app.cli.help import EXIT_NO, EXIT_OK
from cellblock.app.cli.loading import of_state, store_to_read
from cellblock.app.cli.streams import answer, say
from cellblock.base.errors import CellblockError, ConfigError, counted
from cellblock.base.json import is_object
from cellblock.base.settings.sections import Reaction, value_for
from cellblock.base.settings.settings import Settings
from cellblock.base.state_dir import LOGS, prepare_state_dir
from cellblock.base.store import Store
from cellblock.base.suggest import did_you_mean, nearest_names
from cellblock.base.terminal import spelled_out
from cellblock.tools.upstream.auth.errors import login_hint
from cellblock.tools.upstream.definitions import ToolDefinition, shown
from cellblock.tools.upstream.pins import (
    Difference,
    PinError,
    Pins,
    PinStore,
    Review,
    Reviewer,
    fingerprint,
    of_its_tools,
)
from cellblock.tools.upstream.registry import Registry
from cellblock.tools.upstream.server_log import upstream_log
from cellblock.tools.upstream.server_logins import kept_logins

CONTEXT_CHARS: Final = 40
"""Bounds the unchanged text shown on each side of a change."""

TRY_SECONDS: Final = 10.0
"""Bounds how long servers that were just written may take to show themselves; later, their first start pins them."""

_ABSENT: Final = object()


@reading(of_state)
async def run(parsed: argparse.Namespace, settings: Settings) -> int:
    """Connects to one server, with a principal's login where each has one, prints how its tools differ from their pins,
    and approves what the arguments name.

    Raises:
        UsageError: They name tools and all tools.
        ConfigError: No such server, it cannot be reached, its pins are off, or a named tool is not one that differs.
        PinError: The pins cannot be written, or were changed meanwhile, or are damaged and not all tools are approved.
    """
    server: str = parsed.server
    if parsed.tools and parsed.all:
        raise UsageError("name tools, or give --all")
    if value_for(server, settings.cellblock.pins) == "off":
        raise ConfigError(f"The pins of {server} are off.", hint="Set cellblock.pins to warn or quarantine.")
    kept = await asyncio.to_thread(store_to_read, settings)
    listed = await _tools_of(settings, server, kept, parsed.principal)
    origin = fingerprint(settings.servers[server])
    store = PinStore(kept)
    stamp = store.shelf.stamp(server)
    try:
        pins = store.load(server)
    except PinError:
        if not parsed.all or parsed.show:
            raise
        await asyncio.to_thread(store.write, server, Pins(origin).approving(origin, listed), replace=True)
        text = f"{server}: its pin file was damaged; all of its tools ({_count(listed)}) are pinned anew"
        return _told(parsed, [text], [tool.name for tool in listed], listed)
    # Before the first run nothing is pinned, and all is new to whoever approves it.
    differences = (
        {tool.name: Difference.NEW for tool in listed} if pins is None else pins.differences(origin, listed)
    )
    pins = pins or Pins(origin)
    chosen = [] if parsed.show else _chosen(listed, differences, parsed.tools, parsed.all)
    lines = list(_report(server, listed, differences, pins))
    if chosen:
        if not await asyncio.to_thread(
            store.write, server, pins.approving(origin, chosen), replace=stamp is not None, only=stamp
        ):
            raise PinError(f"The pins of {server} were changed meanwhile.", hint="Look at them again.")
        lines += ["", f"approved: {', '.join(shown(tool.name) for tool in chosen)}"]
    elif differences and not parsed.show:
        lines += ["", "nothing is approved: name the tools that you approve, or all with --all"]
    return _told(parsed, lines, [*differences], chosen)


def _told(
    parsed: argparse.Namespace, lines: Sequence[str], differing: list[str], chosen: Sequence[ToolDefinition]
) -> int:
    text, approved = "\n".join(lines), [tool.name for tool in chosen]
    answer(
        parsed,
        {"server": parsed.server, "differing": differing, "approved": approved, "text": text},
        f"{text}\n",
    )
    return EXIT_OK if approved or not differing else EXIT_NO


async def first_look(settings: Settings, servers: Iterable[str]) -> None:
    """Starts servers that a person has just agreed to, pins what they show now, and says what that is."""
    started = (_first_look(settings, name) for name in servers if not settings.servers[name].disabled)
    for said in await asyncio.gather(*started):
        say(said)


async def _first_look(settings: Settings, server: str) -> str:
    reactions = settings.cellblock.pins
    try:
        kept = await asyncio.to_thread(store_to_read, settings)
        try:
            async with asyncio.timeout(TRY_SECONDS):
                listed = await _tools_of(settings, server, kept)
        except TimeoutError:
            pins = None if value_for(server, reactions) == "off" else PinStore(kept).load(server)
            more = "`cellblock doctor` says more"
            if pins is not None and pins.origin != fingerprint(settings.servers[server]):
                more = (
                    f"{of_its_tools(pins.tools)} were pinned for another command or URL: "
                    f"review them by `cellblock pins approve {shlex.quote(server)}`"
                )
            return f"{server}: it still starts after {TRY_SECONDS:g} s; {more}"
        review = await asyncio.to_thread(_reviewed, reactions, PinStore(kept), settings, server, listed)
    except CellblockError as error:
        return str(error)
    return ". ".join([f"{server}: {counted(_count(review.offered), 'tool')}", *review.warnings])


def _reviewed(
    reactions: Mapping[str, Reaction],
    store: PinStore,
    settings: Settings,
    server: str,
    listed: Sequence[ToolDefinition],
) -> Review:
    """Pins the tools of a command or URL that a person has just agreed to, and reviews those of one known before."""
    config = settings.servers[server]
    if value_for(server, reactions) != "off":
        origin = fingerprint(config)
        pins = store.load(server)
        if pins is None or pins.origin != origin:
            store.write(server, Pins(origin).approving(origin, listed), replace=pins is not None)
    return Reviewer(reactions, store).review(server, config, listed)


async def _tools_of(
    settings: Settings, server: str, kept: Store, principal: str = ""
) -> tuple[ToolDefinition, ...]:
    config = settings.servers.get(server)
    if config is None:
        raise ConfigError(
            f"There is no server {server} in the configuration.",
            hint=did_you_mean(
                nearest_names(server, settings.servers, 1),
                f"Servers: {', '.join(settings.servers) or 'none'}.",
            ),
        )
    if config.missing is not None:
        raise ConfigError(f"{server} is not started: {config.missing}.", hint="Set it, then try again.")
    section = settings.cellblock
    prepare_state_dir(settings.state_dir)
    log_dir = settings.state_dir / LOGS
    registry = Registry(
        {server: config},
        (),
        section.upstream,
        max_message_bytes=section.max_message_bytes,
        log_dir=log_dir,
        # They are held against their pins when all are known.
        reviewer=Reviewer({"*": "off"}, PinStore(kept)),
        logins=kept_logins(section.auth, kept, section.http.oauth),
    )
    registry.start()
    try:
        await registry.installed(say, principal=principal)
        session = registry.sessions_of(principal).get(server)
        if session is None and config.is_personal:
            whose = f"{principal} has no login there" if principal else "you have no login there"
            raise ConfigError(
                f"Server {server} is not connected: {whose}.",
                hint=f"Name who has one: --principal token:NAME. To log in, {login_hint(server)}.",
            )
        if session is None or session.tools.facts is None:
            reason = "it is disabled" if session is None else session.life.reason
            from cellblock.app.cli.doctor import with_fix

            why = with_fix(config, reason, upstream_log(log_dir, server))
            raise ConfigError(f"Server {server} is not connected: {why}", hint="")
        return session.tools.facts.reviewed
    finally:
        await registry.close()


def _chosen(
    listed: Sequence[ToolDefinition], differences: Mapping[str, Difference], names: Sequence[str], every: bool
) -> list[ToolDefinition]:
    if every:
        return [tool for tool in listed if tool.name in differences]
    chosen: list[ToolDefinition] = []
    for name in names:
        found = [tool for tool in listed if name in (tool.name, shown(tool.name))]
        if not found:
            near = map(shown, nearest_names(name, [tool.name for tool in listed], 1))
            raise ConfigError(
                f"The server lists no tool {shown(name)}.",
                hint=did_you_mean(near, "See `cellblock pins approve SERVER --show`."),
            )
        # Approving what has not changed is no mistake: it may have been approved a moment ago.
        chosen += [tool for tool in found if tool.name in differences]
    return chosen


# ---- the text ----------------------------------------------------------------------------------------


def _report(
    server: str, listed: Sequence[ToolDefinition], differences: Mapping[str, Difference], pins: Pins
) -> Iterator[str]:
    if not differences:
        yield f"{server}: all of its tools ({_count(listed)}) are as they were pinned"
    else:
        yield f"{server}: {of_its_tools(differences, str(_count(listed)))} are not as they were pinned"
    if Difference.OTHER_SERVER in differences.values():
        yield "  its command or URL is not the one they were pinned for"
    for tool in listed:
        if (difference := differences.get(tool.name)) is not None:
            yield ""
            yield from _tool_report(tool, difference, pins.tools.get(tool.name))
    names = {tool.name for tool in listed}
    for name in pins.tools:
        if name not in names:
            yield f"  {shown(name)} is pinned and not listed now; it keeps its pin"


def _count(listed: Sequence[ToolDefinition]) -> int:
    return sum(bool(tool.name) for tool in listed)


def _tool_report(tool: ToolDefinition, difference: Difference, pin: ToolDefinition | None) -> Iterator[str]:
    if pin is None:
        yield f"+ {shown(tool.name)} (new)"
    else:
        same = difference is Difference.OTHER_SERVER and pin.digest == tool.digest
        yield f"~ {shown(tool.name)} ({'the same' if same else 'changed'})"
    for path, before, after in _changes("", pin.definition if pin is not None else {}, tool.definition):
        yield f"    {spelled_out(path)}"
        if isinstance(before, str) and isinstance(after, str):
            changed = [*zip("-+", _around_change(before, after), strict=True)]
        else:
            changed = [
                (sign, _json(one)) for sign, one in (("-", before), ("+", after)) if one is not _ABSENT
            ]
        yield from (f"      {sign} {spelled_out(text)}" for sign, text in changed)


def _changes(path: str, before: Any, after: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yields every place where two definitions differ, as deep as both are objects."""
    if is_object(before) and is_object(after):
        for key in before | after:
            below = f"{path}.{key}" if path else key
            yield from _changes(below, before.get(key, _ABSENT), after.get(key, _ABSENT))
    elif before is _ABSENT or after is _ABSENT or _json(before) != _json(after):
        yield path, before, after


def _around_change(before: str, after: str) -> tuple[str, str]:
    """Cuts both texts to a little before their first difference and a little after their last; nothing that differs
    is cut away."""
    start = _shared(before, after)
    end = _shared(before[start:][::-1], after[start:][::-1])
    first, last = max(0, start - CONTEXT_CHARS), max(0, end - CONTEXT_CHARS)
    return tuple(
        f"{'…' if first else ''}{text[first : len(text) - last]}{'…' if last else ''}"
        for text in (before, after)
    )  # type: ignore[return-value]


def _shared(one: str, other: str) -> int:
    """Counts the characters at the start of two texts that are the same."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (left, right) in pairs if left != right), min(len(one), len(other)))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
