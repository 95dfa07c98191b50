"""Large results on their way out: tokens stand for them in a response until it is encoded and written."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from cellblock.apart.budget import ByteBudget
from cellblock.apart.raw import Splices

WAITING_BYTES: Final = 128 * 1024 * 1024
"""Of results that wait to be written, twice their size each; a further one is not sent."""

WAITING_SECONDS: Final = 120.0
"""From a response to its writing; what has not been written by then has lost its client."""

_waiting: Final = ByteBudget(WAITING_BYTES, WAITING_BYTES, "all clients")


class SplicedResult:
    """One result in the two places that it has in a response."""

    def __init__(self, splices: Splices) -> None:
        self._splices = splices
        self.in_text = self.in_data = ""

    def add(self, data: bytes, text: bytes) -> None:
        """Takes it in.

        Args:
            data: JSON.
            text: JSON as it is within a JSON text, without quotes.

        Raises:
            OverBudget: Too much waits already.
        """
        _waiting.take("", len(data) + len(text))
        self.in_data = self._splices.add(data, on_gone=partial(_waiting.give_back, "", len(data)))
        self.in_text = self._splices.add(
            text, quote=b'\\"', on_gone=partial(_waiting.give_back, "", len(text))
        )
        asyncio.get_running_loop().call_later(WAITING_SECONDS, self._forget)

    def _forget(self) -> None:
        self._splices.drop(self.in_data)
        self._splices.drop(self.in_text)
