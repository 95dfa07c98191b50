"""Who owns a worker in tests: records what it tells; and how one is booted, leased and run. And, without a host and in
a thread, one that gives each run a V8 context: one run after the other.
"""

import asyncio
import base64
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgpack
import msgspec

from cellblock_worker.confinement import confinement
from cellblock_worker.launch.launching import Launcher
from cellblock_worker.wire import protocol
from cellblock_worker.wire.frames import FrameDecoder, encode_frame
from cellblock_worker.worker.life import State
from cellblock_worker.worker.rehearsal import WARM_FRAME
from cellblock_worker.worker.worker import Worker
from support.waits import until

MOST_BYTES: Final = 1 << 26

UNANSWERED: Final = object()
"""Answers no call."""


@dataclass(slots=True)
class Outcome:
    """What one run sent: its last message, its result or failure, and its log."""

    kind: str
    value: Any
    logs: list[str] = field(default_factory=list[str])


def module(source: str) -> str:
    """A module's URL, in the form in which the broker sends it."""
    return f"data:application/javascript;base64,{base64.b64encode(source.encode()).decode()}"


class ContextWorker:
    """A booted process, ready for runs; a context manager that kills it.

    One that has ended behind its run's outcome, as after a syntax error, has another one in its place.

    Args:
        bundle: The folder with what it boots from; None: the workers' own.
        seconds: After which a run is killed, as a host does it: its outcome is of the kind `killed`.
    """

    def __init__(self, bundle: Path | None = None, seconds: float = 600.0) -> None:
        self._seconds = seconds
        own, given = str(confinement.BUNDLE_DIR), str(bundle or confinement.BUNDLE_DIR)
        argv = confinement.plain_argv(max_old_space_mb=256, script=confinement.CONTEXTS_SCRIPT)
        self._argv = [word.replace(own, given) for word in argv]
        self._boot()

    def _boot(self) -> None:
        self._process = subprocess.Popen(
            self._argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(confinement.WORKER_ENVIRONMENT),
        )
        self._frames = self._read()
        self._send(WARM_FRAME)
        header, _ = next(self._frames, ({"t": "end"}, b""))
        if header["t"] != "ready":
            self._process.kill()
            raise AssertionError(self._process.communicate()[1].decode())

    def __enter__(self) -> "ContextWorker":
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self, source: str, modules: Mapping[str, str] | None = None, *, answer: object = None) -> Outcome:
        """Runs a script in the next context and waits until the process is ready again.

        Args:
            source: The script.
            modules: URLs by specifier.
            answer: What each call is answered with; `UNANSWERED` for none.
        """
        plan = {"main": module(source), "modules": dict(modules or {}), "refused": {}}
        start = protocol.Start(log_bytes=MOST_BYTES, message_bytes=MOST_BYTES, context=True)
        self._send(encode_frame(start.packed(), json.dumps(plan).encode()))
        killer = threading.Timer(self._seconds, self._process.kill)
        killer.start()
        try:
            return self._heard(answer)
        finally:
            killer.cancel()

    def _heard(self, answer: object) -> Outcome:
        logs: list[str] = []
        outcome: Outcome | None = None
        for header, body in self._frames:
            match header["t"]:
                case "log":
                    logs.append(body.decode())
                case "call" if answer is not UNANSWERED:
                    reply = protocol.Reply(id=header["id"], ok=True)
                    self._send(encode_frame(reply.packed(), json.dumps(answer).encode()))
                case "done" | "failed":
                    outcome = Outcome(header["t"], json.loads(body) if body else None, logs)
                case "ready":
                    return outcome
        self._process.communicate()
        assert outcome or self._process.returncode == -signal.SIGKILL, "the worker has ended"
        self._boot()
        return outcome or Outcome("killed", None, logs)

    def _send(self, frame: bytes) -> None:
        self._process.stdin.write(frame)
        self._process.stdin.flush()

    def _read(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        decoder = FrameDecoder(MOST_BYTES, lambda _header, _size: True)
        while data := os.read(self._process.stdout.fileno(), 1 << 20):
            for raw_header, body in decoder.feed(data):
                yield msgpack.unpackb(raw_header), body


BOUND = 60.0
MIB = 1024 * 1024


class Owner:
    """Records what workers tell. Its launcher is one of its own, which ends with its worker, unless one is given."""

    def __init__(self, launcher: Launcher | None = None, *, has_journals: bool = False) -> None:
        self.has_journals = has_journals
        self.said: list[tuple[dict[str, Any], bytes]] = []
        self.ended: list[tuple[protocol.Ended, bytes]] = []
        self.events: list[str] = []
        self.computed: list[float] = []
        self.tidied: list[tuple[int, float]] = []
        self.others = False
        self.launcher = launcher or Launcher(jail=confinement.jail())
        self._own_launcher = launcher is None

    def worker_ready(self, worker: Worker) -> None:
        self.events.append("ready")

    def worker_says(self, worker: Worker, raw_header: bytes, body: bytes) -> None:
        self.said.append((msgpack.unpackb(raw_header), body))
        self.events.append("says")

    def worker_computes(self, worker: Worker, cpu_seconds: float) -> bool:
        self.computed.append(cpu_seconds)
        self.events.append("computes")
        return self.others

    def worker_ended(self, worker: Worker, ended: protocol.Ended, body: bytes) -> None:
        self.ended.append((ended, body))
        if ended.outcome == "done":
            self.said.append(({"t": "done"}, body))
        elif ended.outcome != "none":
            self.said.append(({"t": "failed", "kind": ended.outcome}, body))
        self.events.append("ended")

    def worker_tidied(self, worker: Worker, cpu_seconds: float) -> None:
        self.tidied.append((worker.lane, cpu_seconds))
        self.events.append("tidied")

    def worker_returned(self, worker: Worker) -> None:
        self.events.append("returned")

    def worker_gone(self, worker: Worker) -> None:
        if self._own_launcher:
            self.launcher.close()
        self.events.append("gone")

    async def until(self, event: str) -> None:
        await until(lambda: event in self.events, f"the worker has {event}", BOUND, pause=0.002)

    async def end(self) -> protocol.Ended:
        """The end of the one run, after everything that could follow it has happened."""
        await self.until("gone")
        await asyncio.sleep(0)
        assert self.events.count("ended") == self.events.count("gone") == 1
        # Shown where a test fails: how it ended, and the last of its stderr.
        print(*self.ended[0])
        return self.ended[0][0]

    @property
    def logs(self) -> list[tuple[str, str]]:
        return [(header["level"], body.decode()) for header, body in self.said if header["t"] == "log"]


def make_run(**changes: int | str) -> protocol.Run:
    values = {
        "timeout_ms": 10_000,
        "cpu_ms": 10_000,
        "memory_bytes": 64 * MIB,
        "log_bytes": 1000,
        "message_bytes": MIB,
    }
    return msgspec.convert({**values, **changes}, protocol.Run)


def script(code: str) -> bytes:
    return json.dumps({"main": module(code), "modules": {}, "refused": {}}).encode()


async def booted(
    max_frame_bytes: int = 2 * MIB,
    *,
    rehearse: bool = True,
    has_journals: bool = False,
    launcher: Launcher | None = None,
    lasts: bool = False,
) -> tuple[Worker, Owner]:
    owner = Owner(launcher, has_journals=has_journals)
    made = Worker(
        owner, max_frame_bytes=max_frame_bytes, max_old_space_mb=128, rehearse=rehearse, lasts=lasts
    )
    await owner.until("ready")
    assert made.state is State.WARM and made.was_ready
    return made, owner


async def run_one(code: str, **changes: int) -> tuple[protocol.Ended, Owner]:
    made, owner = await booted()
    made.lease(b"token", make_run(**changes), script(code))
    return await owner.end(), owner
