"""The bounds of a run: what its process has used, by real ones that wait or compute and readers that fail; its wall
clock, in which what stands still is not counted, for no longer than was said before; and what an exit says: a worker
that was refused memory is told from one that crashed far from its limit."""

import asyncio
import contextlib
import errno
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import example, given, strategies as st

from cellblock_worker.wire import protocol
from cellblock_worker.worker import run_limits, usage
from cellblock_worker.worker.run_limits import LONG_RUN_CPU_SECONDS, ClockState, UseWatch, WallClock
from cellblock_worker.worker.usage import (
    SHELL_SIGNAL_BASE,
    MemoryEvidence,
    Usage,
    UsageReader,
    read_usage,
    why_it_ended,
)
from cellblock_worker.worker.worker import Worker
from support.fake_worker import FakeWorkers
from support.virtual_time import virtual_time
from support.waits import until
from support.worker_owner import MIB, Owner, make_run

BOUND = 60.0


@contextlib.contextmanager
def started(code: str) -> Generator[subprocess.Popen[str]]:
    """A process that is gone when the block is over."""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_it_agrees_with_what_others_say() -> None:
    found = read_usage(os.getpid())
    assert found.peak_bytes >= psutil.Process().memory_info().rss * 0.9
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    (said,) = (line for line in lines if line.startswith("VmData:"))
    assert abs(found.data_bytes - int(said.split()[1]) * 1024) < 16 * MIB
    spent = resource.getrusage(resource.RUSAGE_SELF)
    assert abs(found.cpu_seconds - spent.ru_utime - spent.ru_stime) < 0.5


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere the system says what it likes")
def test_it_sees_less_than_a_tick_and_threads_that_are_gone() -> None:
    reader = UsageReader(os.getpid())
    own, before = time.process_time(), reader.cpu_seconds()
    worker = threading.Thread(target=lambda: sum(range(50_000)))
    worker.start()
    worker.join()
    seen = reader.cpu_seconds() - before
    own = time.process_time() - own
    assert 0 < seen <= own
    assert own - seen < 0.005
    reader.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere there is no other way")
def test_without_such_a_clock_it_knows_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    exact = read_usage(os.getpid())
    monkeypatch.setattr(usage, "_HAS_CLOCK", False)
    coarse = read_usage(os.getpid())
    assert 0.05 < coarse.cpu_seconds < exact.cpu_seconds + 0.1
    assert abs(coarse.data_bytes - exact.data_bytes) < 16 * MIB


def test_a_process_that_is_gone_is_an_error() -> None:
    with started("input()") as process:
        reader = UsageReader(process.pid)
        process.kill()
        process.wait(BOUND)
        for look in (reader.read, reader.cpu_seconds):
            with pytest.raises(ProcessLookupError):
                look()
        reader.close()
        with pytest.raises((ProcessLookupError, FileNotFoundError)):
            UsageReader(process.pid)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_a_zombie_has_used_time_and_holds_nothing() -> None:
    with started("pass") as process:
        reader = UsageReader(process.pid)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        found = reader.read()
        assert found.cpu_seconds >= 0 and (found.peak_bytes, found.data_bytes) == (0, 0)
        reader.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_a_closed_reader_leaves_no_descriptor_and_no_look() -> None:
    before = descriptors()
    reader = UsageReader(os.getpid())
    assert descriptors() == before + 1
    reader.close()
    reader.close()
    assert descriptors() == before
    with pytest.raises(ProcessLookupError, match="no longer"):
        reader.read()


COMPUTE = "while True: pass"
WAIT = "import time; time.sleep(600)"


class Watching:
    """A watch, and what it has said."""

    def __init__(
        self,
        reader: UsageReader,
        *,
        kernel_limits: bool = True,
        cpu_ms: int = 60_000,
        memory: int = 1 << 40,
        replay_ms: int = 0,
    ) -> None:
        self.killed: list[tuple[protocol.EndReason, str]] = []
        self.computed: list[float] = []
        self.watch = UseWatch(
            reader,
            make_run(cpu_ms=cpu_ms, memory_bytes=memory, replay_ms=replay_ms),
            Usage(0.0, 0),
            memory=MemoryEvidence(),
            kernel_limits=kernel_limits,
            kill=lambda reason, detail="": self.killed.append((reason, detail)),
            computes=self.computed.append,
        )

    async def a_kill(self) -> None:
        await until(lambda: self.killed, "a kill")


class Blind(UsageReader):
    """Of a process that is there, on a machine without another descriptor."""

    def read(self) -> Usage:
        raise OSError(errno.EMFILE, "Too many open files")


@pytest.fixture
def pid(request: pytest.FixtureRequest) -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", request.param])
    yield process.pid
    process.kill()
    process.wait()


@pytest.mark.parametrize("cpu_ms", [40, 600])
@pytest.mark.parametrize("pid", [COMPUTE], indirect=True)
async def test_a_run_over_its_cpu_time_is_killed_once(pid: int, cpu_ms: int) -> None:
    """The second one's first look is not due when the watch begins."""
    run = Watching(UsageReader(pid), cpu_ms=cpu_ms)
    await run.a_kill()
    assert run.killed == [("cpu", f"over maxCpuMs = {cpu_ms}")]
    run.watch.cancel()
    assert run.watch.now().cpu_seconds >= cpu_ms / 1000


@pytest.mark.parametrize("pid", [COMPUTE], indirect=True)
async def test_the_cpu_time_of_a_replay_is_bounded_apart(pid: int) -> None:
    run = Watching(UsageReader(pid), cpu_ms=100, replay_ms=60_000)
    await until(lambda: run.watch.now().cpu_seconds >= 0.2, "it computes")
    assert run.killed == [] and run.watch.live() and not run.watch.live(), "once"
    await run.a_kill()
    run.watch.cancel()
    assert run.killed == [("cpu", "over maxCpuMs = 100")]
    assert 0.2 <= run.watch.live_at <= run.watch.now().cpu_seconds - 0.1
    endless = Watching(UsageReader(pid), replay_ms=40)
    await endless.a_kill()
    endless.watch.cancel()
    assert [reason for reason, _ in endless.killed] == ["cpu"] and endless.watch.live_at is None


@pytest.mark.parametrize("pid", [COMPUTE], indirect=True)
async def test_a_long_run_is_told_with_all_that_it_has_used(
    pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_limits, "FIRST_SAMPLE_SECONDS", 0.02)
    monkeypatch.setattr(run_limits, "LAST_SAMPLE_SECONDS", 0.02)
    run = Watching(UsageReader(pid))
    await until(lambda: len(run.computed) >= 2, "it computes")
    run.watch.cancel()
    told = run.watch.reported
    assert sum(run.computed) == pytest.approx(told) and told >= LONG_RUN_CPU_SECONDS
    later = Watching(UsageReader(pid))
    await until(lambda: len(later.computed) >= 3, "it computes")
    later.watch.cancel()
    assert run.watch.reported == told


@pytest.mark.parametrize("pid", [WAIT], indirect=True)
async def test_memory_is_watched_only_where_the_kernel_does_not(pid: int) -> None:
    kept = Watching(UsageReader(pid), kernel_limits=True, memory=1 << 10)
    unkept = Watching(UsageReader(pid), kernel_limits=False, memory=1 << 10)
    await unkept.a_kill()
    for one in (kept, unkept):
        one.watch.cancel()
    assert unkept.killed == [("memory", "over maxMemoryBytes = 1024 (resident size)")]
    assert kept.killed == kept.computed == []


@pytest.mark.parametrize("pid", [WAIT], indirect=True)
async def test_a_run_that_cannot_be_watched_goes_on_under_the_kernels_limits_alone(pid: int) -> None:
    kept, unkept = Watching(Blind(pid), cpu_ms=40), Watching(Blind(pid), kernel_limits=False)
    await unkept.a_kill()
    assert unkept.killed == [("crashed", "its memory cannot be watched: Too many open files")]
    assert (kept.killed, kept.watch.now()) == ([], None)
    for one in (kept, unkept):
        one.watch.cancel()


@pytest.mark.parametrize("pid", [WAIT], indirect=True)
async def test_a_process_that_is_gone_is_for_its_owner_to_tell(
    pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[UsageReader] = []
    reader, read = UsageReader(pid), UsageReader.read

    def counted(reader: UsageReader) -> Usage:
        looks.append(reader)
        return read(reader)

    monkeypatch.setattr(UsageReader, "read", counted)
    reader.close()
    run = Watching(reader, kernel_limits=False)
    await until(lambda: looks, "a look")
    assert (run.killed, run.computed, run.watch.now()) == ([], [], None)
    run.watch.cancel()


class World:
    """A clock in virtual time."""

    def __init__(self, seconds: float, allowance: float) -> None:
        self.over_at: float | None = None
        self.clock = WallClock(seconds, allowance, self._over)

    def _over(self) -> None:
        assert self.over_at is None, "over twice"
        self.over_at = asyncio.get_running_loop().time()
        self.clock.cancel()

    async def take(self, *steps: str | float) -> None:
        """Stops the clock, has it go on, and lets so many seconds pass, until the time is over."""
        for step in steps:
            if self.over_at is not None:
                break
            if isinstance(step, float):
                await asyncio.sleep(step)
            elif step == "stop":
                self.clock.stop()
            else:
                self.clock.go_on()


@pytest.mark.parametrize("stands", [False, True])
@virtual_time
async def test_the_time_of_a_run_that_has_come_back_begins_anew(*, stands: bool) -> None:
    world = World(100, 100)
    if stands:
        world.clock.stop()
    await asyncio.sleep(50)
    world.clock.restart(5)
    await asyncio.sleep(3)
    assert world.over_at is None
    if stands:
        world.clock.go_on()
    await asyncio.sleep(10)
    assert world.over_at == pytest.approx(58 if stands else 55)


@virtual_time
async def test_what_stands_still_does_not_count() -> None:
    world = World(5, 100)
    await world.take(4.0, "stop", 60.0, "go on", 2.0)
    assert world.over_at == pytest.approx(65)


@virtual_time
async def test_it_goes_on_by_itself_when_nobody_says_so() -> None:
    world = World(5, 10)
    world.clock.stop()
    await asyncio.sleep(12)
    assert world.clock.state is ClockState.OVERDRAWN
    # The word that comes late changes nothing; another stop is none.
    assert world.clock.go_on()
    assert not world.clock.stop()
    await asyncio.sleep(10)
    assert world.over_at == pytest.approx(15)


@virtual_time
async def test_what_does_not_fit_changes_nothing() -> None:
    world = World(5, 10)
    clock = world.clock
    done = [act() for act in (clock.go_on, clock.stop, clock.stop, clock.go_on, clock.go_on)]
    assert done == [False, True, False, True, False]
    await asyncio.sleep(10)
    assert world.over_at == pytest.approx(5)


STEPS = st.lists(st.sampled_from(["stop", "go on"]) | st.floats(0.1, 20), max_size=20)


@example(5.0, 10.0, ["stop", 6.0, "go on", "stop"])
@given(st.floats(1, 30), st.floats(0, 30), STEPS)
@virtual_time
async def test_it_is_over_no_sooner_than_its_time_and_no_later_than_with_its_allowance(
    seconds: float, allowance: float, steps: list[str | float]
) -> None:
    world = World(seconds, allowance)
    await world.take(*steps)
    await asyncio.sleep(100)
    assert seconds - 1e-6 <= world.over_at <= seconds + allowance + 1e-6


LIMIT = 32 * MIB
BASE = Usage(0.01, 36 * MIB, 50 * MIB)


def unreadable(_: int) -> Usage:
    raise OSError(errno.EMFILE, "no descriptor is left")


@pytest.fixture
def own_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process has taken at most is far below the limit."""
    monkeypatch.setattr(usage, "own_peak", lambda: 45 * MIB)


with_own_peak = pytest.mark.usefixtures("own_peak")


def cause(returncode: int, stderr: bytes = b"", *, data: int = 0, grown: int = 0, looks: bool = True) -> str:
    """The verdict; `data` and `grown` in MiB over the baseline."""
    evidence, run = MemoryEvidence(), make_run(memory_bytes=LIMIT)
    # What was taken once counts, even if a later look saw less.
    for seen in (BASE, BASE._replace(data_bytes=BASE.data_bytes + data * MIB), BASE) if looks else ():
        evidence.sample(seen)
    peak = BASE.peak_bytes + grown * MIB
    return why_it_ended(returncode, stderr, evidence, run, cpu_seconds=0.0, peak_bytes=peak)[0]


@pytest.mark.parametrize(
    "number", [signal.SIGSEGV, signal.SIGTRAP, signal.SIGABRT, signal.SIGILL, signal.SIGBUS]
)
@pytest.mark.parametrize(
    ("reason", "data", "grown"),
    [
        *(("memory", *size) for size in ((30, 0), (0, 37), (30, 37))),
        *(("crashed", *size) for size in ((0, 0), (16, 0), (0, 12), (20, 30))),
    ],
)
@with_own_peak
def test_a_silent_death_is_the_limits_at_the_limit_and_a_crash_far_from_it(
    number: int, reason: str, data: int, grown: int
) -> None:
    for code in (-number, SHELL_SIGNAL_BASE + number):
        assert cause(code, data=data, grown=grown) == reason


OWN_WORDS = [
    (-signal.SIGTRAP, b"# Fatal process out of memory: Zone"),
    (-signal.SIGSEGV, b"memory allocation of 4096 bytes failed"),
    # What Deno says of a thread that cannot begin; it exits as after any panic.
    (1, b"failed to allocate an alternative stack: Cannot allocate memory (os error 12)"),
    (1, b"Fatal error in :0: Check failed: allocation."),
]
"""Are of the engine, and need no other evidence."""

OTHER_REASONS = [
    *((code, b"") for code in (0, 1, 127, -signal.SIGKILL, SHELL_SIGNAL_BASE + signal.SIGKILL)),
    (-signal.SIGABRT, b"thread 'main' has overflowed its stack"),
    (1, b"Fatal error in :0: Check failed: IsSmi(x)."),
]
"""Are none of refused memory, whatever the process had."""


@pytest.mark.parametrize(
    ("returncode", "said", "size", "reason"),
    [
        *((*words, {}, "memory") for words in OWN_WORDS),
        *((*words, {"data": 31, "grown": 40}, "crashed") for words in OTHER_REASONS),
    ],
)
@with_own_peak
def test_what_is_said_at_the_end_goes_before_all_sizes(
    returncode: int, said: bytes, size: dict[str, int], reason: str
) -> None:
    assert cause(returncode, said, **size) == reason


@with_own_peak
def test_a_peak_that_may_be_the_hosts_own_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "own_peak", lambda: 500 * MIB)
    assert [cause(-signal.SIGSEGV, data=data, grown=40) for data in (0, 30)] == ["crashed", "memory"]


@with_own_peak
def test_this_processs_own_peak_is_the_kernels_and_one_that_cannot_be_read_proves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    assert usage.own_peak() == read_usage(os.getpid()).peak_bytes
    monkeypatch.setattr(usage, "read_usage", unreadable)
    assert cause(-signal.SIGSEGV, grown=400) == "crashed"


@with_own_peak
def test_without_a_look_there_is_no_baseline_and_no_verdict() -> None:
    assert cause(-signal.SIGSEGV, grown=900, looks=False) == "crashed"


@with_own_peak
def test_the_cpu_limits_signal() -> None:
    assert cause(-signal.SIGXCPU, data=31) == cause(SHELL_SIGNAL_BASE + signal.SIGXCPU) == "cpu"


@pytest.mark.parametrize(("taken", "reason"), [(30, "memory"), (2, "crashed")])
@with_own_peak
async def test_a_real_process_that_dies_of_a_signal(
    taken: int, reason: str, fake_workers: FakeWorkers
) -> None:
    # It is looked at whenever a quarter of its CPU time has passed, so it keeps what it took until it was seen.
    fake_workers.run(f"""
        import mmap, signal
        ready()
        read()
        time.sleep(0.05)
        kept = mmap.mmap(-1, {taken} << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for at in range(0, len(kept), 4096):
            kept[at] = 1
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGSEGV)
    """)
    owner = Owner()
    made = Worker(owner, max_frame_bytes=MIB, max_old_space_mb=64)
    await owner.until("ready")
    made.lease(b"token", make_run(memory_bytes=LIMIT, cpu_ms=600), b"{}")
    ended = await owner.end()
    assert ended.reason == reason, ended
