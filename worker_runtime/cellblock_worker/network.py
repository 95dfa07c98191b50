"""The worker host leaves the network: it moves into a network namespace that has nothing in it (network_namespaces(7)).

Its workers then share that one instead of getting one each, whose making and unmaking is half of what the kernel does
for a worker's namespaces. And the host, which reads what hostile scripts send, can reach nobody either.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cellblock_worker import lifetime

TRIAL_BOUND_SECONDS: Final = 30.0
"""For the trial in a child; it takes about 60 ms, and what it starts has bounds of its own."""

_CLONE_NEWUSER: Final = 0x10000000
_CLONE_NEWNET: Final = 0x40000000

_NO_INTERNET: Final = "ipc:///"
"""Endpoints that are reached without a network: sockets in the file system."""


def leave(endpoint: str, works: Callable[[], bool]) -> bool:
    """Moves this process into an empty network namespace, for good.

    Without the right to do that alone it becomes the one user of a user namespace too, which cannot be undone. So a
    child does it first, and asks there whether the rest `works`.

    Args:
        endpoint: Where the broker is.
        works: Whether workers can be started from such a namespace.

    Returns:
        Whether it has moved. If not, nothing has changed.
    """
    if not lifetime.LINUX or not endpoint.startswith(_NO_INTERNET) or not _is_alone() or not _tried(works):
        return False
    try:
        _unshare()
    except OSError:
        return False
    return True


def _is_alone() -> bool:
    """Whether this process has one thread: a namespace is a thread's own, and a user namespace wants no other."""
    return len(os.listdir("/proc/self/task")) == 1  # noqa: PTH208


def _tried(works: Callable[[], bool]) -> bool:
    try:
        child = os.fork()
    except OSError:
        return False
    if child == 0:
        _try_as_child(works)
    try:
        watched = os.pidfd_open(child)
    except OSError:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return False
    try:
        poll = select.poll()
        poll.register(watched, select.POLLIN)
        if not poll.poll(TRIAL_BOUND_SECONDS * 1000):
            os.kill(child, signal.SIGKILL)
    finally:
        os.close(watched)
    return os.waitpid(child, 0)[1] == 0


def _try_as_child(works: Callable[[], bool]) -> None:
    """Ends this process: with 0 if it works."""
    code = 1
    try:
        lifetime.die_with_parent()
        _unshare()
        code = 0 if works() else 1
    finally:
        os._exit(code)


def _unshare() -> None:
    """Raises OSError."""
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
