"""What each kind of process of a daemon takes: the most resident memory, looked at while a load runs."""

from __future__ import annotations

import contextlib
import re
import threading
from collections import Counter
from pathlib import Path
from typing import Final

import psutil

LOOK_SECONDS: Final = 0.1
"""Between two looks at the tree; what lives for less is not seen."""

BROKER: Final = "broker"

_MODULE: Final = re.compile(r"cellblock[\w.]*")


def role_of(process: psutil.Process, broker: int) -> str:
    """broker, host, worker, bubblewrap, upstream, or the name of the module or program. Raises psutil.Error."""
    if process.pid == broker:
        return BROKER
    name = process.name()
    line = process.cmdline()
    if name == "bwrap":
        return "bubblewrap"
    # Where native attackers are among the workers, Deno itself has the second name.
    if name in ("deno", "native.deno"):
        return "worker"
    if "cellblock_worker" in line:
        return "host"
    if any(part.endswith("_server.py") for part in line):
        return "upstream"
    if "-m" in line and (found := _MODULE.fullmatch(line[line.index("-m") + 1])):
        return found[0]
    return name


class Memory:
    """Looks at the tree of a broker until closed. The broker's own peak is the kernel's."""

    def __init__(self, broker: int) -> None:
        self._broker = psutil.Process(broker)
        self._over = threading.Event()
        self.peaks: Counter[str] = Counter()
        with contextlib.suppress(OSError):
            # From here on, VmHWM is what this load takes (proc(5)).
            Path(f"/proc/{broker}/clear_refs").write_text("5", "ascii")
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> dict[str, int]:
        """The most bytes of each role at one time."""
        self._over.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            self.peaks[BROKER] = max(self.peaks[BROKER], _peak(self._broker.pid))
        return dict(self.peaks)

    def _run(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            found: Counter[str] = Counter()
            with contextlib.suppress(psutil.Error):
                for process in (self._broker, *self._broker.children(recursive=True)):
                    with contextlib.suppress(psutil.Error):
                        found[role_of(process, self._broker.pid)] += process.memory_info().rss
            for role, size in found.items():
                self.peaks[role] = max(self.peaks[role], size)


def _peak(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
