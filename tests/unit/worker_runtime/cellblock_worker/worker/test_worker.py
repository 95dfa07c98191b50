"""One worker with a real Deno: each lease ends with exactly one `Ended`, and its caps are kept; what is each run's own
where it may have several, and what ends its process. And one that is a fake and breaks the protocol: it is killed, and
what it said is not believed."""

import itertools
import json
import os
import re
import sys
import time
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from cellblock_worker.wire import protocol
from cellblock_worker.worker import hearing, worker
from cellblock_worker.worker.life import MAX_RUNS, RETURN_CPU_SECONDS, State
from cellblock_worker.worker.run_limits import GIVE_WAY_NICE, LONG_RUN_CPU_SECONDS, LONG_RUN_NICE, UseWatch
from cellblock_worker.worker.worker import Worker
from support.fake_worker import FakeWorkers
from support.processes import left_after
from support.waits import until
from support.worker_owner import MIB, Owner, booted, make_run, run_one, script

WAITS = "await new Promise(() => {}, setTimeout(() => {}, 1e8))"
"""A script that goes on until it is ended."""


async def leased(code: str, *, gives_way: bool = False, **changes: int) -> tuple[Worker, Owner]:
    """A worker with a run."""
    made, owner = await booted()
    made.lease(b"token", make_run(**changes), script(code), gives_way=gives_way)
    return made, owner


async def gone() -> tuple[Worker, Owner]:
    """One that does not come to a run."""
    owner = Owner()
    made = Worker(owner, max_frame_bytes=MIB, max_old_space_mb=64)
    await owner.until("gone")
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
    assert 0.3 <= took < 20
    assert 300 <= ended.wall_ms < 20_000
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
    found = re.findall(r"(?m)^(\w+)-(\w+) (\S+)", Path(f"/proc/{pid}/maps").read_text())
    places = [(int(first, 16), int(last, 16), mode) for first, last, mode in found]
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
    held = [made.hold_clock(said) for said in (protocol.Pause(), protocol.Resume(), protocol.Resume())]
    assert held == [False, True, False]
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


KEY = "a key"
HAS_LESS = sys.platform.startswith("linux") and os.getpriority(os.PRIO_PROCESS, 0) < 10


lasting = pytest.mark.usefixtures("contexts")


async def _again(made: Worker, owner: Owner, code: str, **changes: int) -> protocol.Ended:
    """One run, after which the process is ready or gone."""
    owner.events.clear()
    made.lease(b"token", make_run(key=KEY, **changes), script(code))
    await owner.until("ended")
    return owner.ended[-1][0]


async def _back(owner: Owner) -> bool:
    """Whether its process came back after a run. On a busy machine the next context may take what ends the process."""
    await until(lambda: {"returned", "gone"} & set(owner.events), "it is back, or gone")
    return "returned" in owner.events


@lasting
async def test_it_has_one_run_after_the_other_and_each_is_told() -> None:
    made, owner = await booted(lasts=True)
    pid = made.pid
    for served in range(3):
        ended = await _again(made, owner, "console.log('LEFT' in globalThis); globalThis.LEFT = 1;")
        await owner.until("returned")
        assert (ended.reason, ended.reused) == ("finished", served)
        assert (made.pid, made.state, made.key) == (pid, State.WARM, KEY)
        fits = [made.may_have(make_run(key=key), gives_way=False) for key in (KEY, "another")]
        assert fits == [True, False]
    assert owner.logs == [("log", "false")] * 3
    made.kill("host_stopping")
    await owner.until("gone")
    assert len(owner.ended) == 3


@lasting
async def test_short_runs_do_not_end_it_before_its_last() -> None:
    """What they leave for V8 to collect, and V8 leaves, is not over what the process may grow by."""
    served = [await _short_runs()]
    while served[-1] < MAX_RUNS:
        assert len(served) < 5, f"none of five processes had all its runs: {served}"
        served.append(await _short_runs())
    assert served[-1] == MAX_RUNS


async def _short_runs() -> int:
    """How many runs one process has."""
    made, owner = await booted(lasts=True)
    for served in range(MAX_RUNS + 1):
        ended = await _again(made, owner, "1")
        assert (ended.reason, ended.reused) == ("finished", served), made.detail
        if not await _back(owner):
            return served + 1
    return MAX_RUNS + 2


LONG = "let n = 0; for (let i = 0; i < 4e8; i++) n += i;"


@pytest.mark.skipif(not HAS_LESS, reason="nothing has less priority than this")
@lasting
async def test_a_long_run_is_not_lowered_where_nobody_waits_and_where_somebody_does_has_a_later_one() -> None:
    """A priority cannot be raised again: a lowered process is for runs that give way."""
    for _ in range(10):
        if await _long_runs():
            return
    pytest.fail("none of ten processes came back from three runs")


async def _long_runs() -> bool:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    made, owner = await booted(lasts=True)
    await _again(made, owner, LONG)
    if not await _back(owner):
        return False
    assert owner.computed and os.getpriority(os.PRIO_PROCESS, made.pid) == before
    assert made.may_have(make_run(key=KEY), gives_way=False)
    owner.others = True
    await _again(made, owner, LONG)
    if not await _back(owner):
        return False
    lowered = os.getpriority(os.PRIO_PROCESS, made.pid)
    assert lowered > before
    assert [made.may_have(make_run(key=KEY), gives_way=gives) for gives in (True, False)] == [True, False]
    owner.events.clear()
    made.lease(b"token", make_run(key=KEY), script("1"), gives_way=True)
    if not await _back(owner):
        return False
    assert os.getpriority(os.PRIO_PROCESS, made.pid) == lowered, "it is not lowered once more for each run"
    made.kill("host_stopping")
    await owner.until("gone")
    return True


@pytest.mark.parametrize(
    "left",
    ["(async () => { for (;;) await null; })();", "const f = () => queueMicrotask(f); f();"],
    ids=["promises", "microtasks"],
)
@lasting
async def test_what_goes_on_after_the_outcome_ends_it(left: str) -> None:
    made, owner = await booted(lasts=True)
    ended = await _again(made, owner, f"{left} globalThis.__codemode_result__ = 1;", timeout_ms=2_000)
    await owner.until("gone")
    assert "returned" not in owner.events
    assert ended.reason in ("finished", "timeout")


@lasting
async def test_what_is_used_after_the_outcome_is_told_with_whose_it_was() -> None:
    made, owner = await booted(lasts=True)
    await _again(made, owner, "1", lane=7)
    await owner.until("returned")
    loop = "const f = () => Promise.resolve().then(f); globalThis.__codemode_result__ = { get a() { f(); return 1; } };"
    ended = await _again(made, owner, loop, lane=8)
    await owner.until("gone")
    assert (ended.reason, ended.reused) == ("finished", 1)
    (first, renewing), (second, looping) = owner.tidied
    assert (first, second) == (7, 8)
    assert 0 <= renewing < RETURN_CPU_SECONDS <= looping


@lasting
async def test_a_run_that_finds_its_process_gone_is_not_told_what_the_one_before_used() -> None:
    made, owner = await booted(lasts=True)
    before = await _again(made, owner, "for (let i = 0; i < 3e7; i++);")
    await owner.until("returned")
    process = psutil.Process(made.pid)
    process.kill()
    # Not a turn of the loop: the worker has not heard of it.
    assert left_after([process], 30) == []
    ended = await _again(made, owner, "1")
    assert ended.reason == "crashed" and ended.cpu_ms < before.cpu_ms


@lasting
async def test_a_syntax_error_ends_it() -> None:
    """Deno, which tells the place, keeps the source for good."""
    made, owner = await booted(lasts=True)
    await _again(made, owner, "throw new Error();")
    await owner.until("returned")
    ended = await _again(made, owner, "let let = 1;")
    await owner.until("gone")
    assert (ended.reason, ended.reused, made.detail) == ("finished", 1, "exit code 0")
    assert b"SyntaxError" in owner.said[-1][1] and "returned" not in owner.events


DECODED = 72 << 20
DECODES = f"console.log(new TextDecoder().decode(new Uint8Array({DECODED}).fill(65)).length);"
MAKES_DECODERS = "for (let i = 0; i < 400_000; i++) new TextDecoder(); console.log(400_000);"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "said", "memory"),
    [(DECODES, DECODED, 256 << 20), (MAKES_DECODERS, 400_000, 64 << 20)],
    ids=["one large text", "many decoders"],
)
@lasting
async def test_decoding_takes_no_more_memory_than_in_a_process_of_its_own(
    code: str, said: int, memory: int
) -> None:
    for key in ("", KEY):
        made, owner = await booted(lasts=True)
        made.lease(b"token", make_run(key=key, memory_bytes=memory), script(code))
        await owner.until("ended")
        assert (owner.ended[0][0].reason, owner.logs) == ("finished", [("log", str(said))]), key
        made.kill("host_stopping")
        await owner.until("gone")


FLOOD = "for _ in range(3000): frame(b'12345', t='log', level='log', ms=7)"
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
    "a notice over its cap": "frame(b'x' * ((1 << 16) + 1), t='notice')",
    "a discovery request over its cap": "frame(b'x' * ((1 << 16) + 1), t='query', id=1, op='listServers')",
    "a failure over its cap": "frame(b'x' * ((1 << 18) + 1), t='failed', ms=0, kind='module')",
    "a body where there is none": "frame(b'x', t='took', bytes=1)",
    "a body over its cap that does not come": "raw(bytes.fromhex('00100000 000a 81a174a66e6f74696365'))",
    "keys in another order": "frame(b'{}', t='failed', kind='exception', ms=7)",
    "a name before the kind": "frame(b'x', level='log', t='log', ms=7)",
    "an integer in a long form": "raw(encode_frame(bytes.fromhex('82a174a4646f6e65a26d73cc07')))",
    "a text in a long form": "raw(encode_frame(bytes.fromhex('83a174d9036c6f67a56c6576656ca36c6f67a26d7307')))",
    "a map in a long form": "raw(encode_frame(bytes.fromhex('de0003a174a36c6f67a56c6576656ca36c6f67a26d7307')))",
    "a key twice": "raw(encode_frame(bytes.fromhex('82a174a46e6f7465a174a66e6f74696365')))",
    "a pause": "frame(t='pause')",
    "a resume": "frame(t='resume')",
    "a log entry over its cap": "frame(b'x' * 1037, t='log', level='log', ms=0)",
    "too many notices": "for _ in range(201): frame(b'{}', t='notice')",
}


AFTER_A_FLOOD = ("noise", "ready again", "a key twice", "a body over its cap", "too many notices")
"""Of the others `--thorough` shows it, too."""


@pytest.mark.parametrize(
    ("before", "act"),
    [
        pytest.param(before, act, id=f"{name}-{when}", marks=[] if is_usual else [pytest.mark.thorough])
        for name, act in VIOLATIONS.items()
        for before, when, is_usual in (
            ("", "at once", True),
            (FLOOD, "after a flood of logs", name in AFTER_A_FLOOD),
        )
    ],
)
async def test_a_worker_that_breaks_the_protocol_is_killed(
    before: str, act: str, fake_workers: FakeWorkers
) -> None:
    fake_workers.run(f"ready()\nread()\n{before}\n{act}\nframe(b'1', t='done', ms=0)\nhang()")
    ended, owner = await run_one("1", log_bytes=12)
    assert ended.reason == "protocol" and ended.detail
    assert "done" not in [header["t"] for header, _ in owner.said]


async def test_what_a_flood_costs_the_host_counts_as_the_runs_own(
    fake_workers: FakeWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count()
    monkeypatch.setattr(hearing, "thread_time", lambda: float(next(clock)))
    fake_workers.run("ready()\nread()\nframe(b'x', t='log', level='log', ms=0)\nhang()")
    ended, _ = await run_one("1", cpu_ms=900)
    assert ended.reason == "cpu" and ended.cpu_ms >= 1000


SLOWLY = """
for byte in encode_frame(pack_header({"t": "done", "ms": 0}), b"1"):
    raw(bytes([byte]))
    time.sleep(0.001)
hang()
"""


@pytest.mark.parametrize(
    ("act", "ends"),
    [
        pytest.param(SLOWLY, ("finished", "", b""), id="a frame that comes slowly is heard"),
        pytest.param(
            f"{FLOOD}\nos._exit(3)", ("crashed", "exit code 3", b""), id="dead after a flood of logs"
        ),
        pytest.param(
            "sys.stderr.write('last words')",
            ("crashed", "exit code 0", b"last words"),
            id="without an outcome exit code 0 is a crash",
        ),
    ],
)
async def test_how_a_run_ends(act: str, ends: tuple[str, str, bytes], fake_workers: FakeWorkers) -> None:
    fake_workers.run(f"ready()\nread()\n{act}")
    ended, owner = await run_one("1", log_bytes=12)
    body = b"" if ended.outcome == "done" else owner.ended[0][1]
    assert (ended.reason, ended.detail, body) == ends


@pytest.mark.parametrize(
    "act", ["frame(b'x', t='log', level='log', ms=0)", "frame(b'1', t='done', ms=0)", "raw(b'\\0' * 6)"]
)
async def test_a_warm_worker_may_say_nothing(act: str, fake_workers: FakeWorkers) -> None:
    fake_workers.run(f"ready()\n{act}\nhang()")
    _, owner = await gone()
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
    ended, owner = await run_one("1")
    assert ended.reason == "finished"
    assert [header["t"] for header, _ in owner.said] == ["done"]


async def test_a_worker_that_does_not_read_its_replies_is_killed(fake_workers: FakeWorkers) -> None:
    fake_workers.run("ready()\nread()\nframe(b'', t='call', id=1, server='s', tool='t', events='')\nhang()")
    made, owner = await booted(max_frame_bytes=256 * 1024)
    made.lease(b"token", make_run(), b"{}")
    await owner.until("says")
    for _ in range(10):
        made.deliver(protocol.Reply(id=1, ok=True).packed(), b"x" * (200 * 1024))
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
    made, owner = await gone()
    assert owner.events == ["gone"] and not made.was_ready


async def test_a_boot_that_hangs_is_killed_at_its_bound(
    fake_workers: FakeWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "BOOT_BOUND_SECONDS", 0.1)
    fake_workers.run("hang()")
    made, _ = await gone()
    assert not made.was_ready and made.state is State.GONE
