"""One soak from the broker's start to its end: warm up, look at rest, load and kill, look at rest, stop, settle.

And who acts beside the load: hostile servers that flood, hostile HTTP clients, a quiet neighbour who is measured; and
random deaths: SIGKILL, SIGSTOP and later SIGKILL, or a pause, of workers, hosts and upstream servers."""

import asyncio
import contextlib
import json
import os
import random
import socket
import sys
import time
from asyncio.subprocess import DEVNULL
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.client import run_of
from benchmarks.harness import MIB, SCRIPTS
from benchmarks.hostile.hostile_server import boxes
from benchmarks.hostile.loop_watch import EVERY_SECONDS, stalls
from benchmarks.hostile.neighbours import STALL_MS, Found, visit
from benchmarks.hostile.stage import ATTACKER, Stage, upstream
from benchmarks.hostile.workloads import IDLE, SLEEPS
from security.native.harness import Native, NoCompiler, build
from soak.books import Books, Record
from soak.load import KILLED, KINDS, LARGE_KINDS, NATIVE_KIND, SERVERS, Load, Planned, call_numbers
from soak.watch import (
    Kinds,
    Rest,
    Sample,
    Watch,
    adopt_orphans,
    by_role,
    files_under,
    memory_breaches,
    tracebacks,
)
from soak.wire import Cellblock
from support.entries import plain_server, write_config

ANSWER_BOUND_SECONDS: Final = 90.0
"""Longest wait for an answer: queue 30 s, lease 15 s, timeout 20 s and the kill after it, on a busy machine."""

REST_BOUND_SECONDS: Final = 90.0
"""Bounds the wait for as many processes as before the load: hosts forget a burst 60 s after the last run."""


HOSTLESS_SAMPLES: Final = 20
"""Seconds that the broker may be without a host: the longest pause before a restart is 5 s."""

PARTS: Final = ("native", "large", "floods", "clients", "kills")
"""Native attackers; scripts that send or fetch what is too large; servers that flood; hostile HTTP clients; a second
daemon, which is killed again and again while its runs wait for people."""

STANDING: Final = ("host", "worker", "upstream")
"""Kinds of processes of which there are as many whenever the broker is at rest; others come and go with their use."""

NATIVE_PERCENT: Final = 10
"""Of the workers; an honest script that one of them gets is not counted as one."""

KILLS_SHARE: Final = 0.8
"""The part of the load in which the second daemon is killed: what waits there is brought to its end in the rest."""

FLOOD_MOST: Final = 2_000
"""Tools of a hostile server, and notifications that it sends on one connection at most."""

SETTINGS: Final[dict[str, Any]] = {
    "pool": {"warm": 3, "capacity": 6, "queue_size": 64},
    "upstream": {"call_timeout_ms": 1500},
    "isolation": "auto",
}


class Campaign:
    """Keeps what it knows when it fails half way, so that there is always a report.

    Args:
        work: An empty folder with a short path.
        seed: Of the load and the faults.
        seconds: Duration of the load.
        clients: Runs at once.
        without: Of `PARTS`, what is left out of the hostile part of the mix.
    """

    def __init__(
        self, work: Path, *, seed: int, seconds: float, clients: int, without: Collection[str] = ()
    ) -> None:
        self._work, self._seconds, self._clients = work, seconds, clients
        self._seed = seed
        self._without = without
        self._native = None if "native" in without else _built(work / "native")
        native = (NATIVE_KIND,) if self._native else ()
        large = () if "large" in without else LARGE_KINDS
        self._load = Load(seed, (*KINDS, *native, *large))
        self._requests: dict[int, Record] = {1: Record(0, "initialize", 0.0, cancelled=False)}
        self._began = 0.0
        self._before: Rest | None = None
        self._after: Rest | None = None
        self.faults: list[Fault] = []
        self._watch: Watch | None = None
        self._private = [work / name for name in ("tmp", "home", "cwd")]
        self._ledgers = [work / f"{name}.jsonl" for name in SERVERS]
        self._log = work / "broker.log"
        self.logs: dict[str, str] = {}
        self.books = Books()
        self.wrong = self.books.wrong
        path = [str(SCRIPTS), *([self._native.environment()] if self._native else [])]
        environment = {
            "PATH": os.environ["PATH"],
            "TMPDIR": str(work / "tmp"),
            "HOME": str(work / "home"),
            "PYTHONPATH": os.pathsep.join(path),
        }
        self._stalls, self._go = work / "stalls", work / "go"
        self._cellblock = Cellblock(
            work / "cellblock.json", work / "s", self._log, self._stalls, environment, work / "cwd"
        )
        self._actors: Actors | None = None
        self._kills = work / "kills.json"
        for folder in self._private:
            folder.mkdir()

    async def run(self) -> None:
        """The whole course; what is wrong is in `wrong`."""
        adopt_orphans()
        with contextlib.ExitStack() as stack:
            evil = {
                name: stack.enter_context(
                    upstream(transport, self._go, "--tools", "300", "--most", str(FLOOD_MOST))
                )
                for name, transport in (("evil", "stdio"), ("evil_http", "http"), ("evil_sse", "sse"))
            }
            ledgers = zip(SERVERS, self._ledgers, strict=True)
            honest = {name: plain_server("--ledger", ledger) for name, ledger in ledgers}
            others = {"plain": plain_server(), "hostile": plain_server()}
            write_config(self._work, {**honest, **others, **evil}, **SETTINGS)
            await self._course()

    async def _course(self) -> None:
        ours = [child.pid for child in psutil.Process().children()]
        await self._cellblock.start()
        ours.append(self._cellblock.connect_pid)
        watch = self._watch = Watch(self._cellblock.pid, ours, self._private)
        await self._warm_up(watch)
        self._before = await watch.rest(REST_BOUND_SECONDS)
        await self._loaded(watch)
        self._judge_hosts(watch.samples)
        self._after = await self._rest_again(watch, self._before)
        self._compare(self._before, self._after)
        code = await self._cellblock.stop()
        if code != 0:
            self.books.breach("alive to the end", f"the broker ended with code {code}")
        left = [*await watch.survivors(10.0), *watch.orphans.leaked.values()]
        self.books.breach("no leaked process", *left)
        self.books.breach("no leaked file", *sorted(files_under(*self._private, self._work / "s" / "run")))
        self._read_logs()
        lines = [line for ledger in self._ledgers for line in ledger.read_text(encoding="utf-8").splitlines()]
        self.books.settle(self._cellblock.answers, self._requests, call_numbers(lines))

    def figures(self) -> dict[str, Any]:
        """Everything for the report."""
        samples = self._watch.samples if self._watch else []
        memory, grown = memory_breaches(samples, len(self.books.records))
        self.books.breach("memory does not grow", *grown)
        self._judge_stalls()
        loaded = [record for record in self.books.records if record.sent >= self._began]
        mib = {name: [round(one / MIB, 1) for one in found] for name, found in memory.items()}
        kills = json.loads(self._kills.read_text("utf-8")) if self._kills.exists() else {"counts": {}}
        return {
            "of": f"{self._clients} runs at once, {'' if self._native else 'no '}native attackers among the workers",
            "faults": dict(sorted(Counter(f"{fault.role} {fault.how}" for fault in self.faults).items())),
            "counts": {
                "runs": len(loaded),
                **dict(Counter(f"of kind: {one.kind}" for one in loaded).most_common()),
                **dict(Counter(f"ended: {one.ending}" for one in loaded).most_common()),
                **{f"tool calls {what}": count for what, count in self.books.calls.items()},
                **{f"{name}, MiB early, late, steady growth": found for name, found in mib.items()},
                "broker's descriptors at rest": _totals(self._before, self._after, "broker_fds"),
                "host's descriptors at rest": _totals(self._before, self._after, "host_fds"),
                "processes": len(self._watch.seen) if self._watch else 0,
                **(self._actors.figures() if self._actors else {}),
                **{f"killed daemon: {name}": count for name, count in kills["counts"].items()},
            },
            "what_was_done": [vars(fault) for fault in self.faults],
            "samples": [vars(sample) for sample in samples],
            "wrong": self.wrong,
        }

    # ---- inside --------------------------------------------------------------------------------------

    async def _warm_up(self, watch: Watch) -> None:
        """Every kind of run once, a killed host and killed servers: whatever is made at first use is there."""
        faults = Faults(watch.broker, self._seed, time.monotonic(), until=0.0)
        for _ in range(2):
            await asyncio.gather(*(self._one(*planned) for planned in self._load.one_of_each()))
            for role in ("host", "upstream", "worker"):
                await faults.kill_one(role)
            await asyncio.sleep(1.0)

    async def _loaded(self, watch: Watch) -> None:
        self._began = time.monotonic()
        until = self._began + self._seconds
        faults = Faults(watch.broker, self._seed, self._began, until=self._seconds * HOST_SHARE)
        self.faults = faults.done
        watching = asyncio.create_task(watch.run())
        deaths = asyncio.create_task(faults.run())
        stage = Stage(self._cellblock.port, self._cellblock.token, self._go)
        actors = self._actors = Actors(stage, self.books, self._seed, self._without)
        neighbour = asyncio.create_task(actors.neighbour(self._seconds))
        kills = asyncio.create_task(self._daemons_are_killed(watch, self._seconds * KILLS_SHARE))
        try:
            await asyncio.gather(actors.run(until), *(self._client(until) for _ in range(self._clients)))
            await _over(deaths)
            await kills
            await neighbour
        finally:
            actors.close()
            for task in (watching, deaths, neighbour, kills):
                await _over(task)

    async def _daemons_are_killed(self, watch: Watch, seconds: float) -> None:
        """Has another daemon killed beside this one, whose memory and answers are measured from its start to its end.
        In a process of its own, which adopts what that daemon leaves behind."""
        if "kills" in self._without:
            return
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "soak", "--alone", "--minutes", str(seconds / 60)),
            *("--seed", str(self._seed), "--out", str(self._kills.parent), "--name", self._kills.stem),
            stdout=DEVNULL,
        )
        watch.orphans.kept.add(process.pid)
        code = await process.wait()
        wrong = json.loads(self._kills.read_text("utf-8"))["wrong"] if self._kills.exists() else []
        self.books.breach(
            "runs outlive their daemon", *(wrong or ([f"it ended with code {code}"] if code else []))
        )

    async def _client(self, until: float) -> None:
        while time.monotonic() < until and self._cellblock.exit_code is None:
            await self._one(*self._load.next())

    async def _one(self, number: int, planned: Planned) -> None:
        """Sends one run and waits for its answer, or for a moment where it is cancelled."""
        record = self.books.sent(number, planned, time.monotonic())
        request, answer = self._cellblock.run(dict(planned.arguments))
        self._requests[request] = record
        bound = ANSWER_BOUND_SECONDS
        if planned.cancel_after is not None:
            await asyncio.wait([answer], timeout=planned.cancel_after)
            self._cellblock.cancel(request)
            bound = 1.0
        await asyncio.wait([answer], timeout=bound)
        if answer.done() and not answer.cancelled():
            self.books.answered(record, planned, answer.result())
        elif self._cellblock.exit_code is not None:
            self.books.breach("alive to the end", f"the broker ended with code {self._cellblock.exit_code}")

    def _judge_stalls(self) -> None:
        """The loop's thread itself may not be busy for longer; what it waits for a core or Python's lock is not its."""
        found = stalls(self._stalls, self._began, self._began + self._seconds) if self._began else ()
        long = [
            f"at {stall.until - self._began:.1f} s: {stall.cpu_seconds * 1000:.0f} ms"
            for stall in found
            if stall.cpu_seconds > STALL_MS / 1000 + EVERY_SECONDS
        ]
        self.books.breach("the loop computes briefly", *long)

    async def _rest_again(self, watch: Watch, before: Rest) -> Rest:
        deadline = time.monotonic() + REST_BOUND_SECONDS
        after = await watch.rest(REST_BOUND_SECONDS)
        while after != before and time.monotonic() < deadline:
            after = await watch.rest(REST_BOUND_SECONDS)
        watch.orphans.reap()
        return after

    def _compare(self, before: Rest, after: Rest) -> None:
        leaked = after.processes - before.processes
        if leaked or {role for role in STANDING if after.processes[role] != before.processes[role]}:
            self.books.breach("no leaked process", _difference(before.processes, after.processes))
        for who in ("broker_fds", "host_fds"):
            was, now = getattr(before, who), getattr(after, who)
            # Fewer is no leak: an idle compiler may have ended.
            if now - was:
                self.books.breach("no leaked descriptor", f"{who}: {_difference(was, now)}")

    def _judge_hosts(self, samples: Sequence[Sample]) -> None:
        hostless = [
            f"at {samples[first].at:.0f} s: no host for {HOSTLESS_SAMPLES} s"
            for first in range(len(samples) - HOSTLESS_SAMPLES)
            if not any(sample.host_pid for sample in samples[first : first + HOSTLESS_SAMPLES + 1])
        ]
        self.books.breach("alive to the end", *hostless)

    def _read_logs(self) -> None:
        files = (self._log, self._cellblock.connect_log, self._work / "s" / "logs" / "host.log")
        self.logs = {file.stem: file.read_text("utf-8", "replace") for file in files if file.exists()}
        for name, text in self.logs.items():
            self.books.breach("clean logs", *(f"{name}: {entry[:1500]}" for entry in tracebacks(text)))
        self.books.breach("clean logs", *(f"stdout: {line}" for line in self._cellblock.noise))


async def _over(task: asyncio.Task[None]) -> None:
    """Cancels a task that goes on for ever, and raises what it failed with."""
    task.cancel()
    [outcome] = await asyncio.gather(task, return_exceptions=True)
    if isinstance(outcome, Exception):
        raise outcome


def _built(folder: Path) -> Native | None:
    folder.mkdir()
    try:
        native = build(folder)
    except NoCompiler as error:
        print(f"no native attacker: {error}", file=sys.stderr)
        return None
    native.takes(NATIVE_PERCENT)
    return native


def _difference(before: Kinds, after: Kinds) -> str:
    kinds = sorted(kind for kind in before | after if before[kind] != after[kind])
    return ", ".join(f"{kind}: {before[kind]} before, {after[kind]} after" for kind in kinds)


def _totals(before: Rest | None, after: Rest | None, who: str) -> str:
    counts = [sum(getattr(rest, who).values()) if rest else 0 for rest in (before, after)]
    return f"{counts[0]} → {counts[1]}"


RATE: Final = 4.0
"""The neighbour's runs that are due in a second."""

CALM_SECONDS: Final = 12.0
FLOOD_SECONDS: Final = 2.0
"""Between two floods of the hostile servers, and of one."""

CLIENT_EVERY_SECONDS: Final = 3.0
"""Between two deeds of hostile HTTP clients, on average."""

HELD_SECONDS: Final = 2.0
"""How long what is opened and says nothing is kept."""

ANSWER_SECONDS: Final = 10.0
"""For the refusal of a request that is none."""

META_BYTES: Final = 7_400 * 1024

FLOODS: Final = "floods of servers"
CLIENT_DEEDS: Final = {
    "requests that are none": 6,
    "silent connections": 3,
    "idle connections": 1,
    "requests of 7.4 MB": 2,
}
"""What hostile HTTP clients do, by how often."""

REFUSED: Final = {
    "no token": b"POST /mcp HTTP/1.1\r\nHost: %(host)s\r\nContent-Length: 2\r\n\r\n{}",
    "wrong token": b"POST /mcp HTTP/1.1\r\nHost: %(host)s\r\nAuthorization: Bearer x\r\nContent-Length: 2\r\n\r\n{}",
    "length and chunks": b"POST /mcp HTTP/1.1\r\nHost: %(host)s\r\nAuthorization: Bearer %(token)s\r\n"
    b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "long headers": b"GET /mcp HTTP/1.1\r\nHost: %(host)s\r\nX-Long: " + b"x" * 300_000 + b"\r\n\r\n",
    "foreign host": b"GET /mcp HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
}
"""Requests by what is wrong with them: each is refused (400 to 499), or its connection is closed."""

SILENT: Final = (
    b"",
    b"POST /mcp HT",
    b"POST /mcp HTTP/1.1\r\nHost: %(host)s\r\nAuthorization: Bearer %(token)s\r\nContent-Length: 9999\r\n\r\n{",
)
"""Beginnings of requests that do not go on."""


@dataclass
class Actors:
    """All of them, for one daemon, while they run.

    Args:
        stage: Where the daemon is.
        books: Told of what is wrong.
        seed: Fixes what hostile clients do, and when.
        without: Of `PARTS`, who is left out.
    """

    stage: Stage
    books: Books
    seed: int
    without: Collection[str] = ()
    deeds: Counter[str] = field(default_factory=Counter[str])
    met: Found | None = None

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed + 1)
        self._large = run_of(SLEEPS, None, boxes(META_BYTES))

    async def neighbour(self, seconds: float) -> None:
        """Measures the quiet neighbour for so long."""
        self.met = await asyncio.to_thread(
            visit, self.stage.port, self.stage.token, runs=int(seconds * RATE), rate=RATE
        )
        unserved = [one for one in self.met.failures if not any(code in one for code in KILLED)]
        self.books.breach("neighbours are served", *unserved)

    async def run(self, until: float) -> None:
        """Acts, all kinds at once, and returns when everything that was begun before `until` has ended."""
        chance = random.Random(self.seed)
        acts = {
            "floods": lambda: self._again(chance, 1 / CALM_SECONDS, {FLOODS: 1}, until),
            "clients": lambda: self._again(self._chance, 1 / CLIENT_EVERY_SECONDS, CLIENT_DEEDS, until),
        }
        await asyncio.gather(*(act() for name, act in acts.items() if name not in self.without))

    def close(self) -> None:
        """Ends what threads still hold or send."""
        self.stage.over.set()
        self.stage.go.unlink(missing_ok=True)

    def figures(self) -> dict[str, Any]:
        """For the report."""
        met = {} if self.met is None else self.met.as_json()
        return {**{f"neighbour: {name}": value for name, value in met.items()}, **self.deeds}

    async def _again(
        self, chance: random.Random, rate: float, deeds: Mapping[str, int], until: float
    ) -> None:
        while await _slept(chance.expovariate(rate), until):
            await self._do(chance.choices(list(deeds), list(deeds.values()))[0])

    async def _do(self, deed: str) -> None:
        self.deeds[deed] += 1
        match deed:
            case "floods of servers":
                self.stage.go.touch()
                await asyncio.sleep(FLOOD_SECONDS)
                self.stage.go.unlink(missing_ok=True)
            case "requests that are none":
                await asyncio.to_thread(self._refused, *self._chance.choice(list(REFUSED.items())))
            case "silent connections":
                await asyncio.to_thread(self._silent, self._chance.choice(SILENT), 20)
            case "idle connections":
                await asyncio.to_thread(self._silent, b"GET /livez HTTP/1.1\r\nHost: %(host)s\r\n\r\n", IDLE)
            case _:
                large = [asyncio.to_thread(self.stage.send, self._large) for _ in range(4)]
                await asyncio.gather(*large)

    def _refused(self, name: str, request: bytes) -> None:
        with contextlib.suppress(OSError), self._connected() as one:
            one.sendall(self._filled(request))
            head = one.recv(64)
            status = head.split()[1:2]
            if head and not (status and status[0].startswith(b"4")):
                self.books.breach("hostile requests are refused", f"{name}: {head!r}")

    def _silent(self, request: bytes, count: int) -> None:
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for _ in range(count):
                stack.enter_context(self._connected()).sendall(self._filled(request))
            self.stage.over.wait(HELD_SECONDS)

    def _connected(self) -> socket.socket:
        return socket.create_connection(
            ("127.0.0.1", self.stage.port), timeout=ANSWER_SECONDS, source_address=(ATTACKER, 0)
        )

    def _filled(self, request: bytes) -> bytes:
        host = f"127.0.0.1:{self.stage.port}".encode()
        return request.replace(b"%(host)s", host).replace(b"%(token)s", self.stage.token.encode())


async def _slept(seconds: float, until: float) -> bool:
    """Sleeps, but not beyond `until`; whether there is time left."""
    left = until - time.monotonic()
    await asyncio.sleep(max(0.0, min(seconds, left)))
    return seconds < left


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
