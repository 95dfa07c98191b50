"""The host makes one DENO_DIR with what Deno has found out about the boot script, read-only for every worker.

Deno keeps what it has found out about a module in SQLite files. A worker without such files makes them in memory and
parses the boot script itself, which takes a fifth of its boot. A worker of our own that never sees a script fills a
folder; what workers are shown is a copy of it that none of them can write, so that no run can leave anything to
another. Only bubblewrap can make a folder read-only for a process: without it, a worker has a DENO_DIR that cannot be.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from cellblock_worker.base.folders import Folder, remove_folder, remove_known
from cellblock_worker.confinement import confinement
from cellblock_worker.confinement.bubblewrap import HeldFiles
from cellblock_worker.confinement.selftest import SelfTestFailed, SelfTestNotMade, run_once, run_selftest
from cellblock_worker.host.deno_files import CONTENTS, FILLED, FOLDER_NAME, OF_DENO, SHOWN
from cellblock_worker.worker.rehearsal import WARM_FRAME

logger = logging.getLogger("cellblock.host")

IDLE_PAUSE_SECONDS: Final = 2.0
"""Bounds the time from the host's first word to the filling, so that it takes no core from what has just started."""

FILL_BOUND_SECONDS: Final = 10.0
"""Bounds one start of a worker that fills the folder, which takes about 60 ms."""

FILL_ROUNDS: Final = 2
"""Fills the folder twice: the second worker finds the files of the first, as later workers will."""

MAX_FILE_BYTES: Final = 16 * 1024 * 1024
"""Caps a file that is copied; ours have under 100 KB."""


class DenoDir:
    """Owns the folder that all workers of a host see as DENO_DIR.

    Args:
        parent: Where to make it, in place of what a killed host has left there: a folder only this user can enter, and
            only one host at a time uses. None: a new one in the system's folder for temporary files.
        max_old_space_mb: As for `confinement.launch`.
        wanted: Set when so many workers have booted that it is worth its making.
        on_shown: Called when later workers may see it.
    """

    def __init__(
        self,
        parent: Path | None,
        max_old_space_mb: int,
        wanted: asyncio.Event,
        on_shown: Callable[[], Awaitable[None]],
    ) -> None:
        self._parent = parent
        self._max_old_space_mb = max_old_space_mb
        self._wanted = wanted
        self._on_shown = on_shown
        self._folder: Path | None = None
        self._held = HeldFiles()

    async def serve(self) -> None:
        """Fills the folder when it is worth it, tests a worker that sees it, and lets later workers see it.

        Whatever goes wrong is logged, and then workers boot without it.
        """
        await asyncio.sleep(IDLE_PAUSE_SECONDS)
        await self._wanted.wait()
        try:
            shown = await self._make()
            if shown is None:
                return
            self._held.hold([shown])
            await run_selftest(self._max_old_space_mb, str(shown))
            confinement.use_deno_dir(str(shown))
            await self._on_shown()
        except (OSError, SelfTestFailed, SelfTestNotMade, ValueError) as error:
            logger.warning("workers boot without a DENO_DIR of their own: %s", error)

    def close(self) -> None:
        """Removes the DENO_DIR. Workers that still run keep what they see of it."""
        confinement.use_deno_dir(None)
        self._held.close()
        if self._folder is not None:
            _remove(self._folder)
            self._folder = None

    async def _make(self) -> Path | None:
        if self._parent is None:
            self._folder = Path(tempfile.mkdtemp(prefix="cellblock-deno-"))
        else:
            self._folder = self._parent / FOLDER_NAME
        with Folder.inside(self._folder, make=True) as folder:
            remove_known(folder, CONTENTS)
            for name in (FILLED, SHOWN):
                os.mkdir(name, 0o700, dir_fd=folder.descriptor)
        filled, shown = self._folder / FILLED, self._folder / SHOWN
        for script in confinement.worker_scripts() * FILL_ROUNDS:
            if not await self._fill(str(filled), script):
                return None
        _copy_open(filled, shown)
        with Folder.inside(self._folder) as folder:
            remove_known(folder, {FILLED: OF_DENO})
        return shown

    async def _fill(self, folder: str, script: str) -> bool:
        launch = confinement.launch_filling(folder, self._max_old_space_mb, script)
        if launch is None:
            return False
        done = await run_once(launch, FILL_BOUND_SECONDS, WARM_FRAME)
        if done.returncode != 0 or not done.output:
            raise ValueError(f"a worker that fills it ended with {done.returncode}: {done.stderr_text}")
        return True


def _remove(path: Path) -> None:
    """Removes the folder, unless something is in it that is not ours."""
    try:
        with Folder.named(path.parent) as parent:
            left = remove_folder(parent, path.name, CONTENTS)
    except FileNotFoundError:
        return
    except OSError as error:
        left = [str(error)]
    if left:
        logger.warning("%s stays: %s", path, ", ".join(left))


def _copy_open(filled: Path, shown: Path) -> None:
    """Copies the SQLite files as they are while a connection is open.

    SQLite cannot open a file in WAL mode that it cannot write unless the files beside it (-wal, -shm) are there
    (sqlite.org/wal.html, read-only databases), and removes them when the last connection ends.
    """
    import sqlite3  # 2 MB that a host without bubblewrap, or one that serves one run, need not load

    with contextlib.ExitStack() as stack:
        for path in sorted(filled.iterdir()):
            if not path.is_file() or path.name.endswith(("-wal", "-shm")):
                continue
            connection = stack.enter_context(contextlib.closing(sqlite3.connect(path)))
            try:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
            except sqlite3.Error as error:
                raise ValueError(f"{path.name}: {error}") from error
        for path in filled.iterdir():
            if path.is_symlink() or not path.is_file():
                continue
            if path.stat().st_size > MAX_FILE_BYTES:
                raise ValueError(f"{path.name} has {path.stat().st_size} bytes")
            shutil.copyfile(path, shown / path.name)
