"""What goes out to descriptors that do not block: at once, or what one read of messages led to in a piece for each."""

from __future__ import annotations

import asyncio
import os
from typing import Final


class Outflow:
    """Writes to a descriptor at once, and later what that does not take yet. What a dying peer does not take is
    dropped: its end says the rest.

    Args:
        fd: Does not block; its owner closes it, after `close`.
        most: Caps the bytes that wait.
    """

    def __init__(self, fd: int, most: int) -> None:
        self._fd, self._most = fd, most
        self._loop = asyncio.get_running_loop()
        self._waits = False
        self._unsent = bytearray()

    def write(self, data: bytes) -> bool:
        """Says whether there was room; if not, nothing was added."""
        if len(self._unsent) + len(data) > self._most:
            return False
        is_first = not self._unsent
        self._unsent += data
        if is_first and GATHERING.flows is not None:
            GATHERING.flows.append(self)
        elif is_first:
            self.flush()
        return True

    def flush(self) -> None:
        """Writes what waits, as far as it is taken."""
        if self._unsent:
            try:
                del self._unsent[: os.write(self._fd, self._unsent)]
            except BlockingIOError:
                pass
            except OSError:
                self._unsent.clear()
        self._wait_for_room()

    def close(self) -> None:
        """Drops what waits."""
        self._unsent.clear()
        self._wait_for_room()

    def _wait_for_room(self) -> None:
        if bool(self._unsent) is self._waits:
            return
        self._waits = not self._waits
        if self._waits:
            self._loop.add_writer(self._fd, self.flush)
        else:
            self._loop.remove_writer(self._fd)


class Gathering:
    """Has what is written in a block go out at its end, in one piece to each descriptor."""

    flows: list[Outflow] | None = None

    def __enter__(self) -> None:
        self.flows = []

    def __exit__(self, *_: object) -> None:
        flows, self.flows = self.flows or (), None
        for flow in flows:
            flow.flush()


GATHERING: Final = Gathering()
