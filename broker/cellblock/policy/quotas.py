"""Quotas bound what the runs of one client call together, in a period of time, at all brokers that share a state."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from cellblock.base.database import StoreError
from cellblock.base.errors import CallDenied, Fault
from cellblock.catalog.model import ToolEntry
from cellblock.config.policy import Quota
from cellblock.policy.counts import Counts
from cellblock.policy.patterns import fits

_OVER: Final = "Wait, or have whoever runs Cellblock raise it in cellblock.policy.quotas."


class Quotas:
    """Holds the quotas of one client.

    Args:
        principal: The client.
        quotas: By pattern.
        counts: Counts for them.
    """

    def __init__(self, principal: str, quotas: Mapping[str, Quota], counts: Counts) -> None:
        self._principal, self._quotas, self._counts = principal, quotas, counts

    async def take(self, server_id: str, tool: ToolEntry) -> None:
        """Counts a call of a tool for each quota that it is in. Raises CallDenied: One is used up, or strict and not
        to be known."""
        for pattern, quota in self._quotas.items():
            if not fits(pattern, server_id, tool):
                continue
            # As JSON: a principal may have any character.
            name = json.dumps(["calls", self._principal, pattern, quota.per_ms])
            if quota.strict:
                try:
                    left_ms = await self._counts.take(name, quota.per_ms, quota.calls)
                except StoreError as error:
                    raise CallDenied(
                        f"{tool.export_name} was not called: the quota of this client for {pattern} is strict, and how "
                        f"much of it is used cannot be known now ({error}).",
                        hint="Try again when the database is back.",
                        code="QUOTA_UNKNOWN",
                        fault=Fault.CELLBLOCK,
                    ) from None
            else:
                left_ms = await self._counts.spend(name, quota.per_ms, quota.calls)
            if left_ms is not None:
                raise CallDenied(
                    f"{tool.export_name} was not called: the quota of this client for {pattern} is {quota.calls} calls "
                    f"in {quota.per_ms / 1000:g} s, and is used up for another {left_ms / 1000:.0f} s.",
                    hint=_OVER,
                    code="QUOTA_USED_UP",
                    fault=Fault.CALLER,
                )
