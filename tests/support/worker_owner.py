"""Who owns a worker in tests: records what it tells; and how one is booted, leased and run."""

import asyncio
import json
from typing import Any

import msgpack
import msgspec

from cellblock_worker.confinement import confinement
from cellblock_worker.launch.launching import Launcher
from cellblock_worker.wire import protocol
from cellblock_worker.worker.life import State
from cellblock_worker.worker.worker import Worker
from support.context_worker import module
from support.waits import until

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
