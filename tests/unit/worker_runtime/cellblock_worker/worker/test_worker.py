"""One worker with a real Deno: each lease ends with exactly one `Ended`, and its caps are kept."""

from __future__ import annotations

import json
import signal
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from cellblock_worker.wire import protocol
from cellblock_worker.worker import worker
from cellblock_worker.worker.states import State
from cellblock_worker.worker.use_watch import UseWatch
from support.worker_owner import MIB, booted, make_run, run_one, script


async def test_one_run_of_a_real_worker() -> None:
    code = "console.log('one', 2); globalThis.__codemode_result__ = {sum: 1 + 2};"
    ended, owner = await run_one(code)
    assert ended.reason == "finished"
    assert owner.logs == [("log", "one 2")]
    header, body = owner.said[-1]
    assert header["t"] == "done" and json.loads(body) == {"sum": 3}
    assert owner.events == ["ready", "says", "ended", "gone"]
    assert 0 <= ended.wall_ms < 10_000
    assert 10 * MIB < ended.peak_bytes < 500 * MIB
    assert ended.cpu_ms < 5000


async def test_the_process_is_gone_after_its_run() -> None:
    made, owner = await booted()
    process = psutil.Process(made.pid)
    made.lease(b"token", make_run(), script("1"))
    await owner.end()
    assert not process.is_running()
    assert made.state is State.GONE


async def test_a_settled_worker_is_killed_after_its_answer_and_not_heard_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "FAREWELL_SECONDS", 1.5)
    made, owner = await booted()
    process = psutil.Process(made.pid)
    late = "setTimeout(() => { for (;;) console.log('too late'); }, 1000);"
    made.lease(b"token", make_run(), script(f"console.log('in time'); {late}"))
    await owner.until("ended")
    assert process.is_running() and made.state is State.ENDING
    await owner.until("gone")
    assert not process.is_running()
    assert owner.logs == [("log", "in time")]
    assert owner.events == ["ready", "says", "ended", "gone"]


async def test_a_warm_worker_is_killed_without_an_ended() -> None:
    made, owner = await booted()
    made.kill("host_stopping")
    await owner.until("gone")
    assert owner.events == ["ready", "gone"]


async def test_a_failed_script_is_relayed_and_ends_as_finished() -> None:
    ended, owner = await run_one("throw new TypeError('no')")
    assert ended.reason == "finished"
    header, body = owner.said[-1]
    assert (header["t"], header["kind"]) == ("failed", "module")
    assert json.loads(body)["name"] == "TypeError"


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


async def test_waiting_costs_no_cpu_and_computing_does() -> None:
    ended, _ = await run_one("await new Promise((done) => setTimeout(done, 400))", cpu_ms=300)
    assert ended.reason == "finished"
    ended, owner = await run_one("for(;;){}", cpu_ms=300)
    assert ended.reason == "cpu" and "maxCpuMs = 300" in ended.detail, owner.ended
    assert 250 <= ended.cpu_ms < 2500


@pytest.mark.slow
async def test_the_kernels_cpu_limit_catches_what_sampling_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(self: UseWatch) -> None:
        return None

    monkeypatch.setattr(UseWatch, "_look", blind)
    ended, owner = await run_one("for(;;){}", cpu_ms=100, timeout_ms=60_000)
    assert ended.reason == "cpu", owner.ended
    assert 1000 <= ended.cpu_ms < 6000


@pytest.mark.parametrize(
    "code",
    [
        "const kept = []; for (;;) kept.push({text: 'x'.repeat(1000) + kept.length, list: new Array(100).fill(1)})",
        "const kept = []; for (;;) kept.push(new Uint8Array(1 << 20).fill(1))",
    ],
    ids=["heap", "ArrayBuffer"],
)
async def test_memory_ends_at_its_cap(code: str) -> None:
    # At its cap V8 collects again and again, on all cores: 0.3 s here, 6 s beside five others that do the same.
    ended, owner = await run_one(code, memory_bytes=48 * MIB, timeout_ms=60_000, cpu_ms=60_000)
    # V8 refuses an ArrayBuffer with an exception that the script may catch; the heap's end kills the process.
    if ended.reason == "finished":
        header, body = owner.said[-1]
        assert header["t"] == "failed"
        assert "Array buffer allocation failed" in json.loads(body)["message"]
    else:
        assert ended.reason == "memory" and f"maxMemoryBytes = {48 * MIB}" in ended.detail


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
    made.kill("cancelled")
    assert (await owner.end()).reason == "cancelled"


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
    assert ended.reason == "memory" and "resident" in ended.detail
    assert ended.peak_bytes < 350 * MIB


async def test_logs_stop_at_their_cap_and_the_script_goes_on() -> None:
    code = "for (let i = 0; i < 100; i++) console.log('0123456789'); globalThis.__codemode_result__ = 1"
    ended, owner = await run_one(code, log_bytes=25)
    assert ended.reason == "finished" and ended.dropped_log_bytes == 975
    assert [text for _, text in owner.logs[:3]] == ["0123456789", "0123456789", "01234"]
    assert len(owner.logs) == 4
    assert owner.logs[3][0] == "warn" and "maxLogBytes = 25" in owner.logs[3][1]
    assert owner.said[-1] == ({"t": "done"}, b"1")


async def test_logs_after_the_cap_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    parse = protocol.parse_from_worker

    def parsing(header: dict[str, Any]) -> protocol.FromWorker:
        parsed.append(header["t"])
        return parse(header)

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
    assert ended.reason == "finished" and ended.dropped_log_bytes == 4004 * 10 - 25
    assert json.loads(owner.said[-1][1]) == "heard"
    # The one that passes the cap, and what came with it in one output of the worker's.
    assert parsed.count("log") in (3, 4)


async def test_cancel_while_it_runs_and_a_second_kill_changes_nothing() -> None:
    made, owner = await booted()
    made.lease(b"token", make_run(), script("console.log('on'); for(;;){}"))
    await owner.until("says")
    made.kill("cancelled")
    made.kill("timeout")
    ended = await owner.end()
    assert ended.reason == "cancelled"


async def test_killed_from_outside_is_a_crash() -> None:
    made, owner = await booted()
    made.lease(b"token", make_run(), script("console.log('on'); for(;;){}"))
    await owner.until("says")
    psutil.Process(made.pid).kill()
    ended = await owner.end()
    assert ended.reason == "crashed" and str(-signal.SIGKILL) in ended.detail


async def test_a_lease_of_a_worker_that_has_just_died_ends_as_crashed() -> None:
    made, owner = await booted()
    psutil.Process(made.pid).kill()
    # The loop has had no turn to learn of it.
    made.lease(b"token", make_run(), script("1"))
    ended = await owner.end()
    assert ended.reason == "crashed"
