"""Gives one client its share of the processes apart, and of the bytes that may be held in memory for others."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from cellblock.base.admission import DEFAULT_CLIENT, Room
from cellblock.base.offload.budget import ALL_BYTES, CLIENT_BYTES, ByteBudget
from cellblock.base.offload.pool import Apart, Bill
from cellblock.base.offload.task import Answer, Task


@dataclass(frozen=True, slots=True)
class Share:
    """A share is what one client may use, in one run of it.

    Attributes:
        apart: Shared by all.
        budget: Of bytes that clients have in memory.
        key: Whom the work and the bytes are billed to.
        bill: What the work for the run took.
    """

    apart: Apart
    budget: ByteBudget
    key: str
    bill: Bill = field(default_factory=Bill)

    async def do(
        self,
        task: Task,
        facts: Mapping[str, Any],
        *parts: bytes | memoryview,
        subject: str = "",
        room: Room | None = None,
    ) -> Answer:
        """Does work as `Apart.do` does, on the run's bill."""
        return await self.apart.do(
            task, facts, *parts, key=self.key, subject=subject, room=room, bill=self.bill
        )

    def take(self, size: int) -> None:
        """Works as `ByteBudget.take` does."""
        self.budget.take(self.key, size)

    def give_back(self, size: int) -> None:
        """Works as `ByteBudget.give_back` does."""
        self.budget.give_back(self.key, size)

    def holding(self, size: int) -> AbstractContextManager[None]:
        """Works as `ByteBudget.holding` does."""
        return self.budget.holding(self.key, size)


def share_of_one(key: str = DEFAULT_CLIENT) -> Share:
    """Returns a share for someone who shares with nobody."""
    return Share(Apart(), ByteBudget(CLIENT_BYTES, ALL_BYTES, "this client"), key)
