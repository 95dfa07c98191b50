"""Pins says what a person has approved: what a server's tool definitions were when they were first seen, or last
approved.

A server is its name and the fingerprint of its command or URL: another program under the same name is not compared
with the old one's pins, all its tools count as changed.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final
from urllib.parse import urlsplit

from cellblock.base.errors import CellblockError
from cellblock.base.json import is_array, is_object
from cellblock.base.redaction import Redactor
from cellblock.base.settings.settings import ServerConfig
from cellblock.base.store import NotShared, Stamp, Store
from cellblock.tools.upstream.definitions import (
    LATER,
    ToolDefinition,
    canonical,
    digest,
    file_stem,
    from_json,
)
from cellblock_worker.base.folders import InTheWay
from cellblock_worker.base.private_files import TooLarge

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


def first_pins(origin: str, tools: Iterable[ToolDefinition]) -> Pins:
    """Pins tools at their first sight (trust on first use)."""
    return Pins(origin, {tool.name: tool for tool in tools})


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
        self.shelf: Final = store.shelf(PINS_DIR, MAX_FILE_BYTES, secret=False, stem=_stem)

    def stamp(self, server: str) -> Stamp | None:
        """Returns the stamp of a server's pins; None without them."""
        return self.shelf.stamp(server)

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

    def create(self, server: str, pins: Pins) -> bool:
        """Writes a server's first pins; False when another process was faster.

        Raises:
            PinError: They cannot be written.
        """
        return self._write(server, pins, replace=False)

    def replace(self, server: str, pins: Pins, *, only: Stamp | None = None) -> bool:
        """Writes a server's pins over those that there are; given `only`, over no other version than that, and says
        whether it did.

        Raises:
            PinError: They cannot be written.
        """
        return self._write(server, pins, replace=True, only=only)

    # ---- inside --------------------------------------------------------------------------------------

    def _write(self, server: str, pins: Pins, *, replace: bool, only: Stamp | None = None) -> bool:
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


def _stem(server: str) -> str:
    """Returns how the file of a server is called: names that look alike in a file system have different ones."""
    return file_stem(server, server, 12)


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
