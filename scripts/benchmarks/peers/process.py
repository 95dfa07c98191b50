"""A system that is measured, in a process of its own: runs go in as lines of JSON, answers come out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.harness import BOUND_SECONDS, MIB
from benchmarks.processes import tree

MOST_BYTES: Final = 3072 * MIB
"""Of a system's processes together while it runs what is hostile: more could be the machine's end."""

POLL_SECONDS: Final = 0.1
LINE_BYTES: Final = 1 << 24
CAUSE: Final = re.compile(r"\W*[\w.]*(Error|Exception|FATAL|Fatal)")
"""What the line begins with that says why a process has ended, in Python and Node."""


class Gone(RuntimeError):
    """The system's process has ended, or was ended; the text says how."""


class TooLarge(Gone):
    """The system held more memory than the harness lets it."""


class Peer:
    """One started system."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process, self._log = process, log
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {0: asyncio.Future()}
        self._last = 0
        self._over_memory = False
        self._tasks = [asyncio.create_task(self._read())]

    @classmethod
    async def start(
        cls, argv: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path
    ) -> Peer:
        """Starts it and waits until it is ready. Raises Gone when it never is."""
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *argv, env=environment, cwd=folder, start_new_session=True, limit=LINE_BYTES,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=errors,
            )  # fmt: skip
        peer = cls(process, log)
        try:
            async with asyncio.timeout(BOUND_SECONDS):
                await peer._waiting[0]
        except TimeoutError:
            await peer.stop()
            raise Gone("was not ready in time") from None
        except Gone:
            await peer.stop()
            raise
        return peer

    async def ask(self, code: str) -> dict[str, Any]:
        """Gives the answer to a run, `result` or `error`. Raises Gone."""
        self._last += 1
        answer = self._waiting[self._last] = asyncio.get_running_loop().create_future()
        if self._process.returncode is not None:
            raise self._gone()
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"id": self._last, "code": code}).encode() + b"\n")
        return await answer

    def watch(self) -> None:
        """Ends it from now on when it holds too much memory; to look costs too much beside a load."""
        self._tasks.append(asyncio.create_task(self._watch()))

    def cpu_seconds(self) -> float:
        """CPU time of its processes that live."""
        total = 0.0
        for process in tree(self._process.pid):
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system
        return total

    async def stop(self) -> None:
        """Ends it and what it started: by the end of its stdin, or after a moment by SIGKILL."""
        assert self._process.stdin
        started = [*tree(self._process.pid)]
        self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), 3.0)
        self._kill(started)
        await self._process.wait()
        for task in self._tasks:
            task.cancel()

    def _kill(self, processes: Sequence[psutil.Process]) -> None:
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def _read(self) -> None:
        assert self._process.stdout
        async for line in self._process.stdout:
            with contextlib.suppress(ValueError):
                answer = json.loads(line)
                if (waiting := self._waiting.pop(answer["id"], None)) and not waiting.done():
                    waiting.set_result(answer)
        await self._process.wait()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(self._gone())
                waiting.exception()  # looked at, whether anyone waits or not

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            processes = [*tree(self._process.pid)]
            held = 0
            for process in processes:
                with contextlib.suppress(psutil.Error):
                    held += process.memory_info().rss
            if held > MOST_BYTES:
                self._over_memory = True
                self._kill(processes)

    def _gone(self) -> Gone:
        if self._over_memory:
            return TooLarge(f"held {MOST_BYTES // MIB} MiB and was ended by the harness")
        code = self._process.returncode
        name = signal.Signals(-code).name if code and code < 0 else f"exit code {code}"
        lines = [line for line in self._log.read_text("utf-8", "replace").splitlines() if line.strip()]
        said = next((line for line in reversed(lines) if CAUSE.match(line)), lines[-1] if lines else "")
        return Gone(f"{name}: {said.strip()[:160]}" if said else name)
