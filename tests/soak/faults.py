"""Random deaths: SIGKILL, SIGSTOP and later SIGKILL, or a pause, of workers, hosts and upstream servers."""

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass
from typing import Final

import psutil

from soak.watch import by_role

WORKER_EVERY_SECONDS: Final = 1.5
UPSTREAM_EVERY_SECONDS: Final = 12.0
HOST_EVERY_SECONDS: Final = 40.0
"""Mean pauses between faults of one kind; the pauses are exponential, so some come close together."""

HOST_SHARE: Final = 0.6
"""Hosts are killed in this first part of the load only: in the rest one host lives on, so that its memory shows."""


@dataclass(frozen=True)
class Fault:
    """What was done; `at` in seconds since the load began. `how` is kill, stop-kill or pause."""

    at: float
    role: str
    how: str


class Faults:
    """Kills descendants of one broker only.

    Args:
        broker: The broker's process.
        seed: Fixes the order of faults, not what they meet.
        began: When the load began, by the monotonic clock.
        until: Seconds after which hosts are left alone.
    """

    def __init__(self, broker: psutil.Process, seed: int, began: float, *, until: float) -> None:
        self._broker = broker
        self._chance = random.Random(seed)
        self._began = began
        self._hosts_until = until
        self.done: list[Fault] = []

    async def run(self) -> None:
        """Goes on until cancelled. What it has stopped is then killed or set going."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._again(WORKER_EVERY_SECONDS, "worker", 1.0))
            group.create_task(self._again(UPSTREAM_EVERY_SECONDS, "upstream", 3.0))
            group.create_task(self._again(HOST_EVERY_SECONDS, "host", 10.0))

    async def kill_one(self, role: str) -> None:
        """SIGKILL to one process of a role, if there is one."""
        if (victim := self._choose(role)) is not None:
            victim.kill()

    async def _again(self, mean: float, role: str, longest_stop: float) -> None:
        while True:
            await asyncio.sleep(self._chance.expovariate(1 / mean))
            if role == "host" and time.monotonic() - self._began > self._hosts_until:
                return
            # bubblewrap is the parent of each worker; either may die first.
            chosen = self._chance.choice(["worker", "worker", "bubblewrap"]) if role == "worker" else role
            victim = self._choose(chosen)
            if victim is not None:
                how = self._chance.choices(["kill", "stop-kill", "pause"], [6, 3, 2])[0]
                self.done.append(Fault(round(time.monotonic() - self._began, 2), chosen, how))
                with contextlib.suppress(psutil.Error):
                    await self._harm(victim, how, self._chance.uniform(0.05, longest_stop))

    async def _harm(self, victim: psutil.Process, how: str, seconds: float) -> None:
        if how == "kill":
            victim.kill()
            return
        victim.suspend()
        try:
            await asyncio.sleep(seconds)
        finally:
            with contextlib.suppress(psutil.Error):
                victim.resume() if how == "pause" else victim.kill()

    def _choose(self, role: str) -> psutil.Process | None:
        try:
            candidates = by_role(self._broker).get(role, [])
        except psutil.Error:
            return None
        candidates.sort(key=lambda process: process.pid)
        return self._chance.choice(candidates) if candidates else None
