"""What is done to the parts of a fleet: each fault ends by itself, and the part is there again."""

import asyncio
import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import psutil

from soak.watch import by_role
from support.fleet.fleet import Broker, Fleet, Host, Part

EVERY_SECONDS: Final = 2.0
"""Mean pause between two faults; the pauses are exponential, so some come close together."""

KINDS: Final = {
    "host: killed": 4,
    "host: paused": 2,
    "host: cut off": 3,
    "host: slowed": 1,
    "host: stopped": 1,
    "broker: killed": 4,
    "broker: stopped": 2,
    "broker: paused": 2,
    "broker: cut off": 2,
    "broker: slowed": 1,
    "broker: left out": 2,
    "balancer: killed": 1,
    "PostgreSQL: killed": 2,
    "PostgreSQL: restarted": 1,
    "PostgreSQL: cut off": 2,
    "host: delayed": 1,
    "broker: delayed": 1,
}
"""Says what happens, by how often."""

KINDS_ALONE: Final = {
    "broker: killed": 8,
    "broker: stopped": 1,
    "broker: paused": 1,
    "broker: host lost": 3,
    "broker: worker lost": 3,
}
"""The same of a broker that is alone."""

AWAY_SECONDS: Final = (0.2, 3.0)
PAUSE_SECONDS: Final = (0.5, 12.0)
"""A broker gives up a host that is silent for 8 s."""

CUT_SECONDS: Final = (1.0, 15.0)
SLOW_BYTES: Final = 60_000
DELAY_SECONDS: Final = 0.1


class FleetFaults:
    """Does them.

    Args:
        fleet: To whom.
        chance: Decides what, and when.
        wrong: Told of parts that do not end, or do not come back.
    """

    def __init__(self, fleet: Fleet, chance: random.Random, wrong: list[str]) -> None:
        self._fleet = fleet
        self._chance = chance
        self._wrong = wrong
        self._busy: set[str] = set()
        self.done: Counter[str] = Counter()
        self.log: list[tuple[float, str]] = []

    async def run(self, until: float) -> None:
        """Goes on until then, and returns when each part is there again."""
        began = time.monotonic()
        kinds = KINDS_ALONE if self._fleet.alone else KINDS
        async with asyncio.TaskGroup() as group:
            while time.monotonic() < until:
                await asyncio.sleep(self._chance.expovariate(1 / EVERY_SECONDS))
                kind = self._chance.choices(list(kinds), list(kinds.values()))[0]
                who, _, how = kind.partition(": ")
                part = self._part(who)
                name = who if part is None else part.name
                # One thing at a time to each.
                if name in self._busy:
                    continue
                self._busy.add(name)
                self.done[kind] += 1
                self.log.append((round(time.monotonic() - began, 1), f"{name}: {how}"))
                group.create_task(self._do(name, part, how))

    def _part(self, who: str) -> Part | None:
        parts: dict[str, Any] = {"host": self._fleet.hosts, "broker": self._fleet.brokers}
        if who in parts:
            return self._chance.choice(parts[who])
        return self._fleet.balancer if who == "balancer" else None

    async def _do(self, name: str, part: Any, how: str) -> None:
        """Begins a fault, ends it after a while, and sees to it that the part is there again. None is PostgreSQL."""
        fleet, network = self._fleet, self._fleet.network
        # One that is alone has no database.
        place = fleet.database.place if part is None else part.place
        ways: dict[str, tuple[Callable[[], Any], Callable[[], Any], tuple[float, float]]] = {
            "cut off": (lambda: network.cut(place), lambda: network.cut(place, is_cut=False), CUT_SECONDS),
            "slowed": (lambda: network.slow(place, SLOW_BYTES), lambda: network.slow(place), CUT_SECONDS),
            "delayed": (
                lambda: network.delay(place, DELAY_SECONDS),
                lambda: network.delay(place),
                CUT_SECONDS,
            ),
            "left out": (
                lambda: fleet.balancer.enable(fleet.brokers.index(part), is_in=False),
                lambda: fleet.balancer.enable(fleet.brokers.index(part)),
                CUT_SECONDS,
            ),
            "paused": (lambda: part.pause(), lambda: part.resume(), PAUSE_SECONDS),
            "stopped": (lambda: self._stopped(part), lambda: self._started(part), AWAY_SECONDS),
            "killed": (
                lambda: (
                    part.kill(alone=self._chance.random() < 0.5)
                    if part
                    else fleet.database.stop(signal.SIGQUIT)
                ),
                lambda: self._started(part or fleet.database),
                AWAY_SECONDS,
            ),
            "restarted": (
                lambda: fleet.database.stop(signal.SIGINT),
                lambda: fleet.database.start(),
                AWAY_SECONDS,
            ),
        }
        try:
            if how.endswith(" lost"):
                for one in by_role(psutil.Process(part.pid)).get(how.removesuffix(" lost"), []):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        one.kill()
                return
            begin, end, span = ways[how]
            await asyncio.to_thread(begin)
            try:
                await asyncio.sleep(self._chance.uniform(*span))
            finally:
                await asyncio.to_thread(end)
        except Exception as error:  # noqa: BLE001 - the soak goes on, and says so
            self._wrong.append(f"{name}: {how}: {type(error).__name__}: {error}")
        finally:
            self._busy.discard(name)

    def _started(self, part: Any) -> None:
        """Waits until a broker listens again: another fault before that would be one of a part that is not there."""
        part.start()
        if isinstance(part, Broker):
            part.wait(ready=lambda: part.probe() > 0)

    def _stopped(self, part: Part) -> None:
        code = part.stop()
        # A host that has just begun has no handler for it yet.
        if code and not (isinstance(part, Host) and code == -signal.SIGTERM):
            self._wrong.append(f"{part.name} has ended with code {code}")
        elif code is None and not isinstance(part, Host):
            self._wrong.append(f"{part.name} did not end by SIGTERM")
