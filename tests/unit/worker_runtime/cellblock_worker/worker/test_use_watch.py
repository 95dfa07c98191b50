"""What a live process has used: real processes that wait or compute, and readers that fail."""

import contextlib
import errno
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import psutil
import pytest

from cellblock_worker.wire import protocol
from cellblock_worker.worker import run_limits, usage
from cellblock_worker.worker.run_limits import LONG_RUN_CPU_SECONDS, UseWatch
from cellblock_worker.worker.usage import MemoryEvidence, Usage, UsageReader, read_usage
from support.waits import until

BOUND = 20.0
MIB = 1024 * 1024
GROWS = """
import sys, time
kept = bytearray(40 << 20)
print("grown", flush=True)
sys.stdin.readline()
until = time.process_time() + 0.2
while time.process_time() < until: pass
print("computed", flush=True)
sys.stdin.readline()
"""


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


def test_one_reader_sees_a_process_compute() -> None:
    with started(GROWS) as process:
        assert process.stdout.readline() == "grown\n"
        reader = UsageReader(process.pid)
        before = reader.read()
        assert before.peak_bytes > 40 * MIB
        print(file=process.stdin, flush=True)
        assert process.stdout.readline() == "computed\n"
        assert reader.cpu_seconds() - before.cpu_seconds >= 0.2
        assert reader.read().cpu_seconds >= before.cpu_seconds
        reader.close()


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
        with pytest.raises(ProcessLookupError):
            reader.read()
        with pytest.raises(ProcessLookupError):
            reader.cpu_seconds()
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


class Heard:
    """What one watch has said."""

    def __init__(self) -> None:
        self.killed: list[tuple[protocol.EndReason, str]] = []
        self.computed: list[float] = []

    def kill(self, reason: protocol.EndReason, detail: str = "") -> None:
        self.killed.append((reason, detail))

    def computes(self, cpu_seconds: float) -> None:
        self.computed.append(cpu_seconds)

    async def a_kill(self) -> None:
        await until(lambda: self.killed, "a kill")

    async def computes_often(self, times: int) -> None:
        await until(lambda: len(self.computed) >= times, "it computes")


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


def watch(
    heard: Heard,
    reader: UsageReader,
    *,
    kernel_limits: bool = True,
    cpu_ms: int = 60_000,
    memory: int = 1 << 40,
    replay_ms: int = 0,
) -> UseWatch:
    run = protocol.Run(
        timeout_ms=1,
        cpu_ms=cpu_ms,
        memory_bytes=memory,
        log_bytes=1,
        message_bytes=1,
        replay_ms=replay_ms,
    )
    return UseWatch(
        reader,
        run,
        Usage(0.0, 0),
        memory=MemoryEvidence(),
        kernel_limits=kernel_limits,
        kill=heard.kill,
        computes=heard.computes,
    )


@pytest.mark.parametrize("cpu_ms", [40, 600])
@pytest.mark.parametrize("pid", [COMPUTE], indirect=True)
async def test_a_run_over_its_cpu_time_is_killed_once(pid: int, cpu_ms: int) -> None:
    """The second one's first look is not due when the watch begins."""
    heard = Heard()
    watching = watch(heard, UsageReader(pid), cpu_ms=cpu_ms)
    await heard.a_kill()
    assert heard.killed == [("cpu", f"over maxCpuMs = {cpu_ms}")]
    watching.cancel()
    assert watching.now().cpu_seconds >= cpu_ms / 1000


@pytest.mark.parametrize("pid", [COMPUTE], indirect=True)
async def test_the_cpu_time_of_a_replay_is_bounded_apart(pid: int) -> None:
    heard = Heard()
    watching = watch(heard, UsageReader(pid), cpu_ms=100, replay_ms=60_000)
    await until(lambda: watching.now().cpu_seconds >= 0.2, "it computes")
    assert heard.killed == [] and watching.live() and not watching.live(), "once"
    await heard.a_kill()
    watching.cancel()
    assert heard.killed == [("cpu", "over maxCpuMs = 100")]
    assert 0.2 <= watching.live_at <= watching.now().cpu_seconds - 0.1
    endless = Heard()
    watching = watch(endless, UsageReader(pid), replay_ms=40)
    await endless.a_kill()
    watching.cancel()
    assert [reason for reason, _ in endless.killed] == ["cpu"] and watching.live_at is None


@pytest.mark.parametrize("pid", [COMPUTE], indirect=True)
async def test_a_long_run_is_told_with_all_that_it_has_used(
    pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_limits, "FIRST_SAMPLE_SECONDS", 0.02)
    monkeypatch.setattr(run_limits, "LAST_SAMPLE_SECONDS", 0.02)
    heard, later = Heard(), Heard()
    watching = watch(heard, UsageReader(pid))
    await heard.computes_often(2)
    watching.cancel()
    assert sum(heard.computed) == pytest.approx(watching.reported)
    assert watching.reported >= LONG_RUN_CPU_SECONDS
    told, another = watching.reported, watch(later, UsageReader(pid))
    await later.computes_often(3)
    another.cancel()
    assert watching.reported == told


@pytest.mark.parametrize("pid", [WAIT], indirect=True)
async def test_memory_is_watched_only_where_the_kernel_does_not(pid: int) -> None:
    kept, unkept = Heard(), Heard()
    watching = [
        watch(kept, UsageReader(pid), kernel_limits=True, memory=1 << 10),
        watch(unkept, UsageReader(pid), kernel_limits=False, memory=1 << 10),
    ]
    await unkept.a_kill()
    for one in watching:
        one.cancel()
    assert unkept.killed == [("memory", "over maxMemoryBytes = 1024 (resident size)")]
    assert kept.killed == kept.computed == []


@pytest.mark.parametrize("pid", [WAIT], indirect=True)
async def test_a_run_that_cannot_be_watched_goes_on_under_the_kernels_limits_alone(pid: int) -> None:
    kept, unkept = Heard(), Heard()
    watching = [watch(kept, Blind(pid), cpu_ms=40), watch(unkept, Blind(pid), kernel_limits=False)]
    await unkept.a_kill()
    assert unkept.killed == [("crashed", "its memory cannot be watched: Too many open files")]
    assert kept.killed == []
    assert watching[0].now() is None
    for one in watching:
        one.cancel()


@pytest.mark.parametrize("pid", [WAIT], indirect=True)
async def test_a_process_that_is_gone_is_for_its_owner_to_tell(pid: int) -> None:
    heard, looked = Heard(), list[int]()

    class Watched(UsageReader):
        def read(self) -> Usage:
            looked.append(pid)
            return super().read()

    reader = Watched(pid)
    reader.close()
    watching = watch(heard, reader, kernel_limits=False)
    await until(lambda: looked, "a look")
    assert (heard.killed, heard.computed, watching.now()) == ([], [], None)
    watching.cancel()
