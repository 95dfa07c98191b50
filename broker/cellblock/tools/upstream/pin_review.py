"""Holds a server's tools against their pins, and says which a script is given."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from cellblock.base.errors import first_few
from cellblock.base.settings.sections import Reaction, value_for
from cellblock.base.settings.settings import ServerConfig
from cellblock.base.store import Stamp
from cellblock.tools.catalog.model import Withheld
from cellblock.tools.upstream.definitions import ToolDefinition, left_out, shown
from cellblock.tools.upstream.installs import package_of
from cellblock.tools.upstream.pins import (
    Difference,
    PinError,
    Pins,
    PinStore,
    fingerprint,
    first_pins,
)

logger = logging.getLogger("cellblock.tools.upstream")

MAX_NAMED = 5
"""Bounds the tools named in one warning."""

MAX_NOTES = 64
"""Bounds how often a broker writes which tools a server lists no more: one whose list flaps does not keep the disk
busy."""


_CONTAINERS = frozenset({"docker", "podman"})

_AGAIN = -1
"""Stands for the stamp of no pins: they are looked at again before the next run, though none have been written."""


@dataclass(frozen=True, slots=True)
class Review:
    """Says what became of one tool list. `differing` maps offered tools that are not as pinned to what is different."""

    offered: tuple[ToolDefinition, ...]
    withheld: tuple[Withheld, ...] = ()
    warnings: tuple[str, ...] = ()
    differing: Mapping[str, str] = field(default_factory=dict[str, str])
    known: frozenset[str] = frozenset()
    """Holds the names of pinned tools: they keep their export names whatever else the server lists."""


class Reviewer:
    """Makes pins at the first sight of a server, and compares ever after.

    A pin file is read when a server's tools have been read, and again before a run that names a server with
    something to approve, when the file has changed since: an approval needs no restart, and nothing else a look.
    What `prepare` and `pinned` have read beside the loop, `review` does not read again.
    """

    def __init__(self, reactions: Mapping[str, Reaction], store: PinStore) -> None:
        self._reactions = reactions
        self._store = store
        self._open: dict[str, Stamp | None] = {}
        self._warnings: dict[str, str] = {}
        self._read: dict[str, tuple[Stamp | None, Pins | PinError | None]] = {}
        self._notes: Counter[str] = Counter()

    def use(self, reactions: Mapping[str, Reaction]) -> None:
        """Takes over other reactions; every server has to be reviewed anew then."""
        self._reactions = reactions

    def quarantines(self, server: str) -> bool:
        """Says whether only the approved tools of a server are there."""
        return value_for(server, self._reactions) == "quarantine"

    def forget(self, server: str | None = None) -> None:
        """Has a server reviewed anew, or all, and nobody asked to approve until then."""
        for one in [*self._open] if server is None else [server]:
            self._open.pop(one, None)

    def approved_meanwhile(self, server: str) -> bool:
        """Says whether the pins of a server with something to approve have changed since its last review, or since the
        first of the lists that persons have."""
        return server in self._open and self._store.stamp(server) != self._open[server]

    def pinned(self, server: str, config: ServerConfig) -> tuple[ToolDefinition, ...]:
        """Returns the tools of a server as they were last approved, but those that it listed no more, to be shown while
        it starts; none where nothing is pinned for this command or URL, where the lists were persons' own, or pins are
        off. For a thread."""
        if value_for(server, self._reactions) == "off":
            return ()
        self._store.shelf.wait()
        try:
            pins = self._load(server)
        except PinError:
            # The review says so, as soon as there is something to review.
            return ()
        if pins is None or pins.is_of_persons or pins.origin != fingerprint(config):
            return ()
        return tuple(pins.listed().values())

    async def prepare(
        self, server: str, config: ServerConfig, tools: Sequence[ToolDefinition], *, whole: bool = True
    ) -> None:
        """Does in a thread what `review` of these tools would wait for, and notes in the pins what they lack.

        Args:
            server: Its name in the configuration.
            config: Its entry there.
            tools: As for `review`.
            whole: Whether they are all that the server lists.
        """
        if value_for(server, self._reactions) != "off":
            await asyncio.to_thread(self._prepare, server, config, tools, whole)

    def review(self, server: str, config: ServerConfig, tools: Sequence[ToolDefinition]) -> Review:
        """Decides which tools a script is given, by the configured reaction."""
        reaction = value_for(server, self._reactions)
        if reaction == "auto":
            reaction = "warn" if _is_local(config) else "quarantine"
        if not config.is_personal:
            self._open.pop(server, None)
        if reaction == "off":
            return Review(tuple(tools))
        stamp = self._store.stamp(server)
        is_shared = self._store.shelf.is_shared
        try:
            pins = self._pins(server, config, tools, may_write=not is_shared)
        except PinError as error:
            self._open.setdefault(server, _AGAIN if is_shared and stamp is None else stamp)
            is_strict = self.quarantines(server)
            return self._without_pins(server, "quarantine" if is_strict else "warn", tools, error)
        if pins is None:
            return Review(tuple(tools))
        differences = pins.differences(fingerprint(config), tools)
        if not differences:
            self._warnings.pop(server, None)
            return Review(tuple(tools), known=frozenset(pins.tools))
        self._open.setdefault(server, stamp)
        warning = _summary(server, reaction, differences)
        self._tell(server, warning)
        if reaction == "warn":
            differing = {name: difference.value for name, difference in differences.items()}
            return Review(tuple(tools), warnings=(warning,), differing=differing, known=frozenset(pins.tools))
        return Review(
            offered=tuple(tool for tool in tools if tool.name not in differences),
            withheld=tuple(
                left_out(name, difference.value, _approve_hint(server, name))
                for name, difference in differences.items()
            ),
            warnings=(warning,),
            known=frozenset(pins.tools),
        )

    # ---- inside --------------------------------------------------------------------------------------

    def _pins(
        self, server: str, config: ServerConfig, tools: Sequence[ToolDefinition], *, may_write: bool = True
    ) -> Pins | None:
        pins = self._load(server)
        if pins is not None or not tools:
            return pins
        if not may_write:
            # Whatever is first here may be second to another broker.
            raise PinError(
                f"The pins of {server} could not be written yet.", hint="Wait until PostgreSQL is back."
            )
        first = replace(first_pins(fingerprint(config), tools), is_of_persons=_is_of_persons(config))
        if self._store.create(server, first):
            logger.info("upstream %s: %d tools are pinned", server, len(tools))
        return self._load(server)

    def _load(self, server: str) -> Pins | None:
        """Loads pins as `PinStore.load` does, each version of a file once."""
        stamp = self._store.stamp(server)
        held = self._read.get(server)
        if held is None or held[0] != stamp:
            try:
                held = stamp, self._store.load(server)
            except PinError as error:
                held = stamp, error
            self._read[server] = held
        if isinstance(held[1], PinError):
            raise held[1].with_traceback(None)
        return held[1]

    def _prepare(
        self, server: str, config: ServerConfig, tools: Sequence[ToolDefinition], whole: bool
    ) -> None:
        if isinstance(self._read.get(server, (None, None))[1], PinError):
            # What was wrong need not be the file itself.
            self._read.pop(server, None)
        self._store.shelf.wait()
        # The review says so.
        with contextlib.suppress(PinError):
            stamp = self._store.stamp(server)
            pins = self._pins(server, config, tools)
            if stamp is None or pins is None or pins.origin != fingerprint(config):
                return
            seen = replace(pins.seen(tools, whole=whole), is_of_persons=_is_of_persons(config))
            if seen != pins and self._notes[server] < MAX_NOTES:
                self._notes[server] += 1
                self._store.replace(server, seen, only=stamp)
                self._load(server)

    def _without_pins(
        self, server: str, reaction: Reaction, tools: Sequence[ToolDefinition], error: PinError
    ) -> Review:
        self._tell(server, str(error))
        if reaction == "warn":
            return Review(tuple(tools), warnings=(str(error),))
        why = error.message.rstrip(".")
        withheld = tuple(left_out(tool.name, why, error.hint) for tool in tools)
        return Review((), withheld, (str(error),), known=frozenset(tool.name for tool in tools))

    def _tell(self, server: str, warning: str) -> None:
        if self._warnings.get(server) != warning:
            self._warnings[server] = warning
            logger.warning("upstream %s: %s", server, warning)


def _is_of_persons(config: ServerConfig) -> bool:
    return config.login == "each"


def _is_local(config: ServerConfig) -> bool:
    """Says whether a server is a program that is on this machine, and not fetched from somewhere when it starts."""
    if config.url is not None or config.command is None:
        return False
    fetched = package_of([config.command, *config.args]) is not None
    return not fetched and Path(config.command).name not in _CONTAINERS


def _approve_hint(server: str, tool: str) -> str:
    return f"Ask the user to review it: `cellblock pins approve {shlex.quote(server)} {shlex.quote(shown(tool))}`."


def _summary(server: str, reaction: Reaction, differences: Mapping[str, Difference]) -> str:
    names = [shown(name) for name in differences]
    what = "are left out" if reaction == "quarantine" else "are used all the same"
    kinds = set(differences.values())
    why = (
        "were pinned for another command or URL"
        if kinds == {Difference.OTHER_SERVER}
        else "are new or not as they were pinned"
    )
    return (
        f"{len(names)} of its tools {why} and {what}: {first_few(names, MAX_NAMED)}. "
        f"Review them: `cellblock pins approve {shlex.quote(server)}`."
    )
