"""A call that waits for the user: the host is told to stop the clock, other calls go on, and every end is an end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from cellblock.run import run as run_module
from cellblock.run.policy.asking import Grantee, Question, Verdict
from cellblock_worker.wire import protocol
from support.memory_host import BOUND, HostedRun, World, codes

MakeWorld = Callable[..., World]

POLICY = {"default": {"approve": ["tools.echo"]}}


class User:
    """Is asked, and answers when a test says so."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.answer: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self.questions: list[Question] = []
        self.grantee = Grantee("embedding", self._ask)

    async def _ask(self, question: Question) -> Verdict:
        self.questions.append(question)
        self.asked.set()
        return await asyncio.shield(self.answer)


async def other(_: dict[str, Any]) -> str:
    return "other"


@pytest.mark.parametrize(("verdict", "sent"), [(Verdict.ACCEPTED, True), (Verdict.DECLINED, False)])
async def test_the_clock_stands_still_and_other_calls_go_on(
    make_world: MakeWorld, verdict: Verdict, sent: bool
) -> None:
    user = User()

    async def play(run: HostedRun) -> None:
        assert run.message.pause_ms == 600_000
        run.leased()
        held = run.call(1, "echo", {"a": 1})
        await asyncio.wait_for(user.asked.wait(), BOUND)
        assert run.clock == ["pause"]
        assert await asyncio.wait_for(run.call(2, "other"), BOUND) == (True, "other")
        assert not held.done()
        user.answer.set_result(verdict)
        ok, value = await asyncio.wait_for(held, BOUND)
        assert run.clock == ["pause", "resume"]
        assert ok is sent
        assert value == {"a": 1} if sent else value["code"] == "APPROVAL_DECLINED"
        run.done(ok)

    world = make_world(tools={"other": other}, policy=POLICY)
    await world.host(play)
    response = await world.run(grantee=user.grantee)
    assert response.result is sent
    assert response.usage.approval_wait_ms is not None
    first = response.tool_trace[0]
    assert (first.ok, first.error) == ((True, None) if sent else (False, "denied by the policy"))
    assert user.questions[0].arguments == {"a": 1}


@pytest.mark.parametrize("how", ["timeout", "done", "lost", "aborted"])
async def test_a_run_that_ends_meanwhile(make_world: MakeWorld, how: str) -> None:
    user = User()
    asked_of: list[HostedRun] = []

    async def play(run: HostedRun) -> None:
        asked_of.append(run)
        run.leased()
        run.call(1, "echo")
        await asyncio.wait_for(user.asked.wait(), BOUND)
        if how == "timeout":
            run.ended("timeout")
        elif how == "done":
            run.done(1)

    world = make_world(policy=POLICY)
    host = await world.host(play)
    task = asyncio.ensure_future(world.run(grantee=user.grantee))
    await asyncio.wait_for(user.asked.wait(), BOUND)
    if how == "lost":
        world.lose(host)
    if how == "aborted":
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await world.executor.close()
    else:
        response = await task
        assert codes(response) == {"timeout": ["SANDBOX_LIMIT"], "done": [], "lost": ["HOST_LOST"]}[how]
        assert response.tool_trace[0].ok is False
        assert response.tool_trace[0].error == "never sent: the run had ended"
    # Nothing is said of a clock that is no more.
    assert asked_of[0].clock == ["pause"]


async def test_the_brokers_own_bound_waits_with_the_clock(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "HOST_GRACE_SECONDS", 0.2)
    user = User()

    async def play(run: HostedRun) -> None:
        run.leased()
        held = run.call(1, "echo")
        await asyncio.wait_for(user.asked.wait(), BOUND)
        await asyncio.sleep(1)
        assert not world.failed
        user.answer.set_result(Verdict.ACCEPTED)
        await asyncio.wait_for(held, BOUND)
        # And now the host lets it pass its deadline.

    world = make_world(policy=POLICY)
    await world.host(play)
    response = await world.run(grantee=user.grantee, limits={"timeoutMs": 300})
    assert codes(response) == ["HOST_LOST"]
    assert len(world.failed) == 1


async def test_without_a_policy_the_clock_may_never_stop(make_world: MakeWorld) -> None:
    seen: list[protocol.Run] = []

    async def play(run: HostedRun) -> None:
        seen.append(run.message)
        run.leased()
        assert (await asyncio.wait_for(run.call(1), BOUND))[0]
        run.done(1)

    world = make_world()
    await world.host(play)
    assert (await world.run(grantee=User().grantee)).result == 1
    assert seen[0].pause_ms == 0


async def test_a_call_by_another_name_is_no_call(make_world: MakeWorld) -> None:
    """What a worker asks for in the protocol itself passes the same doors."""

    async def play(run: HostedRun) -> None:
        run.leased()
        for number, name in enumerate(
            ["echo", "tools.echo", "Echo", "__proto__", "mcp__tools__echo", "echo\0"], 1
        ):
            ok, error = await asyncio.wait_for(run.call(number, name), BOUND)
            assert (ok, error["errorClass"]) == (False, "ToolNotFoundError"), name
        listed = await asyncio.wait_for(run.query(10, "listTools", "tools"), BOUND)
        assert [tool["toolName"] for tool in listed[1]] == ["other"]
        assert (await asyncio.wait_for(run.call(11, "other"), BOUND)) == (True, "other")
        run.done(1)

    world = make_world(tools={"other": other}, policy={"default": {"tools": ["tools.other"]}})
    await world.host(play)
    response = await world.run()
    assert response.result == 1
    assert "not grant it" not in str(response.tool_trace)
    refused = await world.run('import "@codemode/servers/tools";', grants={"tools": []})
    assert codes(refused) == ["IMPORT_FAILURE"]
    assert "not granted" in refused.diagnostics[0].message
    assert "grants" in (refused.diagnostics[0].hint or "")
