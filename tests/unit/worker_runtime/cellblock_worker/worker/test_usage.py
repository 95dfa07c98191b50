"""What a live process has used, looked at again and again: real processes."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path

import psutil
import pytest

from cellblock_worker.worker import usage
from cellblock_worker.worker.usage import UsageReader, read_usage

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


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_one_reader_sees_a_process_compute() -> None:
    with started(GROWS) as process:
        assert heard(process) == "grown"
        reader = UsageReader(process.pid)
        before = reader.read()
        assert before.peak_bytes > 40 * MIB
        tell(process)
        assert heard(process) == "computed"
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
