"""One worker with a real Deno: each lease ends with exactly one `Ended`, and its caps are kept."""

import json
import os
import sys
import time
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from cellblock_worker.wire import protocol
from cellblock_worker.worker import worker
from cellblock_worker.worker.life import State
from cellblock_worker.worker.run_limits import GIVE_WAY_NICE, LONG_RUN_CPU_SECONDS, LONG_RUN_NICE, UseWatch
from cellblock_worker.worker.worker import Worker
from support.waits import until
from support.worker_owner import MIB, Owner, booted, make_run, run_one, script

WAITS = "await new Promise(() => {}, setTimeout(() => {}, 1e8))"
"""A script that goes on until it is ended."""


async def leased(code: str, *, gives_way: bool = False, **changes: int) -> tuple[Worker, Owner]:
    """A worker with a run."""
    made, owner = await booted()
    made.lease(b"token", make_run(**changes), script(code), gives_way=gives_way)
    return made, owner


async def cancelled(made: Worker, owner: Owner) -> None:
    made.kill("cancelled")
    assert (await owner.end()).reason == "cancelled"


@pytest.mark.slow
async def test_a_settled_worker_is_killed_after_its_answer_and_not_heard_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "FAREWELL_SECONDS", 1.5)
    late = "setTimeout(() => { for (;;) console.log('too late'); }, 1000);"
    made, owner = await leased(f"console.log('in time'); {late}")
    process = psutil.Process(made.pid)
    await owner.until("ended")
    assert process.is_running() and made.state is State.ENDING
    await owner.until("gone")
    assert not process.is_running()
    assert (owner.logs, owner.events) == ([("log", "in time")], ["ready", "says", "ended", "gone"])


async def test_an_endless_loop_ends_at_its_time_with_its_logs() -> None:
    # Linux counts a child's peak from its parent's size; the run's must be its own.
    ballast = b"x" * (200 * MIB)
    made, owner = await booted()
    started = time.monotonic()
    made.lease(b"token", make_run(timeout_ms=300), script("console.log('before'); for(;;){}"))
    ended = await owner.end()
    took = time.monotonic() - started
    assert ended.reason == "timeout" and "timeoutMs = 300" in ended.detail
    assert 0.3 <= took < 3
    assert 300 <= ended.wall_ms < 3000
    assert ended.cpu_ms > 20
    assert 10 * MIB < ended.peak_bytes < len(ballast)
    assert owner.logs == [("log", "before")]


@pytest.mark.slow
async def test_the_kernels_cpu_limit_catches_what_sampling_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UseWatch, "_look", lambda _: None)
    ended, owner = await run_one("for(;;){}", cpu_ms=100, timeout_ms=60_000)
    assert ended.reason == "cpu" and 1000 <= ended.cpu_ms < 6000, owner.ended


ARENA_BYTES = 64 * MIB
"""What glibc's malloc keeps for a thread, at a multiple of that."""


def arenas_of(pid: int) -> int:
    """Counts what malloc has reserved for single threads."""
    places: list[tuple[int, int, str]] = []
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, mode, *_ = line.split()
        first, _, last = span.partition("-")
        places.append((int(first, 16), int(last, 16), mode))
    return sum(
        first % ARENA_BYTES == 0
        and used == "rw-p"
        and rest == "---p"
        and middle == next_first
        and last == first + ARENA_BYTES
        for (first, middle, used), (next_first, last, rest) in pairwise(places)
    )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
async def test_no_thread_that_begins_in_a_small_run_reserves_its_address_space() -> None:
    """Another one that asks for some in that moment would get none, and Deno ends of it."""
    made, owner = await booted()
    assert arenas_of(made.pid) == 1
    made.lease(
        b"token", make_run(), script("console.log('on'); await new Promise(() => setTimeout(() => 0, 1e9))")
    )
    await owner.until("says")
    assert arenas_of(made.pid) == 1
    await cancelled(made, owner)


async def test_memory_is_sampled_where_the_kernel_keeps_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker.confinement, "limit_at_lease", lambda *_, **__: False)
    code = """
        const kept = [];
        for (let size = 0; size < 400; size += 8) {
          kept.push(new Uint8Array(8 << 20).fill(1));
          await new Promise((done) => setTimeout(done, 5));
        }
    """
    ended, _ = await run_one(code, memory_bytes=120 * MIB)
    assert ended.reason == "memory" and "resident" in ended.detail and ended.peak_bytes < 350 * MIB


async def test_logs_after_the_cap_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    parse = protocol.parse_from_worker

    def parsing(raw_header: bytes) -> protocol.FromWorker:
        message = parse(raw_header)
        parsed.append(message.t)
        return message

    monkeypatch.setattr(protocol, "parse_from_worker", parsing)
    levels = "for (const level of ['debug', 'log', 'warn', 'error']) console[level]('0123456789');"
    # The first are over 0.13 s old, and those after the cap come in an output of their own.
    code = f"""
        const pause = () => new Promise((then) => setTimeout(then, 200));
        await pause(); {levels} await pause();
        for (let i = 0; i < 1000; i++) {{ {levels} }}
        globalThis.__codemode_result__ = "heard";
    """
    ended, owner = await run_one(code, log_bytes=25)
    assert ended.reason == "finished" and ended.dropped_log_bytes == 4004 * 10 - 20
    assert json.loads(owner.said[-1][1]) == "heard"
    # The first, the one after which all are held, and the one that is left at the end.
    assert parsed.count("log") == 3
    heard = [header.get("level", header["t"]) for header, _ in owner.said]
    assert heard == ["debug", "held", "error", "warn", "done"]


async def test_cancel_while_it_runs_and_a_second_kill_changes_nothing() -> None:
    made, owner = await leased("console.log('on'); for(;;){}")
    await owner.until("says")
    made.kill("cancelled")
    made.kill("timeout")
    assert (await owner.end()).reason == "cancelled"


async def test_a_lease_of_a_worker_that_has_just_died_ends_as_crashed() -> None:
    made, owner = await booted()
    psutil.Process(made.pid).kill()
    # The loop has had no turn to learn of it.
    made.lease(b"token", make_run(), script("1"))
    assert (await owner.end()).reason == "crashed"


def cores_of(pid: int) -> list[set[int]]:
    """The cores that a process's threads may use: each different set once."""
    threads = [int(thread.name) for thread in Path(f"/proc/{pid}/task").iterdir()]
    return [set(cores) for cores in {frozenset(os.sched_getaffinity(thread)) for thread in threads}]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
async def test_a_run_that_computes_for_long_yields_to_others_and_one_that_waits_does_not() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    if before == 19:
        pytest.skip("nothing has less priority than this")
    waiting, waiter = await leased(WAITS, timeout_ms=60_000)
    computing, computer = await leased("for(;;){}", timeout_ms=60_000, cpu_ms=60_000)
    await until(lambda: os.getpriority(os.PRIO_PROCESS, computing.pid) != before, "it is lowered")
    assert os.getpriority(os.PRIO_PROCESS, computing.pid) == min(before + LONG_RUN_NICE, 19)
    assert os.getpriority(os.PRIO_PROCESS, waiting.pid) == before
    assert cores_of(computing.pid) == [os.sched_getaffinity(0)]
    await computer.until("computes")
    assert sum(computer.computed) == computing.cpu_reported >= LONG_RUN_CPU_SECONDS
    assert waiter.computed == [] and waiting.cpu_reported == 0
    await cancelled(waiting, waiter)
    await cancelled(computing, computer)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at another process's priority")
async def test_a_run_may_give_way_from_its_start() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    cores = os.sched_getaffinity(0)
    if before == 19 or len(cores) == 1:
        pytest.skip("nothing has less priority than this, or there is one core only")
    made, owner = await leased(WAITS, gives_way=True, timeout_ms=60_000)
    assert os.getpriority(os.PRIO_PROCESS, made.pid) == min(before + GIVE_WAY_NICE, 19)
    assert cores_of(made.pid) == [cores - {min(cores)}]
    await cancelled(made, owner)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at another process's priority")
async def test_a_run_leaves_a_core_to_others_while_there_are_some() -> None:
    """All its threads, and whichever it starts meanwhile."""
    cores = os.sched_getaffinity(0)
    if len(cores) == 1:
        pytest.skip("there is one core only")
    made, owner = await leased("for(;;){}", timeout_ms=60_000, cpu_ms=60_000)
    owner.others = True
    await until(lambda: cores_of(made.pid) == [cores - {min(cores)}], "one core less")
    owner.others = False
    await until(lambda: cores_of(made.pid) == [cores], "every core again")
    await cancelled(made, owner)


@pytest.mark.slow
async def test_a_run_whose_clock_stands_still_is_not_over_time() -> None:
    made, owner = await leased(WAITS, timeout_ms=500, pause_ms=60_000)
    assert made.hold_clock(protocol.Pause())
    other, _ = await run_one(WAITS, timeout_ms=500)
    assert other.reason == "timeout"
    assert made.state is State.RUNNING
    assert not made.hold_clock(protocol.Pause())
    assert made.hold_clock(protocol.Resume())
    assert not made.hold_clock(protocol.Resume())
    ended = await owner.end()
    assert ended.reason == "timeout" and ended.wall_ms >= 950
    # It ended while these were on their way.
    assert made.hold_clock(protocol.Pause()) and made.hold_clock(protocol.Resume())


async def test_cpu_time_passes_while_the_clock_stands_still() -> None:
    made, owner = await leased("for (;;) {}", cpu_ms=300, timeout_ms=10_000, pause_ms=60_000)
    assert made.hold_clock(protocol.Pause())
    assert (await owner.end()).reason == "cpu"


async def test_memory_is_bounded_while_the_clock_stands_still() -> None:
    code = "const kept = []; for (;;) kept.push(new Uint8Array(1 << 20).fill(1));"
    made, owner = await leased(code, pause_ms=60_000)
    assert made.hold_clock(protocol.Pause())
    await owner.end()
    header, body = owner.said[-1] if owner.said else ({"t": ""}, b"")
    assert owner.ended[0][0].reason == "memory" or (header["t"] == "failed" and b"allocation" in body)
