"""What a run must be and have after each message, fault and passing of time: the model of `test_run_random`."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from cellblock.base.errors import Certainty, ToolCallError
from cellblock.execution.response import RunResponse
from cellblock.execution.states import State
from cellblock_worker.wire import protocol
from support.memory_host import HostedRun

MAX_CALLS = 3
SLOW_SECONDS = 2.0


class Tools:
    """The tools, and a ledger of what was executed: (token of the run, call id)."""

    def __init__(self) -> None:
        self.begun: Counter[tuple[str, int]] = Counter()
        self.completed: Counter[tuple[str, int]] = Counter()

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

    def _begin(self, value: dict[str, Any]) -> tuple[str, int]:
        key = (value["run"], value["id"])
        self.begun[key] += 1
        return key

    def _complete(self, key: tuple[str, int]) -> str:
        self.completed[key] += 1
        return "done"


@dataclass
class ModelRun:
    """One request and, once it has a lease, what its host sees of it."""

    number: int
    task: asyncio.Task[RunResponse]
    hosted: HostedRun | None = None
    state: State = State.SENT
    calls: list[int] = field(default_factory=list[int])
    last_id: int = 0
    logs: int = 0
    good: bool = False
    """The script has settled with a result."""
    reason: str | None = None
    lost: bool = False
    caller_gone: bool = False

    def hear(self, message: protocol.Message, body: bytes) -> None:
        """A message that the broker believes to be of this run."""
        if self.state is State.OVER:
            return
        match message:
            case protocol.Ended():
                self.reason, self.state = message.reason, State.OVER
            case protocol.Log():
                self.logs += 1
            case protocol.Leased() if self.state is State.SENT:
                self.state = State.RUNNING
            case protocol.Call() | protocol.Query() if self.state is State.RUNNING:
                self._called(message)
            case protocol.Done() if self.state is State.RUNNING:
                self.good, self.state = body == b'"result"', State.SETTLED
            case protocol.Failed() if self.state is State.RUNNING:
                self.state = State.SETTLED
            case _:
                return

    def kill(self) -> None:
        """The broker asks for the worker's death."""
        if self.state in (State.SENT, State.RUNNING):
            self.state = State.KILLING

    def lose(self) -> None:
        """The host is gone."""
        if self.state is not State.OVER:
            self.state, self.lost = State.OVER, True

    @property
    def token(self) -> str:
        """As the tools are told it."""
        return self.hosted.token.hex() if self.hosted else ""

    def check_response(self, tools: Tools) -> None:
        """The response tells what has happened, and nothing else."""
        response = self.task.result()
        trace = response.tool_trace
        assert len(trace) == len(self.calls), (self, response)
        for call, entry in zip(self.calls, trace, strict=True):
            key = (self.token, call)
            if entry.ok:
                assert tools.completed[key] == 1, (self, entry)
            never = entry.error is not None and entry.error.startswith("never sent")
            assert never == (tools.begun[key] == 0), (self, entry)
        assert len(response.logs) == self.logs, (self, response)
        settled_well = self.good and (self.lost or self.reason == "finished")
        assert response.ok == settled_well, (self, response)
        assert response.result == ("result" if settled_well else None)
        if self.calls and not response.ok:
            self._check_counts(response, tools)

    def _check_counts(self, response: RunResponse, tools: Tools) -> None:
        first = response.diagnostics[0].message
        if "Tool calls: " not in first:
            return
        said = [int(part.split()[0]) for part in first.split("Tool calls: ")[1].split(", ")]
        assert sum(said) == len(self.calls), (self, first)
        begun = sum(tools.begun[self.token, call] for call in self.calls)
        completed = sum(tools.completed[self.token, call] for call in self.calls)
        # A tool that had answered as its run was cancelled may still count as in flight, never as not started.
        assert said[0] <= completed and said[2] == len(self.calls) - begun, (self, first)

    def _called(self, message: protocol.Call | protocol.Query) -> None:
        if message.id <= self.last_id:
            self.kill()
            return
        self.last_id = message.id
        if isinstance(message, protocol.Call):
            if len(self.calls) >= MAX_CALLS:
                self.kill()
            else:
                self.calls.append(message.id)
