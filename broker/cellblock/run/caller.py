"""A caller is for whom a run is, or a call without a script, and who hears of it meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cellblock.base.admission import DEFAULT_CLIENT
from cellblock.run.events import Watcher
from cellblock.run.policy.asking import EMBEDDING, Grantee
from cellblock.tools.upstream.requester import Requester


@dataclass(frozen=True, slots=True)
class Caller:
    """Says for which client a run or a call is.

    Args:
        client: Whose it is; workers are shared fairly between clients.
        grantee: Which grants it has, and who is asked for approval.
        observer: Watches this run beside those who watch all.
        requester: The client that upstream servers may ask during a call; None where nobody can be asked.
    """

    client: str = DEFAULT_CLIENT
    grantee: Grantee = EMBEDDING
    observer: Watcher | None = None
    requester: Requester | None = None


EMBEDDER: Final = Caller()
"""Stands for the program that embeds the broker."""
