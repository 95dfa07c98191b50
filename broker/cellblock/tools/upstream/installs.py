"""Programs such as `npx` install a server before they become it, and a folder half written stays broken for all who use
it: npm's is. So who starts one waits for it, one at a time for a package, and who must end meanwhile leaves it to a
process of its own (this file, run as a program), which reads what it says and ends it when it has installed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

INSTALL_SECONDS: Final = 600.0
"""Bounds an installation, from the start of its program; past it, it is ended all the same."""

POLL_SECONDS: Final = 0.25
"""Sets the pause between two looks at what an installer has started."""

END_SECONDS: Final = 3.0
"""Bounds the time for a server that nobody wants any more to end by itself, and from SIGTERM to SIGKILL."""

READ_BYTES: Final = 64 * 1024

_INSTALLER: Final = re.compile(
    r"(?:^|[\s/'\"])(?:npx|pnpx|bunx|uvx|(?:npm|bun|uv|uv tool|pipx|pnpm|yarn)(?: -\S{1,64}){0,8} (?:exec|x|run|dlx))"
    r"(?:\.cmd|\.exe)?(?=\s)"
)
"""Finds, in a command line, what installs a server before it starts it."""

NO_PACKAGE: Final = r"npm (?:error|ERR!) (?:code E)?404\b|was not found in the package registry"
"""Finds, in what npm and uv say last, that there is no such package: to try again helps nobody."""

_HELPER: Final = re.compile(
    r"^npm\b|^(?:/bin/)?sh |/builds-v\d|\bpip\b|\bvenv\b|(?:^|/)(?:git|ssh)\b|(?:^|/)(?:uv|pipx|bun)(?:\s|$)"
)
"""Finds what installers are, or start before the server; npm says it in the environment of what it starts."""

STEADY_SECONDS: Final = 1.0
"""Sets how long something must have run to be a server: uv first asks the Pythons that it finds."""


def package_of(argv: Sequence[str]) -> str | None:
    """Returns the name under which the installation of a command line waits for others; None where it installs
    nothing."""
    found = _INSTALLER.search(line := " ".join(argv) + " ")
    if found is None:
        return None
    words = line[found.end() :].split()
    return next((word for word in words if not word.startswith("-")), line)


def has_started(group: int) -> bool:
    """Says whether one of a process group is the server itself, as far as can be seen: not where there is no /proc."""
    began: dict[int, float] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The fields from the third on, see proc(5).
            fields = entry.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group:
                began[int(entry.parent.name)] = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    steady = time.clock_gettime(time.CLOCK_BOOTTIME) - STEADY_SECONDS if began else 0.0
    return any(_is_server(pid, is_steady=pid != group and since < steady) for pid, since in began.items())


def _is_server(pid: int, *, is_steady: bool) -> bool:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return False
    events = [one for one in variables if one.startswith(b"npm_lifecycle_event=")]
    if events:
        return b"npm_lifecycle_event=npx" in events
    return is_steady and line != "" and not _INSTALLER.search(line) and not _HELPER.search(line)


class Install:
    """One start of an installer: `running` until the server has said something, or is seen.

    Args:
        package: Of `package_of`.
        folder: Has a file for each package, which one holds who installs it.
        stderr: What the installer says there is read from this descriptor.
        on_end: Called when it is over.
    """

    def __init__(self, package: str, folder: Path, stderr: int, on_end: Callable[[], object]) -> None:
        self.running = True
        self._stderr, self._on_end = stderr, on_end
        # Its name may have a secret in it: that of a private registry.
        self._lock_file = folder / f"install-{hashlib.sha256(package.encode()).hexdigest()[:16]}.lock"
        self._lock = -1
        self._until = time.monotonic() + INSTALL_SECONDS

    @property
    def left(self) -> float:
        """Returns how many seconds it may take yet."""
        return max(0.0, self._until - time.monotonic())

    def begin(self) -> bool:
        """Says whether nobody else installs this package; nobody does then until `end`, nor after a `hand_over`."""
        if self._lock < 0:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._lock = os.open(self._lock_file, flags, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return self.left == 0
        return True

    def end(self) -> None:
        """Lets others install."""
        self.running = False
        self._on_end()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def hand_over(self, pid: int, stdout: int) -> None:
        """Starts what waits for the installation instead of this process.

        Args:
            pid: Leads the installer's process group.
            stdout: To be read from, as is its stderr: who writes to a pipe that nobody reads is ended.
        """
        subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(pid), str(self.left), str(stdout), str(self._stderr)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            pass_fds=[stdout, self._stderr, *([self._lock] if self._lock >= 0 else [])],
            start_new_session=True,
        )
        self.end()


def _wait_for(group: int, seconds: float, pipes: list[int]) -> None:
    """Reads what an installer says until its end, at most for a time; what it has installed is ended."""
    until, started = time.monotonic() + seconds, False
    while pipes and time.monotonic() < until:
        for pipe in select.select(pipes, [], [], POLL_SECONDS)[0]:
            # Who hands over may still read, too.
            with contextlib.suppress(BlockingIOError):
                if not os.read(pipe, READ_BYTES):
                    pipes.remove(pipe)
        if not started and has_started(group):
            started, until = True, min(until, time.monotonic() + END_SECONDS)
    # Somebody of the group holds a pipe: its number is nobody else's.
    if pipes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGTERM)
            time.sleep(END_SECONDS)
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    _wait_for(int(sys.argv[1]), float(sys.argv[2]), [int(fd) for fd in sys.argv[3:]])
