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

from cellblock_worker.host import EXIT_REFUSED, REFUSED_PREFIX, HostConfig

logger = logging.getLogger("cellblock.pool")

STOP_BOUND_SECONDS: Final = 5.0
"""From closing the lifeline to SIGKILL; the host itself allows its workers 3 s."""

RESTART_FIRST_SECONDS: Final = 0.1
RESTART_MAX_SECONDS: Final = 5.0

STABLE_SECONDS: Final = 10.0
"""A host that lived this long was no failed start; the next restart is quick again."""

PASSED_ENVIRONMENT: Final = ("PATH", "LANG", "LC_ALL", "PYTHONPATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""All that a host gets of the broker's environment: no credential can be among it."""


class LocalHost:
    """Keeps one worker host process running until `stop`.

    Until `served` is called, a host that refuses to serve is not started again: `refusal` says why.

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
        self._stopping = False
        self._has_served = False
        self.refusal: str | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the running host."""
        return self._process.pid if self._process and self._process.returncode is None else None

    def start(self) -> None:
        """Starts the process and the task that watches it."""
        self._task = asyncio.create_task(self._keep_running(), name="local worker host")

    def served(self) -> None:
        """Says that a host has served here: one that refuses after it is started again, like one that died. Its
        self-test may have been killed, as anything may be on a machine that runs out of memory."""
        self._has_served = True

    def replace(self, identity: bytes) -> None:
        """SIGKILL to the process with this identity, if it is the current one; another follows."""
        if identity == self._identity and self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def stop(self) -> None:
        """Closes the lifeline, waits `STOP_BOUND_SECONDS`, then kills."""
        self._stopping = True
        process = self._process
        if process is not None and process.returncode is None:
            if process.stdin is not None:
                process.stdin.close()
            try:
                async with asyncio.timeout(STOP_BOUND_SECONDS):
                    await process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _keep_running(self) -> None:
        pause = RESTART_FIRST_SECONDS
        loop = asyncio.get_running_loop()
        while not self._stopping:
            started = loop.time()
            identity = secrets.token_bytes(16)
            self._identity = identity
            self._on_starting(identity)
            try:
                code = await self._run_once(identity)
                why = f"the worker host exited with code {code}"
                if code == EXIT_REFUSED:
                    why = f"the worker host refuses to serve: {self._last_words()}"
                    if not self._has_served:
                        self.refusal = self._last_words()
            except OSError as error:
                why = f"the worker host cannot be started: {error}"
            if self._stopping:
                return
            logger.error("%s; see %s", why, self._log_file)
            self._on_exit(identity, why)
            if self.refusal is not None:
                return
            pause = RESTART_FIRST_SECONDS if loop.time() - started > STABLE_SECONDS else pause * 2
            await asyncio.sleep(min(pause, RESTART_MAX_SECONDS))

    def _last_words(self) -> str:
        """What a host that will not serve wrote last."""
        try:
            lines = self._log_file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        said = [line for line in lines if line.startswith(REFUSED_PREFIX)]
        return said[-1].removeprefix(REFUSED_PREFIX) if said else f"see {self._log_file}"

    async def _run_once(self, identity: bytes) -> int:
        config = self._make_config(identity.hex())
        environment = {name: os.environ[name] for name in PASSED_ENVIRONMENT if name in os.environ}
        with self._log_file.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "cellblock_worker",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=log,
                env=environment,
                cwd="/",
                start_new_session=True,
            )
        assert self._process.stdin is not None
        # The first line is the configuration; the pipe then stays open as the host's lifeline.
        self._process.stdin.write(config.model_dump_json().encode() + b"\n")
        return await self._process.wait()
