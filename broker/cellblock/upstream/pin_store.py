"""Where pins are kept: one JSON file for each server, 0600, replaced as a whole."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import tempfile
from pathlib import Path
from typing import Any, Final, cast

from cellblock.errors import CellblockError
from cellblock.upstream.definitions import canonical, digest
from cellblock.upstream.pins import Pin, Pins

PINS_DIR: Final = "pins"
"""In the state directory."""

FORMAT: Final = 1

MAX_FILE_BYTES: Final = 256 * 1024 * 1024
"""More than any list of tools within the caps makes, approved many times over."""

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
            status = self.path(server).stat()
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
            with path.open("rb") as file:
                raw = file.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable(server, f"cannot be read: {error.strerror}") from None
        if len(raw) > MAX_FILE_BYTES:
            raise self._unusable(server, "is too large")
        try:
            return _read(json.loads(raw), server)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise self._unusable(server, f"is damaged ({type(error).__name__})") from None

    def create(self, server: str, pins: Pins) -> bool:
        """Writes a server's first pins; False when another process was faster.

        Raises:
            PinError: The file cannot be written.
        """
        temporary = self._write(server, pins)
        try:
            os.link(temporary, self.path(server))
        except FileExistsError:
            return False
        except OSError:
            # A file system without hard links: two brokers that start at once may then both write.
            self.replace(server, pins)
        finally:
            temporary.unlink(missing_ok=True)
        return True

    def replace(self, server: str, pins: Pins) -> None:
        """Writes a server's pins over those that there are.

        Raises:
            PinError: The file cannot be written.
        """
        temporary = self._write(server, pins)
        try:
            temporary.replace(self.path(server))
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise self._unusable(server, f"cannot be written: {error.strerror}") from None

    # ---- inside --------------------------------------------------------------------------------------

    def _write(self, server: str, pins: Pins) -> Path:
        data = {
            "format": FORMAT,
            "server": server,
            "origin": pins.origin,
            "tools": {
                name: {"digest": pin.digest, "definition": dict(pin.definition)}
                for name, pin in pins.tools.items()
            },
        }
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, name = tempfile.mkstemp(prefix=".pins-", dir=self._directory)  # 0600
        except OSError as error:
            raise self._unusable(server, f"cannot be written: {error.strerror}") from None
        temporary = Path(name)
        try:
            # ASCII: a lone surrogate in an upstream's text is no UTF-8.
            with os.fdopen(handle, "w", encoding="ascii") as file:
                json.dump(data, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            # A full disk must not get fuller with every attempt.
            temporary.unlink(missing_ok=True)
            raise self._unusable(server, f"cannot be written: {error.strerror}") from None
        return temporary

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
        tools[name] = Pin(entry["digest"], cast("dict[str, Any]", definition))
    return Pins(data["origin"], tools)
