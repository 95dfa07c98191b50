"""Ties a process's life to its parent's: the kernel sends SIGKILL when the parent dies (PDEATHSIG, prctl(2)).

A parent that dies before the child has asked for the signal is missed, so the child looks afterwards whether it still
has that parent. `setpriv` (util-linux) asks and a shell looks, each before it becomes the next program: CPython's
`preexec_fn` would make every spawn a fork, which holds the caller's loop ten times as long. Only the process itself
gets the signal, not what it starts; a program that gains rights when it is executed loses it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Final

LINUX: Final = sys.platform.startswith("linux")

HAS_PIDFD: Final = hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal")
"""Says whether this Python has pidfds; those built against old headers have none, whatever the kernel."""

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NO_NEW_PRIVS: Final = 38

_SHELL: Final = "/bin/sh"
_STILL_THERE: Final = '[ "$PPID" = "$0" ] && exec "$@"'
_TIDY: Final = "unset PWD OLDPWD SHLVL; "
"""Takes away what the shell adds to the environment of its own."""


@functools.cache
def setpriv() -> str | None:
    """Returns the path of `setpriv`, or None where there is none or no PDEATHSIG."""
    return shutil.which("setpriv") if LINUX else None


def dying_with_this(
    argv: Sequence[str], *, no_new_privs: bool = False, empty_environment: bool = False
) -> list[str]:
    """Returns the command line under which `argv` dies with the thread that spawns it; `argv` itself without `setpriv`.

    Args:
        argv: The command line; its program must exist, else the process ends with 127.
        no_new_privs: Asks for that too (prctl(2)).
        empty_environment: Takes away what the shell adds to the environment.
    """
    binary = setpriv()
    if binary is None:
        return list(argv)
    options = ["--no-new-privs"] if no_new_privs else []
    guard = _TIDY + _STILL_THERE if empty_environment else _STILL_THERE
    return [
        binary, "--pdeathsig", "KILL", *options, "--", _SHELL, "-c", guard, str(os.getpid()), *argv,
    ]  # fmt: skip


def child_setup() -> Callable[[], None] | None:
    """Returns a function by which a child between fork and exec is killed when this process dies, with no_new_privs;
    None where `setpriv` does it, or nobody can.
    """
    if not LINUX or setpriv() is not None:
        return None
    libc, parent = ctypes.CDLL(None, use_errno=True), os.getpid()

    def in_child() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return in_child


def kill_if(pid: int, is_meant: Callable[[], bool]) -> bool:
    """Sends SIGKILL to a process that is the one meant, and not to what has its pid by then; says whether it has.

    Args:
        pid: The process id.
        is_meant: Says whether the process of that id is meant; an OSError or ValueError says no.
    """
    with contextlib.suppress(OSError, ValueError):
        if not is_meant():
            return False
        if not HAS_PIDFD:
            os.kill(pid, signal.SIGKILL)
            return True
        pidfd = os.pidfd_open(pid)
        try:
            # Once more, now that the pid cannot become another's unseen.
            if is_meant():
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                return True
        finally:
            os.close(pidfd)
    return False


def die_with_parent() -> None:
    """Asks the kernel to SIGKILL the calling process when its parent dies. No-op where there is no PDEATHSIG."""
    if LINUX:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
