"""Kept describes an output that is kept, and the places that keep outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from cellblock.config.sections import OutputSettings
from cellblock.frontend.client import Owner
from cellblock.frontend.outputs.outputs_disk import on_disk

ID_BYTES: Final = 24
"""Sets the randomness in an output's id."""

PAGE_BYTES: Final = 32 * 1024
"""Caps the content of one `resources/read`: about 8,000 tokens."""

MAX_KEPT: Final = 256
"""Bounds the outputs of one client: a list of them is read whole."""

Part = Literal["result", "logs"]


@dataclass(frozen=True, slots=True)
class Output:
    """Holds one output that is to be kept: UTF-8 text."""

    part: Part
    mime_type: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Kept:
    """Holds one output that is kept. Size in bytes, `made_at` in seconds since 1970, `expires_at` on the loop's
    clock."""

    output_id: str
    owner: Owner
    part: Part
    mime_type: str
    size: int
    pages: int
    made_at: float
    expires_at: float

    @property
    def on_disk(self) -> int:
        """Returns what the output counts for, in bytes."""
        return on_disk(self.size)


class NotKept(Exception):
    """Tells that the client has no output of this id (any more)."""


class OutputPlace(Protocol):
    """Keeps outputs for a while, each for the client that made it; `KeptOutputs` and `SharedOutputs` do."""

    settings: OutputSettings

    def watch(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Has `listener` called whenever an output of this front-end has come or gone; the function that is returned
        ends that."""
        ...

    async def keep(self, owner: Owner, outputs: Sequence[Output]) -> list[Kept]:
        """Writes outputs; older ones of the client, then of all, go where that is over a cap.

        Raises:
            OSError: They cannot be written, or are larger than all that the client may keep. Then none is kept.
        """
        ...

    async def read(self, owner: Owner, output_id: str, page: int) -> tuple[Kept, str]:
        """Returns one page, from 1, as text; the pages of an output one after the other are the whole.

        Raises:
            NotKept: There is no such output, it is another client's, or it has gone.
            IndexError: It has fewer pages.
            OSError: It cannot be read.
        """
        ...

    async def listed(self, owner: Owner) -> list[Kept]:
        """Returns what is kept for a client, newest first."""
        ...

    def list_for(self, owner: Owner) -> list[Kept]:
        """Returns what this front-end itself has kept for a client, newest first."""
        ...


def cut_at(data: bytes, at: int) -> int:
    """Finds where the next character begins: pages are cut there."""
    while at < len(data) and data[at] & 0xC0 == 0x80:
        at += 1
    return min(at, len(data))
