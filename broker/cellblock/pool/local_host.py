"""Owns the worker host process on this machine: start, watch, restart, stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from zmq import ZMQError

from cellblock.base.callbacks import tell
from cellblock.base.tasks import end_tasks
from cellblock_worker.base.folders import Folder
from cellblock_worker.base.logs import bound_log
from cellblock_worker.host.host_config import CANNOT_PREFIX, EXIT_REFUSED, REFUSED_PREFIX, HostConfig
from cellblock_worker.launch.spawning import close_pipes, passed_environment, spawn

logger = logging.getLogger("cellblock.pool")

STOP_BOUND_SECONDS: Final = 5.0
"""Bounds the time from closing the lifeline to SIGKILL; the host itself allows its workers 3 s."""

HELLO_BOUND_SECONDS: Final = 30.0
"""Bounds the time from the start of a host to its hello, which takes about 0.5 s; its self-test alone may take 20 s."""

RESTART_FIRST_SECONDS: Final = 0.1
"""Sets the pause before the second host that follows one which did not last; each further pause is twice as long."""

RESTART_MAX_SECONDS: Final = 5.0

STABLE_SECONDS: Final = 10.0
"""Passes until a host counts as started: the next one then follows at once."""


def restart_pause(failures: int) -> float:
    """Returns the seconds until the next start after hosts that did not last; one that never greeted counts twice.

    None for the first: what has served is most likely to serve again.
    """
    if failures < 2:
        return 0.0
    # The exponent is bounded for the sake of the float only.
    return min(RESTART_FIRST_SECONDS * 2 ** min(failures - 2, 16), RESTART_MAX_SECONDS)


def open_log(file: Path, stack: contextlib.ExitStack) -> int:
    """Returns what a process's stderr is appended to; `stack` closes it."""
    try:
        with Folder.inside(file.parent) as folder:
            log = folder.open(file.name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, alone=True)
        stack.callback(os.close, log)
        bound_log(log)
    except OSError as error:
        # A full disk must not keep runs from being served: the log is what can be done without.
        logger.warning("%s is not written: %s", file.name, error)
        return asyncio.subprocess.DEVNULL
    return log


async def ended(process: asyncio.subprocess.Process) -> None:
    """Closes a process's lifeline, waits `STOP_BOUND_SECONDS`, then kills it."""
    if process.returncode is not None:
        return
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(STOP_BOUND_SECONDS):
            await process.wait()
    except TimeoutError:
        # PermissionError: it is another user's, and ends by itself.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            process.kill()
            await process.wait()
    close_pipes(process)


class LocalHost:
    """Keeps one worker host process running until `stop`.

    Until it is `established`, a host that refuses to serve is not started again: `refusal` says why. Later the
    machine is known to be fit, and what it lacks may come back.

    Args:
        make_config: Gives the configuration of the next process from its fresh identity.
        log_file: Where the host's stderr goes, appended.
        on_starting: Told the identity before the process starts.
        on_exit: Told the identity and the reason after a process has exited.
    """

    def __init__(
        self,
        make_config: Callable[[str], HostConfig],
        *,
        log_file: Path,
        on_starting: Callable[[bytes], None],
        on_exit: Callable[[bytes, str], None],
    ) -> None:
        self._make_config = make_config
        self._log_file = log_file
        self._on_starting = on_starting
        self._on_exit = on_exit
        self._process: asyncio.subprocess.Process | None = None
        self._identity = b""
        self._task: asyncio.Task[None] | None = None
        self.established = False
        """Says whether a host of this machine has served."""
        self._greeted = False
        self.refusal: str | None = None
        self._log_start = 0

    @property
    def pid(self) -> int | None:
        """Returns the process id of the running host."""
        return self._process.pid if self._process and self._process.returncode is None else None

    def start(self) -> None:
        """Starts the process and the task that watches it."""
        self._task = asyncio.create_task(self._keep_running(), name="local worker host")

    def greeted(self, identity: bytes) -> None:
        """Takes note that the process with this identity has said hello."""
        if identity == self._identity:
            self._greeted = True

    def replace(self, identity: bytes) -> None:
        """Kills the process with this identity, if it is the current one; another follows."""
        if identity == self._identity and self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def stop(self) -> None:
        """Closes the lifeline, waits `STOP_BOUND_SECONDS`, then kills."""
        await end_tasks(self._task)
        if self._process is not None:
            await ended(self._process)

    async def _keep_running(self) -> None:
        failures = 0
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            identity = secrets.token_bytes(16)
            self._identity = identity
            self._on_starting(identity)
            self._greeted = False
            try:
                code = await self._run_once(identity)
                why = f"the worker host exited with code {code}"
                if code == EXIT_REFUSED:
                    said = self._last_words(REFUSED_PREFIX) or f"see {self._log_file}"
                    why = f"the worker host refuses to serve: {said}"
                    if not self.established:
                        self.refusal = said
                elif said := self._last_words(CANNOT_PREFIX):
                    why = f"the worker host cannot start now: {said}"
            except (OSError, ZMQError, RuntimeError) as error:
                # RuntimeError: no thread could be started to wait for the process.
                why = f"the worker host cannot be started: {error}"
            # A refusal is raised to whoever starts the broker.
            if self.refusal is None:
                logger.error("%s; see %s", why, self._log_file)
            tell(self._on_exit, identity, why)
            if self.refusal is not None:
                return
            # A host that greeted could serve: its death says nothing about the next one, unless it comes again soon.
            lasted = loop.time() - started > STABLE_SECONDS
            failures = 0 if lasted else failures + (1 if self._greeted else 2)
            await asyncio.sleep(restart_pause(failures))

    def _last_words(self, prefix: str) -> str:
        """Returns what this host wrote last behind these words; empty where it wrote no such line."""
        try:
            with Folder.inside(self._log_file.parent) as folder:
                log = folder.open(self._log_file.name, os.O_RDONLY)
            with os.fdopen(log, "rb") as file:
                file.seek(self._log_start)
                lines = file.read().decode("utf-8", "replace").splitlines()
        except OSError:
            lines = []
        said = [line for line in lines if line.startswith(prefix)]
        return said[-1].removeprefix(prefix) if said else ""

    async def _run_once(self, identity: bytes) -> int:
        config = self._make_config(identity.hex())
        with contextlib.ExitStack() as stack:
            log = open_log(self._log_file, stack)
            self._log_start = os.fstat(log).st_size if log >= 0 else 0
            self._process = await spawn(
                sys.executable,
                "-m",
                "cellblock_worker",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=log,
                env=passed_environment(),
                cwd="/",
                start_new_session=True,
            )
        assert self._process.stdin is not None
        # The first line is the configuration; the pipe then stays open as the host's lifeline.
        self._process.stdin.write(config.to_json().encode() + b"\n")
        # One that does not greet in time is killed here: nobody else watches it yet.
        overdue = asyncio.get_running_loop().call_later(HELLO_BOUND_SECONDS, self._no_hello, self._process)
        try:
            return await self._process.wait()
        finally:
            overdue.cancel()

    def _no_hello(self, process: asyncio.subprocess.Process) -> None:
        if not self._greeted:
            logger.error("the worker host did not say hello within %g s", HELLO_BOUND_SECONDS)
            with contextlib.suppress(ProcessLookupError):
                process.kill()
