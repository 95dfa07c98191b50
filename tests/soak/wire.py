"""A `cellblock serve --http` process, `cellblock connect` at it, and a bare JSON-RPC client that counts every answer.

The MCP SDK's client would hide a second answer to the same request; this one is there to see it.
"""

import asyncio
import contextlib
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import Counter
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import port_told_in
from support.http_daemon import INITIALIZE
from support.waits import within

CELLBLOCK: Final = Path(sys.executable).parent / "cellblock"

LINE_CAP_BYTES: Final = 128 * 1024 * 1024
"""A result of 16 MiB comes twice in one line, as text and as structure, escaped."""

START_BOUND_SECONDS: Final = 60.0
STOP_BOUND_SECONDS: Final = 60.0
"""The daemon lets runs in flight go on for 30 s (`http.drain_ms`)."""


class Cellblock:
    """One broker process with one client at its front-end, through `cellblock connect`.

    Args:
        config: The configuration file.
        state: The state directory.
        log: Where the broker's stderr goes; that of `connect` goes beside it.
        stalls: Where the watch in the broker's loop writes (see `hostile.loop_watch`).
        environment: The whole environment of the broker.
        cwd: Its working directory.

    Attributes:
        port: Where the broker listens, from its start on.
        token: What its clients show.
        pid: Of the broker.
        connect_pid: Of `cellblock connect`.
        connect_log: Its stderr.
    """

    def __init__(
        self, config: Path, state: Path, log: Path, stalls: Path, environment: dict[str, str], cwd: Path
    ) -> None:
        self._config, self._state, self._log, self._stalls = config, state, log, stalls
        self._environment, self._cwd = environment, cwd
        self._broker: Process | None = None
        self._process: Process | None = None
        self.connect_log = log.with_name("connect.log")
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next = 0

        self.answers: Counter[object] = Counter()
        self.noise: list[str] = []

    @property
    def exit_code(self) -> int | None:
        """Of the broker, else of `connect`; None while both live."""
        codes = [one.returncode for one in (self._broker, self._process) if one is not None]
        return next((code for code in codes if code is not None), None)

    async def start(self) -> None:
        """Starts both and shakes hands. Raises TimeoutError, RuntimeError."""
        common = ("--state-dir", str(self._state))
        with self._log.open("ab") as log:
            self._broker = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "benchmarks.hostile.loop_watch", str(self._stalls)),
                *("serve", "--http", "127.0.0.1:0", "--config", str(self._config), *common),
                stdin=DEVNULL,
                stdout=DEVNULL,
                stderr=log,
                env=self._environment,
                cwd=self._cwd,
            )
        self.port = await asyncio.to_thread(port_told_in, self._log, START_BOUND_SECONDS)
        self.token = (self._state / "token").read_text("ascii").strip()
        with self.connect_log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(str(CELLBLOCK), "connect", "--url", f"http://127.0.0.1:{self.port}/mcp", *common),
                stdin=PIPE,
                stdout=PIPE,
                stderr=log,
                env=self._environment,
                cwd=self._cwd,
                limit=LINE_CAP_BYTES,
            )
        self.pid, self.connect_pid = self._broker.pid, self._process.pid
        self._reader = asyncio.create_task(self._read())
        _, answered = self.request("initialize", INITIALIZE["params"])
        await within(answered, START_BOUND_SECONDS)
        self._write({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def run(self, arguments: dict[str, Any]) -> tuple[int, asyncio.Future[dict[str, Any]]]:
        """Sends one `codemode.run`: its request id, and a future of the answer."""
        return self.request("tools/call", {"name": "codemode.run", "arguments": arguments})

    def request(self, method: str, parameters: dict[str, Any]) -> tuple[int, asyncio.Future[dict[str, Any]]]:
        """Sends any request."""
        self._next += 1
        future = asyncio.get_running_loop().create_future()
        self._waiting[self._next] = future
        self._write({"jsonrpc": "2.0", "id": self._next, "method": method, "params": parameters})
        return self._next, future

    def cancel(self, number: int) -> None:
        """Cancels a request; an answer may still come, or not."""
        self._write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}})

    async def stop(self) -> int:
        """Closes the client's stdin and waits for its end, then ends the broker. Returns the broker's exit code, or the
        client's when that is not 0; SIGKILL counts as -9."""
        self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_BOUND_SECONDS):
                await self._reader
                await self._process.wait()
        if self._broker.returncode is None:
            self._broker.terminate()
        return await _ended(self._broker) or await _ended(self._process)

    def _write(self, message: dict[str, Any]) -> None:
        # Lone surrogates of hostile scripts stay escaped: ASCII only.
        self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def _read(self) -> None:
        while line := await self._process.stdout.readline():
            try:
                message = json.loads(line)
            except ValueError:
                self.noise.append(line[:200].decode("utf-8", "replace"))
                continue
            if "id" not in message or "method" in message:
                continue
            self.answers[message["id"]] += 1
            future = self._waiting.pop(message["id"], None)
            if future is not None and not future.done():
                future.set_result(message)
        for future in self._waiting.values():
            future.cancel()


async def _ended(process: Process) -> int:
    with contextlib.suppress(TimeoutError):
        return await within(process.wait(), STOP_BOUND_SECONDS)
    process.kill()
    return await process.wait()
