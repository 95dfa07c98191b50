"""What a live process has used: CPU time and memory, from /proc on Linux and psutil elsewhere."""

from __future__ import annotations

import os
import sys
from typing import Final, NamedTuple

import psutil

_TICK_SECONDS: Final = 1 / os.sysconf("SC_CLK_TCK")
_LINUX: Final = sys.platform.startswith("linux")


class Usage(NamedTuple):
    """CPU time of all threads in seconds, the peak resident set size, and VmData now (0 where there is none)."""

    cpu_seconds: float
    peak_bytes: int
    data_bytes: int = 0


def read_cpu_seconds(pid: int) -> float:
    """CPU time of a live process, user and system, all threads. Raises OSError when it is gone."""
    if not _LINUX:
        return _psutil_usage(pid).cpu_seconds
    with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib costs more than the read
        stat = file.read()
    # The command name is in parentheses and may hold anything; fields 14 and 15 follow the last one.
    fields = stat[stat.rindex(b")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_SECONDS


def read_usage(pid: int) -> Usage:
    """CPU time and peak memory of a live process. Raises OSError when it is gone."""
    if not _LINUX:
        return _psutil_usage(pid)
    with open(f"/proc/{pid}/status", "rb") as file:  # noqa: PTH123
        status = file.read()
    return Usage(read_cpu_seconds(pid), _field(status, b"VmHWM:"), _field(status, b"VmData:"))


def _field(status: bytes, name: bytes) -> int:
    """Bytes of a field that is given in KiB; 0 for a zombie, which has none."""
    at = status.find(name)
    return int(status[at + len(name) : status.index(b"kB", at)]) * 1024 if at >= 0 else 0


def _psutil_usage(pid: int) -> Usage:
    try:
        process = psutil.Process(pid)
        cpu = process.cpu_times()
        return Usage(cpu.user + cpu.system, process.memory_info().rss)
    except psutil.Error as error:
        raise ProcessLookupError(str(error)) from None
