"""One worker, real Deno and fakes that break the protocol: each lease ends with exactly one `Ended`."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import sys
import time
from typing import Any

import psutil
import pytest

from cellblock_worker import confinement, protocol, worker
from cellblock_worker.frames import unpack_header
from cellblock_worker.worker import Worker
from cellblock_worker.worker_states import State
from fake_worker import FakeWorkers

BOUND = 20.0
MIB = 1024 * 1024


class Owner:
    """Records what workers tell."""

    def __init__(self) -> None:
        self.said: list[tuple[dict[str, Any], bytes]] = []
        self.ended: list[tuple[protocol.Ended, bytes]] = []
        self.events: list[str] = []
        self._changed = asyncio.Event()

    def worker_ready(self, worker: Worker) -> None:
        self._note("ready")

    def worker_says(self, worker: Worker, raw_header: bytes, body: bytes) -> None:
        self.said.append((unpack_header(raw_header), body))
        self._note("says")

    def worker_ended(self, worker: Worker, ended: protocol.Ended, stderr: bytes) -> None:
        self.ended.append((ended, stderr))
        self._note("ended")

    def worker_gone(self, worker: Worker) -> None:
        self._note("gone")

    def _note(self, event: str) -> None:
        self.events.append(event)
        self._changed.set()

    async def until(self, event: str) -> None:
        async with asyncio.timeout(BOUND):
            while event not in self.events:
                self._changed.clear()
                await self._changed.wait()

    async def end(self) -> protocol.Ended:
        """The end of the one run, after everything that could follow it has happened."""
        await self.until("gone")
        await asyncio.sleep(0)
        assert self.events.count("ended") == self.events.count("gone") == 1
        return self.ended[0][0]

    @property
    def logs(self) -> list[tuple[str, str]]:
        return [(header["level"], body.decode()) for header, body in self.said if header["t"] == "log"]


def make_run(**changes: int) -> protocol.Run:
    values = {
        "timeout_ms": 10_000,
        "cpu_ms": 10_000,
        "memory_bytes": 64 * MIB,
        "log_bytes": 1000,
        "message_bytes": MIB,
    }
    return protocol.Run.model_validate({**values, **changes})


def script(code: str) -> bytes:
    main = "data:application/javascript;base64," + base64.b64encode(code.encode()).decode()
    return json.dumps({"main": main, "modules": {}, "refused": {}}).encode()


async def booted(max_frame_bytes: int = 2 * MIB) -> tuple[Worker, Owner]:
    owner = Owner()
    made = Worker(owner, max_frame_bytes=max_frame_bytes, max_old_space_mb=128)
    await owner.until("ready")
    assert made.state is State.WARM and made.was_ready
    return made, owner


async def run_one(code: str, **changes: int) -> tuple[protocol.Ended, Owner]:
    made, owner = await booted()
    made.lease(b"token", make_run(**changes), script(code))
    return await owner.end(), owner


async def test_one_run_of_a_real_worker() -> None:
    code = "console.log('one', 2); globalThis.__codemode_result__ = {sum: 1 + 2};"
    ended, owner = await run_one(code)
    assert ended.reason == "finished"
    assert owner.logs == [("log", "one 2")]
    header, body = owner.said[-1]
    assert header["t"] == "done" and json.loads(body) == {"sum": 3}
    assert owner.events == ["ready", "says", "says", "ended", "gone"]
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
    ended, _ = await run_one("for(;;){}", cpu_ms=300)
    assert ended.reason == "cpu" and "maxCpuMs = 300" in ended.detail
    assert 250 <= ended.cpu_ms < 2500


async def test_the_kernels_cpu_limit_catches_what_sampling_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(self: Worker) -> None:
        return None

    monkeypatch.setattr(Worker, "_watch_cpu", blind)
    ended, _ = await run_one("for(;;){}", cpu_ms=100, timeout_ms=60_000)
    assert ended.reason == "cpu"
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
    ended, owner = await run_one(code, memory_bytes=48 * MIB)
    # V8 refuses an ArrayBuffer with an exception that the script may catch; the heap's end kills the process.
    if ended.reason == "finished":
        header, body = owner.said[-1]
        assert header["t"] == "failed"
        assert "Array buffer allocation failed" in json.loads(body)["message"]
    else:
        assert ended.reason == "memory" and f"maxMemoryBytes = {48 * MIB}" in ended.detail


async def test_memory_is_sampled_where_the_kernel_keeps_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker.confinement, "limit_at_lease", lambda *_: False)
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
    assert owner.said[-1] == ({"t": "done", "ms": owner.said[-1][0]["ms"]}, b"1")


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


async def test_a_reply_reaches_the_script(fake_workers: FakeWorkers) -> None:
    fake_workers.run(
        """
        ready()
        start = read()
        assert start.header["t"] == "start" and start.body == b"script", start
        frame(b"{}", t="call", id=1, server="s", tool="t")
        reply = read()
        frame(reply.body, t="done", ms=reply.header["id"])
        hang()
        """
    )
    made, owner = await booted()
    made.lease(b"token", make_run(), b"script")
    await owner.until("says")
    reply = protocol.Reply(id=1, ok=True)
    made.deliver(worker.pack_header(reply.model_dump()), b'"answer"')
    ended = await owner.end()
    assert ended.reason == "finished"
    assert owner.said[-1] == ({"t": "done", "ms": 1}, b'"answer"')
    made.deliver(worker.pack_header(reply.model_dump()), b"late")


VIOLATIONS = {
    "noise": "raw(b'\\xff' * 100)",
    "a frame over the cap": "raw((1 << 31).to_bytes(4, 'big') + b'\\0\\0')",
    "a header that is no map": "raw(encode_frame(b'\\x91\\x01'))",
    "an unknown message": "frame(t='nonsense')",
    "a message of the host": "frame(t='ended', reason='finished')",
    "a forged lease": "frame(t='leased', wait_ms=0)",
    "ready again": "ready()",
    "a call id of nothing": "frame(t='call', id=0, server='s', tool='t')",
    "an extra field": "frame(t='done', ms=0, ok=True)",
    "a body over its cap": "frame(b'x' * ((1 << 20) + 1), t='done', ms=0)",
    "too many notices": "for _ in range(201): frame(b'{}', t='notice')",
}


@pytest.mark.parametrize("act", VIOLATIONS.values(), ids=VIOLATIONS)
async def test_a_worker_that_breaks_the_protocol_is_killed(act: str, fake_workers: FakeWorkers) -> None:
    fake_workers.run(f"ready()\nread()\n{act}\nframe(b'1', t='done', ms=0)\nhang()")
    made, owner = await booted()
    made.lease(b"token", make_run(), b"{}")
    ended = await owner.end()
    assert ended.reason == "protocol" and ended.detail
    assert "done" not in [header["t"] for header, _ in owner.said]


@pytest.mark.parametrize(
    "act", ["frame(b'x', t='log', level='log', ms=0)", "frame(b'1', t='done', ms=0)", "raw(b'\\0' * 6)"]
)
async def test_a_warm_worker_may_say_nothing(act: str, fake_workers: FakeWorkers) -> None:
    fake_workers.run(f"ready()\n{act}\nhang()")
    owner = Owner()
    Worker(owner, max_frame_bytes=MIB, max_old_space_mb=64)
    await owner.until("gone")
    assert "ended" not in owner.events and owner.said == []


async def test_what_follows_the_end_is_not_heard(fake_workers: FakeWorkers) -> None:
    fake_workers.run(
        """
        ready()
        read()
        both = encode_frame(pack_header({"t": "done", "ms": 0}), b"1")
        raw(both + both + encode_frame(pack_header({"t": "log", "level": "log", "ms": 1}), b"late"))
        hang()
        """
    )
    made, owner = await booted()
    made.lease(b"token", make_run(), b"{}")
    ended = await owner.end()
    assert ended.reason == "finished"
    assert [header["t"] for header, _ in owner.said] == ["done"]


async def test_exit_code_0_without_an_outcome_is_a_crash(fake_workers: FakeWorkers) -> None:
    fake_workers.run("ready()\nread()\nsys.stderr.write('last words')")
    made, owner = await booted()
    made.lease(b"token", make_run(), b"{}")
    ended = await owner.end()
    assert (ended.reason, ended.detail) == ("crashed", "exit code 0")
    assert owner.ended[0][1] == b"last words"


async def test_a_worker_that_does_not_read_its_replies_is_killed(fake_workers: FakeWorkers) -> None:
    fake_workers.run("ready()\nread()\nframe(b'', t='call', id=1, server='s', tool='t')\nhang()")
    made, owner = await booted(max_frame_bytes=256 * 1024)
    made.lease(b"token", make_run(), b"{}")
    await owner.until("says")
    header = worker.pack_header(protocol.Reply(id=1, ok=True).model_dump())
    for _ in range(10):
        made.deliver(header, b"x" * (200 * 1024))
    ended = await owner.end()
    assert ended.reason == "protocol" and "does not read" in ended.detail


async def test_a_script_over_the_pipes_cap_is_refused_at_once(fake_workers: FakeWorkers) -> None:
    fake_workers.run("ready()\nhang()")
    made, owner = await booted(max_frame_bytes=64 * 1024)
    made.lease(b"token", make_run(), b"x" * (129 * 1024))
    ended = await owner.end()
    assert ended.reason == "protocol" and str(129 * 1024) in ended.detail


@pytest.mark.parametrize(
    "program",
    [
        "ready(protocol=99)\nhang()",
        "frame(t='done', ms=0)\nhang()",
        "raise SystemExit(3)",
        "raw(b'no frame at all')",
    ],
)
async def test_a_boot_that_fails_is_gone_and_never_was_ready(program: str, fake_workers: FakeWorkers) -> None:
    fake_workers.run(program)
    owner = Owner()
    made = Worker(owner, max_frame_bytes=MIB, max_old_space_mb=64)
    await owner.until("gone")
    assert owner.events == ["gone"] and not made.was_ready


async def test_a_boot_that_hangs_is_killed_at_its_bound(
    fake_workers: FakeWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "BOOT_BOUND_SECONDS", 0.1)
    fake_workers.run("hang()")
    owner = Owner()
    made = Worker(owner, max_frame_bytes=MIB, max_old_space_mb=64)
    await owner.until("gone")
    assert not made.was_ready and made.state is State.GONE


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
    assert os.getpriority(os.PRIO_PROCESS, computing.pid) == min(before + confinement.LONG_RUN_NICE, 19)
    assert os.getpriority(os.PRIO_PROCESS, waiting.pid) == before
    for one, owner in ((waiting, waiter), (computing, computer)):
        one.kill("cancelled")
        assert (await owner.end()).reason == "cancelled"
