"""Calls of one script at the same time, runs at the same time, and those that wait for a place or a turn."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cellblock import Broker, tool
from support.brokers import ready
from support.entries import plain_server, settings
from support.responses import error_of, succeeded
from support.waits import until, warmed, within

CAPACITY = 8


@pytest.fixture(scope="module")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    """A broker with a plain server, and places for eight runs."""
    config = settings(
        tmp_path_factory.mktemp("concurrency"),
        {"plain": plain_server()},
        pool={"capacity": CAPACITY, "warm": 4, "queue_size": 64},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cellblock.run.calls.CONCURRENT_CALLS", 4)
        async with ready(config) as started:
            yield started


async def test_calls_over_the_concurrent_maximum_wait_their_turn(broker: Broker) -> None:
    """Four is the maximum here: nine calls of 100 ms are three turns."""
    code = """
        import { wait } from "@codemode/servers/plain";
        const calls = Array.from({ length: 9 }, () => wait({ ms: 100 }));
        globalThis.__codemode_result__ = (await Promise.all(calls)).length;
    """
    response = await within(broker.run(code))
    assert succeeded(response) == 9
    assert response.usage.wall_ms >= 300


async def test_runs_wait_for_each_other_only_when_all_places_are_taken(broker: Broker) -> None:
    await warmed(broker)
    code = """
        import { wait } from "@codemode/servers/plain";
        await wait({ ms: 1500 });
    """
    started = time.monotonic()
    responses = await within(asyncio.gather(*(broker.run(code) for _ in range(CAPACITY))))
    assert all(response.ok for response in responses)
    assert max(response.usage.queue_ms for response in responses) < 1000
    # One after the other would be 12 s.
    assert time.monotonic() - started < 8


async def test_the_default_time_limit_ends_a_run_that_still_waits(tmp_path: Path) -> None:
    """Its client gives up after a minute, whatever the queue allows; who names a time waits for as long as that."""
    limits = {"timeout_ms": [300, 60_000]}
    made = settings(tmp_path, pool={"capacity": 1, "warm": 1}, limits=limits)
    async with Broker(made) as broker:
        idle = "await new Promise((resolve) => setTimeout(resolve, 60000));"
        running = asyncio.create_task(broker.run(idle, limits={"timeoutMs": 3_000}))
        await asyncio.sleep(0)
        patient = asyncio.create_task(
            broker.run("globalThis.__codemode_result__ = 1;", limits={"timeoutMs": 299})
        )
        found = error_of(await within(broker.run(idle)), "OVERLOADED")
        assert "not started" in found.message and "limits.timeoutMs = 300" in found.message
        assert not running.done() and not patient.done()
        error_of(await within(running), "SANDBOX_LIMIT")
        assert succeeded(await within(patient)) == 1


async def test_a_broker_that_closes_starts_none_of_the_runs_that_wait(tmp_path: Path) -> None:
    called: list[int] = []
    inside = asyncio.Event()

    @tool()
    def effect(number: int) -> int:
        """Is seen."""
        called.append(number)
        return number

    @tool()
    async def slow() -> None:
        """Takes its time to be cancelled."""
        inside.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.5)

    config = settings(tmp_path, pool={"warm": 2, "capacity": 2})
    async with Broker(config, tools=[effect, slow]) as broker:
        held = [
            asyncio.create_task(broker.run(code))
            for code in (
                'import { slow } from "@codemode/servers/local"; await slow();',
                "await new Promise((done) => setTimeout(done, 60_000));",
            )
        ]
        await within(inside.wait())
        await warmed(broker, 1)
        code = 'import {{ effect }} from "@codemode/servers/local"; await effect({{ number: {} }});'
        waiting = [asyncio.create_task(broker.run(code.format(number))) for number in range(6)]
        pool = broker._reach and broker._reach.workers.pool
        await until(lambda: pool.queued == len(waiting), "they wait")
    for task in held:
        await within(task)
    for task in waiting:
        assert "not started" in error_of(await within(task), "WORKER_UNAVAILABLE").message
    assert called == []


async def test_a_servers_turn_is_waited_for_within_the_calls_own_time(tmp_path: Path) -> None:
    bounds = {"servers": {"plain": {"max_concurrent_calls": 1, "call_timeout_ms": 1500}}}
    code = """
        import { wait, echo } from "@codemode/servers/plain";
        const took = [];
        const timed = async (ms) => {
            const started = performance.now();
            const said = await wait({ ms }).then(() => "answered", (error) => error.message);
            took.push([Math.round(performance.now() - started), said]);
        };
        await Promise.all([timed(1000), timed(60_000)]);
        globalThis.__codemode_result__ = took;
    """
    async with ready(settings(tmp_path, {"plain": plain_server()}, upstream=bounds)) as broker:
        (_, first), (late, second) = succeeded(await within(broker.run(code)))
    assert first == "answered" and "did not answer wait within 1.5 s" in second
    assert late < 2200, "a call has waited for its turn, and then for its whole time once more"
