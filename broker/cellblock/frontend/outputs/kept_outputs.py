"""Kept_outputs keeps outputs for a while: files of one front-end in a folder of its own, each for the client that made
it.

The index lives on the event loop; files are written, read and removed by one thread, in the order in which the loop
asked. So what goes to make room is gone before what it makes room for is written, and the disk never holds more than
the caps. Front-ends of several processes may share the folder that theirs are in, and its cap: `outputs_disk`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from cellblock.base.callbacks import Listeners
from cellblock.base.errors import ConfigError
from cellblock.base.own_folders import OwnFolder, remove_stale
from cellblock.base.shared_state import SharedState
from cellblock.base.state_dir import OUTPUT_FILES, OUTPUTS, in_the_way
from cellblock.base.threads import DaemonThread
from cellblock.config.sections import OutputSettings
from cellblock.frontend.client import Owner
from cellblock.frontend.outputs.kept import (
    ID_BYTES,
    MAX_KEPT,
    PAGE_BYTES,
    Kept,
    NotKept,
    Output,
    OutputPlace,
    cut_at,
)
from cellblock.frontend.outputs.outputs_disk import write_within
from cellblock.frontend.outputs.shared_outputs import SharedOutputs
from cellblock_worker.base.folders import Folder, InTheWay

logger = logging.getLogger("cellblock.frontend")

DISK_SECONDS: Final = 20.0
"""Bounds the time for the disk to write or read one output; 16 MiB take 10 ms."""

CLOSE_SECONDS: Final = 5.0
"""Bounds the time for the disk to remove everything at the end; what is left then, the next front-end removes at its
start."""

T = TypeVar("T")


class KeptOutputs:
    """Keeps the outputs of one front-end in files; an `OutputPlace`. Owns its folder and its thread.

    Args:
        settings: The caps.
        parent: Where its folder is made.

    Raises:
        OSError: It cannot be made.
    """

    def __init__(self, settings: OutputSettings, parent: Path) -> None:
        self.settings = settings
        remove_stale(parent, OUTPUT_FILES)
        self._own = OwnFolder(parent, OUTPUT_FILES)
        self._disk = DaemonThread("cellblock-outputs")
        # Oldest first: all are kept for the same time.
        self._kept: dict[str, Kept] = {}
        self._used: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        self._changed = Listeners()

    def watch(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Has `listener` called when an output has come or gone. See `OutputPlace`."""
        return self._changed.add(listener)

    async def keep(self, owner: Owner, outputs: Sequence[Output]) -> list[Kept]:
        """Writes outputs. See `OutputPlace`."""
        made: list[Kept] = []
        try:
            for output in outputs:
                kept = self._reserve(owner, output)
                made.append(kept)
                own, cap = self._own, self.settings.total_bytes
                await self._on_disk(write_within, own.parent, cap, own.folder, kept.output_id, output.data)
        except BaseException:
            for kept in made:
                self._drop(kept)
            raise
        self._changed.tell()
        return made

    async def read(self, owner: Owner, output_id: str, page: int) -> tuple[Kept, str]:
        """Returns one page of a kept output. See `OutputPlace`."""
        kept = self._kept.get(output_id)
        if kept is None or kept.owner != owner or kept.expires_at <= asyncio.get_running_loop().time():
            raise NotKept
        if not 1 <= page <= kept.pages:
            raise IndexError(kept.pages)
        size = PAGE_BYTES
        try:
            return kept, await self._on_disk(_read, self._own.folder, output_id, (page - 1) * size, size)
        except (FileNotFoundError, InTheWay):
            # Someone has tidied up behind our back, or it has gone while the request waited its turn.
            self._drop(kept)
            raise NotKept from None

    async def listed(self, owner: Owner) -> list[Kept]:
        """Returns the outputs that are kept for a client. See `OutputPlace`."""
        return self.list_for(owner)

    def list_for(self, owner: Owner) -> list[Kept]:
        """Returns the outputs that are kept for a client. See `OutputPlace`."""
        now = asyncio.get_running_loop().time()
        return [
            kept for kept in reversed(self._kept.values()) if kept.owner == owner and kept.expires_at > now
        ]

    async def close(self) -> None:
        """Removes all kept outputs, within `CLOSE_SECONDS`."""
        if self._timer is not None:
            self._timer.cancel()
        self._kept.clear()
        if not await self._disk.close(self._own.close, CLOSE_SECONDS):
            logger.warning("the kept outputs in %s are not removed: the disk is too slow", self._own.path)

    # ---- inside ------------------------------------------------------------------------------------------

    def _reserve(self, owner: Owner, output: Output) -> Kept:
        """Takes an output into the index, and out of it what is over the caps with it."""
        loop = asyncio.get_running_loop()
        size = len(output.data)
        kept = Kept(
            output_id=secrets.token_urlsafe(ID_BYTES),
            owner=owner,
            part=output.part,
            mime_type=output.mime_type,
            size=size,
            pages=max(1, -(-size // PAGE_BYTES)),
            made_at=time.time(),
            expires_at=loop.time() + self.settings.expire_ms / 1000,
        )
        principal = owner.principal
        if kept.on_disk > self.settings.client_bytes:
            raise OSError(
                f"{size} bytes are over a quarter of outputs.total_bytes = {self.settings.total_bytes}"
            )
        own = [old for old in self._kept.values() if old.owner.principal == principal]
        while own and (
            len(own) >= MAX_KEPT or self._used[principal] + kept.on_disk > self.settings.client_bytes
        ):
            self._drop(own.pop(0))
        while self._kept and self._used.total() + kept.on_disk > self.settings.total_bytes:
            self._drop(next(iter(self._kept.values())))
        self._kept[kept.output_id] = kept
        self._used[principal] += kept.on_disk
        if self._timer is None:
            self._timer = loop.call_at(kept.expires_at, self._expire)
        return kept

    def _drop(self, kept: Kept) -> None:
        if self._kept.pop(kept.output_id, None) is None:
            return
        self._used[kept.owner.principal] -= kept.on_disk
        if self._used[kept.owner.principal] <= 0:
            del self._used[kept.owner.principal]
        self._changed.tell()
        with contextlib.suppress(RuntimeError):  # closed: everything has gone
            self._disk.submit(_remove, self._own.folder, kept.output_id)

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        for kept in list(self._kept.values()):
            if kept.expires_at > loop.time():
                self._timer = loop.call_at(kept.expires_at, self._expire)
                return
            self._drop(kept)

    async def _on_disk(self, work: Callable[..., T], *args: object) -> T:
        try:
            future = self._disk.submit(work, *args)
        except RuntimeError:
            raise OSError("the front-end is stopping") from None
        async with asyncio.timeout(DISK_SECONDS):
            return await asyncio.wrap_future(future)


@contextlib.asynccontextmanager
async def keeping(
    settings: OutputSettings, state_dir: Path, shared: SharedState | None = None
) -> AsyncGenerator[OutputPlace | None]:
    """Keeps the outputs of a front-end while it serves; None when none are to be kept.

    Args:
        settings: The caps.
        state_dir: Where their folder is.
        shared: Where they are kept in the place of files, when brokers share it.

    Raises:
        ConfigError: The folder for them cannot be made.
    """
    if settings.inline_bytes is not None and shared is not None:
        place = SharedOutputs(settings, shared)
        try:
            yield place
        finally:
            await place.close()
        return
    parent = state_dir / OUTPUTS
    if settings.inline_bytes is None:
        # What a killed daemon has left goes also when the setting has been taken away since.
        with contextlib.suppress(OSError):
            await asyncio.to_thread(remove_stale, parent, OUTPUT_FILES)
        yield None
        return
    try:
        kept = await asyncio.to_thread(KeptOutputs, settings, parent)
    except InTheWay as error:
        raise in_the_way(error) from None
    except OSError as error:
        raise ConfigError(
            f"No folder for outputs can be made in {parent}: {error}.", hint="Use another --state-dir."
        ) from None
    try:
        yield kept
    finally:
        await kept.close()


def _read(folder: Folder, name: str, start: int, size: int) -> str:
    """Returns the characters whose first byte is in a range of a file."""
    with os.fdopen(folder.open(name, os.O_RDONLY), "rb") as opened:
        opened.seek(start)
        data = opened.read(size + 3)
    first = cut_at(data, 0)
    return data[first : cut_at(data, max(first, size))].decode("utf-8")


def _remove(folder: Folder, name: str) -> None:
    try:
        folder.remove(name)
    except OSError as error:
        logger.warning("a kept output in %s cannot be removed: %s", folder.path, error)
