"""Says what this machine must have left for a broker to start, and what to do when it has not."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

from cellblock.base.errors import HostUnavailable

if TYPE_CHECKING:
    import zmq

DESCRIPTORS_NEEDED: Final = 24
"""Sets the file descriptors that must be free: a broker without servers opens about 15; past its start, ZeroMQ may
abort the process when it gets none."""

_FREE_SPACE: Final = "Free space on that disk, or use another --state-dir."
_MORE_FILES: Final = "Raise the number of open files: `ulimit -n 1024`, or LimitNOFILE= of the service."

_HINTS: Final = {
    errno.ENOSPC: _FREE_SPACE,
    errno.EDQUOT: _FREE_SPACE,
    errno.EROFS: "Use a --state-dir that can be written.",
    errno.EMFILE: _MORE_FILES,
    errno.ENFILE: _MORE_FILES,
}


def check_descriptors() -> None:
    """Raises OSError where this process cannot open as many files as a broker needs at least."""
    held: list[int] = []
    try:
        for _ in range(DESCRIPTORS_NEEDED):
            held.append(os.open(os.devnull, os.O_RDONLY))  # noqa: PERF401 - those before a failure must be closed
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror} (it needs {DESCRIPTORS_NEEDED} more)") from None
    finally:
        for fd in held:
            os.close(fd)


def unavailable(error: OSError | zmq.ZMQError) -> HostUnavailable:
    """Makes the error that a broker raises when the machine does not let it start."""
    hint = _HINTS.get(error.errno or 0, "Run `cellblock doctor`.")
    return HostUnavailable(f"This machine does not let Cellblock start: {error}.", hint=hint)
