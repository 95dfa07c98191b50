"""Gives streams of messages what the SDK asks of one beside its messages."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class ClosingStream:
    """A closing stream is closed when it is left, as `mcp.shared._stream_protocols` has it."""

    async def aclose(self) -> None:
        """Closes the stream; nothing is to be done unless a subclass says so."""

    def __aiter__(self) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> bool | None:
        await self.aclose()
        return None
