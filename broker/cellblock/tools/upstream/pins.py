"""Pins says what a person has approved: what a server's tool definitions were when they were first seen, or last
approved.

A server is its name and the fingerprint of its command or URL: another program under the same name is not compared
with the old one's pins, all its tools count as changed. A `Reviewer` holds tools against their pins, and says which a
script is given.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from cellblock.base.errors import CellblockError, first_few
from cellblock.base.json import is_array, is_object
from cellblock.base.redaction import Redactor
from cellblock.base.settings.sections import Reaction, value_for
from cellblock.base.settings.settings import ServerConfig
from cellblock.base.store import NotShared, Stamp, Store
from cellblock.tools.catalog.model import Withheld
from cellblock.tools.upstream.definitions import (
    LATER,
    ToolDefinition,
    canonical,
    digest,
    file_stem,
    from_json,
    left_out,
    shown,
)
from cellblock.tools.upstream.installs import package_of
from cellblock_worker.base.folders import InTheWay
from cellblock_worker.base.private_files import TooLarge

logger = logging.getLogger("cellblock.tools.upstream")

PINS_DIR: Final = "pins"
"""Names the folder of pins in the state directory."""

FORMAT: Final = 1

MAX_FILE_BYTES: Final = 256 * 1024 * 1024
"""Bounds a pin file: more than any list of tools within the caps makes, approved many times over."""

_PARTS: Final = {"title": str, "description": str, "annotations": dict, "icons": list, "_meta": dict}
"""Names what a definition has at most beside its name and its schemas, which may be anything."""


class Difference(Enum):
    """Says how a listed tool differs from its pin; the value is the end of a sentence about the tool."""

    CHANGED = "its definition has changed since it was pinned"
    NEW = "it is new since the server's tools were pinned"
    OTHER_SERVER = "it was pinned for another command or URL"


@dataclass(frozen=True, slots=True)
class Pins:
    """Holds all pins of one server.

    Attributes:
        origin: The fingerprint of its command or URL.
        tools: By name; those that it has had at any time, so that none comes back as another.
        gone: Names of those that it did not list any more when it was last seen.
        is_of_persons: Whether they are from lists that several persons have: nobody may see them all.
    """

    origin: str
    tools: Mapping[str, ToolDefinition] = field(default_factory=dict[str, ToolDefinition])
    gone: frozenset[str] = frozenset()
    is_of_persons: bool = False

    def differences(self, origin: str, tools: Iterable[ToolDefinition]) -> dict[str, Difference]:
        """Returns the listed tools that are not as pinned. A pinned tool that is not listed is no difference."""
        found: dict[str, Difference] = {}
        for tool in tools:
            pin = self.tools.get(tool.name)
            if origin != self.origin:
                found[tool.name] = Difference.OTHER_SERVER
            elif pin is None:
                # First sights: of an introduction that pins of 0.1.0 lack, or of tools where there were none.
                if tool.name and any(self.tools):
                    found[tool.name] = Difference.NEW
            elif not tool.is_as_pinned(pin):
                found[tool.name] = Difference.CHANGED
        return found

    def approving(self, origin: str, tools: Iterable[ToolDefinition]) -> Pins:
        """Returns the pins with these tools as they are now; pins of another command or URL are dropped."""
        kept = dict(self.tools) if origin == self.origin else {}
        pinned = {tool.name: tool for tool in tools}
        gone = self.gone & kept.keys() - pinned.keys()
        return Pins(origin, {**kept, **pinned}, gone, self.is_of_persons)

    def seen(self, tools: Iterable[ToolDefinition], *, whole: bool = True) -> Pins:
        """Returns the same pins, of a server that lists these tools now; `whole` says whether they are all that it
        lists. What is there for the first time gets its pin, as in `differences`, and what early pins lack is added."""
        now = {tool.name: tool for tool in tools}
        may_be_gone = self.tools.keys() if whole else self.gone
        first = {name: tool for name, tool in now.items() if not name or not any(self.tools)}
        same = {
            name: now[name] for name, pin in self.tools.items() if name in now and now[name].is_as_pinned(pin)
        }
        return Pins(self.origin, {**first, **self.tools, **same}, frozenset(may_be_gone - now.keys()))

    def listed(self) -> dict[str, ToolDefinition]:
        """Returns the pins of tools that the server listed when it was last seen."""
        return {name: pin for name, pin in self.tools.items() if name not in self.gone}


def fingerprint(config: ServerConfig) -> str:
    """Says which program or address a server's configuration names, as a hash.

    Secrets are no part of it: a new key makes no new server, and the hash tells nobody anything about the old one.
    """
    redactor = Redactor(config)
    if config.url is not None:
        parts = urlsplit(config.url)
        host = parts.netloc.rpartition("@")[2].lower()
        identity: dict[str, Any] = {"url": redactor.text(f"{parts.scheme}://{host}{parts.path}")}
    else:
        arguments = [redactor.text(argument) for argument in config.args]
        identity = {"command": config.command, "args": arguments}
    return digest(canonical(identity))


class PinError(CellblockError):
    """Tells that a pin file cannot be read, is not what Cellblock wrote, or cannot be written."""


class PinStore:
    """Reads and writes the pins of each server.

    Args:
        store: Where they are.
    """

    def __init__(self, store: Store) -> None:
        # A tool is no secret, and what others may write is found out by its digest alone where it is in a file.
        self.shelf: Final = store.shelf(
            PINS_DIR, MAX_FILE_BYTES, secret=False, stem=lambda one: file_stem(one, one, 12)
        )

    def load(self, server: str) -> Pins | None:
        """Returns the pins of a server; None when it has none yet.

        Raises:
            PinError: There are some, and they cannot be read or are damaged; or it is not known whether there are.
        """
        try:
            raw = self.shelf.read(server)
        except FileNotFoundError:
            return None
        except TooLarge:
            raise self._unusable(server, "is too large") from None
        except OSError as error:
            raise self._failed(server, "read", error) from None
        try:
            # With a hook in Python, a thread that reads a long file lets others have their turn.
            return _read(json.loads(raw, object_hook=lambda value: value), server)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise self._unusable(server, f"is damaged ({type(error).__name__})") from None

    def write(self, server: str, pins: Pins, *, replace: bool, only: Stamp | None = None) -> bool:
        """Writes a server's pins; those that there are only to `replace` them, and, given `only`, no other version than
        that. Says whether it did.

        Raises:
            PinError: They cannot be written.
        """
        data = {
            "format": FORMAT,
            "server": server,
            "origin": pins.origin,
            "tools": {name: _entry(pin) for name, pin in pins.tools.items()},
            "gone": sorted(pins.gone),
            **({"ofPersons": True} if pins.is_of_persons else {}),
        }
        # ASCII: a lone surrogate in an upstream's text is no UTF-8.
        text = json.dumps(data, indent=1).encode("ascii")
        try:
            return self.shelf.write(server, text, replace=replace, only=only)
        except OSError as error:
            raise self._failed(server, "written", error) from None

    # ---- inside --------------------------------------------------------------------------------------

    def _failed(self, server: str, what: str, error: OSError) -> PinError:
        if isinstance(error, InTheWay):
            return PinError(f"{error}.", hint="Move it away, or use another --state-dir.")
        if isinstance(error, NotShared):
            return PinError(
                f"The pins of {server} cannot be {what}: {error.strerror}.",
                hint="Wait until PostgreSQL is back.",
            )
        return self._unusable(server, f"cannot be {what}: {error.strerror}")

    def _unusable(self, server: str, what: str) -> PinError:
        return PinError(
            f"The pin file {self.shelf.where(server)} {what}.",
            hint=f"Mend it, or make it anew with `cellblock pins approve {shlex.quote(server)} --all`.",
        )


def _entry(pin: ToolDefinition) -> dict[str, Any]:
    """Returns a pin as 0.1.0 reads it, too: what that does not know is beside the definition."""
    early = pin.without_later()
    entry = {"digest": early.digest, "definition": dict(early.definition)}
    if pin.early:
        return entry
    later = {part: pin.definition[part] for part in LATER if part in pin.definition}
    return {**entry, **later, "whole": pin.digest}


def _read(data: Any, server: str) -> Pins:
    if not is_object(data["tools"]):
        raise TypeError("tools is no object")
    if data["format"] != FORMAT or data["server"] != server or not isinstance(data["origin"], str):
        raise ValueError("not a pin file of this server")
    tools: dict[str, ToolDefinition] = {}
    for name, entry in data["tools"].items():
        definition: object = entry["definition"]
        # The definition is what an approval shows as the old one; it must be what the digest stands for.
        if not is_object(definition) or definition.get("name") != name:
            raise ValueError("a definition is not of its tool")
        whole = {**definition, **{part: entry[part] for part in LATER if part in entry}}
        if not all(isinstance(whole.get(part), kind | None) for part, kind in _PARTS.items()):
            raise ValueError("a part of a definition is of another kind")
        pin = from_json(whole)
        if pin.without_later().digest != entry["digest"] or pin.digest != entry.get("whole", entry["digest"]):
            raise ValueError("a definition does not fit its digest")
        tools[name] = replace(pin, early="whole" not in entry)
    # A file of an earlier version has none.
    gone = data.get("gone", [])
    if not is_array(gone) or not all(name in tools for name in gone):
        raise ValueError("gone is no list of pinned tools")
    return Pins(data["origin"], tools, frozenset(gone), data.get("ofPersons") is True)


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
        return server in self._open and self._store.shelf.stamp(server) != self._open[server]

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
        stamp = self._store.shelf.stamp(server)
        is_shared = self._store.shelf.is_shared
        try:
            pins = self._pins(server, config, tools, may_write=not is_shared)
        except PinError as error:
            self._open.setdefault(server, _AGAIN if is_shared and stamp is None else stamp)
            self._tell(server, str(error))
            if reaction == "warn":
                return Review(tuple(tools), warnings=(str(error),))
            why = error.message.rstrip(".")
            withheld = tuple(left_out(tool.name, why, error.hint) for tool in tools)
            return Review((), withheld, (str(error),), known=frozenset(tool.name for tool in tools))
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
        approve = f"Ask the user to review it: `cellblock pins approve {shlex.quote(server)}"
        return Review(
            offered=tuple(tool for tool in tools if tool.name not in differences),
            withheld=tuple(
                left_out(name, difference.value, f"{approve} {shlex.quote(shown(name))}`.")
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
        origin = fingerprint(config)
        first = replace(Pins(origin).approving(origin, tools), is_of_persons=config.login == "each")
        if self._store.write(server, first, replace=False):
            logger.info("upstream %s: %d tools are pinned", server, len(tools))
        return self._load(server)

    def _load(self, server: str) -> Pins | None:
        """Loads pins as `PinStore.load` does, each version of a file once."""
        stamp = self._store.shelf.stamp(server)
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
            stamp = self._store.shelf.stamp(server)
            pins = self._pins(server, config, tools)
            if stamp is None or pins is None or pins.origin != fingerprint(config):
                return
            seen = replace(pins.seen(tools, whole=whole), is_of_persons=config.login == "each")
            if seen != pins and self._notes[server] < MAX_NOTES:
                self._notes[server] += 1
                self._store.write(server, seen, replace=True, only=stamp)
                self._load(server)

    def _tell(self, server: str, warning: str) -> None:
        if self._warnings.get(server) != warning:
            self._warnings[server] = warning
            logger.warning("upstream %s: %s", server, warning)


def _is_local(config: ServerConfig) -> bool:
    """Says whether a server is a program that is on this machine, and not fetched from somewhere when it starts."""
    if config.url is not None or config.command is None:
        return False
    fetched = package_of([config.command, *config.args]) is not None
    return not fetched and Path(config.command).name not in _CONTAINERS


def of_its_tools(names: Collection[str], of: str = "") -> str:
    """Counts tools by their names, apart from the introduction, whose name is empty."""
    tools = sum(map(bool, names))
    return " and ".join([f"{tools} of {of or 'its'} tools"] * bool(tools) + [shown("")] * ("" in names))


def _summary(server: str, reaction: Reaction, differences: Mapping[str, Difference]) -> str:
    names = [shown(name) for name in differences if name]
    what = "are left out" if reaction == "quarantine" else "are used all the same"
    kinds = set(differences.values())
    why = (
        "were pinned for another command or URL"
        if kinds == {Difference.OTHER_SERVER}
        else "are new or not as they were pinned"
    )
    which = f": {first_few(names, MAX_NAMED)}" if names else ""
    return (
        f"{of_its_tools(differences)} {why} and {what}{which}. "
        f"Review them: `cellblock pins approve {shlex.quote(server)}`."
    )
