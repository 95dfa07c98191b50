"""The run context holds everything that one run is made of; the executor makes it once, and none of it is exchanged."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from cellblock.base.budget import Account
from cellblock.run.events import RunWatch
from cellblock.run.flows.secrets import Secrets
from cellblock.run.hook import KeptRun, RunJournal
from cellblock.run.plan import Plan
from cellblock.run.policy.asking import Approver
from cellblock.run.policy.rules import RunRules
from cellblock.run.request import Limits
from cellblock.tools.catalog.model import Catalog
from cellblock.tools.schemas.example import ValidatorCache
from cellblock.tools.upstream.registry import Registry
from cellblock.tools.upstream.requester import Requester
from cellblock.types.discovery import Discovery
from cellblock.types.learning.learner import Learner

if TYPE_CHECKING:
    from cellblock.run.answers import Answers
    from cellblock.run.calls import OuterCall

T = TypeVar("T")


class Generation:
    """Counts the runs of one generation; `ended` waits until there are none, here and in generations before.

    Args:
        before: The generation before: its runs may use what this one's do, and outlast them.

    Attributes:
        number: How many changes there were before it.
    """

    def __init__(self, before: Generation | None = None) -> None:
        self.number: int = before.number + 1 if before is not None else 0
        self._before = before._unfinished() if before is not None else None
        self._inside = 0
        self._empty = asyncio.Event()

    def __enter__(self) -> Generation:
        self._inside += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._inside -= 1
        if self._inside == 0:
            # Wakes those that wait, and is no lasting word.
            self._empty.set()
            self._empty.clear()

    async def holding(self, work: Coroutine[Any, Any, T]) -> T:
        """Gives the result of work that may outlast who asked for it."""
        with self:
            return await work

    def until(self, task: asyncio.Task[None]) -> None:
        """Counts a task as inside until it is done: a call that goes on when its run has no process."""
        self.__enter__()
        task.add_done_callback(self.__exit__)

    async def ended(self, since: int = 0) -> None:
        """Waits until nobody is inside, nor in a generation before it from number `since` on. No bound: runs have their
        own."""
        if self._before is not None and self._before.number >= since:
            await self._before.ended(since)
        if self._inside:
            await self._empty.wait()

    def _unfinished(self) -> Generation | None:
        """Gives the latest generation up to this one that still has runs."""
        self._before = self._before._unfinished() if self._before is not None else None
        return self if self._inside else self._before


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """Holds what one run is made of: its plan, its limits, its tools, and who hears of it.

    Args:
        plan: What the worker is sent.
        limits: The run's limits.
        catalog: The run's snapshot; the set of tools that exist for it.
        discovery: Answers the script's discovery requests.
        rules: The policy in this run; None where nothing is restricted.
        requester: The client that upstream servers may ask during a call; None where nobody can be asked.
        account: Counts what the run takes of the broker.
        upstreams: Reaches the tools.
        schemas: Compiled input schemas, shared between runs.
        max_message_bytes: Cap of one payload; inputs of so many bytes in all are decoded at the same time.
        watch: Hears each step.
        learner: Is shown each successful result, after its answer has been sent.
        answers: Notes what the tools answer; None where nobody asks.
        journal: Records the run, or replays another; None for a run that is not journaled.
        kept: Writes the run down; None where nobody does.
        approver: As in `Grantee`.
        generation: Keeps the sessions of calls that outlast the run's process.
        used_ms: Wall time that the run has used before, in other processes.
        used_cpu_ms: CPU time likewise.
        counts_queue: Whether the time in the queue counts for the run's time.
        secrets: Keeps secrets of the configuration with their servers; None: they may go anywhere.
        key: Names the runs that may have one process with this one; empty: none.
        outer: The call of another run that this run is.
    """

    plan: Plan
    limits: Limits
    catalog: Catalog
    discovery: Discovery
    rules: RunRules | None = None
    requester: Requester | None = None
    account: Account
    upstreams: Registry
    schemas: ValidatorCache
    max_message_bytes: int
    watch: RunWatch
    learner: Learner
    answers: Answers | None = None
    journal: RunJournal | None = None
    kept: KeptRun | None = None
    approver: Approver | None = None
    generation: Generation = field(default_factory=Generation)
    used_ms: int = 0
    used_cpu_ms: int = 0
    counts_queue: bool = False
    secrets: Secrets | None = None
    key: str = ""
    outer: OuterCall | None = None

    @property
    def parks(self) -> bool:
        """Says whether the run is parked where it waits for a person who cannot be asked now."""
        return self.kept is not None and self.kept.parks

    @property
    def allowed(self) -> set[int]:
        """Gives the calls that somebody has allowed or answered, in this process of the run or before it."""
        allowed = set[int]() if self.rules is None else self.rules.allowed
        earlier = None if self.kept is None else self.kept.earlier
        return allowed if earlier is None else allowed | earlier.waited
