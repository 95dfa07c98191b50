"""The caps of one run, kept by killing: each ends in a structured response, and the next run is unharmed.

The cap over all workers together is kept by the real kernel; skipped where no cgroup can be made.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from cellblock import Broker, Observer, RunResponse
from cellblock_worker.confinement.cgroup import HOST_PREFIX, MIB
from cellblock_worker.confinement.cgroup_files import read_memberships
from cellblock_worker.confinement.confinement import OOM_SCORE_ADJ
from support.brokers import host_of, ready
from support.entries import WARM, plain_server, settings
from support.params import mostly
from support.processes import alive, workers_of
from support.responses import error_of, succeeded
from support.waits import WAIT_BOUND_SECONDS, until, warmed, within

ATTEMPTS = 8
"""Tries for a claim about time; other work on the machine may spoil some, a defect spoils all."""


@pytest.fixture(scope="module")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    """A broker with one plain server."""
    config = settings(tmp_path_factory.mktemp("caps"), {"plain": plain_server()}, pool={"warm": WARM})
    async with ready(config) as started:
        yield started


NORMAL = """
    import { echo } from "@codemode/servers/plain";
    const big = new Uint8Array(8 * 1024 * 1024).fill(7);
    globalThis.__codemode_result__ = [await echo({ fine: true }), big.length];
"""
"""What must hold at once after every kill."""


@pytest.mark.parametrize(
    "code",
    mostly(
        ["for (;;) {}", "await new Promise(() => { setTimeout(() => {}, 1e6); });"],
        [
            "for (;;) {}",
            "while (true) await null;",
            "await new Promise(() => { setTimeout(() => {}, 1e6); });",
            "process_nothing: for (;;) { try { throw 1; } catch {} finally { continue process_nothing; } }",
            "/(a+)+$/.test('a'.repeat(60) + 'b');",
            "Array.from({ length: 1e9 }, (_, i) => i).sort(() => { for (;;) {} });",
        ],
    ),
    ids=["loop", "microtasks", "idle", "finally", "regular expression", "sort"],
)
async def test_the_answer_to_an_endless_script_comes_within_700_ms_of_a_500_ms_timeout(
    broker: Broker, code: str
) -> None:
    took: list[float] = []
    for _ in range(ATTEMPTS):
        await warmed(broker, 1)
        started = time.monotonic()
        response = await within(broker.run("console.log('started');\n" + code, limits={"timeoutMs": 500}))
        took.append(time.monotonic() - started)
        found = error_of(response, "SANDBOX_LIMIT")
        assert found.error_class == "SandboxLimitError" and "timeoutMs = 500" in found.message
        assert [entry.message for entry in response.logs] == ["started"] and response.usage.wall_ms >= 500
        assert succeeded(await within(broker.run(NORMAL))) == ['{"fine": true}', 8 * MIB]
        if min(took) < 0.7:
            break
    assert 0.5 <= min(took) < 0.7


async def test_waiting_costs_no_cpu_time(broker: Broker) -> None:
    code = """
        import { wait } from "@codemode/servers/plain";
        await wait({ ms: 600 });
        await new Promise((resolve) => setTimeout(resolve, 200));
        globalThis.__codemode_result__ = "waited";
    """
    response = await within(broker.run(code, limits={"maxCpuMs": 300}))
    assert succeeded(response) == "waited"
    usage = response.usage
    assert usage.cpu_ms < 300 and usage.wall_ms >= 800 and usage.tool_wait_ms >= 600


TOTAL_BYTES = 320 * MIB
"""Room for one run that holds its pieces beside the host and a small run, and not for two."""

HOLD = """
    const pieces = [];
    for (let piece = 0; piece < PIECES; piece++) pieces.push(new Uint8Array(1 << 20).fill(1));
    console.log("held");
    for (;;) await new Promise((resolve) => setTimeout(resolve, 1000));
"""


@pytest.fixture
async def capped(tmp_path: Path) -> AsyncIterator[Broker]:
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


@pytest.mark.real_host
async def test_host_and_workers_are_in_the_group_and_the_broker_is_not(capped: Broker) -> None:
    runs = [await held(capped, 1) for _ in range(2)]
    host = host_of(capped).pid
    ours = {name for name in groups_of(host) if name.startswith(HOST_PREFIX)}
    # No two workers are in one group.
    own = [groups_of(worker.pid) - ours - {""} for worker in workers_of(host)]
    assert ours and own and len(set().union(*own)) == sum(map(len, own))
    for worker in workers_of(host):
        assert ours <= groups_of(worker.pid, -2) and groups_of(worker.pid)
        # Whatever must die first is a worker.
        score = Path(f"/proc/{worker.pid}/oom_score_adj")
        await until(lambda score=score: score.read_text().strip() == str(OOM_SCORE_ADJ), "the worker's score")
    assert not ours & groups_of(psutil.Process().pid)
    await cancelled(runs)


@pytest.mark.real_host
async def test_memory_past_the_total_ends_one_run_as_the_machines_fault_and_no_other(capped: Broker) -> None:
    """Each stays within its own limit; the second is too much for both."""
    host = host_of(capped)
    # The one that asks for too much is the larger one, which is ended: it asks for no more while its memory is freed.
    runs = [await held(capped, 110), await held(capped, 230)]
    done, going_on = await asyncio.wait(runs, return_when=asyncio.FIRST_COMPLETED, timeout=WAIT_BOUND_SECONDS)
    (ended,), (left,) = done, going_on
    found = error_of(ended.result(), "SANDBOX_LIMIT")
    assert found.error_class == "SandboxLimitError" and "pool.total_memory_bytes" in found.hint
    assert "within its own maxMemoryBytes" in found.message and f"{TOTAL_BYTES // MIB} MiB" in found.message
    assert alive(host)
    assert succeeded(await within(capped.run("globalThis.__codemode_result__ = 1;"))) == 1
    assert not left.done(), left.result()
    await cancelled(runs)


@pytest.mark.real_host
async def test_one_run_past_its_own_limit_is_still_the_scripts_fault(capped: Broker) -> None:
    response = await within(capped.run(HOLD.replace("PIECES", "200"), limits={"maxMemoryBytes": 64 * MIB}))
    assert "used up its memory" in error_of(response, "SANDBOX_LIMIT").message
