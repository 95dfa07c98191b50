"""A state machine of a broker with several runs: hosts say anything in any order, vanish and come back; callers go;
runs wait for people and for what servers ask, are parked, answered, cancelled, and go on; the broker dies,
and another one has its runs.

Beside the broker runs a model (`run_histories`); after every step the two must agree on the state of each run, on what
was executed, and on who holds a place. `CELLBLOCK_HISTORIES=1000` makes more and longer histories, other ones each
time.
"""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from cellblock.record.store import MAX_ADOPTED
from cellblock.run.hook import CANCELLED
from cellblock.run.policy.asking import Verdict
from cellblock.run.states import State
from cellblock_worker.wire import protocol
from support.run_histories import (
    ASKING,
    HOSTS,
    LOG_BYTES,
    LONG_SECONDS,
    MAX_CALLS,
    PARKED_BY_NOW,
    QUEUE,
    REFUSED,
    TIMEOUT_MS,
    TOOLS,
    History,
    number_of,
    sleep,
)

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


@pytest.fixture(autouse=True, scope="module")
def two_calls_at_once() -> Iterator[None]:
    """Has further calls of a run wait their turn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cellblock.run.calls.CONCURRENT_CALLS", 2)
        yield


MOST_ASKING = 3
"""Bounds runs that wait for answers to servers: others want workers, too."""


class Histories(History):
    """One loop for each history; every rule leaves it with nothing ready to run."""

    @initialize()
    def start(self) -> None:
        self._new_broker()
        self.begin(count=1, durable=True)

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

    @rule(count=st.integers(1, 4), durable=st.booleans())
    def begin(self, count: int, durable: bool) -> None:
        for _ in range(count):
            limits = {
                "timeoutMs": TIMEOUT_MS,
                "maxLogBytes": LOG_BYTES + self.begun,
                "maxToolCalls": MAX_CALLS,
            }
            request = {"code": "1", "limits": limits, "durable": durable}
            self._begin(request, self.begun, name=f"run {self.begun}", durable=durable)
            self.begun += 1
        self.settle()

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

    @precondition(lambda self: self.being_parked)
    @rule(which=number, ok=st.booleans(), taken=st.booleans())
    def disk_answers(self, which: int, ok: bool, taken: bool) -> None:
        self._disk_answers(self.being_parked[which % len(self.being_parked)], ok=ok, taken=taken)

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

    @precondition(lambda self: len(self.asking) < MOST_ASKING)
    @rule(
        which=number,
        tools=st.lists(st.sampled_from(["echo", "fails", "slow", "asks", ASKING]), max_size=2),
        disk=st.sampled_from([True, True, True, False, None]),
    )
    def a_server_asks(self, which: int, tools: list[str], disk: bool | None) -> None:
        """During a call of a script, beside others: nobody of its client is there, so the run is parked."""
        if not self.durable:
            if not self.alive:
                self.new_host(confirms=True)
            self.begin(count=1, durable=True)
        for run in self.durable[which % max(1, len(self.durable)) :][:1]:
            calls = [(run.last_id + 1 + place, tool) for place, tool in enumerate([*tools, ASKING])]
            self._say(run, (protocol.Leased(wall_ms=0), b""), *calls)
            self.time_passes(3.0 if "slow" in tools else 0.2)
            if disk is not None and run in self.being_parked:
                self._disk_answers(run, ok=disk)

    @precondition(lambda self: self.asking)
    @rule(
        which=number,
        call=number,
        said=st.sampled_from(["accept", "decline", "cancel"]),
        elsewhere=st.booleans(),
    )
    def a_server_is_answered(self, which: int, call: int, said: str, elsewhere: bool) -> None:
        """By the broker that has the call; or by another process, and that one hears of it when it looks."""
        run = self.asking[which % len(self.asking)]
        assert run.park is not None
        head, questions = self._open_questions(run)
        question = sorted(questions, key=lambda one: one.id)[call % len(questions)]
        answered = self.keeper.store.answer(head, {question.id: {"action": said}})
        assert answered is not None
        run.said[question.call] = said
        if not elsewhere:
            self.keeper.held.told(head, answered[2])
        self.settle()
        got = self.tools.got[run.name, question.call]
        assert got == ([] if elsewhere else [said]), (run, got)

    @precondition(lambda self: not self.being_parked)
    @rule()
    def the_broker_looks(self) -> None:
        """At what others have answered and ended: no server waits for an answer that is there."""
        self.loop.run_until_complete(self.keeper.held.look())
        self.settle()
        for run in self.runs:
            if run.park is not None and run.park.head.id in self.keeper.held._held:  # pyright: ignore[reportPrivateUsage]
                assert all(self.tools.got[run.name, call] for call in run.said), run

    @precondition(lambda self: self.asking and not self.being_parked)
    @rule(which=number, elsewhere=st.booleans())
    def a_parked_run_is_cancelled(self, which: int, elsewhere: bool) -> None:
        """Its call is cancelled, and its server gets no answer; nobody goes on with it."""
        run = self.asking[which % len(self.asking)]
        assert run.park is not None
        head = run.park.head.id
        assert self.keeper.store.end(head, CANCELLED)
        before = {call: list(self.tools.got[run.name, call]) for call in run.calls}
        run.park = None
        if elsewhere:
            self.the_broker_looks()
        else:
            self.keeper.held.cancel(head)
            self.settle()
        assert head not in self.keeper.held._held  # pyright: ignore[reportPrivateUsage]
        assert before == {call: self.tools.got[run.name, call] for call in run.calls}, run

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
        adopted = sorted(self.keeper.adopted(before), key=number_of)
        numbers = [number_of(kept) for kept in adopted]
        assert sorted(numbers) == sorted(left), (numbers, left)
        for number, kept in zip(numbers, adopted, strict=True):
            left[number].is_written = False
            self._go_on(left[number], kept, left[number].verdicts)
            again = self.runs[-1]
            if replays and again.hosted is not None:
                self._say(again, (protocol.Leased(wall_ms=0), b""), *self._known(again))
                self.settle()

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

    @precondition(lambda self: self.runs)
    @rule(which=number)
    def caller_goes(self, which: int) -> None:
        self._cancel(self.runs[which % len(self.runs)])
        self.settle()

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
        self.loop.run_until_complete(sleep(seconds))
        self.settle()
        if seconds > PARKED_BY_NOW:
            assert not [run for run in self.running if run.waits_for_people_alone]

    # ---- what holds ----------------------------------------------------------------------------------

    @invariant()
    def nothing_runs_twice_or_unasked(self) -> None:
        asked = {(run.name, call) for run in (*self.gone, *self.runs) for call in run.known}
        assert set(self.tools.begun) <= asked
        assert all(count == 1 for count in self.tools.begun.values())
        said = {(run.name, call): word for run in (*self.gone, *self.runs) for call, word in run.said.items()}
        for key, got in self.tools.got.items():
            assert got in ([], [REFUSED], [said.get(key)]), (key, got, said)

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
            assert live._life.state is states[lease.token.hex()]  # pyright: ignore[reportPrivateUsage]
        for run in self.leased:
            assert not run.task.done() or run.state is State.OVER or run.caller_gone


MORE = int(os.environ.get("CELLBLOCK_HISTORIES", "0"))

Histories.TestCase.settings = settings(
    max_examples=MORE or 50,
    stateful_step_count=60 if MORE else 25,
    derandomize=not MORE,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),  # type: ignore[arg-type]
)
TestHistories = pytest.mark.slow(Histories.TestCase)


@pytest.mark.parametrize("then", ["the disk is slow", "the caller goes"])
def test_a_run_that_ends_while_it_is_being_parked_is_parked_and_its_host_not_blamed(then: str) -> None:
    """Its host knows it no more, and confirms no kill; what its script came to meanwhile never was."""
    made = Histories()
    try:
        made.start()
        made.world.hosts[0].confirms = False
        ended = protocol.Ended(reason="finished", outcome="done"), b'"result"'
        made.a_person_is_needed(which=0, tools=[], seconds=0.2, meanwhile=[ended], disk=None, taken=False)
        (run,) = made.runs
        assert run.state is State.OVER
        if then == "the caller goes":
            made.caller_goes(which=0)
        made.time_passes(LONG_SECONDS)
        assert made.world.failed == []
        made.disk_answers(which=0, ok=True, taken=False) if made.being_parked else None
        assert run.task.done()
        assert run.caller_gone or (run.task.result().parked and run.task.result().result is None)
    finally:
        made.teardown()
