"""How runs end: every end at every state, and a host that lies."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from cellblock.run import payload, run_clock
from cellblock.run import run as run_module
from cellblock.run.run_log import LOG_NOTE_BYTES
from cellblock_worker.wire import protocol
from cellblock_worker.wire.frames import pack_header
from cellblock_worker.wire.protocol import MAX_LOG_ENTRIES, MAX_NOTICES
from support.memory_host import HostedRun, MakeWorld, Play, World, codes, hold, succeed, turns
from support.waits import within


async def test_a_call_that_comes_as_its_run_is_stopped_was_never_sent(world: World) -> None:
    """Its task ends before its first step; that it may have run would be said without need."""
    host = await world.host(hold)
    task = world.begin()
    await host.until_runs(1)
    await turns()
    host.runs[0].call(1)
    closing = asyncio.ensure_future(world.executor.close())
    response = await within(task)
    await within(closing)
    assert [entry.error for entry in response.tool_trace] == ["not called: the run had ended before"]
    assert "0 completed, 0 in flight (may have run), 1 not started" in response.diagnostics[0].message


@pytest.fixture
def short_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker's own bounds, a hundred times shorter."""
    for name in ("LEASE_BOUND_SECONDS", "HOST_GRACE_SECONDS", "KILL_BOUND_SECONDS"):
        monkeypatch.setattr(run_module, name, 0.05)


async def sent(run: HostedRun) -> None:
    """Never leased."""


async def running(run: HostedRun) -> None:
    run.log("on")


async def calling(run: HostedRun) -> None:
    run.call(1, "hangs")


async def over_its_calls(run: HostedRun) -> None:
    run.call(1)
    run.call(2)


@pytest.mark.parametrize(
    ("play", "expected"),
    [
        (sent, ["HOST_LOST"]),
        (running, ["HOST_LOST"]),
        (calling, ["HOST_LOST"]),
        (over_its_calls, ["SANDBOX_LIMIT"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.parametrize("way", ["lost", "silent"])
async def test_a_host_lost_or_silent_at_every_state(
    play: Any, expected: list[str], way: str, make_world: MakeWorld, short_bounds: None
) -> None:
    async def hangs(_: dict[str, Any]) -> None:
        await asyncio.Event().wait()

    world = make_world(tools={"hangs": hangs})
    host = await world.host(play, confirms=False, leases=play is not sent)
    # Only a run that is under way may need its deadline; everything else has a bound of its own.
    timeout = 50 if way == "silent" and play in (running, calling) else 60_000
    task = world.begin(limits={"timeoutMs": timeout, "maxToolCalls": 1})
    await host.until_runs(1)
    await turns(10)
    if way == "lost":
        assert not task.done()
        world.lose(host, "the process died")
    started = time.monotonic()
    response = await within(task)
    assert time.monotonic() - started < 5
    assert codes(response) == expected
    assert response.result is None
    if play is calling:
        assert "1 in flight (may have run)" in response.diagnostics[0].message
    if way == "silent":
        # The broker keeps the deadline itself, and gives up on a host that did not.
        assert [identity for identity, _ in world.failed] == [host.identity]
    assert (await within(next_run(world))).result == 1


async def next_run(world: World) -> Any:
    await world.host(succeed, identity=b"another")
    return await world.run()


async def test_a_host_that_cannot_be_reached_when_the_run_starts(world: World) -> None:
    host = await world.host()
    world.link.detach(host.identity)
    response = await world.run()
    assert codes(response) == ["HOST_LOST"]
    assert "may or may not have started" in response.diagnostics[0].message


async def test_a_host_that_goes_as_it_replies(world: World) -> None:

    async def cut(_: dict[str, Any]) -> int:
        world.link.detach(host.identity)
        return 1

    world.upstreams = world.upstreams.__class__({"echo": cut})
    world.executor._upstreams = world.upstreams  # pyright: ignore[reportPrivateUsage]

    async def play(run: HostedRun) -> None:
        run.call(1)

    host = await world.host(play)
    response = await world.run()
    assert codes(response) == ["HOST_LOST"] and "1 completed" in response.diagnostics[0].message


# ---- lost, with calls and without -----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["host", "crashed", "host_stopping"])
@pytest.mark.parametrize("is_called", [False, True])
async def test_a_lost_run_is_told_whether_it_can_be_sent_again(
    how: str, is_called: bool, world: World
) -> None:
    async def play(run: HostedRun) -> None:
        if is_called:
            await run.call(1, value={})
        if how == "host":
            world.lose(run.host)
        else:
            run.ended(how, cpu_ms=200)

    hosts = [await world.host(play, identity=f"host {number}".encode()) for number in range(2)]
    response = await world.run()
    assert codes(response) == ["WORKER_CRASHED" if how == "crashed" else "HOST_LOST"]
    assert response.usage.resumed is None and sum(len(host.runs) for host in hosts) == 1
    found = response.diagnostics[0]
    assert ("can be sent again as it is" in (found.hint or "")) is not is_called
    assert ("Completed: " in found.message) is is_called


# ---- cancelling, stopping, queueing -------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["finished", "timeout"])
async def test_an_end_that_crosses_an_abort_is_no_success(reason: str, world: World) -> None:
    host = await world.host(hold, confirms=False)
    task = world.begin()
    await host.until_runs(1)
    await turns()
    closing = asyncio.ensure_future(world.executor.close())
    await turns()
    if reason == "finished":
        host.runs[0].done("too late")
    else:
        host.runs[0].ended(reason)
    response = await within(task)
    assert codes(response) == ["CANCELLED"] and response.result is None
    await within(closing)


async def test_what_does_not_fit_one_message_is_refused_here(make_world: MakeWorld) -> None:
    world = make_world(max_message_bytes=4096)
    host = await world.host()
    response = await world.run("1" * 4096)
    assert codes(response) == ["SCRIPT_TOO_LARGE"] and host.runs == []
    assert (await world.run("1")).ok


async def test_a_loop_that_stood_still_blames_no_host(
    short_bounds: None, monkeypatch: pytest.MonkeyPatch, world: World
) -> None:
    monkeypatch.setattr(run_clock, "LATE_SECONDS", 0.1)
    loop = asyncio.get_running_loop()

    async def play(run: HostedRun) -> None:
        # Meanwhile the host says so.
        loop.call_later(0.3, run.done, 1)
        loop.call_soon(time.sleep, 0.5)

    response = await world.played(play, limits={"timeoutMs": 1})
    assert response.result == 1 and world.failed == []


LOGS = 10_000


async def many_bytes(run: HostedRun) -> None:
    for _ in range(LOGS // 100 + LOG_NOTE_BYTES // 100 + 1):
        run.log("x" * 100)


async def many_entries(run: HostedRun) -> None:
    for _ in range(MAX_LOG_ENTRIES + 2):
        run.log("")


async def many_notices(run: HostedRun) -> None:
    for _ in range(MAX_NOTICES + 1):
        run.say(protocol.Notice(), b'{"code": "A", "message": "m"}')


@pytest.mark.parametrize(
    ("play", "what"),
    [(many_bytes, "more logs"), (many_entries, "more logs"), (many_notices, "more notices")],
)
async def test_a_host_that_sends_without_end_is_lost(play: Play, what: str, world: World) -> None:
    host = await world.host(play)
    response = await world.run(limits={"maxLogBytes": LOGS})
    assert codes(response)[0] == "HOST_LOST"
    first = response.diagnostics[0]
    assert f"the worker host was lost: it sent {what} than a run may have" in first.message.lower()
    assert response.result is None
    assert sum(len(entry.message) for entry in response.logs) <= LOGS + LOG_NOTE_BYTES
    assert len(response.logs) <= MAX_LOG_ENTRIES + 1
    assert len(response.diagnostics) <= MAX_NOTICES + 1
    assert [identity for identity, _ in world.failed] == [host.identity]


async def test_what_an_honest_host_sends_at_its_cap_is_kept(world: World) -> None:
    async def play(run: HostedRun) -> None:
        run.log("x" * LOGS)
        run.log("[logs truncated: over maxLogBytes; later output is dropped]")
        for _ in range(MAX_NOTICES):
            run.say(protocol.Notice(), b'{"code": "A", "message": "m"}')
        run.done(1)

    response = await world.played(play, limits={"maxLogBytes": LOGS})
    assert response.result == 1 and len(response.logs) == 2 and len(response.diagnostics) == MAX_NOTICES
    assert not world.failed


@pytest.mark.parametrize(
    ("message", "size"),
    [
        (protocol.Notice(), 64 * 1024 + 1),
        (protocol.Query(id=1, op="listServers"), 64 * 1024 + 1),
        (protocol.Leased(wall_ms=0), 1),
        (protocol.Status(warm=0, booting=0, running=0, wanted=0), 1),
        (protocol.Ended(reason="finished", outcome="done"), 1024 * 1024 + 1),
    ],
    ids=lambda value: value.t if isinstance(value, protocol.Message) else "",
)
async def test_a_host_that_sends_a_body_over_its_cap_is_lost_before_it_is_decoded(
    message: protocol.FromHost, size: int, monkeypatch: pytest.MonkeyPatch, make_world: MakeWorld
) -> None:
    decoded: list[int] = []
    monkeypatch.setattr(payload, "decode", lambda body: decoded.append(len(body)))  # pyright: ignore

    async def play(run: HostedRun) -> None:
        run.say(message, b" " * size)

    world = make_world(max_message_bytes=1024 * 1024)
    host = await world.host(play)
    response = await world.run(limits={"maxLogBytes": 1000})
    assert codes(response) == ["HOST_LOST"] and f"over {size - 1}" in response.diagnostics[0].message
    assert [identity for identity, _ in world.failed] == [host.identity] and decoded == []


@pytest.mark.parametrize("is_leased", [True, False])
@pytest.mark.parametrize(
    ("reason", "outcome", "code"),
    [
        ("finished", "none", "WORKER_CRASHED"),
        ("cpu", "done", "SANDBOX_LIMIT"),
        ("crashed", "exception", "WORKER_CRASHED"),
        ("boot_failed", "done", "WORKER_UNAVAILABLE"),
    ],
)
async def test_an_end_and_an_outcome_that_do_not_go_together_are_no_success(
    reason: str, outcome: str, code: str, world: World, *, is_leased: bool
) -> None:
    async def play(run: HostedRun) -> None:
        run.ended(reason, outcome=outcome, body=b'"forged"')

    await world.host(play, leases=is_leased)
    response = await world.run()
    assert codes(response) == [code] and response.result is None


@pytest.mark.parametrize("name", ["done", "failed"])
async def test_an_outcome_that_is_no_end_is_no_message_of_a_host(name: str, world: World) -> None:
    async def play(run: HostedRun) -> None:
        header = {"t": name, "ms": 1} | ({"kind": "exception"} if name == "failed" else {})
        world.link.deliver(run.host.identity, run.token, pack_header(header), b"1")

    host = await world.host(play)
    assert codes(await world.run()) == ["HOST_LOST"]
    assert [identity for identity, _ in world.failed] == [host.identity]


@pytest.mark.parametrize("claims", [1, 2**53 - 1])
async def test_a_worker_that_has_not_read_what_it_says_is_killed(claims: int, world: World) -> None:
    async def play(run: HostedRun) -> None:
        await run.call(1, value={"text": "x"})
        run.say(protocol.Took(bytes=claims))

    response = await world.played(play)
    assert codes(response) == ["PROTOCOL_VIOLATION"] and not world.failed
