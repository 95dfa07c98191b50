"""One soak of a fleet, or of a broker alone, from its start to what is judged when all has come to its end.

And what is done to the parts of a fleet: each fault ends by itself, and the part is there again."""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import psutil

from cellblock.base.database import StoreError
from cellblock.record.rows import Head, RunState
from soak.fleet import shared
from soak.fleet.clients import INLINE_BYTES, Clients
from soak.run_books import APPROVE, LOSSES, RunBooks
from soak.watch import adopt_orphans, by_role, files_under, tracebacks
from soak.written import drained, heads_in, response_to, store_of
from support.entries import CELLBLOCK, SERVERS, ledger, plain_server
from support.fleet.fleet import Balancer, Broker, Fleet, Host, Part, summary
from support.fleet.network import Loopback
from support.processes import alive, command_line, descendants, signal_all
from support.waits import until, until_found

HOSTS: Final = 3
AT_ONCE: Final = 10
"""Counts the calls of one run at the end, when the rest of the quota is used up."""

APPROVE_SECONDS: Final = 0.4
"""Passes between two looks of the person who approves."""

BACK_SECONDS: Final = 240.0
"""Bounds the time until each part serves again, and clients have their answers, after the last fault."""

DRAIN_SECONDS: Final = 600.0
"""Bounds the end: runs of dead brokers are taken by others after ten seconds, up to three times, and each parks."""

LEFT_SECONDS: Final = 30.0
THREADS: Final = 40
"""Wait for parts, and for the database."""

ENDS: Final = LOSSES | {"OVERLOADED", "WORKER_UNAVAILABLE", "RUN_NOT_PARKED"}
"""Names how runs of a fleet may end without a result: where all hosts are away, there is no place for long, and where
PostgreSQL is, a run that waits cannot be written down."""


class Asking(Part):
    """A server that asks during calls, and outlives the brokers."""

    def __init__(self, folder: Path, network: Loopback) -> None:
        super().__init__(network.place("the server that asks"), folder / "asking")
        self.ledger = folder / "answers.jsonl"

    def command(self) -> list[str]:
        program = str(SERVERS / "asking_server.py")
        return [sys.executable, "-I", program, "http", "--older", "--ledger", str(self.ledger)]

    def is_ready(self) -> bool:
        return "port " in self.said()

    @property
    def url(self) -> str:
        """Where it is, once it is ready."""
        return f"http://127.0.0.1:{int(self.said().split()[1])}/mcp"


class Campaign:
    """Owns the fleet.

    Args:
        folder: An empty one with a short path.
        network: Where the fleet is.
        seed: Fixes who does what, and what is done to whom, not what it meets.
        seconds: Of load.
        alone: Whether it is one broker, on its own files.
    """

    def __init__(
        self, folder: Path, network: Loopback, *, seed: int, seconds: float, alone: bool = False
    ) -> None:
        # A run ends with the connection of a client that waits for it.
        self.books = RunBooks(ENDS, {"CANCELLED"})
        self.wrong = self.books.wrong
        self._chance = random.Random(seed)
        self._seconds = seconds
        self._most = shared.quota_of(seconds)
        self.fleet = Fleet(
            folder,
            network,
            brokers=2,
            hosts=HOSTS,
            capacity=4,
            servers={
                "ledger": plain_server("--ledger", folder / "ledger.jsonl"),
                shared.METERED: plain_server("--ledger", folder / "ledger.jsonl"),
            },
            settings={
                "typecheck": "off",
                "policy": {"default": {"approve": APPROVE}, "quotas": shared.quotas(self._most)},
                "frontend": {"inline_bytes": INLINE_BYTES},
            },
            host_options=("--drain", 20),
            alone=alone,
        )
        self._asking = Asking(folder, network)
        self.fleet.add(self._asking)
        self.faults = FleetFaults(self.fleet, random.Random(seed + 1), self.wrong)
        self.logs: dict[str, str] = {}
        self.summary = ""

    async def run(self) -> None:
        """Runs it all; what is wrong is in `wrong`."""
        adopt_orphans()
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
        with self.fleet as fleet:
            try:
                await asyncio.to_thread(self._start)
                self.summary = summary(fleet)
                await self._load()
                await self._stop()
            finally:
                self.logs = {part.name: part.said() for part in fleet.parts}
                self.logs["ledger"] = fleet.ledger_file.read_text("utf-8")
        with contextlib.suppress(AssertionError):
            await until(lambda: not descendants(os.getpid()), "all processes have ended", LEFT_SECONDS)
        self.wrong += [f"a process is left: {command_line(one)}" for one in descendants(os.getpid())]
        for name, said in self.logs.items():
            self.wrong += [f"in the log of {name}: {entry[:1500]}" for entry in tracebacks(said)]

    def figures(self) -> dict[str, Any]:
        """Gives what a report needs."""
        return {
            "of": self.summary,
            "faults": dict(self.faults.done.most_common()),
            "counts": dict(sorted(self.books.counts.items())),
            "what_was_done": self.faults.log,
            "wrong": self.wrong,
        }

    # ---- inside ------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._asking.start()
        self._asking.wait()
        self.fleet.servers["asking"] = {"url": self._asking.url}
        self.fleet.start()

    async def _load(self) -> None:
        stop = time.monotonic() + self._seconds
        clients = Clients(self.fleet, self.books, self._chance, await self._other_token())
        clients.until, clients.over = stop, stop + BACK_SECONDS
        clients.asks = True
        async with asyncio.TaskGroup() as group:
            beside = [
                group.create_task(work) for work in (self._approving(clients), self._intruding(clients))
            ]
            faults = group.create_task(self.faults.run(stop))
            users = [clients.modern() for _ in range(3)] + [clients.legacy() for _ in range(2)]
            users += [clients.sharing() for _ in range(2)]
            await asyncio.gather(*users)
            await faults
            for part in self.fleet.parts:
                await asyncio.to_thread(part.wait, BACK_SECONDS)
            self.wrong += await drained(self._heads, DRAIN_SECONDS)
            await self._is_used_up(clients)
            for task in beside:
                task.cancel()

    async def _other_token(self) -> str:
        """Makes the token of another principal."""
        broker = self.fleet.brokers[0]
        # What brokers share is theirs wherever a command is; a broker that is alone has it in its own folder.
        state = broker.state if self.fleet.alone else broker.folder / "cli"
        done = await asyncio.to_thread(
            subprocess.run,
            [
                *(CELLBLOCK, "token", "create", "other", "--state-dir", state),
                *("--config", self.fleet.folder / "b0" / "cellblock.json"),
            ],
            env=broker.environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=120.0,
        )
        return done.stdout.strip()

    async def _approving(self, clients: Clients) -> None:
        while True:
            await asyncio.sleep(APPROVE_SECONDS)
            # A broker that is alone makes its file with its first run.
            with contextlib.suppress(StoreError, FileNotFoundError):
                if waiting := await asyncio.to_thread(self._heads, "parked"):
                    await clients.approve(waiting)

    async def _intruding(self, clients: Clients) -> None:
        while True:
            await asyncio.sleep(1.0)
            await clients.intrude()

    async def _is_used_up(self, clients: Clients) -> None:
        """Has each broker asked for calls until the quota is used up there, too."""
        for broker in self.fleet.brokers:

            async def is_so(broker: Broker = broker) -> bool:
                codes = (await clients.share(broker.served, times=AT_ONCE)).get("codes", {})
                return "QUOTA_USED_UP" in codes.values()

            try:
                await until_found(is_so, f"the quota is used up at {broker.name}", BACK_SECONDS)
            except AssertionError as error:
                self.wrong.append(str(error))

    async def _stop(self) -> None:
        """Stops the parts as a service manager does, and looks at what they have left behind."""
        fleet = self.fleet
        for part in (*fleet.hosts, *fleet.brokers):
            if code := await asyncio.to_thread(part.stop):
                self.wrong.append(f"{part.name} has ended with code {code}")
        for part in (one for one in fleet.parts if not isinstance(one, Balancer)):
            with contextlib.suppress(AssertionError):
                await until(lambda part=part: not part.left(), "it is gone", LEFT_SECONDS)
            left = [command_line(one) for one in part.left() if alive(one)]
            self.wrong += [f"of {part.name} is left: {one}" for one in left]
        empty = [one.folder / name for one in fleet.brokers for name in ("tmp", "home", "state/run")]
        self.wrong += [f"a file is left: {file}" for file in sorted(files_under(*empty))]
        with store_of(fleet) as store:
            heads = heads_in(store)
            responses = {head.id: response_to(store, head.id) for head in heads}
        events = fleet.ledger() + ledger(self._asking.ledger)
        self.books.settle(events, heads, lambda run_id: responses[run_id])
        self.wrong += shared.breaches(events, self._most, self.books.counts)
        self.books.counts["quota"] = self._most
        for what, statement in () if fleet.alone else LEFT.items():
            # The server finds out in seconds that a broker is gone whose link was cut when it died.
            with contextlib.suppress(AssertionError):
                await until(lambda said=statement: not fleet.database.rows(said), "it is gone", LEFT_SECONDS)
            if rows := fleet.database.rows(statement):
                self.wrong.append(f"{what} is left: {rows}")

    def _heads(self, state: RunState | None = None) -> list[Head]:
        with store_of(self.fleet) as store:
            return heads_in(store, state)


LEFT: Final = {
    "a run that is not over": "SELECT id, state, owner FROM cellblock.runs WHERE state != 'ended'",
    "a lock": "SELECT pid, objid FROM pg_locks WHERE locktype = 'advisory'",
    "a connection": "SELECT query FROM pg_stat_activity WHERE application_name = 'cellblock'",
}
"""Names what must not be in the database at the end."""


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
                role = how.removesuffix(" lost")
                signal_all(by_role(psutil.Process(part.pid)).get(role, []), signal.SIGKILL)
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
