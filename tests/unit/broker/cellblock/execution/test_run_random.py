"""A state machine of a broker with several runs: hosts say anything in any order, vanish and come back; callers go;
runs wait for people and for tools, are parked, and go on; the broker dies, and another one has its runs.

Beside the broker runs a model (`run_model`); after every step the two must agree on the state of each run, on what was
executed, and on who holds a place. `CELLBLOCK_HISTORIES=1000` makes more and longer histories, other ones each time.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cellblock.execution.caller import Caller
from cellblock.execution.keeping import KeptRun
from cellblock.execution.response import RunResponse
from cellblock.execution.states import State
from cellblock.journal.moves import MAX_ADOPTED
from cellblock.journal.recording import Recording
from cellblock.policy.asking import EMBEDDING, Verdict
from cellblock_worker.wire import protocol
from support.memory_host import BOUND, HostedRun, ScriptedHost, World, succeed, turns
from support.memory_keeper import AT_ONCE, MemoryKeeper, Park
from support.run_model import MAX_CALLS, ModelRun, Tools
from support.virtual_time import VirtualTimeLoop

TOOLS = ("echo", "slow", "hangs", "fails", "cancels", "asks")
TURNS = 12
"""Of the loop: more than any chain of callbacks that one step starts."""

TIMEOUT_MS = 20_000
LONG_SECONDS = 7200.0
LOG_BYTES = 60_000
"""Each run asks for a little more than the one before it, and is known by that at its hosts."""

PARKED_BY_NOW = 0.1
"""Seconds after which a run is being parked that waits for nothing but people."""

QUEUE = 3
HOSTS = 5

PARK_TOOLS_MS = 500

TOOLS_PARKED_BY_NOW = PARK_TOOLS_MS / 1000 + PARKED_BY_NOW

LEAVES = replace(EMBEDDING, leaves=True)
"""Nobody waits in the broker for a run that is parked for tools."""

sayings = st.one_of(
    st.sampled_from(
        [
            (protocol.Leased(wall_ms=0), b""),
            (protocol.Leased(wall_ms=0), b""),
            (protocol.Log(level="log", ms=1), b"text"),
            (protocol.Notice(), b"nonsense"),
            (protocol.Ended(reason="finished", outcome="done"), b'"result"'),
            (protocol.Ended(reason="finished", outcome="done"), b"nonsense"),
            (
                protocol.Ended(reason="finished", outcome="exception"),
                b'{"name": "E", "message": "m", "causes": [""]}',
            ),
            (protocol.Ended(reason="finished"), b""),
            (protocol.Ended(reason="timeout"), b""),
            (protocol.Query(id=2, op="listServers"), b"[]"),
            (protocol.Status(warm=1, booting=0, running=0, wanted=1), b""),
        ]
    ),
    st.tuples(st.integers(1, 4), st.sampled_from(TOOLS)),
)
"""A message and its body, or a call by its id and tool."""

while_parking = st.sampled_from(
    [
        (protocol.Log(level="log", ms=1), b"text"),
        (protocol.Ended(reason="finished", outcome="done"), b'"result"'),
        (protocol.Ended(reason="crashed"), b""),
        (9, "echo"),
    ]
)
"""The last is a call."""

number = st.integers(0, 20)


async def silent(run: HostedRun) -> None:
    """Says nothing by itself: the machine speaks."""


class DurableKeeper(MemoryKeeper):
    """Has no journal of other runs, whose model is another one: they neither park nor begin anew."""

    def opened(self, principal: str, *, client: str, may_park: bool, durable: bool) -> KeptRun | None:
        return super().opened(principal, client=client, may_park=may_park, durable=True) if durable else None

    def is_off(self, principal: str) -> bool:
        return True


class Histories(RuleBasedStateMachine):
    """One loop for each history; every rule leaves it with nothing ready to run."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualTimeLoop()
        self.tools = Tools()
        self.runs: list[ModelRun] = []
        self.gone: list[ModelRun] = []
        """Runs of brokers that have died."""
        self.hosts_made = self.begun = self.deaths = 0

    def settle(self) -> None:
        """Lets everything happen that is under way, and tells the model what hosts and clocks have done by it."""
        self.loop.run_until_complete(turns(TURNS))
        for run in self.runs:
            # One that goes on has another host before it can lose that.
            run.hosted = run.hosted or self._hosted(run)
            if run.hosted is None:
                continue
            if run.state is State.KILLING and run.hosted.host.confirms:
                run.hear(protocol.Ended(reason="cancelled"), b"")
            while (
                run.hosted is not None and run.state is not State.OVER and run.hosted.host not in self.alive
            ):
                run.lose()
                run.hosted = run.hosted or self._hosted(run)

    def _hosted(self, run: ModelRun) -> HostedRun | None:
        seen = [hosted for host in self.world.hosts for hosted in host.runs if hosted not in run.earlier]
        return next((hosted for hosted in seen if hosted.message.log_bytes == LOG_BYTES + run.number), None)

    def _parks(self, park: Park) -> None:
        log_bytes = Recording.unpack(park.packed).limits["max_log_bytes"]
        # The last of them goes on with the others.
        [run for run in self.runs if LOG_BYTES + run.number == log_bytes][-1].parks(park)

    @initialize(parks_tools=st.booleans())
    def start(self, parks_tools: bool) -> None:
        self.parks_tools = parks_tools
        self._new_broker()
        self.begin(count=1, durable=True)

    def _new_broker(self, before: MemoryKeeper | None = None) -> None:
        async def make() -> World:
            return World(
                tools={name: getattr(self.tools, name) for name in TOOLS},
                keeper=self.keeper,
                pool={"queue_size": QUEUE},
                upstream={"max_concurrent_calls": 2},
                policy={"default": {"approve": ["tools.asks"]}},
            )

        bound = PARK_TOOLS_MS if self.parks_tools else None
        kept = AT_ONCE.model_copy(update={"park_tools_after_ms": bound})
        self.keeper = DurableKeeper(self._parks, kept, before)
        self.world = self.loop.run_until_complete(make())
        self.new_host(confirms=True)

    @property
    def alive(self) -> list[ScriptedHost]:
        known = set(self.world.pool._hosts)  # pyright: ignore[reportPrivateUsage]
        # Of two with one identity the later speaks; the earlier is the process that has died.
        newest = {host.identity: host for host in self.world.hosts}
        return [host for identity, host in newest.items() if identity in known]

    @property
    def leased(self) -> list[ModelRun]:
        return [run for run in self.runs if run.hosted is not None]

    @property
    def running(self) -> list[ModelRun]:
        """Runs that may call: their scripts run on hosts that are there."""
        return [
            run
            for run in self.leased
            if run.state is State.RUNNING and run.hosted is not None and run.hosted.host in self.alive
        ]

    @property
    def durable(self) -> list[ModelRun]:
        """Runs that could be parked, or will be."""
        states = (State.SENT, State.RUNNING)
        return [run for run in self.leased if run.durable and run.state in states]

    # ---- what happens --------------------------------------------------------------------------------

    @rule(confirms=st.booleans())
    def new_host(self, confirms: bool) -> None:
        if len(self.alive) < HOSTS:
            self.hosts_made += 1
            self._connect(f"host {self.hosts_made}".encode(), confirms)

    @rule(which=number, confirms=st.booleans())
    def host_comes_back(self, which: int, confirms: bool) -> None:
        """Under the identity of one that is gone; the runs of that one stay lost."""
        alive = {host.identity for host in self.alive}
        gone = sorted({host.identity for host in self.world.hosts} - alive)
        if gone:
            self._connect(gone[which % len(gone)], confirms)

    def _connect(self, identity: bytes, confirms: bool) -> None:
        work = self.world.host(silent, capacity=2, identity=identity, confirms=confirms)
        self.loop.run_until_complete(work)
        self.settle()

    @property
    def being_parked(self) -> list[ModelRun]:
        return [run for run in self.runs if run.park is not None and not run.park.written.done()]

    @property
    def parked(self) -> list[ModelRun]:
        """Runs that are parked; what goes on with one takes its park."""
        return [
            run
            for run in (*self.gone, *self.runs)
            if run.parked and run.park is not None and not self.keeper.at_work.holds(run.park.head.id)
            # A broker that has died is the only one from which a run is had back.
            if not run.park.is_taken or self.deaths < MAX_ADOPTED
        ]

    @rule(count=st.integers(1, 4), durable=st.booleans())
    def begin(self, count: int, durable: bool) -> None:
        for _ in range(count):
            limits = {
                "timeoutMs": TIMEOUT_MS,
                "maxLogBytes": LOG_BYTES + self.begun,
                "maxToolCalls": MAX_CALLS,
            }
            request = {"code": "1", "limits": limits, "durable": durable}
            more: dict[str, Any] = {"durable": durable, "parks_tools": durable and self.parks_tools}
            self._begin(request, self.begun, name=f"run {self.begun}", **more)
            self.begun += 1
        self.settle()

    def _begin(self, request: dict[str, Any], number: int, kept: KeptRun | None = None, **more: Any) -> None:
        async def make() -> asyncio.Task[RunResponse]:
            return self.loop.create_task(self.world.executor.run(request, Caller(grantee=LEAVES), kept=kept))

        self.runs.append(ModelRun(number, self.loop.run_until_complete(make()), self.tools, **more))

    @precondition(lambda self: self.durable)
    @rule(
        which=number,
        tools=st.lists(st.sampled_from(TOOLS), max_size=2),
        seconds=st.sampled_from([0.0, 0.2, 3.0]),
        meanwhile=st.lists(while_parking, max_size=2),
        disk=st.sampled_from([True, True, False, None]),
        taken=st.booleans(),
    )
    def a_person_is_needed(
        self,
        which: int,
        tools: list[str],
        seconds: float,
        meanwhile: list[Any],
        disk: bool | None,
        taken: bool,
    ) -> None:
        """The script calls what must be allowed, and others at once; it goes on while it is written down."""
        run = self.durable[which % len(self.durable)]
        calls = [(run.last_id + 1 + place, tool) for place, tool in enumerate([*tools, "asks"])]
        if run.last_id == 0 and run.known:
            # It goes on, and comes to where it was first.
            calls = self._known(run)
        self._say(run, (protocol.Leased(wall_ms=0), b""), *calls)
        self.time_passes(seconds)
        if run.hosted is not None and run.hosted.host in self.alive:
            self._say(run, *meanwhile)
            self.settle()
        if disk is not None and run in self.being_parked:
            self._disk_answers(run, ok=disk, taken=taken)

    @staticmethod
    def _known(run: ModelRun) -> list[tuple[int, str]]:
        return [(call, tool) for call, tool in sorted(run.known.items()) if tool]

    def _say(self, run: ModelRun, *said: Any) -> None:
        for saying in said:
            if run.hosted is not None:
                message, body = self._message(run, saying)
                run.hosted.say(message, body)
                if not isinstance(message, protocol.Status):
                    run.hear(message, body)

    @precondition(lambda self: self.being_parked)
    @rule(which=number, ok=st.booleans(), taken=st.booleans())
    def disk_answers(self, which: int, ok: bool, taken: bool) -> None:
        self._disk_answers(self.being_parked[which % len(self.being_parked)], ok=ok, taken=taken)

    def _disk_answers(self, run: ModelRun, *, ok: bool, taken: bool = False) -> None:
        assert run.park is not None
        # What waits for tools, too, no other broker can have.
        taken = taken and ok and not run.park.parked.working
        run.park.written.set_result(ok)
        if taken:
            self.keeper.taken_elsewhere(run.park)
        run.disk_answers(ok, taken=taken)
        self.settle()

    @precondition(lambda self: self.parked)
    @rule(which=number, verdict=st.sampled_from([Verdict.ACCEPTED, Verdict.DECLINED]), replays=st.booleans())
    def wake(self, which: int, verdict: Verdict, replays: bool) -> None:
        """A person has answered; the run goes on, though its worker may not be dead yet, and makes the same calls. What
        another broker has taken goes on here when that one has died."""
        run = self.parked[which % len(self.parked)]
        assert run.park is not None and run.hosted is not None
        self.deaths += run.park.is_taken
        verdict = Verdict.ACCEPTED if run.park.is_taken else verdict
        verdicts = {question.call: verdict for question in run.park.parked.questions}
        self._go_on(run, self.keeper.woken(run.park, verdicts), verdicts)
        woken = self.runs[-1]
        if replays and woken.hosted is not None:
            self._say(woken, (protocol.Leased(wall_ms=0), b""), *self._known(woken))
            self.settle()

    def _go_on(self, run: ModelRun, kept: KeptRun, verdicts: Mapping[int, Verdict]) -> None:
        """With what is written of it: a call that was made is in there, and so is each answer that the script has."""
        past = kept.journal.past
        assert past is not None
        calls = {call.id: call for call in past.calls}
        assert {call for call in run.calls if self.tools.begun[run.name, call]} <= calls.keys(), (run, past)
        assert all(calls[call].ok is not None for call in run.answered if call in calls), (run, past)
        assert run.answered <= calls.keys() or run.state is not State.OVER, (run, past)
        run.park = None
        known = {call.id: call.tool if call.kind == "call" else "" for call in past.calls}
        more: dict[str, Any] = {
            "known": known,
            "answered": {call.id for call in past.calls if call.ok is not None},
            "earlier": [*run.earlier, *([] if run.hosted is None else [run.hosted])],
            "parks_tools": run.parks_tools,
            "is_reopened": True,
            "is_written": True,
        }
        self._begin(
            kept.journal.request, run.number, kept, durable=True, name=run.name, verdicts=verdicts, **more
        )
        self.settle()

    @precondition(lambda self: self.deaths < MAX_ADOPTED)
    @rule(
        which=number,
        tools=st.lists(st.sampled_from(TOOLS), min_size=1, max_size=3),
        seconds=st.sampled_from([0.0, 0.2, 1.0]),
        on_disk=st.booleans(),
        replays=st.booleans(),
    )
    def broker_dies(self, which: int, tools: list[str], seconds: float, on_disk: bool, replays: bool) -> None:
        """A script has called something; what its broker had not written is lost, and its calls with it. Another one
        goes on with what was written. `on_disk`: what was being parked is."""
        if not self.durable:
            self.begin(count=1, durable=True)
        for run in self.durable[which % max(1, len(self.durable)) :]:
            calls = [(run.last_id + 1 + place, tool) for place, tool in enumerate(tools)]
            self._say(run, (protocol.Leased(wall_ms=0), b""), *calls)
        self.time_passes(seconds)
        self.deaths += 1
        parking = self.being_parked
        for run in parking if on_disk else ():
            assert run.park is not None
            self.keeper.store.park(run.park.head, run.park.pieces)
        for run in self.runs:
            run.broker_gone = not run.task.done()
        before = self.keeper
        self.loop.run_until_complete(self._die(parking))
        for run in self.runs:
            is_parked = run.park is not None and (run.parked or (on_disk and run in parking))
            run.broker_dies(is_parked)
        left = {run.number: run for run in self.runs if run.is_written}
        self.gone += self.runs
        self.runs = []
        self._new_broker(before)
        adopted = sorted(self.keeper.adopted(before), key=_number_of)
        numbers = [_number_of(kept) for kept in adopted]
        assert sorted(numbers) == sorted(left), (numbers, left)
        for number, kept in zip(numbers, adopted, strict=True):
            left[number].is_written = False
            self._go_on(left[number], kept, left[number].verdicts)
            again = self.runs[-1]
            if replays and again.hosted is not None:
                self._say(again, (protocol.Leased(wall_ms=0), b""), *self._known(again))
                self.settle()

    async def _die(self, parking: Sequence[ModelRun]) -> None:
        dead = asyncio.ensure_future(self.keeper.die())
        await turns(1)
        for run in parking:
            assert run.park is not None
            run.park.written.set_result(False)
        for run in self.runs:
            run.task.cancel()
        await turns(TURNS)
        for host in self.alive:
            self.world.lose(host)
        await turns(TURNS)
        await self.world.close()
        await dead

    @precondition(lambda self: self.leased)
    @rule(picks=st.lists(st.tuples(number, sayings), min_size=1, max_size=6), then=st.sampled_from("  ca"))
    def say(self, picks: list[tuple[int, Any]], then: str) -> None:
        """Messages in one turn, early, late or twice as it happens; a caller may go or a stop come in that turn."""
        for which, saying in picks:
            if not self.leased:
                break
            run = self.leased[which % len(self.leased)]
            assert run.hosted is not None
            message, body = self._message(run, saying)
            run.hosted.say(message, body)
            if run.hosted.host in self.alive and not isinstance(message, protocol.Status):
                run.hear(message, body)
        for chosen in self.leased[picks[0][0] % len(self.leased) :][:1] if self.leased else ():
            if then == "c":
                self._cancel(chosen)
            elif then == "a":
                self._abort(chosen)
        self.settle()

    @precondition(lambda self: self.running)
    @rule(which=number, tool=st.sampled_from(TOOLS), at_once=st.booleans())
    def say_a_call_twice(self, which: int, tool: str, at_once: bool) -> None:
        """The last id again, in the same turn or after the first call was dealt with: it is made once."""
        run = self.running[which % len(self.running)]
        assert run.hosted is not None
        message, body = self._message(run, (run.last_id + 1, tool))
        for _ in range(2):
            run.hosted.say(message, body)
            run.hear(message, body)
            if not at_once:
                self.settle()
        self.settle()

    @precondition(lambda self: self.leased)
    @rule(which=number, other=number, saying=sayings, forged=st.booleans())
    def forge(self, which: int, other: int, saying: Any, forged: bool) -> None:
        """A host speaks under the token of another host's run, or under one that never was: nobody hears it."""
        run, host = self.leased[which % len(self.leased)], self.world.hosts[other % len(self.world.hosts)]
        assert run.hosted is not None
        if forged or host.identity != run.hosted.host.identity:
            message, body = self._message(run, saying)
            host.say(message, body, token=b"\0" * 16 if forged else run.hosted.token)
        self.settle()

    def _message(self, run: ModelRun, saying: Any) -> tuple[protocol.Message, bytes]:
        first, second = saying
        if isinstance(first, protocol.Message):
            return first, second
        body = json.dumps({"run": run.name, "id": first}).encode()
        return protocol.Call(id=first, server="tools", tool=second), body

    @precondition(lambda self: self.runs)
    @rule(which=number)
    def caller_goes(self, which: int) -> None:
        self._cancel(self.runs[which % len(self.runs)])
        self.settle()

    def _cancel(self, run: ModelRun) -> None:
        if not run.task.done():
            run.task.cancel()
            run.caller_gone = True
            if run.hosted is not None:
                run.kill()

    def _abort(self, run: ModelRun) -> None:
        """What a broker that stops does to each of its runs."""
        for live in self.world.executor._live.values():  # pyright: ignore[reportPrivateUsage]
            lease = live._lease  # pyright: ignore[reportPrivateUsage]
            if lease is not None and run.hosted is not None and lease.token == run.hosted.token:
                self.loop.call_soon(live.abort)
                run.kill()

    @precondition(lambda self: self.alive)
    @rule(which=number, how=st.sampled_from(["lose", "break", "hello", "silence"]))
    def harm_a_host(self, which: int, how: str) -> None:
        host = self.alive[which % len(self.alive)]
        if how == "lose":
            self.world.lose(host)
        elif how == "break":
            self.loop.call_soon(self.world.link.deliver, host.identity, b"", b"\xc1")
        elif how == "hello":
            self.loop.call_soon(host.hello)
        else:
            self.world.pool._hosts[host.identity].heard -= 100  # pyright: ignore[reportPrivateUsage]
            self.world.pool.check_silence()
        self.settle()

    @rule(seconds=st.sampled_from([0.05, 1.0, 3.0, 5.0, 16.0, 31.0]))
    def time_passes(self, seconds: float) -> None:
        """Deadlines of leases, runs, kills, queues and tools. A host that misses one is replaced."""
        waited = [(run, run.working) for run in self.running if run.waits_for_tools_alone]
        self.loop.run_until_complete(_sleep(seconds))
        self.settle()
        if seconds > PARKED_BY_NOW:
            assert not [run for run in self.running if run.waits_for_people_alone]
        if seconds > TOOLS_PARKED_BY_NOW:
            assert not [run for run, working in waited if run in self.running and run.working == working]

    # ---- what holds ----------------------------------------------------------------------------------

    @invariant()
    def nothing_runs_twice_or_unasked(self) -> None:
        asked = {(run.name, call) for run in (*self.gone, *self.runs) for call in run.known}
        assert set(self.tools.begun) <= asked
        assert all(count == 1 for count in self.tools.begun.values())

    @invariant()
    def places_are_held_by_live_runs_only(self) -> None:
        if not self.runs:
            return
        pool = self.world.pool
        assert pool.running == sum(run.state is not State.OVER for run in self.leased)
        assert pool.queued <= QUEUE
        hosts = pool._hosts.values()  # pyright: ignore[reportPrivateUsage]
        assert all(len(host.leases) <= host.capacity for host in hosts)
        assert not pool.queued or all(len(host.leases) == host.capacity for host in hosts)

    @invariant()
    def every_run_is_where_the_model_is(self) -> None:
        states = {run.token: run.state for run in self.leased}
        for live in self.world.executor._live.values() if self.runs else ():  # pyright: ignore[reportPrivateUsage]
            lease = live._lease  # pyright: ignore[reportPrivateUsage]
            assert lease is not None
            assert live._state is states[lease.token.hex()]  # pyright: ignore[reportPrivateUsage]
        for run in self.leased:
            assert not run.task.done() or run.state is State.OVER or run.caller_gone

    # ---- the end -------------------------------------------------------------------------------------

    def teardown(self) -> None:
        try:
            if hasattr(self, "world"):
                self._capacity_returns()
                self.loop.run_until_complete(self._finish())
        finally:
            self.loop.close()
            if hasattr(self, "keeper"):
                self.keeper.close()

    def _capacity_returns(self) -> None:
        """Once every run has ended, a new one is served at once."""
        if not self.alive:
            self.new_host(confirms=True)
        for run in self.being_parked:
            self._disk_answers(run, ok=True)
        # Each end lets one more in from the queue.
        while running := [run for run in self.leased if run.state is not State.OVER]:
            for run in running:
                assert run.hosted is not None
                run.hosted.say(protocol.Ended(reason="crashed"))
                run.hear(protocol.Ended(reason="crashed"), b"")
            self.settle()
        for host in self.world.hosts:
            host.play = succeed
        response = self.loop.run_until_complete(self.world.executor.run({"code": "1"}))
        assert response.result == 1

    async def _finish(self) -> None:
        for host in self.alive:
            self.world.lose(host, "the test is over")
        for run in self.leased:
            run.lose()
        self.world.pool.close()
        await turns(TURNS)
        await _sleep(BOUND)
        for run in (*self.gone, *self.runs):
            assert run.task.done(), "a run has no response"
            if run.task.cancelled():
                assert run.caller_gone or run.broker_gone
            elif run.broker_gone:
                continue
            elif run.hosted is not None:
                json.dumps(run.task.result().as_json(), allow_nan=False)
                run.check_response(self.tools)
            else:
                codes = [found.code for found in run.task.result().diagnostics if found.code != "RUN_RESUMED"]
                assert codes in (["OVERLOADED"], ["WORKER_UNAVAILABLE"], ["HOST_LOST"]), codes
        assert self.world.pool.running == 0 and self.world.pool.queued == 0
        assert not self.world.executor._live  # pyright: ignore[reportPrivateUsage]
        await self.world.close()
        await self.keeper.die()


def _number_of(kept: KeptRun) -> int:
    assert kept.journal.past is not None
    return kept.journal.past.limits["max_log_bytes"] - LOG_BYTES


async def _sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


MORE = int(os.environ.get("CELLBLOCK_HISTORIES", "0"))

Histories.TestCase.settings = settings(
    max_examples=MORE or 100,
    stateful_step_count=60 if MORE else 25,
    derandomize=not MORE,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
TestHistories = pytest.mark.slow(Histories.TestCase)


def test_a_run_that_has_ended_while_it_was_parked_and_taken_is_over_here() -> None:
    """What goes on is elsewhere: nobody here waits for the end of a worker that has ended."""
    made = Histories()
    try:
        made.start(parks_tools=False)
        made.world.hosts[0].confirms = False
        ended = protocol.Ended(reason="finished", outcome="done"), b'"result"'
        made.a_person_is_needed(which=0, tools=[], seconds=0.2, meanwhile=[ended], disk=True, taken=True)
        (run,) = made.runs
        assert run.state is State.OVER and run.task.done() and run.task.result().parked
    finally:
        made.teardown()


@pytest.mark.parametrize("then", ["the disk is slow", "the caller goes"])
def test_nobody_is_blamed_for_a_run_that_has_ended_while_it_was_parked(then: str) -> None:
    """Its host knows it no more: it neither keeps the run's deadline nor confirms a kill."""
    made = Histories()
    try:
        made.start(parks_tools=False)
        made.world.hosts[0].confirms = False
        ended = protocol.Ended(reason="finished", outcome="done"), b'"result"'
        made.a_person_is_needed(which=0, tools=[], seconds=0.2, meanwhile=[ended], disk=None, taken=False)
        (run,) = made.runs
        if then == "the caller goes":
            made.caller_goes(which=0)
            assert run.state is State.OVER
        made.time_passes(LONG_SECONDS)
        assert made.world.failed == []
        made.disk_answers(which=0, ok=True, taken=False) if made.being_parked else None
        assert run.state is State.OVER and run.task.done()
        assert run.caller_gone or run.task.result().result == "result"
    finally:
        made.teardown()
