"""What a live process has used: CPU time and memory, from /proc on Linux and psutil elsewhere."""

from __future__ import annotations

import os
import sys
from typing import Final, NamedTuple

import psutil

_TICK_SECONDS: Final = 1 / os.sysconf("SC_CLK_TCK")
FILE_BYTES: Final = 32 * 1024
"""More than the kernel says of a process, even of one in very many groups."""

_LINUX: Final = sys.platform.startswith("linux")


class Usage(NamedTuple):
    """CPU time of all threads in seconds, the peak resident set size, and VmData now (0 where there is none)."""

    cpu_seconds: float
    peak_bytes: int
    data_bytes: int = 0


class UsageReader:
    """Looks at one live process as often as wanted. Its files stay open: opening them takes longer than reading them,
    and they can be read when no descriptor is left.

    Args:
        pid: The process; looks later on are at this very one, even when its pid has gone to another.

    Raises:
        OSError: It is gone, or no descriptor is left. Of a process that is gone later, so does every look.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._files: list[int] = []
        if _LINUX:
            try:
                for name in ("stat", "status"):
                    self._files.append(os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC))
            except OSError:
                self.close()
                raise

    def cpu_seconds(self) -> float:
        """CPU time, user and system, all threads."""
        if not _LINUX:
            return _psutil_usage(self._pid).cpu_seconds
        stat = self._read(0)
        # The command name is in parentheses and may hold anything; fields 14 and 15 follow the last one.
        fields = stat[stat.rindex(b")") + 2 :].split(maxsplit=13)
        return (int(fields[11]) + int(fields[12])) * _TICK_SECONDS

    def read(self) -> Usage:
        """CPU time and memory."""
        if not _LINUX:
            return _psutil_usage(self._pid)
        status = self._read(1)
        return Usage(self.cpu_seconds(), _field(status, b"VmHWM:"), _field(status, b"VmData:"))

    def close(self) -> None:
        """Closes the files; a look after that raises OSError."""
        files, self._files = self._files, []
        for file in files:
            os.close(file)

    def _read(self, number: int) -> bytes:
        if not self._files:
            raise ProcessLookupError("no longer watched")
        return os.pread(self._files[number], FILE_BYTES, 0)


def read_usage(pid: int) -> Usage:
    """CPU time and peak memory of a live process, once. Raises OSError when it is gone."""
    reader = UsageReader(pid)
    try:
        return reader.read()
    finally:
        reader.close()


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
