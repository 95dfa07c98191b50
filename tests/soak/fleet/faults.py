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
from support.fleet.network import Place

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

    async def _do(self, name: str, part: Part | None, how: str) -> None:
        try:
            if how in ("cut off", "slowed", "delayed"):
                await self._link(self._fleet.database.place if part is None else part.place, how)
            elif part is None:
                sent = signal.SIGQUIT if how == "killed" else signal.SIGINT
                await self._away(lambda: self._fleet.database.stop(sent), self._fleet.database.start)
            elif how == "left out":
                number = self._fleet.brokers.index(part)  # type: ignore[arg-type]
                await asyncio.to_thread(self._fleet.balancer.enable, number, is_in=False)
                await asyncio.sleep(self._chance.uniform(*CUT_SECONDS))
                await asyncio.to_thread(self._fleet.balancer.enable, number)
            elif how == "paused":
                await asyncio.to_thread(part.pause)
                try:
                    await asyncio.sleep(self._chance.uniform(*PAUSE_SECONDS))
                finally:
                    await asyncio.to_thread(part.resume)
            elif how.endswith(" lost"):
                for one in by_role(psutil.Process(part.pid)).get(how.removesuffix(" lost"), []):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        one.kill()
            elif how == "stopped":
                await self._away(lambda: self._stopped(part), part.start)
                await self._back(part)
            else:
                alone = self._chance.random() < 0.5
                await self._away(lambda: part.kill(alone=alone), part.start)
                await self._back(part)
        except Exception as error:  # noqa: BLE001 - the soak goes on, and says so
            self._wrong.append(f"{name}: {how}: {type(error).__name__}: {error}")
        finally:
            self._busy.discard(name)

    async def _link(self, place: Place, how: str) -> None:
        network = self._fleet.network
        there: dict[str, Callable[[], None]] = {
            "cut off": lambda: network.cut(place),
            "slowed": lambda: network.slow(place, SLOW_BYTES),
            "delayed": lambda: network.delay(place, DELAY_SECONDS),
        }
        back: dict[str, Callable[[], None]] = {
            "cut off": lambda: network.cut(place, is_cut=False),
            "slowed": lambda: network.slow(place),
            "delayed": lambda: network.delay(place),
        }
        await asyncio.to_thread(there[how])
        try:
            await asyncio.sleep(self._chance.uniform(*CUT_SECONDS))
        finally:
            await asyncio.to_thread(back[how])

    async def _away(self, down: Callable[[], Any], up: Callable[[], None]) -> None:
        await asyncio.to_thread(down)
        await asyncio.sleep(self._chance.uniform(*AWAY_SECONDS))
        await asyncio.to_thread(up)

    async def _back(self, part: Part) -> None:
        """Waits until a broker listens again: another fault before that would be one of a part that is not there."""
        if isinstance(part, Broker):
            await asyncio.to_thread(part.wait, ready=lambda: part.probe() > 0)

    def _stopped(self, part: Part) -> None:
        code = part.stop()
        # A host that has just begun has no handler for it yet.
        if code and not (isinstance(part, Host) and code == -signal.SIGTERM):
            self._wrong.append(f"{part.name} has ended with code {code}")
        elif code is None and not isinstance(part, Host):
            self._wrong.append(f"{part.name} did not end by SIGTERM")
