"""The world of a history of `test_run_random`: a broker with several runs, their hosts, and the model of each run; what
the rules of the machine do is done here. The model says what a run must be and have after each message, fault and
passing of time.
"""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

import mcp_types as types
from hypothesis.stateful import RuleBasedStateMachine

from cellblock.base.errors import Certainty, ToolCallError
from cellblock.base.questions import ParkedQuestion
from cellblock.record.recording import Recording
from cellblock.record.rows import WAITING, parked_questions
from cellblock.record.store import MAX_ADOPTED
from cellblock.run.executor import MAX_LOST
from cellblock.run.hook import KeptRun
from cellblock.run.policy.asking import Caller, Verdict
from cellblock.run.response import RunResponse
from cellblock.run.states import State
from cellblock.tools.upstream.requester import CallOrigin
from cellblock_worker.wire import protocol
from support.memory_host import BOUND, HostedRun, ScriptedHost, World, hold, succeed, turns
from support.memory_keeper import AT_ONCE, MemoryKeeper, Park
from support.virtual_time import VirtualTimeLoop

MAX_CALLS = 3
SLOW_SECONDS = 2.0

REFUSED = "refused"
"""What a server gets where nobody can be asked."""

TOOLS = ("echo", "slow", "hangs", "fails", "cancels", "asks", "elicits")

EVERYBODY = frozenset(f"not:{tool}" for tool in TOOLS)
FLOWS: dict[str, Any] = {
    "flows": [{"then": "allow"}],
    "labels": {
        f"tools.{tool}": {"secrecy": sorted(EVERYBODY - {f"not:{tool}"}), "trust": "trusted"}
        for tool in TOOLS
    },
}
"""Labels that tell of a run which tools it has read, and rules that nothing comes of."""

FORM = types.ElicitRequestFormParams(message="Who are you?", requested_schema={"type": "object"})


class Tools:
    """The tools, and a ledger of what was executed: (name of the run, call id)."""

    def __init__(self) -> None:
        self.begun: Counter[tuple[str, int]] = Counter()
        self.completed: Counter[tuple[str, int]] = Counter()
        self.got: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
        """What servers were answered."""

    async def elicits(self, value: dict[str, Any], origin: CallOrigin) -> Any:
        """Answers when its server has an answer to what that asks; no client is there to ask its user."""
        key = self._begin(value)
        asked = origin.asked
        answer = None if asked is None else await asked(types.ElicitRequest(params=FORM), _nobody)
        self.got[key].append(answer.action if isinstance(answer, types.ElicitResult) else REFUSED)
        return self._complete(key)

    async def echo(self, value: dict[str, Any]) -> Any:
        """Answers at once."""
        return self._complete(self._begin(value))

    async def slow(self, value: dict[str, Any]) -> Any:
        """Answers after `SLOW_SECONDS`."""
        key = self._begin(value)
        await asyncio.sleep(SLOW_SECONDS)
        return self._complete(key)

    async def hangs(self, value: dict[str, Any]) -> Any:
        """Never answers."""
        self._begin(value)
        await asyncio.sleep(1e6)

    async def fails(self, value: dict[str, Any]) -> Any:
        """Answers with an error."""
        self._complete(self._begin(value))
        raise ToolCallError("no", hint="Do not.", certainty=Certainty.COMPLETED)

    async def cancels(self, value: dict[str, Any]) -> Any:
        """Awaits something that is cancelled."""
        self._begin(value)
        raise asyncio.CancelledError

    asks = echo
    """Is called when a person has allowed it."""

    def _begin(self, value: dict[str, Any]) -> tuple[str, int]:
        key = (value["run"], value["id"])
        self.begun[key] += 1
        return key

    def _complete(self, key: tuple[str, int]) -> str:
        self.completed[key] += 1
        return "done"


async def _nobody(key: str) -> types.ErrorData:
    return types.ErrorData(code=types.METHOD_NOT_FOUND, message="the client has no forms")


@dataclass
class ModelRun:
    """One request and, once it has a lease, what its host sees of it. What comes after `resumed` is of one process of
    the run, and begins again with the next."""

    number: int
    task: asyncio.Task[RunResponse]
    tools: Tools
    durable: bool = False
    name: str = ""
    """Is the same for a parked run and the one that goes on with it."""
    verdicts: Mapping[int, Verdict] = field(default_factory=dict[int, Verdict])
    """What a person has said since it was parked."""
    earlier: list[HostedRun] = field(default_factory=list[HostedRun])
    """What was seen of it by hosts that were lost."""
    caller_gone: bool = False
    broker_gone: bool = False
    """Its broker has died before its response."""
    known: dict[int, str] = field(default_factory=dict[int, str])
    """The tools of the calls that it has made in all its processes, "" for other requests."""
    answered: set[int] = field(default_factory=set[int])
    """Those of them whose answers its earlier processes have seen."""
    said: dict[int, str] = field(default_factory=dict[int, str])
    """What servers were said while it was parked, by calls."""
    park: Park | None = None
    """It is parked, or is being parked, so."""
    parked: bool = False
    dropped: bool = False
    """Its caller has gone while it was being parked: nobody goes on with it."""
    is_reopened: bool = False
    """It goes on from what was written of it."""
    is_written: bool = False
    """It goes on when its broker is lost."""
    resumed: int = 0
    hosted: HostedRun | None = None
    state: State = State.SENT
    calls: list[int] = field(default_factory=list[int])
    at_work: set[int] = field(default_factory=set[int])
    """Those of the calls that were not answered from the journal, and wait for nobody."""
    asked: set[int] = field(default_factory=set[int])
    """Those of the calls that wait for a person."""
    last_id: int = 0
    logs: int = 0
    good: bool = False
    """The script has settled, with a result."""
    reason: str | None = None
    lost: bool = False

    def hear(self, message: protocol.Message, body: bytes) -> None:
        """A message that the broker believes to be of this run."""
        if self.state is State.OVER:
            return
        has_settled = isinstance(message, protocol.Ended) and message.outcome != "none"
        if self.state is State.SENT and (has_settled or not isinstance(message, protocol.Ended)):
            self.state, self.is_written = State.RUNNING, self.durable
        match message:
            case protocol.Ended(reason="crashed") if self._goes_on:
                self._go_on()
            case protocol.Ended():
                if self.state is State.RUNNING:
                    self.good = message.outcome == "done" and body == b'"result"'
                self.reason, self.state = message.reason, State.OVER
            case protocol.Log():
                self.logs += 1
            case protocol.Call() | protocol.Query() if self.state is State.RUNNING:
                self._called(message)

    def kill(self) -> None:
        """The broker asks for the worker's death."""
        if self.state in (State.SENT, State.RUNNING):
            self.state = State.KILLING
        elif self.park is not None and not self.task.done():
            # What is written of it is ended, or will be.
            self.is_written &= not self.parked
            self.dropped, self.parked = True, False

    def broker_dies(self, is_parked: bool) -> None:
        """Nobody hears of it any more; `is_parked`: by what is written it waits."""
        if self.hosted is not None:
            self.see()
        # What had ended is written so, when the disk has answered; what was refused a place had not.
        is_refused = self.is_reopened and self.hosted is None and not self.caller_gone
        has_no_process = self.state is State.OVER or self.hosted is None
        has_end = has_no_process and not self.broker_gone and self.park is None and not is_refused
        self.is_written &= not is_parked and not has_end
        if is_parked:
            self.parked = True
        else:
            self.park = None
        self.state = State.OVER

    def lose(self) -> None:
        """The host is gone."""
        if self._goes_on:
            self._go_on()
        elif self.state is not State.OVER:
            self.state, self.lost = State.OVER, True

    def parks(self, park: Park) -> None:
        """The broker writes it down, and has its worker killed: all that it waits for is people."""
        questions = park.parked.questions
        assert self.state is State.RUNNING and (self.asked or self.asking), self
        assert {one.call for one in questions if not one.is_of_server} == self.asked, (self, park)
        assert {one.call for one in questions if one.is_of_server} == self.asking == self.working, (
            self,
            park,
        )
        self.state, self.park = State.KILLING, park

    def disk_answers(self, ok: bool) -> None:
        """It is written down, or cannot be: then it ends."""
        if not ok:
            self.park = None
        elif self.dropped:
            self.is_written = False
        else:
            self.parked = True
        self.see()

    @property
    def waits_for_people_alone(self) -> bool:
        """Whether it is to be parked."""
        return bool(self.asked or self.asking) and self.working == self.asking

    @property
    def working(self) -> set[int]:
        """Calls that have no answer, and wait for no person."""
        return {call for call in self.at_work if self._is_at_work(call)}

    @property
    def asking(self) -> set[int]:
        """Calls whose server asks something."""
        return {
            call
            for call in self.working
            if self.known[call] == "elicits" and self.tools.begun[self.name, call]
        }

    @property
    def _goes_on(self) -> bool:
        """Whether it goes on elsewhere when its process is lost now."""
        return self.durable and self.state in (State.SENT, State.RUNNING) and self.resumed < MAX_LOST

    def _go_on(self) -> None:
        self.see()
        self.earlier.append(self.hosted)
        fresh = ModelRun(self.number, self.task, self.tools)
        for name in PER_PROCESS:
            setattr(self, name, getattr(fresh, name))
        self.resumed += 1

    def see(self) -> None:
        """Remembers which answers its worker has got."""
        self.answered |= self.hosted.replied

    @property
    def token(self) -> str:
        """As the host knows it."""
        return self.hosted.token.hex() if self.hosted else ""

    def check_response(self, tools: Tools) -> None:
        """The response tells what has happened, and nothing else."""
        response = self.task.result()
        trace = response.tool_trace
        assert response.parked == self.parked, (self, response)
        assert len(trace) == len(self.calls), (self, response)
        for call, entry in zip(self.calls, trace, strict=True):
            key = (self.name, call)
            if entry.ok:
                assert tools.completed[key] == 1, (self, entry)
            never = entry.error is not None and entry.error.startswith(("not called", "denied"))
            # Since then it may have been made by the run that goes on.
            is_for_later = self.parked and call in self.asked
            assert never == (is_for_later or tools.begun[key] == 0), (self, entry)
        assert len(response.logs) == self.logs, (self, response)
        settled_well = self.good and (self.lost or self.reason == "finished")
        assert response.ok == (settled_well or self.parked), (self, response)
        assert response.result == ("result" if settled_well else None)
        self._check_label(response, tools)
        if self.calls and not response.ok:
            self._check_counts(response, tools)

    def _check_label(self, response: RunResponse, tools: Tools) -> None:
        """What a worker has got an answer of is in the label, over all parks and processes, and nothing that was not
        called."""
        assert response.label is not None, self
        secrecy = response.label.secrecy
        read = set[str]() if secrecy is None else {one.removeprefix("not:") for one in EVERYBODY - secrecy}
        begun = {call for call in self.known if tools.begun[self.name, call]}
        replied = self.answered | (set[int]() if self.hosted is None else self.hosted.replied)
        assert {self.known[call] for call in begun & replied} <= read, (self, response)
        called = {
            tool
            for (name, call), _ in tools.begun.items()
            if name == self.name
            for tool in [self.known.get(call)]
        }
        assert read <= called, (self, response)

    def _check_counts(self, response: RunResponse, tools: Tools) -> None:
        first = response.diagnostics[0].message
        if "Tool calls: " not in first:
            return
        said = [int(part.split()[0]) for part in first.split("Tool calls: ")[1].split(", ")[:3]]
        assert sum(said) == len(self.calls), (self, first)
        begun = sum(tools.begun[self.name, call] for call in self.calls)
        completed = sum(tools.completed[self.name, call] for call in self.calls)
        # A tool that had answered as its run was cancelled may still count as in flight, never as not started.
        assert said[0] <= completed and said[2] == len(self.calls) - begun, (self, first)

    def _called(self, message: protocol.Call | protocol.Query) -> None:
        if message.id <= self.last_id:
            self.kill()
            return
        self.last_id = message.id
        tool = message.tool if isinstance(message, protocol.Call) else ""
        if tool and len(self.calls) >= MAX_CALLS:
            self.kill()
        elif self.known.setdefault(message.id, tool) != tool:
            # Another one than was recorded.
            self.kill()
        elif tool:
            self.calls.append(message.id)
            if message.id in self.answered or self.tools.begun[self.name, message.id]:
                return
            verdict = self.verdicts.get(message.id)
            if tool != "asks" or verdict is Verdict.ACCEPTED:
                self.at_work.add(message.id)
            elif self.durable and verdict is None:
                self.asked.add(message.id)

    def _is_at_work(self, call: int) -> bool:
        """Whether a tool, or the queue before it, has not answered yet."""
        tool, key = self.known[call], (self.name, call)
        return not (self.tools.completed[key] or (tool == "cancels" and self.tools.begun[key]))


_FIELDS: Final = [one.name for one in fields(ModelRun)]
PER_PROCESS: Final = _FIELDS[_FIELDS.index("hosted") :]

ASKING = "elicits"
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
        return [run for run in self.leased if run.state is State.RUNNING and run.hosted.host in self.alive]

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
        head = run.park.head.id
        found = self.keeper.store.read(head, kinds=WAITING)
        if found is None or found[0].state != "parked":
            return head, []
        return head, [question for question in parked_questions(*found) if question.is_of_server]

    def _connect(self, identity: bytes, confirms: bool) -> None:
        # The machine speaks for it.
        work = self.world.host(hold, capacity=2, identity=identity, confirms=confirms, leases=False)
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
        calls = {call.id: call for call in past.calls}
        assert {call for call in run.calls if self.tools.begun[run.name, call]} <= calls.keys(), (run, past)
        assert all(calls[call].ok is not None for call in run.answered if call in calls), (run, past)
        assert run.answered <= calls.keys() or run.state is not State.OVER, (run, past)
        run.park = None
        more = {
            "known": {call.id: call.tool if call.kind == "call" else "" for call in past.calls},
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
                run.hosted.say(protocol.Ended(reason="crashed"))
                run.hear(protocol.Ended(reason="crashed"), b"")
            self.settle()
        for host in self.world.hosts:
            host.play = succeed
        assert self.loop.run_until_complete(self.world.executor.run({"code": "1"})).result == 1

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
    return kept.journal.past.limits["max_log_bytes"] - LOG_BYTES


async def sleep(seconds: float) -> None:
    """Passes time."""
    await asyncio.sleep(seconds)
