"""The world of a history of `test_run_random`: a broker with several runs, their hosts, and the model of each run; what
the rules of the machine do is done here."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis.stateful import RuleBasedStateMachine

from cellblock.base.questions import ParkedQuestion
from cellblock.record.recording import Recording
from cellblock.record.rows import WAITING, parked_questions
from cellblock.record.store import MAX_ADOPTED
from cellblock.run.hook import KeptRun
from cellblock.run.policy.asking import Caller, Verdict
from cellblock.run.response import RunResponse
from cellblock.run.states import State
from cellblock_worker.wire import protocol
from support.memory_host import BOUND, HostedRun, ScriptedHost, World, succeed, turns
from support.memory_keeper import AT_ONCE, MemoryKeeper, Park
from support.run_model import FLOWS, ModelRun, Tools
from support.virtual_time import VirtualTimeLoop

ASKING = "elicits"
TOOLS = ("echo", "slow", "hangs", "fails", "cancels", "asks", ASKING)
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


async def silent(run: HostedRun) -> None:
    """Says nothing by itself: the machine speaks."""


class DurableKeeper(MemoryKeeper):
    """Has no journal of other runs, whose model is another one: they do not park."""

    def opened(
        self, principal: str, *, client: str, may_park: bool, durable: bool, may_leave: bool = False
    ) -> KeptRun | None:
        return super().opened(principal, client=client, may_park=may_park, durable=True) if durable else None


class History(RuleBasedStateMachine):
    """One loop for each history; whatever is done leaves it with nothing ready to run."""

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

    def _new_broker(self, before: MemoryKeeper | None = None) -> None:
        async def make() -> World:
            return World(
                tools={name: getattr(self.tools, name) for name in TOOLS if name != ASKING},
                asking={ASKING: self.tools.elicits},
                keeper=self.keeper,
                pool={"queue_size": QUEUE},
                policy={"default": {"approve": ["tools.asks"]}, **FLOWS},
            )

        self.keeper = DurableKeeper(self._parks, AT_ONCE, before)
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

    @property
    def being_parked(self) -> list[ModelRun]:
        return [run for run in self.runs if run.park is not None and not run.park.written.done()]

    @property
    def parked(self) -> list[ModelRun]:
        """Runs that are parked; what goes on with one takes its park."""
        return [
            run
            for run in (*self.gone, *self.runs)
            if run.parked
            and not run.dropped
            and run.park is not None
            and run.park.head.id not in self.keeper.held._held  # pyright: ignore[reportPrivateUsage]
            # A broker that has died is the only one from which a run is had back.
            if not run.park.is_taken or self.deaths < MAX_ADOPTED
        ]

    @property
    def asking(self) -> list[ModelRun]:
        """Runs that are parked and whose servers wait for answers here."""
        return [
            run for run in self.runs if run.parked and run.park is not None and self._open_questions(run)[1]
        ]

    def _open_questions(self, run: ModelRun) -> tuple[str, list[ParkedQuestion]]:
        """The id of a parked run, and what servers ask of it."""
        assert run.park is not None
        head = run.park.head.id
        found = self.keeper.store.read(head, kinds=WAITING)
        if found is None or found[0].state != "parked":
            return head, []
        return head, [question for question in parked_questions(*found) if question.is_of_server]

    def _connect(self, identity: bytes, confirms: bool) -> None:
        work = self.world.host(silent, capacity=2, identity=identity, confirms=confirms, leases=False)
        self.loop.run_until_complete(work)
        self.settle()

    def _begin(self, request: dict[str, Any], number: int, kept: KeptRun | None = None, **more: Any) -> None:
        async def make() -> asyncio.Task[RunResponse]:
            return self.loop.create_task(self.world.executor.run(request, Caller(), kept=kept))

        self.runs.append(ModelRun(number, self.loop.run_until_complete(make()), self.tools, **more))

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

    def _message(self, run: ModelRun, saying: Any) -> tuple[protocol.Message, bytes]:
        first, second = saying
        if isinstance(first, protocol.Message):
            return first, second
        body = json.dumps({"run": run.name, "id": first}).encode()
        return protocol.Call(id=first, server="tools", tool=second), body

    def _disk_answers(self, run: ModelRun, *, ok: bool, taken: bool = False) -> None:
        assert run.park is not None
        # What has a call that is held no other broker can have, and nobody what was dropped.
        taken = taken and ok and run.park.head.owner is None and not run.dropped
        run.park.written.set_result(ok)
        if taken:
            self.keeper.taken_elsewhere(run.park)
        run.disk_answers(ok)
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
            "is_reopened": True,
            "is_written": True,
        }
        self._begin(
            kept.journal.request, run.number, kept, durable=True, name=run.name, verdicts=verdicts, **more
        )
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

    def teardown(self) -> None:
        try:
            if hasattr(self, "world"):
                self._capacity_returns()
                self.loop.run_until_complete(self._finish())
        finally:
            # Calls of brokers that have died go on in their processes' place, which is this one.
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            if left:
                self.loop.run_until_complete(asyncio.wait(left, timeout=BOUND))
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
        await sleep(BOUND)
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


def number_of(kept: KeptRun) -> int:
    """The number of the run that goes on."""
    assert kept.journal.past is not None
    return kept.journal.past.limits["max_log_bytes"] - LOG_BYTES


async def sleep(seconds: float) -> None:
    """Passes time."""
    await asyncio.sleep(seconds)
