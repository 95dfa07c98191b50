"""Files writes lines in a thread of its own: the loop never waits for a disk. Files are private and bounded.

*Against* the standard library's queue listener and rotating handler: they format each line twice and look at the
file system for each, 0.4 ms a line, which is a tenth of a warm run.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from cellblock.base.errors import ConfigError
from cellblock.base.state_dir import in_the_way
from cellblock_worker.base.folders import Folder, InTheWay
from cellblock_worker.base.private_files import read_private, write_private

MAX_FILE_BYTES: Final = 10 * 1024 * 1024
"""Caps a file of lines: it is then put aside, and a new one begun."""

QUEUE_LINES: Final = 10_000
"""Bounds the lines that wait for the disk; more are dropped and counted."""

BATCH_SECONDS: Final = 0.1
"""Passes while lines are collected, to be written together; a power failure costs as much."""

STOP_BOUND_SECONDS: Final = 5.0
"""Bounds the writing of the lines that wait when the daemon stops."""


Outlasting = Callable[[list[bytes], int], list[bytes]]


class StderrSink:
    """Takes whole lines for this process's stderr; `PrivateFile` is a sink for a file."""

    def write(self, data: bytes) -> None:
        """Writes a line to stderr at once. Raises OSError."""
        with suppress(ValueError):
            sys.stderr.write(data.decode("utf-8", "replace"))
            sys.stderr.flush()

    def close(self) -> None:
        """Leaves stderr open."""


class PrivateFile:
    """A private file is one with mode 0600 that is put aside as `NAME.1`, `NAME.2`, … when it is full.

    Args:
        path: The file; appended to.
        max_bytes: Its size before it is put aside.
        keep: Files put aside; two at least with `outlasting`.
        outlasting: Returns those lines of the oldest file, of so many bytes at most, that go on in the next one.

    Raises:
        ConfigError: It cannot be opened for writing.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int,
        keep: int,
        outlasting: Outlasting | None = None,
    ) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._outlasting = outlasting
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with Folder.named(path.parent) as folder:
                self._descriptor = self._open(folder)
        except InTheWay as error:
            raise in_the_way(error) from None
        except OSError as error:
            raise ConfigError(
                f"{path} cannot be written: {error.strerror or error}.",
                hint="Use another file or --state-dir.",
            ) from None

    def write(self, data: bytes) -> None:
        """Appends whole lines. Raises OSError, on a full disk for example."""
        size = self._followed()
        if size and size + len(data) > self._max_bytes:
            self._put_aside()
        if os.write(self._descriptor, data) < len(data):
            raise OSError("only a part was written")

    def close(self) -> None:
        os.close(self._descriptor)

    def _open(self, folder: Folder) -> int:
        descriptor = folder.open(self._path.name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, alone=True)
        # One that was made by hand may be open to others.
        os.fchmod(descriptor, 0o600)
        return descriptor

    def _open_again(self, folder: Folder) -> None:
        descriptor = self._open(folder)
        os.close(self._descriptor)
        self._descriptor = descriptor

    def _followed(self) -> int:
        """Returns the size of the file of that name, once it is ours: others may have put ours aside."""
        mine = os.fstat(self._descriptor)
        try:
            named = self._path.stat(follow_symlinks=False)
        except FileNotFoundError:
            named = None
        if named is None or (named.st_dev, named.st_ino) != (mine.st_dev, mine.st_ino):
            with Folder.named(self._path.parent) as folder:
                self._open_again(folder)
            return os.fstat(self._descriptor).st_size
        return mine.st_size

    def _put_aside(self) -> None:
        name = self._path.name
        with Folder.named(self._path.parent) as folder:
            if self._outlasting is not None:
                # Where that fails, the oldest file goes as a whole: a log goes on.
                with suppress(OSError):
                    self._carry(folder, self._outlasting)
            for number in range(self._keep - 1, 0, -1):
                with suppress(FileNotFoundError):
                    folder.replace(f"{name}.{number}", f"{name}.{number + 1}")
            with suppress(FileNotFoundError):
                folder.replace(name, f"{name}.1")
            self._open_again(folder)

    def _carry(self, folder: Folder, outlasting: Outlasting) -> None:
        oldest, next_one = (
            read_private(folder, f"{self._path.name}.{number}", 2 * self._max_bytes, secret=False)
            for number in (self._keep, self._keep - 1)
        )
        kept = outlasting(oldest.splitlines(keepends=True), self._max_bytes // 2)
        write_private(folder, f"{self._path.name}.{self._keep - 1}", b"".join([*kept, next_one]))


class LineWriter:
    """Takes lines in any thread; makes and writes them in its own.

    Args:
        sink: Takes the lines; closed with the writer.
        name: Names the sink on stderr when it fails.
        max_batch_bytes: Bounds what is written at once; below the size at which a file is put aside.
    """

    def __init__(
        self, sink: StderrSink | PrivateFile, name: str, *, max_batch_bytes: int = 64 * 1024
    ) -> None:
        self._sink = sink
        self._name = name
        self._max_batch_bytes = max_batch_bytes
        self._waiting: deque[Callable[[], str]] = deque()
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._failed = False
        self.dropped = 0
        self._thread = threading.Thread(target=self._work, name=f"cellblock {name}", daemon=True)
        self._thread.start()

    def put(self, line: Callable[[], str]) -> None:
        """Queues one line; `line` gives its text, without the line's end, and is called in the writer's thread."""
        if len(self._waiting) >= QUEUE_LINES:
            self.dropped += 1
            return
        self._waiting.append(line)
        if not self._wake.is_set():
            self._wake.set()

    def close(self) -> None:
        """Writes the lines that wait, within `STOP_BOUND_SECONDS`, and closes the sink. Blocks: call it in a
        thread."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._wake.set()
        self._thread.join(STOP_BOUND_SECONDS)

    def _work(self) -> None:
        while not self._stop.is_set():
            self._wake.wait()
            self._stop.wait(BATCH_SECONDS)
            self._wake.clear()
            self._write_waiting()
        self._write_waiting()
        with suppress(OSError):
            self._sink.close()

    def _write_waiting(self) -> None:
        batch = bytearray()
        while self._waiting:
            try:
                line = self._waiting.popleft()().encode("utf-8", "replace") + b"\n"
            except Exception as error:  # noqa: BLE001 - one line that cannot be made must not end the log
                line = f"a line could not be made: {type(error).__name__}\n".encode()
            if batch and len(batch) + len(line) > self._max_batch_bytes:
                self._write(bytes(batch))
                batch.clear()
            batch += line
        if batch:
            self._write(bytes(batch))

    def _write(self, data: bytes) -> None:
        try:
            self._sink.write(data)
            self._failed = False
        except OSError as error:
            # Said once: this very sink may be where it would otherwise be said.
            if not self._failed:
                self._failed = True
                with suppress(OSError, ValueError):
                    sys.stderr.write(
                        f"cellblock: {self._name} cannot be written: {error.strerror or error}\n"
                    )
