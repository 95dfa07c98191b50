"""What an exit says: a worker that was refused memory is told from one that crashed far from its limit."""

import errno
import os
import signal

import pytest

from cellblock_worker.worker import usage
from cellblock_worker.worker.usage import SHELL_SIGNAL_BASE, MemoryEvidence, Usage, read_usage, why_it_ended
from cellblock_worker.worker.worker import Worker
from support.fake_worker import FakeWorkers
from support.worker_owner import MIB, Owner, make_run

LIMIT = 32 * MIB
BASE = Usage(0.01, 36 * MIB, 50 * MIB)
OWN_PEAK = 45 * MIB
SIGNALS = [signal.SIGSEGV, signal.SIGTRAP, signal.SIGABRT, signal.SIGILL, signal.SIGBUS]


def unreadable(_: int) -> Usage:
    raise OSError(errno.EMFILE, "no descriptor is left")


@pytest.fixture(autouse=True)
def _own_peak(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction] - a fixture
    monkeypatch.setattr(usage, "own_peak", lambda: OWN_PEAK)


def cause(returncode: int, stderr: bytes = b"", *, data: int = 0, grown: int = 0) -> str:
    """The verdict; `data` and `grown` in MiB over the baseline."""
    evidence = MemoryEvidence()
    evidence.sample(BASE)
    evidence.sample(BASE._replace(data_bytes=BASE.data_bytes + data * MIB))
    # What was taken once counts, even if a later look saw less.
    evidence.sample(BASE)
    return _cause(returncode, stderr, evidence, BASE.peak_bytes + grown * MIB)


def _cause(returncode: int, stderr: bytes, evidence: MemoryEvidence, peak_bytes: int) -> str:
    run = make_run(memory_bytes=LIMIT)
    return why_it_ended(returncode, stderr, evidence, run, cpu_seconds=0.0, peak_bytes=peak_bytes)[0]


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize(
    ("reason", "data", "grown"),
    [
        *(("memory", *size) for size in ((30, 0), (0, 37), (30, 37))),
        *(("crashed", *size) for size in ((0, 0), (16, 0), (0, 12), (20, 30))),
    ],
)
def test_a_silent_death_is_the_limits_at_the_limit_and_a_crash_far_from_it(
    number: int, reason: str, data: int, grown: int
) -> None:
    assert cause(-number, data=data, grown=grown) == reason
    assert cause(SHELL_SIGNAL_BASE + number, data=data, grown=grown) == reason


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
def test_what_is_said_at_the_end_goes_before_all_sizes(
    returncode: int, said: bytes, size: dict[str, int], reason: str
) -> None:
    assert cause(returncode, said, **size) == reason


def test_a_peak_that_may_be_the_hosts_own_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "own_peak", lambda: 500 * MIB)
    assert cause(-signal.SIGSEGV, grown=40) == "crashed"
    assert cause(-signal.SIGSEGV, data=30, grown=40) == "memory"


def test_this_processs_own_peak_is_the_kernels_and_one_that_cannot_be_read_proves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    assert usage.own_peak() == read_usage(os.getpid()).peak_bytes
    monkeypatch.setattr(usage, "read_usage", unreadable)
    assert cause(-signal.SIGSEGV, grown=400) == "crashed"


def test_without_a_look_there_is_no_baseline_and_no_verdict() -> None:
    assert _cause(-signal.SIGSEGV, b"", MemoryEvidence(), 900 * MIB) == "crashed"


def test_the_cpu_limits_signal() -> None:
    assert cause(-signal.SIGXCPU, data=31) == cause(SHELL_SIGNAL_BASE + signal.SIGXCPU) == "cpu"


@pytest.mark.parametrize(("taken", "reason"), [(30, "memory"), (2, "crashed")])
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
