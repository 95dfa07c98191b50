"""A program in a terminal: what it writes, what its screen shows, and keys for it."""

import asyncio
import contextlib
import fcntl
import os
import pty
import struct
import termios
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from support.processes import owned_process


class Terminal:
    """The other end of a program's terminal."""

    def __init__(self, master: int, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self._master = master
        self.output = b""
        asyncio.get_running_loop().add_reader(master, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._master, 65536)
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._master)
        self.output += data

    @property
    def text(self) -> str:
        """All that was written so far."""
        return self.output.decode("utf-8", "replace")

    def press(self, keys: bytes) -> None:
        """Types."""
        os.write(self._master, keys)


@contextlib.asynccontextmanager
async def in_terminal(
    *command: str, streams: tuple[int, ...] = (0, 1, 2), env: Mapping[str, str] | None = None, **pipes: Any
) -> AsyncGenerator[Terminal]:
    """Runs a command whose `streams` are a terminal of 100 columns and 30 lines; `pipes` says what the others are."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    names = ("stdin", "stdout", "stderr")
    async with owned_process(
        *command,
        **{name: slave if number in streams else pipes.get(name) for number, name in enumerate(names)},
        env={**os.environ, "TERM": "xterm-256color", **(env or {})},
        # A session of its own, so that the terminal's Ctrl-C is the program's.
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(streams[0], termios.TIOCSCTTY, 0) and None,
    ) as process:
        os.close(slave)
        try:
            yield Terminal(master, process)
        finally:
            asyncio.get_running_loop().remove_reader(master)
            os.close(master)
