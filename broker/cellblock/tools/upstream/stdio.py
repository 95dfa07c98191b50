"""Stdio is the transport to servers that are started: owns one server process, and holds no more of its output than
one capped message. The order of the shutdown is the MCP specification's (basic/lifecycle#shutdown).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import select
from collections.abc import AsyncGenerator, Coroutine, Mapping
from typing import Final, TextIO, cast

import anyio
from anyio.abc import Process
from mcp.os.posix.utilities import terminate_posix_process_tree

from cellblock.base.budget import OverBudget
from cellblock.base.orphans import WATCHER
from cellblock.base.settings.settings import ServerConfig
from cellblock.base.tasks import end_tasks
from cellblock.tools.upstream.dispatcher import Connection, Pending
from cellblock.tools.upstream.failures import CLOSED_BY_SERVER, ConnectionLost
from cellblock.tools.upstream.installs import POLL_SECONDS, Install, has_started
from cellblock.tools.upstream.pace import MESSAGE_BYTES, Holding, Pace
from cellblock.tools.upstream.programs import environment_of
from cellblock.tools.upstream.wire.framing import Cut, LineSplitter, TooLong
from cellblock_worker.launch.spawning import close_pipes, let_go, pipe_of, spawn

logger = logging.getLogger("cellblock.tools.upstream")

READ_BYTES: Final = 64 * 1024
"""Bounds the bytes of one read; a pipe holds no more."""

EXIT_BOUND_SECONDS: Final = 2.0
"""Bounds the time for a server to exit by itself once its stdin is closed."""

TERMINATE_BOUND_SECONDS: Final = 2.0
"""Bounds the time from SIGTERM to SIGKILL."""

KILL_BOUND_SECONDS: Final = 2.0
"""Bounds the time for the kernel to end a killed process; only one that cannot be killed runs it out."""

EXIT_POLL_SECONDS: Final = 0.01


@contextlib.asynccontextmanager
async def stdio_wire(
    config: ServerConfig, *, stderr: TextIO, cap: int, holding: Holding, install: Install | None = None
) -> AsyncGenerator[StdioWire]:
    """Starts a server; the wire speaks newline-delimited JSON-RPC with it.

    Args:
        config: With a `command`.
        stderr: Where the process's stderr goes.
        cap: Longest line in bytes. The request that a longer one answers fails; the session goes on.
        holding: Counts the bytes of large messages.
        install: What the command installs first; one of a package that is being installed waits for that.

    Raises:
        OSError: The process cannot be started.
    """
    while install is not None and not install.begin():  # noqa: ASYNC110 - others are processes
        await asyncio.sleep(POLL_SECONDS)
    assert config.command is not None
    process = await spawn(
        config.command,
        *config.args,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
        env=environment_of(config),
        cwd=config.cwd,
        # A group of its own: a kill must reach what the server has started.
        start_new_session=True,
    )
    if install is None:
        WATCHER.add(process.pid)
    wire = StdioWire(process, cap, holding, install)
    looking = asyncio.create_task(_look(process, install)) if install is not None else None
    try:
        yield wire
    finally:
        await end_tasks(looking)
        await _finished(_stop(process, install))


async def _look(process: asyncio.subprocess.Process, install: Install) -> None:
    """Ends the wait for an installer when the server is seen that it has started, or is over."""
    while install.running:
        await asyncio.sleep(POLL_SECONDS)
        if process.returncode is not None or await asyncio.to_thread(has_started, process.pid):
            # Until then it does not die with a broker that is killed.
            WATCHER.add(process.pid)
            install.end()


class StdioWire:
    """Writes one message at a time, so that no more than one waits for a server that does not read.

    Args:
        process: The server.
        cap: Longest line in bytes.
        holding: Counts the bytes of large messages.
        install: Is over when the server says something.
    """

    where = "its stdout"

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        cap: int,
        holding: Holding,
        install: Install | None = None,
    ) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout
        self._process = process
        self._cap = cap
        self._holding = holding
        self._install = install
        self._turn = asyncio.Lock()

    @property
    def exit_code(self) -> int | None:
        """Returns the process's exit code, below 0 for a signal; None while it runs."""
        return self._process.returncode

    async def request(self, pending: Pending, body: bytes, headers: Mapping[str, str]) -> None:
        async with self._turn:
            pending.sent = True
            await self._write(body)

    async def post(self, body: bytes, headers: Mapping[str, str], what: str) -> None:
        async with self._turn:
            await self._write(body)

    async def run(self, connection: Connection) -> None:
        """Hands on the server's messages until its stdout ends; what is no answer to a call is read at a bounded
        pace."""
        pace, splitter = Pace(), LineSplitter(self._cap)
        with self._holding.counting() as count:
            try:
                while chunk := await self._stdout.read(READ_BYTES):
                    if self._install is not None and self._install.running:
                        WATCHER.add(self._process.pid)
                        self._install.end()
                    for line in splitter.feed(chunk):
                        if isinstance(line, TooLong):
                            rest, size = 1 - connection.take(line.unread), line.size
                        else:
                            rest, size = await connection.received(line), len(line)
                        del line
                        if rest:
                            await pace.spend(rest + size / MESSAGE_BYTES)
                    try:
                        count(splitter.held)
                    except OverBudget as error:
                        splitter.throw_away(str(error))
            except OSError as error:
                raise Cut(f"its output cannot be read: {error.strerror}") from None

    async def _write(self, body: bytes) -> None:
        """Writes a line, in one piece: a call that is cancelled leaves no half a line, which would spoil those that
        follow."""
        begun = False
        try:
            await self._stdin.drain()
            if self._has_hung_up():
                raise ConnectionLost(CLOSED_BY_SERVER, sent=False)
            begun = True
            self._stdin.write(body + b"\n")
            await self._stdin.drain()
        except (OSError, RuntimeError):
            # RuntimeError: the pipe is closed already. What the server has said last is still read.
            raise ConnectionLost(CLOSED_BY_SERVER, sent=begun) from None

    def _has_hung_up(self) -> bool:
        """Says whether nobody can write answers any more, which the loop may not have heard yet."""
        reading, poll = pipe_of(self._process, 1), select.poll()
        if reading is None:
            return True
        poll.register(reading, 0)
        return bool(poll.poll(0))


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


async def _stop(process: asyncio.subprocess.Process, install: Install | None) -> None:
    assert process.stdin is not None
    # Who has closed its stdout becomes no server any more.
    stdout = pipe_of(process, 1) if process.returncode is None else None
    if stdout is not None and install is not None and install.running and install.left:
        install.hand_over(process.pid, stdout)
        let_go(process)
        return
    if install is not None:
        install.end()
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
        await asyncio.to_thread(WATCHER.discard, process.pid)


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
