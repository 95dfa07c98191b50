"""Whole runs over the in-memory wire: a host that does well, badly, too much, or nothing. One response each."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from cellblock.run import queries
from cellblock.run.events import RunFacts, Watcher
from cellblock_worker.wire import protocol
from support.memory_host import HostedRun, MakeWorld, World, codes, turns
from support.waits import until


@pytest.mark.parametrize("body", [b"", b"nonsense", b"[]", b'"x"', b"1e999", b"[" * 5000])
async def test_failures_and_results_of_any_bytes_end_in_a_response(
    body: bytes, make_world: MakeWorld
) -> None:
    for outcome in ("exception", "done"):

        async def play(run: HostedRun, outcome: str = outcome) -> None:
            run.say(protocol.Notice(), body)
            run.ended(outcome=outcome, body=body)

        world = make_world()
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
    made: list[Any] = []

    async def count(arguments: dict[str, Any]) -> None:
        made.append(arguments)

    async def play(run: HostedRun) -> None:
        await run.call(1, "count")
        run.call(1, "count")
        await run.cancelled.wait()

    world = make_world(tools={"count": count})
    assert codes(await world.played(play)) == ["PROTOCOL_VIOLATION"]
    assert len(made) == 1


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


class Started(Watcher):
    """Notes how long ago runs have started when it is told, and how long before that they got their places."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, float]] = []

    def run_started(self, run: RunFacts) -> None:
        assert run.started is not None and run.leased is not None
        self.seen.append((time.monotonic() - run.started, run.started - run.leased))


@pytest.mark.parametrize("wall_ms", [40, 2**53 - 1])
@pytest.mark.parametrize("first", ["lease", "call", "log", "outcome"])
async def test_whatever_is_said_first_of_a_run_says_that_it_has_a_worker(
    first: str, wall_ms: int, world: World
) -> None:
    seen = Started()

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

    world.events.add(seen)
    await world.host(play, leases=False)
    response = await world.run()
    assert response.result == "right"
    [(ago, after)] = seen.seen
    if first in ("call", "log"):
        assert after > 0.05
    else:
        assert ago >= 0.04 and (after > 0) == (wall_ms == 40)


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
    assert (response.result, response.ok) == ("first", True)
    assert response.tool_trace == [] and response.logs == []
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
