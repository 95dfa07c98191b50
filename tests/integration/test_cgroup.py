"""The cap over all workers together, kept by the real kernel; skipped where no cgroup can be made."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from cellblock import Broker, Observer
from cellblock.run.response import RunResponse
from cellblock_worker.confinement.cgroup import HOST_PREFIX, MIB
from cellblock_worker.confinement.cgroup_files import read_memberships
from cellblock_worker.confinement.confinement import OOM_SCORE_ADJ
from support.brokers import host_of
from support.entries import settings
from support.processes import alive, workers_of
from support.responses import error_of, succeeded
from support.waits import WAIT_BOUND_SECONDS, until, within

pytestmark = pytest.mark.real_host

TOTAL_BYTES = 320 * MIB
"""Room for one run that holds its pieces beside the host and a small run, and not for two."""

HOLD = """
    const pieces = [];
    for (let piece = 0; piece < PIECES; piece++) pieces.push(new Uint8Array(1 << 20).fill(1));
    console.log("held");
    for (;;) await new Promise((resolve) => setTimeout(resolve, 1000));
"""


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker whose workers may have less together than each alone. None is warm: one that boots in the place of one
    that was taken would ask for memory at any moment."""
    pool = {"warm": 0, "capacity": 4, "total_memory_bytes": TOTAL_BYTES}
    async with Broker(settings(tmp_path, pool=pool)) as started:
        [hello] = started.hosts
        if not any(text.startswith("cgroup") and "memory" in text for text in hello.layers):
            pytest.skip(f"no memory cgroup can be made here: {hello.missing}")
        yield started


async def held(broker: Broker, pieces: int) -> asyncio.Task[RunResponse]:
    """A run that holds so many MiB, or that has ended before it could."""
    says = asyncio.Event()
    run = asyncio.create_task(
        broker.run(HOLD.replace("PIECES", str(pieces)), observer=Observer(on_log=lambda _: says.set()))
    )
    run.add_done_callback(lambda _: says.set())
    await within(says.wait())
    return run


async def cancelled(runs: list[asyncio.Task[RunResponse]]) -> None:
    for run in runs:
        run.cancel()
    await asyncio.gather(*runs, return_exceptions=True)


def groups_of(pid: int, part: int = -1) -> set[str]:
    """The last parts of the paths of the groups that a process is in, or another part."""
    memberships = read_memberships(Path(f"/proc/{pid}/cgroup").read_text())
    return {path.split("/")[part] for path in memberships.values() if len(path.split("/")) >= -part}


async def test_host_and_workers_are_in_the_group_and_the_broker_is_not(broker: Broker) -> None:
    runs = [await held(broker, 1) for _ in range(2)]
    host = host_of(broker).pid
    ours = {name for name in groups_of(host) if name.startswith(HOST_PREFIX)}
    assert ours
    # No two workers are in one group.
    own = [groups_of(worker.pid) - ours - {""} for worker in workers_of(host)]
    assert own and len({name for names in own for name in names}) == sum(map(len, own)) / len(own[0]) * len(
        own[0]
    )
    for worker in workers_of(host):
        assert ours <= groups_of(worker.pid, -2) and groups_of(worker.pid)
        # Whatever must die first is a worker.
        score = Path(f"/proc/{worker.pid}/oom_score_adj")
        await until(lambda score=score: score.read_text().strip() == str(OOM_SCORE_ADJ), "the worker's score")
    assert not ours & groups_of(psutil.Process().pid)
    await cancelled(runs)


async def test_memory_past_the_total_ends_one_run_as_the_machines_fault_and_no_other(broker: Broker) -> None:
    """Each stays within its own limit; the second is too much for both."""
    host = host_of(broker)
    # The one that asks for too much is the larger one, which is ended: it asks for no more while its memory is freed.
    runs = [await held(broker, 110), await held(broker, 230)]
    done, going_on = await asyncio.wait(runs, return_when=asyncio.FIRST_COMPLETED, timeout=WAIT_BOUND_SECONDS)
    assert len(done) == len(going_on) == 1
    found = error_of(done.pop().result(), "SANDBOX_LIMIT")
    assert found.error_class == "SandboxLimitError"
    assert "within its own maxMemoryBytes" in found.message and f"{TOTAL_BYTES // MIB} MiB" in found.message
    assert "pool.total_memory_bytes" in found.hint
    assert alive(host)
    assert succeeded(await within(broker.run("globalThis.__codemode_result__ = 1;"))) == 1
    [left] = going_on
    assert not left.done(), left.result()
    await cancelled(runs)


async def test_one_run_past_its_own_limit_is_still_the_scripts_fault(broker: Broker) -> None:
    response = await within(broker.run(HOLD.replace("PIECES", "200"), limits={"maxMemoryBytes": 64 * MIB}))
    assert "used up its memory" in error_of(response, "SANDBOX_LIMIT").message
