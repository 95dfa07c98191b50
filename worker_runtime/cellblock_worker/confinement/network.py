"""The worker host leaves the network: it moves into a network namespace that has nothing in it (network_namespaces(7)).

Its workers then share that one instead of getting one each, which is two of the five milliseconds of CPU that a
worker's namespaces take. And the host, which reads what hostile scripts send, can reach nobody either.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cellblock_worker.base import lifetime

TRIAL_BOUND_SECONDS: Final = 30.0
"""Bounds the time for the trial in a child; it takes about 60 ms, and what it starts has bounds of its own."""

TRIAL_POLL_SECONDS: Final = 0.002
"""Sets the pause between two looks at whether the trial is over."""

_CLONE_NEWUSER: Final = 0x10000000
_CLONE_NEWNET: Final = 0x40000000

_NO_INTERNET: Final = "ipc:///"
"""Matches endpoints that are reached without a network: sockets in the file system."""


def leave(endpoint: str, works: Callable[[], bool]) -> bool:
    """Moves this process into an empty network namespace, for good.

    Without the right to do that alone it becomes the one user of a user namespace too, which cannot be undone. So a
    child does it first, and asks there whether the rest `works`.

    Args:
        endpoint: Where the broker is.
        works: Whether workers can be started from such a namespace.

    Returns:
        Whether it has moved. If not, nothing has changed.

    Raises:
        OSError: It was possible for the child, and no longer is: this process may be halfway and must end.
    """
    if not lifetime.LINUX or not endpoint.startswith(_NO_INTERNET) or not _is_alone() or not _tried(works):
        return False
    _unshare()
    return True


def _is_alone() -> bool:
    """Says whether this process has one thread: a namespace is a thread's own, and a user namespace wants no other."""
    return len(os.listdir("/proc/self/task")) == 1  # noqa: PTH208


def _tried(works: Callable[[], bool]) -> bool:
    try:
        child = os.fork()
    except OSError:
        return False
    if child == 0:
        _try_as_child(works)
    # A pidfd would spare the looks, but not every Python has them.
    until = time.monotonic() + TRIAL_BOUND_SECONDS
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status == 0
        time.sleep(TRIAL_POLL_SECONDS)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def _try_as_child(works: Callable[[], bool]) -> None:
    """Ends this process, with 0 if `works` says yes in an empty network namespace."""
    code = 1
    try:
        lifetime.die_with_parent()
        _unshare()
        code = 0 if works() else 1
    finally:
        os._exit(code)


def _unshare() -> None:
    user, group = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) == 0:
        return
    # In one call: either both are had, or none.
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    # user_namespaces(7): one's own ids may be mapped without any right, once setgroups(2) is given up.
    Path("/proc/self/setgroups").write_bytes(b"deny")
    Path("/proc/self/uid_map").write_bytes(f"{user} {user} 1".encode())
    Path("/proc/self/gid_map").write_bytes(f"{group} {group} 1".encode())
