"""A noisy client and a quiet one, in a real pool: the queue is shared by client, and a flood is refused in words."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from cellblock import Broker, Observer, RunResponse, tool
from support.entries import settings
from support.params import mostly
from support.processes import workers_of
from support.responses import error_of, succeeded
from support.waits import until, within

PLACES = 2
NOISY_QUEUE = 200
ROUNDS = 5
ATTEMPTS = 10
"""On a busy machine a trivial run may itself take long enough to count as a long one, or the 10 ms be missed; and runs
that compute may get so little that their client is no heavy one."""

COMPUTING = 3
"""So many runs of one client compute: it is a heavy one also where others leave it little."""


@pytest.mark.parametrize("reuse", mostly(["never"], ["never", "principal"]))
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

        pool = broker._reach and broker._reach.workers.pool
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
            found: set[int] = set()
            for worker in workers_of(broker.host_pid):
                try:
                    found |= {worker.pid} if os.sched_getaffinity(worker.pid) == others else set()
                except ProcessLookupError:
                    continue
            return found

        def computed() -> float:
            times = [worker.cpu_times() for worker in workers_of(broker.host_pid)]
            return sum(one.user + one.system for one in times)

        async def heavy(code: str, observer: Observer | None = None) -> RunResponse:
            return await broker.run(code, client="heavy", limits=limits, observer=observer)

        runs = [asyncio.create_task(heavy("for (;;);")) for _ in range(COMPUTING)]
        await until(lambda: computed() > COMPUTING, "they have computed for a second each")
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
