"""What a run must be and have after each message, fault and passing of time: the model of `test_run_random`."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

import mcp_types as types

from cellblock.base.errors import Certainty, ToolCallError
from cellblock.run.executor import MAX_LOST
from cellblock.run.policy.asking import Verdict
from cellblock.run.response import RunResponse
from cellblock.run.states import State
from cellblock.tools.upstream.requester import CallOrigin
from cellblock_worker.wire import protocol
from support.memory_host import HostedRun
from support.memory_keeper import Park

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
        answer: object = None
        if origin.asked is not None:
            answer = await origin.asked(types.ElicitRequest(params=FORM), _nobody)
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

    async def asks(self, value: dict[str, Any]) -> Any:
        """Answers at once, when a person has allowed it."""
        return self._complete(self._begin(value))

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
    killed: bool = False
    last_id: int = 0
    logs: int = 0
    settled: bool = False
    """The script has settled."""
    good: bool = False
    """It has, with a result."""
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
                    self.settled, self.good = has_settled, message.outcome == "done" and body == b'"result"'
                self.reason, self.state = message.reason, State.OVER
            case protocol.Log():
                self.logs += 1
            case protocol.Call() | protocol.Query() if self.state is State.RUNNING:
                self._called(message)
            case _:
                return

    def kill(self) -> None:
        """The broker asks for the worker's death."""
        if self.state in (State.SENT, State.RUNNING):
            self.state, self.killed = State.KILLING, True
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
        self.state, self.park, self.killed = State.KILLING, park, True

    def disk_answers(self, ok: bool) -> None:
        """It is written down, or cannot be: then it ends."""
        assert self.park is not None
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
        assert self.hosted is not None
        self.see()
        self.earlier.append(self.hosted)
        fresh = ModelRun(self.number, self.task, self.tools)
        for name in PER_PROCESS:
            setattr(self, name, getattr(fresh, name))
        self.resumed += 1

    def see(self) -> None:
        """Remembers which answers its worker has got."""
        assert self.hosted is not None
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
