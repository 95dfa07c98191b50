"""Random histories of a broker with several runs: whatever hosts say and whoever gives up, one response each."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from cellblock.execution.response import RunResponse
from cellblock_worker import protocol
from memory_host import BOUND, HostedRun, ScriptedHost, World, turns

MESSAGES: list[tuple[protocol.Message, bytes]] = [
    (protocol.Leased(wait_ms=0), b""),
    (protocol.Log(level="log", ms=1), b"text"),
    (protocol.Call(id=1, server="tools", tool="echo"), b"{}"),
    (protocol.Call(id=2, server="tools", tool="hangs"), b""),
    (protocol.Call(id=3, server="tools", tool="echo"), b"[]"),
    (protocol.Query(id=4, op="listServers"), b"[]"),
    (protocol.Notice(), b"{}"),
    (protocol.Done(ms=1), b'"result"'),
    (protocol.Done(ms=1), b"nonsense"),
    (protocol.Failed(ms=1, kind="exception"), b'{"name": "E", "message": "m", "causes": [""]}'),
    (protocol.Ended(reason="finished"), b""),
    (protocol.Ended(reason="timeout"), b""),
]


async def play(run: HostedRun) -> None:
    """Says nothing by itself: the machine speaks."""


async def hangs(_: dict[str, Any]) -> None:
    await asyncio.Event().wait()


class Histories(RuleBasedStateMachine):
    """One loop for each history; every rule leaves it with nothing ready to run."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.tasks: list[asyncio.Task[RunResponse]] = []
        self.cancelled: set[asyncio.Task[RunResponse]] = set()
        self.hosts_made = 0

    def settle(self) -> None:
        self.loop.run_until_complete(turns(12))

    @initialize()
    def start(self) -> None:
        async def make() -> World:
            return World(tools={"hangs": hangs}, pool={"queue_size": 3})

        self.world = self.loop.run_until_complete(make())
        self.new_host()

    @property
    def alive(self) -> list[ScriptedHost]:
        known = {host.identity for host in self.world.hosts} & set(self.world.pool._hosts)  # pyright: ignore[reportPrivateUsage]
        return [host for host in self.world.hosts if host.identity in known]

    @rule()
    def new_host(self) -> None:
        if len(self.world.hosts) >= 6:
            return
        self.hosts_made += 1
        identity = f"host {self.hosts_made}".encode()
        self.loop.run_until_complete(self.world.host(play, capacity=2, identity=identity))

    @rule()
    def begin(self) -> None:
        async def make() -> asyncio.Task[RunResponse]:
            request = {"code": "1", "limits": {"maxToolCalls": 2}}
            return asyncio.ensure_future(self.world.executor.run(request))

        self.tasks.append(self.loop.run_until_complete(make()))
        self.settle()

    @rule(picks=st.lists(st.tuples(st.integers(0, 20), st.sampled_from(MESSAGES)), min_size=1, max_size=6))
    def say(self, picks: list[tuple[int, tuple[protocol.Message, bytes]]]) -> None:
        runs = [run for host in self.world.hosts for run in host.runs]
        for number, (message, body) in picks:
            if runs:
                runs[number % len(runs)].say(message, body)
        self.settle()

    @precondition(lambda self: self.alive)
    @rule(number=st.integers(0, 20), how=st.sampled_from(["lose", "break", "hello"]))
    def harm_a_host(self, number: int, how: str) -> None:
        host = self.alive[number % len(self.alive)]
        if how == "lose":
            self.world.lose(host)
        elif how == "break":
            self.loop.call_soon(self.world.link.deliver, host.identity, b"", b"\xc1")
        else:
            self.loop.call_soon(host.hello)
        self.settle()

    @precondition(lambda self: self.tasks)
    @rule(number=st.integers(0, 20))
    def cancel_a_caller(self, number: int) -> None:
        task = self.tasks[number % len(self.tasks)]
        if not task.done():
            task.cancel()
            self.cancelled.add(task)
        self.settle()

    def teardown(self) -> None:
        try:
            self.loop.run_until_complete(self._finish())
        finally:
            self.loop.close()

    async def _finish(self) -> None:
        for host in self.alive:
            self.world.lose(host, "the test is over")
        self.world.pool.close()
        if self.tasks:
            _, pending = await asyncio.wait(self.tasks, timeout=BOUND)
            assert not pending, "a run has no response"
        for task in self.tasks:
            if task.cancelled():
                assert task in self.cancelled
                continue
            response = task.result()
            json.dumps(response.as_json(), allow_nan=False)
            assert response.ok == (response.result == "result"), response
            assert sum(entry.ok for entry in response.tool_trace) <= 2
        await asyncio.sleep(0.001)
        await turns(10)
        assert self.world.pool.running == 0 and self.world.pool.queued == 0
        await self.world.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            await asyncio.wait(left, timeout=BOUND)
        assert all(task.done() for task in left)


Histories.TestCase.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestHistories = Histories.TestCase
