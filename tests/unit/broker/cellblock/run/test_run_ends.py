"""Whole runs over the in-memory wire: how they end at every state, with a host that does well, badly, or lies."""

import asyncio
import json
import time
from typing import Any
from unittest.mock import AsyncMock

import pytest

from cellblock.base import payload
from cellblock.run import queries, run as run_module, run_clock
from cellblock.run.events import RunFacts, Watcher
from cellblock.run.heard import LOG_NOTE_BYTES
from cellblock_worker.wire import protocol
from cellblock_worker.wire.frames import pack_header
from cellblock_worker.wire.protocol import MAX_LOG_ENTRIES, MAX_NOTICES
from support.memory_host import HostedRun, MakeWorld, World, codes, hangs, hold, succeed, turns
from support.waits import until, within


@pytest.mark.parametrize("outcome", ["exception", "done"])
@pytest.mark.parametrize("body", [b"", b"nonsense", b"[]", b'"x"', b"1e999", b"[" * 5000])
async def test_failures_and_results_of_any_bytes_end_in_a_response(
    body: bytes, outcome: str, world: World
) -> None:
    async def play(run: HostedRun) -> None:
        run.say(protocol.Notice(), body)
        run.ended(outcome=outcome, body=body)

    response = await world.played(play)
    json.dumps(response.as_json(), allow_nan=False)
    assert outcome == "done" or not response.ok


@pytest.mark.parametrize(
    ("reason", "code", "error_class"),
    [
        ("timeout", "SANDBOX_LIMIT", "SandboxLimitError"),
        ("cpu", "SANDBOX_LIMIT", "SandboxLimitError"),
        ("memory", "SANDBOX_LIMIT", "SandboxLimitError"),
        ("total_memory", "SANDBOX_LIMIT", "SandboxLimitError"),
        ("protocol", "PROTOCOL_VIOLATION", None),
        ("crashed", "WORKER_CRASHED", None),
        ("boot_failed", "WORKER_UNAVAILABLE", None),
        ("host_stopping", "HOST_LOST", None),
        ("cancelled", "CANCELLED", None),
        ("finished", "WORKER_CRASHED", None),
    ],
)
async def test_every_end_without_an_outcome_has_its_diagnostic(
    reason: str, code: str, error_class: str | None, world: World
) -> None:
    async def play(run: HostedRun) -> None:
        run.log("kept")
        run.ended(reason, detail="why")

    response = await world.played(play)
    (found,) = response.diagnostics
    assert (found.severity, found.code, found.error_class) == ("error", code, error_class)
    assert found.hint and response.result is None
    assert [log.message for log in response.logs] == ["kept"]


@pytest.mark.parametrize(("leased", "said"), [(True, "may have run in part"), (False, "it was not started")])
async def test_a_host_that_stops_says_whether_the_script_may_have_run(
    leased: bool, said: str, world: World
) -> None:
    async def play(run: HostedRun) -> None:
        run.ended("host_stopping")

    await world.host(play, leases=leased)
    (found,) = (await world.run()).diagnostics
    assert said in found.message


async def test_a_call_that_is_said_twice_is_made_once(make_world: MakeWorld) -> None:
    count = AsyncMock(return_value=None)

    async def play(run: HostedRun) -> None:
        await run.call(1, "count")
        run.call(1, "count")
        await run.cancelled.wait()

    assert codes(await make_world(tools={"count": count}).played(play)) == ["PROTOCOL_VIOLATION"]
    assert count.await_count == 1


async def test_discovery_requests_are_capped_and_their_errors_are_answers(
    monkeypatch: pytest.MonkeyPatch, world: World
) -> None:
    monkeypatch.setattr(queries, "MAX_QUERIES", 2)

    async def play(run: HostedRun) -> None:
        ok, error = await run.query(1, "describeServer", "nope")
        assert (ok, error["errorClass"]) == (False, "ServerNotFoundError")
        ok, error = await run.query(2, "getTool")
        assert (ok, error["errorClass"]) == (False, "CodemodeError")
        run.query(3, "listServers")
        await run.cancelled.wait()

    assert codes(await world.played(play)) == ["SANDBOX_LIMIT"]


# ---- messages at the wrong time, from the wrong host, and too often ------------------------------------------


@pytest.mark.parametrize("wall_ms", [40, 2**53 - 1])
@pytest.mark.parametrize("first", ["lease", "call", "log", "outcome"])
async def test_whatever_is_said_first_of_a_run_says_that_it_has_a_worker(
    first: str, wall_ms: int, world: World
) -> None:
    seen: list[tuple[float, float]] = []
    """How long ago it has started when that is told, and how long before that it got its place."""

    class Started(Watcher):
        def run_started(self, run: RunFacts) -> None:
            seen.append((time.monotonic() - run.started, run.started - run.leased))

    async def play(run: HostedRun) -> None:
        # So that what is said of it can be true, or not.
        await asyncio.sleep(0.06)
        if first == "lease":
            run.say(protocol.Leased(wall_ms=wall_ms))
        elif first == "call":
            assert (await run.call(1))[0]
        elif first == "log":
            run.log("first")
        run.done("right", wall_ms=wall_ms)

    world.events.add(Started())
    await world.host(play, leases=False)
    assert (await world.run()).result == "right"
    [(ago, after)] = seen
    if first in ("call", "log"):
        assert after > 0.05
    else:
        assert ago >= 0.04 and (after > 0) == (wall_ms == 40)


@pytest.mark.parametrize("limit", ["timeout", "cpu", "memory", "calls"])
@pytest.mark.parametrize(
    ("code", "first"),
    [
        ("let n = 0;\nwhile (true) n++;", "Look whether the loop in line 2 ends. If so, "),
        ("let n = 0;\rwhile (true) n++;", "Look whether the loop in line 2 ends. If so, "),
        ("for (const a of b) f(a);\nfor (;;) await g();", "Look whether the loop in line 2 ends. If so, "),
        ("for (const a of b) f(a);\nwhile (h()) i();", "Look whether its loops end. If so, "),
        ("await f();", ""),
    ],
)
async def test_a_limit_names_a_loop_before_a_larger_limit(
    world: World, limit: str, code: str, first: str
) -> None:
    async def play(run: HostedRun) -> None:
        if limit == "calls":
            run.call(1)
            run.call(2)
        else:
            run.ended(limit)

    response = await world.played(play, code, limits={"maxToolCalls": 1})
    hint = response.diagnostics[0].hint or ""
    assert hint.startswith(first) and hint.count("or ask for a larger ") == 1
    assert hint.removeprefix(first).startswith(
        ("do", "compute", "process", "make") if first else ("Do", "Compute", "Process", "Make")
    )


async def test_only_the_first_outcome_counts(world: World) -> None:
    async def play(run: HostedRun) -> None:
        run.say(protocol.Leased(wall_ms=0))
        run.done("first")
        run.done("second")
        run.ended(outcome="exception", body=b"{}")
        run.call(1)
        run.ended()
        run.ended("timeout")
        run.log("late")
        run.done("late")

    response = await world.played(play)
    assert (response.result, response.ok, response.tool_trace, response.logs) == ("first", True, [], [])
    await turns()


async def test_the_time_in_the_queue_counts_where_the_client_chose_none(world: World) -> None:
    """Its client may give up after a minute; one that has chosen a time gets it."""
    given: list[int] = []
    release = asyncio.Event()

    async def play(run: HostedRun) -> None:
        given.append(run.message.timeout_ms)
        if len(given) == 1:
            await release.wait()
        run.ended(outcome="done", body=b"1")

    await world.host(play, capacity=1)
    first = world.begin()
    await until(lambda: given, "the first one runs")
    queued = world.begin()
    await until(lambda: world.pool.queued, "a queue")
    chosen = world.begin(limits={"timeoutMs": 55_000})
    await until(lambda: world.pool.queued == 2, "two in the queue")
    since = time.monotonic()
    await until(lambda: time.monotonic() - since > 0.02, "some time in the queue")
    release.set()
    assert all(one.ok for one in await asyncio.gather(first, queued, chosen))
    assert given[0] > given[1] and given[1] <= 55_000 - 20 and given[2] == 55_000


async def test_a_call_that_comes_as_its_run_is_stopped_was_never_sent(world: World) -> None:
    """Its task ends before its first step; that it may have run would be said without need."""
    host = await world.host(hold)
    task = world.begin()
    await host.until_runs(1)
    await turns()
    host.runs[0].call(1)
    response, _ = await within(asyncio.gather(task, world.executor.close()))
    assert [entry.error for entry in response.tool_trace] == ["not called: the run had ended before"]
    assert "0 completed, 0 in flight (may have run), 1 not started" in response.diagnostics[0].message


SHORTENED = ("LEASE_BOUND_SECONDS", "HOST_GRACE_SECONDS", "KILL_BOUND_SECONDS")
"""Bounds of the broker's own."""


@pytest.fixture
def short_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker's own bounds, a hundred times shorter."""
    for name in SHORTENED:
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
    play: Any,
    expected: list[str],
    way: str,
    make_world: MakeWorld,
    short_bounds: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = make_world(tools={"hangs": hangs})
    if way == "lost":
        # It is lost before any bound has passed, however busy the machine is.
        for name in SHORTENED:
            monkeypatch.setattr(run_module, name, 60.0)
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
    assert time.monotonic() - started < 30
    assert (codes(response), response.result) == (expected, None)
    if play is calling:
        assert "1 in flight (may have run)" in response.diagnostics[0].message
    if way == "silent":
        # The broker keeps the deadline itself, and gives up on a host that did not.
        assert [identity for identity, _ in world.failed] == [host.identity]
    await world.host(succeed, identity=b"another")
    assert (await world.run()).result == 1


async def test_a_host_that_cannot_be_reached_when_the_run_starts(world: World) -> None:
    host = await world.host()
    world.link.detach(host.identity)
    response = await world.run()
    assert codes(response) == ["HOST_LOST"]
    assert "may or may not have started" in response.diagnostics[0].message


async def test_a_host_that_goes_as_it_replies(make_world: MakeWorld) -> None:
    async def cut(_: dict[str, Any]) -> int:
        world.link.detach(host.identity)
        return 1

    async def play(run: HostedRun) -> None:
        run.call(1, "cut")

    world = make_world(tools={"cut": cut})
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


@pytest.mark.parametrize(
    "end", [{"outcome": "done", "body": b'"too late"'}, {"reason": "timeout"}], ids=["finished", "timeout"]
)
async def test_an_end_that_crosses_an_abort_is_no_success(end: dict[str, Any], world: World) -> None:
    host = await world.host(hold, confirms=False)
    task = world.begin()
    await host.until_runs(1)
    await turns()
    closing = asyncio.ensure_future(world.executor.close())
    await turns()
    host.runs[0].ended(**end)
    response = await within(task)
    assert codes(response) == ["CANCELLED"] and response.result is None
    await within(closing)


async def test_what_does_not_fit_one_message_is_refused_here(make_world: MakeWorld) -> None:
    world = make_world(max_message_bytes=4096)
    host = await world.host()
    assert codes(await world.run("1" * 4096)) == ["SCRIPT_TOO_LARGE"] and host.runs == []
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

    assert (await world.played(play, limits={"timeoutMs": 1})).result == 1 and world.failed == []


LOGS = 10_000
LOG = protocol.Log(level="log", ms=1)
NOTICE = b'{"code": "A", "message": "m"}'


@pytest.mark.parametrize(
    ("message", "body", "times", "what"),
    [
        (LOG, b"x" * 100, LOGS // 100 + LOG_NOTE_BYTES // 100 + 1, "more logs"),
        (LOG, b"", MAX_LOG_ENTRIES + 2, "more logs"),
        (protocol.Notice(), NOTICE, MAX_NOTICES + 1, "more notices"),
    ],
    ids=["many bytes", "many entries", "many notices"],
)
async def test_a_host_that_sends_without_end_is_lost(
    message: protocol.Message, body: bytes, times: int, what: str, world: World
) -> None:
    async def play(run: HostedRun) -> None:
        for _ in range(times):
            run.say(message, body)

    response = await world.played(play, limits={"maxLogBytes": LOGS})
    assert (codes(response)[0], response.result) == ("HOST_LOST", None)
    why = f"the worker host was lost: it sent {what} than a run may have"
    assert why in response.diagnostics[0].message.lower()
    assert sum(len(entry.message) for entry in response.logs) <= LOGS + LOG_NOTE_BYTES
    assert len(response.logs) <= MAX_LOG_ENTRIES + 1
    assert len(response.diagnostics) <= MAX_NOTICES + 1
    assert [identity for identity, _ in world.failed] == [b"host"]


async def test_what_an_honest_host_sends_at_its_cap_is_kept(world: World) -> None:
    async def play(run: HostedRun) -> None:
        run.log("x" * LOGS)
        run.log("[logs truncated: over maxLogBytes; later output is dropped]")
        for _ in range(MAX_NOTICES):
            run.say(protocol.Notice(), NOTICE)
        run.done(1)

    response = await world.played(play, limits={"maxLogBytes": LOGS})
    assert (response.result, len(response.logs), len(response.diagnostics)) == (1, 2, MAX_NOTICES)
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
    response = await world.played(play, limits={"maxLogBytes": 1000})
    assert codes(response) == ["HOST_LOST"] and f"over {size - 1}" in response.diagnostics[0].message
    assert [identity for identity, _ in world.failed] == [b"host"] and decoded == []


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


@pytest.mark.parametrize("header", [{"t": "done", "ms": 1}, {"t": "failed", "ms": 1, "kind": "exception"}])
async def test_an_outcome_that_is_no_end_is_no_message_of_a_host(
    header: dict[str, Any], world: World
) -> None:
    async def play(run: HostedRun) -> None:
        world.link.deliver(run.host.identity, run.token, pack_header(header), b"1")

    assert codes(await world.played(play)) == ["HOST_LOST"]
    assert [identity for identity, _ in world.failed] == [b"host"]


@pytest.mark.parametrize("claims", [1, 2**53 - 1])
async def test_a_worker_that_has_not_read_what_it_says_is_killed(claims: int, world: World) -> None:
    async def play(run: HostedRun) -> None:
        await run.call(1, value={"text": "x"})
        run.say(protocol.Took(bytes=claims))

    assert codes(await world.played(play)) == ["PROTOCOL_VIOLATION"] and not world.failed
