"""What each client has used: the servers that its scripts imported, and the tools that they called.

A client's tool is described once, when it starts; what it used before says what is worth the room there. Kept in the
state directory are ids of servers, names of tools, days and counts; nothing of what was done with them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, FiniteFloat, TypeAdapter

from cellblock.base.kept import Newest
from cellblock_worker.base.folders import Folder
from cellblock_worker.base.private_files import read_private, write_private

logger = logging.getLogger("cellblock.serve")

USES_FILE: Final = "cellblock-used.json"

MAX_PRINCIPALS: Final = 32
MAX_NAMES: Final = 128
"""Bounds the servers and tools of one principal."""

MAX_USES_BYTES: Final = 6 * 1024 * 1024
"""Bounds the file: more than so many names take, each character of them escaped."""

MAX_NAME_CHARS: Final = 100

HALF_LIFE_DAYS: Final = 14.0
"""Sets the days after which a use counts half."""

DAY_SECONDS: Final = 24 * 3600.0
"""Counts the seconds of a day: for so long a client is shown the same servers, since its model's prompt cache depends
on it."""

_CONTENT: Final = "usesOfServers"
"""Marks the file of uses as Cellblock's."""

Uses = dict[str, dict[str, tuple[FiniteFloat, Annotated[int, Field(ge=0, lt=2**31)]]]]
"""Maps principal and server, or `server.tool`, to uses: how much it was used, and on which day last."""

_FILE: Final = TypeAdapter(dict[str, Uses])


class UseLog:
    """Keeps the uses of one front-end in the state directory."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._seen: set[tuple[str, str]] = set()
        self._ranks = Newest[str, tuple[float, list[str]]](MAX_PRINCIPALS)
        self._writing: asyncio.Task[None] | None = None
        self._waiting: list[tuple[str, str]] = []

    def ranked(self, principal: str) -> list[str]:
        """Returns the servers, and the tools as `server.tool`, that a principal has used, the most used of late first;
        the same answer for a day."""
        now = time.monotonic()
        held = self._ranks.get(principal)
        if held is None or now - held[0] > DAY_SECONDS:
            today = _today()
            uses = (read_uses(self._state_dir) or {}).get(principal[:MAX_NAME_CHARS], {})
            order = sorted(uses, key=lambda name: (-_weight(uses[name], today), name))
            held = self._ranks[principal] = (now, order)
        return held[1]

    def note(self, principal: str, names: Iterable[str]) -> None:
        """Notes that a principal's script has used servers and tools. Counts once for each and start of the
        front-end."""
        new = dict.fromkeys((principal[:MAX_NAME_CHARS], name[:MAX_NAME_CHARS]) for name in names)
        new = [one for one in new if one not in self._seen]
        if not new or len(self._seen) + len(new) > MAX_PRINCIPALS * MAX_NAMES:
            return
        self._seen.update(new)
        self._waiting += new
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())

    async def _write(self) -> None:
        while self._waiting:
            new, self._waiting = self._waiting, []
            try:
                await asyncio.to_thread(add_uses, self._state_dir, new)
            except OSError as error:
                logger.info("what clients use cannot be kept: %s", error)


def read_uses(state_dir: Path) -> Uses | None:
    """Reads the uses that are kept; None where something else has the file's name."""
    try:
        with Folder.named(state_dir) as folder:
            return _FILE.validate_json(read_private(folder, USES_FILE, MAX_USES_BYTES, secret=False))[
                _CONTENT
            ]
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError) as error:
        logger.info("what clients have used is not known: %s", type(error).__name__)
        return None


def add_uses(state_dir: Path, new: Iterable[tuple[str, str]]) -> None:
    """Counts one use more of each of these servers and tools by these principals. What another process adds at the
    same moment may be lost. Raises OSError."""
    uses, today = read_uses(state_dir), _today()
    if uses is None:
        return
    for principal, name in new:
        own = uses.pop(principal, {})
        before = _weight(own.pop(name), today) if name in own else 0.0
        uses[principal] = {**own, name: (round(before + 1, 3), today)}
    # Those that were used last stand last.
    kept = {
        principal: dict(list(own.items())[-MAX_NAMES:])
        for principal, own in list(uses.items())[-MAX_PRINCIPALS:]
    }
    with Folder.named(state_dir) as folder:
        write_private(folder, USES_FILE, json.dumps({_CONTENT: kept}).encode())


def _weight(use: tuple[float, int], today: int) -> float:
    weight, day = use
    return weight * 0.5 ** (max(0, today - day) / HALF_LIFE_DAYS)


def _today() -> int:
    return int(time.time() // DAY_SECONDS)
