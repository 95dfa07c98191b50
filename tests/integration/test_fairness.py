"""A noisy client and a quiet one, in a real pool: the queue is shared by client, and a flood is refused in words."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest

from cellblock import Broker, Observer, RunResponse, tool
from cellblock_worker.scheduling.realtime import threads_of
from support.entries import settings
from support.processes import workers_of
from support.responses import error_of, succeeded
from support.waits import steady, until, warmed, within

PLACES = 2
NOISY_QUEUE = 200
ROUNDS = 5
ATTEMPTS = 10
"""On a busy machine a trivial run may itself take long enough to count as a long one, or the 10 ms be missed; and runs
that compute may get so little that their client is no heavy one."""

COMPUTING = 3
"""So many runs of one client compute: it is a heavy one also where others leave it little."""

LONG_GAP_SECONDS = 0.5
"""Only the kernel's own limit on real-time priority would have ended it, after 0.95 s of each second."""


@pytest.mark.parametrize("reuse", ["never", "principal"])
async def test_a_quiet_client_waits_for_one_run_of_a_noisy_one_not_for_its_queue(
    tmp_path: Path, reuse: str
) -> None:
    inside = 0
    gate = asyncio.Semaphore(0)

    @tool()
    async def pass_gate() -> None:
        """Returns when the test lets one run through."""
        nonlocal inside
        inside += 1
        await gate.acquire()

    noise = 'import { pass_gate } from "@codemode/servers/local"; await pass_gate({});'
    sizes = {
        "reuse": reuse,
        "capacity": PLACES,
        "warm": PLACES,
        "queue_size": 2 * NOISY_QUEUE,
    }
    async with Broker(settings(tmp_path, pool=sizes), tools=[pass_gate]) as broker:
        flood = [
            asyncio.create_task(broker.run(noise, client="noisy")) for _ in range(PLACES + NOISY_QUEUE + 3)
        ]
        await until(lambda: inside == PLACES, "the noisy client's runs hold all places")
        await until(lambda: sum(task.done() for task in flood) == 3, "what is over the share is refused")
        for task in flood:
            if task.done():
                found = error_of(task.result(), "OVERLOADED")
                assert "This client has 200 runs waiting" in found.message
                assert "half of pool.queue_size" in found.message and "not started" in found.message

        pool = broker._workers and broker._workers.pool
        assert pool is not None
        for number in range(1, ROUNDS + 1):
            code = f"globalThis.__codemode_result__ = {number};"
            queued = pool.queued
            quiet: asyncio.Task[RunResponse] = asyncio.create_task(broker.run(code, client="quiet"))
            await until(lambda queued=queued: pool.queued == queued + 1, "the quiet run waits")
            # One run of the noisy client ends, and no other can: the place must have gone to the quiet client.
            gate.release()
            assert succeeded(await within(quiet)) == number
            wanted = PLACES + number
            await until(lambda wanted=wanted: inside == wanted, "then the noisy client has its place again")

        for task in flood:
            task.cancel()
        await asyncio.wait(flood, timeout=20)
        await until(lambda: pool.queued == 0 and pool.running == 0, "nothing is left of cancelled runs")
        assert not pool._admission._clients
        assert succeeded(await within(broker.run("globalThis.__codemode_result__ = 1;"))) == 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="there are no cores to be kept off")
async def test_a_client_that_computes_much_leaves_a_core_while_another_is_active(tmp_path: Path) -> None:
    cores = os.sched_getaffinity(0)
    if len(cores) == 1:
        pytest.skip("there is one core only")
    others = cores - {min(cores)}
    limits = {"timeoutMs": 60_000, "maxCpuMs": 60_000}
    async with Broker(settings(tmp_path, pool={"warm": 2})) as broker:

        def kept_off() -> set[int]:
            assert broker.host_pid is not None
            found: set[int] = set()
            for worker in workers_of(broker.host_pid):
                try:
                    found |= {worker.pid} if os.sched_getaffinity(worker.pid) == others else set()
                except ProcessLookupError:
                    continue
            return found

        async def heavy(code: str, observer: Observer | None = None) -> RunResponse:
            return await broker.run(code, client="heavy", limits=limits, observer=observer)

        runs = [asyncio.create_task(heavy("for (;;);")) for _ in range(COMPUTING)]
        await asyncio.sleep(1.2)
        assert kept_off() == set(), "nobody is there to leave it to"
        for _ in range(ATTEMPTS):
            succeeded(await within(broker.run("globalThis.__codemode_result__ = 1;", client="light")))
            await until(lambda: len(kept_off()) == COMPUTING, "the runs that compute are kept off a core")
            computing, begun = kept_off(), asyncio.Event()
            waits = "console.log('begun'); await new Promise(() => setTimeout(() => 0, 1e9));"
            observer = Observer(on_log=lambda _, begun=begun: begun.set())
            runs.append(asyncio.create_task(heavy(waits, observer)))
            await within(begun.wait())
            if is_kept_off := bool(kept_off() - computing):
                break
        assert is_kept_off, "its client's next run is so from its start"
        for run in runs:
            run.cancel()
        await asyncio.wait(runs, timeout=20)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has real-time priority")
async def test_with_pool_realtime_a_brief_clients_next_run_goes_first_and_nothing_else_keeps_it(
    tmp_path: Path,
) -> None:
    def policies(pid: int) -> set[int]:
        return {os.sched_getscheduler(thread) & ~os.SCHED_RESET_ON_FORK for thread in threads_of(pid)}

    async with Broker(settings(tmp_path, pool={"warm": 2, "realtime": True})) as broker:
        assert broker.host_pid is not None
        if any("real-time" in missing for missing in broker.hosts[0].missing):
            pytest.skip("this machine grants no real-time priority")
        assert os.SCHED_RR in policies(broker.host_pid)
        assert os.sched_getscheduler(0) & os.SCHED_RR

        async def two_warm() -> set[int]:
            host = broker.host_pid or 0
            return await steady(lambda: {process.pid for process in workers_of(host)}, "two are warm")

        warm = await two_warm()
        assert [policies(pid) for pid in warm] == [{os.SCHED_OTHER}] * 2

        async def seen_first(client: str) -> bool:
            """Whether the worker of a run of 0.2 s is seen with the priority; it has none when it is last seen."""
            run = asyncio.create_task(broker.run("for (;;);", client=client, limits={"timeoutMs": 200}))
            seen, last = False, dict[int, set[int]]()
            while not run.done():
                for pid in warm:
                    with contextlib.suppress(OSError):
                        last[pid] = policies(pid)
                        seen = seen or os.SCHED_RR in last[pid]
                await asyncio.sleep(0.001)
            assert error_of(run.result(), "SANDBOX_LIMIT")
            assert all(os.SCHED_RR not in found for found in last.values())
            return seen

        assert not await seen_first("unknown")
        for client in (f"brief {number}" for number in range(ATTEMPTS)):
            one = broker.run("globalThis.__codemode_result__ = 1;", client=client)
            assert succeeded(await within(one)) == 1
            warm = await two_warm()
            first = await seen_first(client)
            warm = await two_warm()
            assert not await seen_first(client), "its last run was a long one, though it is still light"
            if first:
                break
        else:
            pytest.fail("no brief client's next run was seen with the priority")
    assert not os.sched_getscheduler(0) & os.SCHED_RR, "the broker gives it back"


LONGEST_GAP = """
import time
at, longest = time.monotonic(), 0.0
try:
    while True:
        time.sleep(0.001)
        longest, at = max(longest, time.monotonic() - at), time.monotonic()
except KeyboardInterrupt:
    print(longest)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has real-time priority")
async def test_with_pool_realtime_runs_at_once_that_empty_the_pool_hold_up_nothing_else(
    tmp_path: Path,
) -> None:
    """The host starts workers while runs go first: it waits for children that have no priority. Other programs of the
    machine may hold up the watch, too, but not each time."""
    gaps: list[float] = []
    async with Broker(settings(tmp_path, pool={"warm": 4, "realtime": True})) as broker:
        if any("real-time" in missing for missing in broker.hosts[0].missing):
            pytest.skip("this machine grants no real-time priority")
        while len(gaps) < ATTEMPTS and min(gaps, default=1) >= LONG_GAP_SECONDS:
            gaps.append(await longest_gap_beside_runs_that_empty_the_pool(broker))
    assert min(gaps) < LONG_GAP_SECONDS, gaps


async def longest_gap_beside_runs_that_empty_the_pool(broker: Broker) -> float:
    """How long an ordinary process is held up, in seconds."""
    watch = [sys.executable, "-c", LONGEST_GAP]
    ordinary = await asyncio.create_subprocess_exec(*watch, stdout=asyncio.subprocess.PIPE)
    await warmed(broker)
    for _ in range(5):
        succeeded(await within(broker.run("globalThis.__codemode_result__ = 1;", client="brief")))
        await warmed(broker)
        await asyncio.sleep(0.2)
        runs = [broker.run("for (;;);", client="brief", limits={"timeoutMs": 100}) for _ in range(4)]
        for response in await within(asyncio.gather(*runs)):
            error_of(response, "SANDBOX_LIMIT")
    ordinary.send_signal(signal.SIGINT)
    said, _ = await within(ordinary.communicate())
    return float(said)
