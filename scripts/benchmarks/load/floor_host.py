"""Stands where the worker host stands, with nothing of it: ZeroMQ on one side, pipes of Deno processes on the other.

Usage: floor_host.py ENDPOINT WARM DENO_DIR bare|isolated SCRIPT

It checks no message, keeps no cap and looks at nothing: what it does, a run cannot do without. A worker serves one run
and is killed, as Cellblock's are.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Final

import zmq

from cellblock_worker.base.lifetime import die_with_parent
from cellblock_worker.confinement import confinement, network

READ_BYTES: Final = 64 * 1024
REFILL_SECONDS: Final = 0.015
"""As Cellblock's: a worker is replaced when its run had time to be over, and at once when none is left."""

INSIDE: Final = "/floor"
HEAP_MB: Final = 256
NOW: Final = 0.0


class _Worker:
    """One Deno process, booting, warm or at a run."""

    def __init__(self, argv: list[str], environment: dict[str, str], fds: tuple[int, ...]) -> None:
        self._process = subprocess.Popen(
            argv,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            pass_fds=fds,
            start_new_session=True,
        )
        assert self._process.stdin and self._process.stdout
        self._stdin, self.stdout = self._process.stdin.fileno(), self._process.stdout.fileno()
        self.run = b""

    def tell(self, text: bytes) -> None:
        os.write(self._stdin, text)

    def end(self) -> None:
        os.killpg(self._process.pid, 9)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream
            stream.close()


class _Host:
    """Serves runs until its stdin ends."""

    def __init__(self, endpoint: str, warm: int, folder: str, script: str, *, isolated: bool) -> None:
        self._dealer = zmq.Context().socket(zmq.DEALER)
        self._dealer.connect(endpoint)
        self._poller = zmq.Poller()
        for source in (self._dealer, 0):
            self._poller.register(source, zmq.POLLIN)
        self._keep, self._folder, self._script, self._isolated = warm, folder, script, isolated
        self._booting: dict[int, _Worker] = {}
        self._warm: deque[_Worker] = deque()
        self._running: dict[int, _Worker] = {}
        self._runs: dict[bytes, _Worker] = {}
        self._waiting: deque[tuple[bytes, bytes]] = deque()
        self._refill_at: float | None = NOW

    def serve(self) -> None:
        """Until the end."""
        while True:
            if self._refill_at is not None and time.monotonic() >= self._refill_at:
                self._refill()
            for source, _ in self._poller.poll(self._pause_ms()):
                if source is self._dealer:
                    self._from_broker()
                elif source == 0:
                    for worker in (*self._booting.values(), *self._warm, *self._running.values()):
                        worker.end()
                    return
                else:
                    assert isinstance(source, int)
                    self._from_worker(source)

    def _pause_ms(self) -> int | None:
        if self._refill_at is None:
            return None
        return int(max(0.0, self._refill_at - time.monotonic()) * 1000) + 1

    def _from_broker(self) -> None:
        run, text = self._dealer.recv_multipart()
        worker = self._runs.get(run)
        if worker is not None:
            worker.tell(text)
        elif self._warm:
            self._start(run, text)
        else:
            self._waiting.append((run, text))

    def _start(self, run: bytes, text: bytes) -> None:
        worker = self._warm.popleft()
        worker.run = run
        self._runs[run] = self._running[worker.stdout] = worker
        worker.tell(text)
        self._refill_at = time.monotonic() + (REFILL_SECONDS if self._warm else NOW)

    def _from_worker(self, stdout: int) -> None:
        text = os.read(stdout, READ_BYTES)
        if not text:
            raise SystemExit("a worker ended by itself")
        if stdout in self._booting:
            self._warm.append(self._booting.pop(stdout))
            self._dealer.send_multipart([b"", text])
            if self._waiting:
                self._start(*self._waiting.popleft())
            return
        worker = self._running[stdout]
        self._dealer.send_multipart([worker.run, text])
        if text.startswith(b"="):
            del self._running[stdout], self._runs[worker.run]
            self._poller.unregister(stdout)
            worker.end()

    def _refill(self) -> None:
        self._refill_at = None
        while len(self._warm) + len(self._booting) < self._keep:
            worker = self._spawn()
            self._booting[worker.stdout] = worker
            self._poller.register(worker.stdout, zmq.POLLIN)

    def _spawn(self) -> _Worker:
        if not self._isolated:
            argv = [
                confinement.deno_binary(),
                "run",
                "--no-remote",
                "--no-npm",
                "--no-config",
                "--no-code-cache",
            ]
            environment = {**confinement.WORKER_ENVIRONMENT, "DENO_DIR": self._folder}
            return _Worker([*argv, self._script], environment, ())
        launch = confinement.launch(HEAP_MB)
        binary, *arguments = launch.command
        script = Path(self._script)
        argv = [
            binary,
            "--ro-bind",
            str(script.parent),
            INSIDE,
            *arguments[:-1],
            f"{INSIDE}/{script.name}",
        ]
        try:
            return _Worker(argv, confinement.WORKER_ENVIRONMENT, launch.fds)
        finally:
            launch.close()


def main() -> int:
    """Serves. Returns the exit code: 1 where workers cannot be isolated."""
    die_with_parent()
    endpoint, warm, folder, kind, script = sys.argv[1:]
    if isolated := kind == "isolated":
        has_network = not network.leave(endpoint, confinement.works_without_network)
        confinement.use_isolation("auto", has_network=has_network)
        confinement.use_deno_dir(folder)
        if confinement.layers_missing():
            return 1
    _Host(endpoint, int(warm), folder, script, isolated=isolated).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
