"""How long a run may go on: while its clock stands still, and when it computes for long."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from cellblock_worker.scheduling.scheduling import GIVE_WAY_NICE, LONG_RUN_NICE
from cellblock_worker.wire import protocol
from cellblock_worker.worker.states import State
from cellblock_worker.worker.use_watch import LONG_RUN_CPU_SECONDS
from support.worker_owner import booted, make_run, script


def cores_of(pid: int) -> list[set[int]]:
    """The cores that a process's threads may use: each different set once."""
    found = {
        frozenset(os.sched_getaffinity(int(thread.name))) for thread in Path(f"/proc/{pid}/task").iterdir()
    }
    return [set(cores) for cores in found]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
async def test_a_run_that_computes_for_long_yields_to_others_and_one_that_waits_does_not() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    if before == 19:
        pytest.skip("nothing has less priority than this")
    waiting, waiter = await booted()
    waiting.lease(
        b"token", make_run(timeout_ms=60_000), script("await new Promise(() => setTimeout(() => 0, 1e9))")
    )
    computing, computer = await booted()
    computing.lease(b"token", make_run(timeout_ms=60_000, cpu_ms=60_000), script("for(;;){}"))
    async with asyncio.timeout(30):
        while os.getpriority(os.PRIO_PROCESS, computing.pid) == before:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert os.getpriority(os.PRIO_PROCESS, computing.pid) == min(before + LONG_RUN_NICE, 19)
    assert os.getpriority(os.PRIO_PROCESS, waiting.pid) == before
    assert cores_of(computing.pid) == [os.sched_getaffinity(0)]
    await computer.until("computes")
    assert sum(computer.computed) == computing.cpu_reported >= LONG_RUN_CPU_SECONDS
    assert waiter.computed == [] and waiting.cpu_reported == 0
    for one, owner in ((waiting, waiter), (computing, computer)):
        one.kill("cancelled")
        assert (await owner.end()).reason == "cancelled"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at another process's priority")
async def test_a_run_may_give_way_from_its_start() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    cores = os.sched_getaffinity(0)
    if before == 19 or len(cores) == 1:
        pytest.skip("nothing has less priority than this, or there is one core only")
    made, owner = await booted()
    assert cores_of(made.pid) == [cores]
    made.lease(
        b"token",
        make_run(timeout_ms=60_000),
        script("await new Promise(() => {}, setTimeout(() => {}, 1e8))"),
        gives_way=True,
    )
    assert os.getpriority(os.PRIO_PROCESS, made.pid) == min(before + GIVE_WAY_NICE, 19)
    assert cores_of(made.pid) == [cores - {min(cores)}]
    made.kill("cancelled")
    assert (await owner.end()).reason == "cancelled"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at another process's priority")
async def test_a_run_leaves_a_core_to_others_while_there_are_some() -> None:
    """All its threads, and whichever it starts meanwhile."""
    cores = os.sched_getaffinity(0)
    if len(cores) == 1:
        pytest.skip("there is one core only")
    made, owner = await booted()
    owner.others = True
    made.lease(b"token", make_run(timeout_ms=60_000, cpu_ms=60_000), script("for(;;){}"))
    async with asyncio.timeout(30):
        while cores_of(made.pid) != [cores - {min(cores)}]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        owner.others = False
        while cores_of(made.pid) != [cores]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    made.kill("cancelled")
    assert (await owner.end()).reason == "cancelled"


async def test_a_run_whose_clock_stands_still_is_not_over_time() -> None:
    made, owner = await booted()
    made.lease(
        b"token",
        make_run(timeout_ms=500, pause_ms=60_000),
        script("await new Promise(() => {}, setTimeout(() => {}, 1e8))"),
    )
    assert made.hold_clock(protocol.Pause())
    await asyncio.sleep(1.5)
    assert made.state is State.RUNNING
    assert not made.hold_clock(protocol.Pause())
    assert made.hold_clock(protocol.Resume())
    assert not made.hold_clock(protocol.Resume())
    ended = await owner.end()
    assert ended.reason == "timeout"
    assert ended.wall_ms >= 1_900
    # It ended while these were on their way.
    assert made.hold_clock(protocol.Pause()) and made.hold_clock(protocol.Resume())


async def test_cpu_time_passes_while_the_clock_stands_still() -> None:
    made, owner = await booted()
    made.lease(b"token", make_run(cpu_ms=300, timeout_ms=10_000, pause_ms=60_000), script("for (;;) {}"))
    assert made.hold_clock(protocol.Pause())
    assert (await owner.end()).reason == "cpu"


async def test_memory_is_bounded_while_the_clock_stands_still() -> None:
    made, owner = await booted()
    code = "const kept = []; for (;;) kept.push(new Uint8Array(1 << 20).fill(1));"
    made.lease(b"token", make_run(pause_ms=60_000), script(code))
    assert made.hold_clock(protocol.Pause())
    await owner.end()
    header, body = owner.said[-1] if owner.said else ({"t": ""}, b"")
    assert owner.ended[0][0].reason == "memory" or (header["t"] == "failed" and b"allocation" in body)
