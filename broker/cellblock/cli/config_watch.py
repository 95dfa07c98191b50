"""Notices that a configuration file has changed, and has it taken over. A broken file changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from cellblock.base.errors import CellblockError
from cellblock.config.settings import Settings

CHECK_SECONDS: Final = 2.0
"""Between two looks at the file; one takes some 20 microseconds. inotify would need a library, and misses network
file systems."""

SETTLE_SECONDS: Final = 0.2
"""A file that changes within this time is still being written."""

SETTLE_LOOKS: Final = 25
"""A file that never comes to rest is read after so many looks."""

Stamp = tuple[tuple[int, int, int] | None, ...]


class ConfigWatch:
    """Looks at a configuration file and at the files that its references name.

    Args:
        path: The configuration file.
        files: The files that the settings in force refer to.
        load: Reads the file; raises ConfigError.
        apply: Takes the settings over, and says what came of it, a sentence each; raises ConfigError.
        say: Told every sentence, for people.
    """

    def __init__(
        self,
        path: Path,
        files: Sequence[Path],
        *,
        load: Callable[[], Settings],
        apply: Callable[[Settings], Sequence[str]],
        say: Callable[[str], None],
    ) -> None:
        self._path = path
        self._files = tuple(files)
        self._load = load
        self._apply = apply
        self._say = say
        self._asked = asyncio.Event()
        self._seen = self._stamp()

    def look_now(self) -> None:
        """Reads the file at once, changed or not; for SIGHUP."""
        self._asked.set()

    async def run(self) -> None:
        """Watches until it is cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CHECK_SECONDS):
                    await self._asked.wait()
            asked = self._asked.is_set()
            self._asked.clear()
            if asked or self._stamp() != self._seen:
                await self._at_rest()
                self._reload(asked)

    # ---- inside --------------------------------------------------------------------------------------

    async def _at_rest(self) -> None:
        for _ in range(SETTLE_LOOKS):
            before = self._stamp()
            await asyncio.sleep(SETTLE_SECONDS)
            if self._stamp() == before:
                return

    def _reload(self, asked: bool) -> None:
        # Before it is read: what is written meanwhile is noticed at the next look.
        self._seen = self._stamp()
        try:
            settings = self._load()
            said = self._apply(settings)
        except (CellblockError, OSError) as error:
            self._say(f"the configuration is not taken over, and the old one stays in force: {error}")
            return
        if settings.files != self._files:
            self._files = settings.files
            self._seen = self._stamp()
        for sentence in said:
            self._say(f"configuration: {sentence}")
        if asked and not said:
            self._say("configuration: nothing has changed")

    def _stamp(self) -> Stamp:
        return tuple(_stamp_of(file) for file in (self._path, *self._files))


def _stamp_of(file: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)  # noqa: PTH116 - half the time of Path.stat
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
