"""Where pins are kept: one JSON file for each server, 0600, replaced as a whole."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shlex
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final, cast

from cellblock.base.errors import CellblockError
from cellblock.upstream.definitions import canonical, digest
from cellblock.upstream.pins.pins import Pin, Pins
from cellblock_worker.base.folders import Folder, InTheWay

PINS_DIR: Final = "pins"
"""In the state directory."""

FORMAT: Final = 1

MAX_FILE_BYTES: Final = 256 * 1024 * 1024
"""More than any list of tools within the caps makes, approved many times over."""

_PARTS: Final = {"title": str, "description": str, "annotations": dict}
"""What a definition has at most beside its name and its schemas, which may be anything."""

Stamp = tuple[int, int, int]
"""Inode, modification time in nanoseconds, size: what tells one version of a file from another."""


class PinError(CellblockError):
    """A pin file cannot be read, is not what Cellblock wrote, or cannot be written."""


class PinStore:
    """The pin files in one directory, which is made when the first is written."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def path(self, server: str) -> Path:
        """The file of a server; names that look alike in a file system have different ones."""
        safe = "".join(
            char if char.isascii() and (char.isalnum() or char in "-_") else "_" for char in server
        )
        tail = hashlib.sha256(server.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        return self._directory / f"{safe[:60]}-{tail}.json"

    def stamp(self, server: str) -> Stamp | None:
        """What version of the file there is; None without one."""
        try:
            status = self.path(server).stat(follow_symlinks=False)
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def load(self, server: str) -> Pins | None:
        """The pins of a server; None when it has none yet.

        Raises:
            PinError: There is a file, and it cannot be read or is damaged.
        """
        path = self.path(server)
        try:
            with Folder.inside(self._directory) as folder:
                descriptor = folder.open(path.name, os.O_RDONLY)
            with os.fdopen(descriptor, "rb") as file:
                raw = file.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failed(server, "read", error) from None
        if len(raw) > MAX_FILE_BYTES:
            raise self._unusable(server, "is too large")
        try:
            # With a hook in Python, a thread that reads a long file lets others have their turn.
            return _read(json.loads(raw, object_hook=lambda value: value), server)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise self._unusable(server, f"is damaged ({type(error).__name__})") from None

    def create(self, server: str, pins: Pins) -> bool:
        """Writes a server's first pins; False when another process was faster.

        Raises:
            PinError: The file cannot be written.
        """
        name = self.path(server).name
        with self._opened(server) as folder, self._written(folder, server, pins) as new:
            try:
                folder.link(new, name)
            except FileExistsError:
                return False
            except OSError:
                # A file system without hard links: two brokers that start at once may then both write.
                folder.replace(new, name)
        return True

    def replace(self, server: str, pins: Pins, *, only: Stamp | None = None) -> None:
        """Writes a server's pins over those that there are; given `only`, over no other version than that.

        Raises:
            PinError: The file cannot be written.
        """
        with self._opened(server) as folder, self._written(folder, server, pins) as new:
            if only is None or self.stamp(server) == only:
                folder.replace(new, self.path(server).name)

    # ---- inside --------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _opened(self, server: str) -> Generator[Folder]:
        """The directory, to be written to; what goes wrong there is a PinError."""
        try:
            with Folder.inside(self._directory, make=True) as folder:
                yield folder
        except OSError as error:
            raise self._failed(server, "written", error) from None

    @contextlib.contextmanager
    def _written(self, folder: Folder, server: str, pins: Pins) -> Generator[str]:
        """The name of a new file with a server's pins, which does not stay under it."""
        data = {
            "format": FORMAT,
            "server": server,
            "origin": pins.origin,
            "tools": {
                name: {"digest": pin.digest, "definition": dict(pin.definition)}
                for name, pin in pins.tools.items()
            },
            "gone": sorted(pins.gone),
        }
        name = f".pins-{secrets.token_hex(8)}"
        descriptor = folder.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            # ASCII: a lone surrogate in an upstream's text is no UTF-8.
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                json.dump(data, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            yield name
        finally:
            # A full disk must not get fuller with every attempt.
            folder.remove(name)

    def _failed(self, server: str, what: str, error: OSError) -> PinError:
        if isinstance(error, InTheWay):
            return PinError(f"{error}.", hint="Move it away, or use another --state-dir.")
        return self._unusable(server, f"cannot be {what}: {error.strerror}")

    def _unusable(self, server: str, what: str) -> PinError:
        return PinError(
            f"The pin file {self.path(server)} {what}.",
            hint=f"Mend it, or make it anew with `cellblock approve {shlex.quote(server)} --all`.",
        )


def _read(data: Any, server: str) -> Pins:
    if not isinstance(data["tools"], dict):
        raise TypeError("tools is no object")
    if data["format"] != FORMAT or data["server"] != server or not isinstance(data["origin"], str):
        raise ValueError("not a pin file of this server")
    tools: dict[str, Pin] = {}
    for name, entry in cast("dict[str, Any]", data["tools"]).items():
        definition: object = entry["definition"]
        # The definition is what an approval shows as the old one; it must be what the digest stands for.
        if not isinstance(definition, dict) or digest(canonical(definition)) != entry["digest"]:
            raise ValueError("a definition does not fit its digest")
        known = cast("dict[str, Any]", definition)
        if known.get("name") != name or not all(
            isinstance(known.get(part), kind | None) for part, kind in _PARTS.items()
        ):
            raise ValueError("a definition is not of its tool")
        tools[name] = Pin(entry["digest"], known)
    # A file of an earlier version has none.
    gone = cast("dict[str, Any]", data).get("gone", [])
    if not isinstance(gone, list) or not all(name in tools for name in cast("list[object]", gone)):
        raise ValueError("gone is no list of pinned tools")
    return Pins(data["origin"], tools, frozenset(cast("list[str]", gone)))
