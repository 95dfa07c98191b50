"""Stdio is the transport to servers that are started: owns one server process, and holds no more of its output than
one capped message.

The SDK's own transport keeps a line whole, however long, and copies what it has of it with every 64 KiB. The order of
the shutdown is the MCP specification's (basic/lifecycle#shutdown) with the SDK's bounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Final, TextIO, cast

import anyio
from anyio.abc import Process
from anyio.streams.memory import MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.os.posix.utilities import terminate_posix_process_tree
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.message import SessionMessage

from cellblock.base.offload.budget import OverBudget
from cellblock.base.offload.light import LIGHT_BYTES, is_light
from cellblock.base.settings.settings import ServerConfig
from cellblock.base.streams import ClosingStream
from cellblock.base.tasks import end_tasks
from cellblock.tools.upstream.heavy import HeavyMessages
from cellblock.tools.upstream.incoming import read_message
from cellblock.tools.upstream.lines import EndlessLine, LineSplitter, TooLong
from cellblock.tools.upstream.message_cap import too_large_error
from cellblock.tools.upstream.pace import MESSAGE_BYTES, Flooding, Pace
from cellblock_worker.base import lifetime
from cellblock_worker.launch.spawning import close_pipes, spawn

logger = logging.getLogger("cellblock.tools.upstream")

READ_BYTES: Final = 64 * 1024
"""Bounds the bytes of one read; a pipe holds no more."""

WRITE_BYTES: Final = 256 * 1024
"""Bounds the bytes of one write, which the loop copies as far as the pipe does not take them."""

EXIT_BOUND_SECONDS: Final = 2.0
"""Bounds the time for a server to exit by itself once its stdin is closed."""

TERMINATE_BOUND_SECONDS: Final = 2.0
"""Bounds the time from SIGTERM to SIGKILL."""

KILL_BOUND_SECONDS: Final = 2.0
"""Bounds the time for the kernel to end a killed process; only one that cannot be killed runs it out."""

EXIT_POLL_SECONDS: Final = 0.01

Incoming = SessionMessage | Exception


@contextlib.asynccontextmanager
async def stdio_transport(
    config: ServerConfig,
    *,
    stderr: TextIO,
    max_message_bytes: int,
    on_cut: Callable[[str], None],
    heavy: HeavyMessages,
) -> AsyncGenerator[tuple[ReadStream[Incoming], WriteStream[SessionMessage]], None]:
    """Starts a server and speaks newline-delimited JSON-RPC with it.

    Args:
        config: With a `command`.
        stderr: Where the process's stderr goes.
        max_message_bytes: Longest line in bytes. The request that a longer one answers fails; the session goes on.
        on_cut: Told why when a line without end closes the connection.
        heavy: Reads what is too large for the loop.

    Raises:
        OSError: The process cannot be started.
    """
    environment = get_default_environment() | config.env
    process = await spawn(
        *_command_line(config, environment),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
        env=environment,
        cwd=config.cwd,
        # A group of its own: a kill must reach what the server has started.
        start_new_session=True,
    )
    sender, receiver = anyio.create_memory_object_stream[Incoming](0)
    reader = asyncio.create_task(
        _read(process, sender, LineSplitter(max_message_bytes), max_message_bytes, on_cut, heavy)
    )
    try:
        yield receiver, _Writer(process, reader, heavy)
    finally:
        receiver.close()
        await _finished(_stop(process, reader))
        sender.close()


def _command_line(config: ServerConfig, environment: Mapping[str, str]) -> list[str]:
    """Makes a command line whose process dies with a broker that is killed: not every server ends when its stdin does.

    A command that cannot be found stays as it is, so that its spawn says so.
    """
    assert config.command is not None
    argv = [config.command, *config.args]
    if "/" in config.command:
        found = os.access(Path(config.cwd or ".") / config.command, os.X_OK)
    else:
        found = shutil.which(config.command, path=environment.get("PATH")) is not None
    return lifetime.dying_with_this(argv) if found else argv


class _Writer(ClosingStream):
    """Writes one message at a time, so that no more than one waits for a server that does not read."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.Task[None], heavy: HeavyMessages
    ) -> None:
        assert process.stdin is not None
        self._stdin = process.stdin
        self._reader = reader
        self._heavy = heavy
        self._turn = asyncio.Lock()
        self._writing: asyncio.Task[None] | None = None

    async def send(self, item: SessionMessage, /) -> None:
        """Writes one message.

        Raises:
            BrokenResourceError: The server reads no more; the read stream then ends too.
        """
        line = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        await self._turn.acquire()
        pieces = self._heavy.splices.spliced(line)
        if len(pieces) == 1 and len(line) <= WRITE_BYTES:
            await self._write(pieces)
        else:
            # A call that is cancelled leaves no half a line: it would spoil those that follow.
            self._writing = asyncio.create_task(self._write(pieces))
            self._writing.add_done_callback(lambda writing: writing.cancelled() or writing.exception())
            await asyncio.shield(self._writing)

    async def _write(self, pieces: Sequence[bytes]) -> None:
        """Writes a line, and gives the turn back. What is large is written as the server reads it, so that the loop
        copies no more than that at once."""
        try:
            await self._stdin.drain()
            for piece in pieces:
                for start in range(0, len(piece), WRITE_BYTES):
                    self._stdin.write(memoryview(piece)[start : start + WRITE_BYTES])
                    await self._stdin.drain()
        except (OSError, RuntimeError):
            # RuntimeError: the pipe is closed already.
            self._reader.cancel()
            raise anyio.BrokenResourceError from None
        finally:
            self._turn.release()

    async def aclose(self) -> None:
        """Closes the server's stdin."""
        self._stdin.close()


async def _read(
    process: asyncio.subprocess.Process,
    sender: MemoryObjectSendStream[Incoming],
    splitter: LineSplitter,
    cap: int,
    on_cut: Callable[[str], None],
    heavy: HeavyMessages,
) -> None:
    """Hands on the server's messages until its stdout ends; no read-ahead while one is not taken.

    A large one is handed on when it has been read apart. Small ones pass it meanwhile, the next large one waits. What
    is no answer to a call is read at a bounded pace.
    """
    assert process.stdout is not None
    pace = Pace()
    apart: asyncio.Task[None] | None = None
    with heavy.counting() as count:
        async with sender:
            try:
                while chunk := await process.stdout.read(READ_BYTES):
                    unasked = 0.0
                    lines = splitter.feed(chunk)
                    lines.reverse()
                    while lines:
                        line = lines.pop()
                        if isinstance(line, TooLong) or is_light(line):
                            is_long = isinstance(line, TooLong)
                            item = too_large_error(line, cap) if is_long else read_message(line)
                            if not heavy.awaits(item):
                                unasked += 1 + (line.size if is_long else len(line)) / MESSAGE_BYTES
                            await sender.send(item)
                        else:
                            if apart is not None:
                                await apart
                            apart = asyncio.create_task(_read_apart(line, sender, heavy))
                        del line
                    try:
                        count(splitter.held)
                    except OverBudget as error:
                        splitter.throw_away(str(error))
                    if apart is not None and splitter.held > LIGHT_BYTES:
                        await apart
                        apart = None
                    if unasked:
                        await pace.spend(unasked)
                if apart is not None:
                    await apart
            except EndlessLine:
                on_cut(f"it sent a line without end, over {cap} bytes")
            except Flooding as error:
                on_cut(str(error))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return  # The session is gone.
            except OSError as error:
                on_cut(f"its output cannot be read: {error.strerror}")
            finally:
                await end_tasks(apart)


async def _read_apart(line: bytes, sender: MemoryObjectSendStream[Incoming], heavy: HeavyMessages) -> None:
    light = await heavy.lightened(line)
    if light is not None:
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await sender.send(read_message(light))


async def _finished(work: Coroutine[None, None, None]) -> None:
    """Carries bounded work to its end, however often this task is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        raise cancelled


async def _stop(process: asyncio.subprocess.Process, reader: asyncio.Task[None]) -> None:
    assert process.stdin is not None
    await end_tasks(reader)
    # A server that is stuck in writing its stdout would not see that its stdin has ended.
    drain = asyncio.create_task(_drain(process))
    process.stdin.close()
    try:
        if not await _exits(process, EXIT_BOUND_SECONDS):
            await terminate_posix_process_tree(cast("Process", process), TERMINATE_BOUND_SECONDS)
            if not await _exits(process, KILL_BOUND_SECONDS):
                logger.warning("the server process %d cannot be killed; it is left behind", process.pid)
    finally:
        await end_tasks(drain)
        close_pipes(process)


async def _drain(process: asyncio.subprocess.Process) -> None:
    assert process.stdout is not None
    with contextlib.suppress(OSError):
        while await process.stdout.read(READ_BYTES):
            pass


async def _exits(process: asyncio.subprocess.Process, bound: float) -> bool:
    """Says whether the process ends in time; `wait()` would also wait for whoever inherited its pipes."""
    deadline = asyncio.get_running_loop().time() + bound
    while process.returncode is None:
        if asyncio.get_running_loop().time() >= deadline:
            return False
        await asyncio.sleep(EXIT_POLL_SECONDS)
    return True
