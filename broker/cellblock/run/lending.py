"""What a run lends to the scripts that it calls: its host knows what is left, and keeps the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from cellblock_worker.wire import protocol


class Lender:
    """Lends half of what is left to a run to one script that it calls at a time.

    Args:
        send: Tells the run's host; does nothing when the run is no longer running.

    Attributes:
        turn: Held by the one that has it.
        cpu_ms: CPU time that such scripts have used.
        peak_bytes: The most memory that one of them had.
    """

    def __init__(self, send: Callable[[protocol.Lend | protocol.Repay], None]) -> None:
        self._send = send
        self._answer: asyncio.Future[protocol.Lent] | None = None
        self.turn: Final = asyncio.Lock()
        self.cpu_ms = self.peak_bytes = 0

    async def lend(self) -> protocol.Lent:
        """Asks the host. `repay` must follow."""
        self._answer = asyncio.get_running_loop().create_future()
        self._send(protocol.Lend())
        return await self._answer

    def lent(self, message: protocol.Lent) -> None:
        """Takes the host's answer."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(message)

    def repay(self, cpu_ms: int, log_bytes: int) -> None:
        """Gives back what was lent, but for what was used."""
        self.cpu_ms += cpu_ms
        self._send(protocol.Repay(cpu_ms=cpu_ms, log_bytes=log_bytes))
