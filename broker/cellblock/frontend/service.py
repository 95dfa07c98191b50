"""Says what a front-end needs of the broker, and what of a configuration it goes by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from cellblock.catalog.model import Catalog, ServerEntry, ToolEntry
from cellblock.catalog.outputs import ToolOutput
from cellblock.catalog.requests import Kind
from cellblock.config.schemas import SchemaSettings
from cellblock.config.sections import FrontendSettings, LimitSettings, OutputSettings
from cellblock.execution.caller import Caller
from cellblock.execution.keeping import KeptRun
from cellblock.execution.response import RunResponse
from cellblock.journal.parked import Given, ParkedQuestion
from cellblock.policy.counts import Counts
from cellblock.policy.named_tokens import NamedTokens
from cellblock.policy.policy import Policy

if TYPE_CHECKING:
    from cellblock.apart.pool import Apart
    from cellblock.base.shared_state import SharedState
    from cellblock.upstream.entries import Entry
    from cellblock.upstream.session import UpstreamSession


@dataclass(frozen=True, slots=True)
class FrontConfig:
    """Holds the sections for front-ends; the composition root makes one for each configuration in force.

    Attributes:
        state_dir: The folder of outputs, and of what clients have used.
        shown: What clients are shown.
        limits: What the manual says of runs.
        outputs: What becomes of large results.
        schemas: What the manual says of results.
        servers: Names of the servers that are not disabled.
        traced: Whether the trace context of clients is taken on.
    """

    state_dir: Path
    shown: FrontendSettings
    limits: LimitSettings
    outputs: OutputSettings
    schemas: SchemaSettings
    servers: tuple[str, ...]
    traced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedStatus:
    """Says where a run is that was parked. Times are Unix time in seconds.

    Args:
        id: The run.
        began: When it began.
        changed: When it was last written down.
        until: Until when it is kept at least.
        state: Whether it waits for a person, goes on, or is over.
        outcome: How it ended; None until then.
        questions: What is asked and not answered, of one that waits.
        response: Of one that is over; None where none is written down.
    """

    id: str
    began: float
    changed: float
    until: float
    state: Literal["parked", "running", "ended"]
    outcome: str | None = None
    questions: tuple[ParkedQuestion, ...] = ()
    response: RunResponse | None = None


class ParkedRuns(Protocol):
    """Says what a front-end needs of the runs that wait; `daemon.parked_runs.ParkedRuns` implements it."""

    @property
    def good_seconds(self) -> float:
        """Says for how many seconds a run stays parked at most."""
        ...

    @property
    def park_seconds(self) -> float:
        """Says how long a run waits in its process before it is parked."""
        ...

    async def signing_keys(self, purpose: str) -> Sequence[bytes]:
        """Returns keys that all brokers of the state directory share: the first signs, and what others have signed is
        accepted. Raises StoreError."""
        ...

    async def taken(
        self, run_id: str, turn: int, answers: Mapping[int, Given], principal: str
    ) -> KeptRun | None:
        """Takes a parked run for a client that has come back; None where none waits. Raises StoreError."""
        ...

    async def go_on(self, kept: KeptRun, caller: Caller) -> RunResponse:
        """Has a parked run go on that was taken. Raises InvalidRequest."""
        ...

    async def answered_elsewhere(self, run_id: str, turn: int, principal: str) -> RunResponse | None:
        """Returns the response of a run that was answered by somebody else in this round, as soon as there is one; None
        where there is none to come. Raises StoreError."""
        ...

    def end_round(self, run_id: str, turn: int, principal: str) -> None:
        """Has nobody else come back in a round of a run, whose client has its response."""
        ...

    async def questions(self, run_id: str, principal: str) -> tuple[int, tuple[ParkedQuestion, ...]] | None:
        """Returns the round and the open questions of a parked run; None where none waits. Raises StoreError."""
        ...

    async def status(self, run_id: str, principal: str) -> ParkedStatus | None:
        """Says where a run is that was parked; None where none of this principal is kept. Raises StoreError."""
        ...

    async def answer(self, run_id: str, answers: Mapping[int, Given], principal: str) -> object:
        """Answers questions of a parked run, which goes on when all are answered. Raises StoreError."""
        ...

    async def quiet(self) -> None:
        """Takes no run any more, and waits for those that no client waits for, and for their tools."""
        ...

    async def park(self, *, away: bool) -> bool:
        """Parks the runs that wait for people and for nothing else, within a bound; with `away`, those whose clients
        are away meanwhile. Says whether there were any."""
        ...

    async def holder(self, run_id: str) -> str:
        """Names the broker that goes on with a run; empty where none does. Raises StoreError."""
        ...

    async def stop(self, run_id: str, principal: str) -> bool:
        """Ends a parked run, or has one that goes on without a client ended; says whether there was one. Raises
        StoreError."""
        ...


class RunService(Protocol):
    """Says what a front-end calls; `daemon.Broker` implements it."""

    @property
    def front_config(self) -> FrontConfig:
        """Gives what front-ends go by, of the configuration in force."""
        ...

    @property
    def apart(self) -> Apart:
        """Does work apart that would hold the loop; the broker closes it."""
        ...

    @property
    def shared(self) -> SharedState | None:
        """Gives the PostgreSQL that the broker shares with others; None where it shares none."""
        ...

    @property
    def counts(self) -> Counts:
        """Gives the counts of what clients use of their quotas, with those that other brokers add."""
        ...

    @property
    def tokens(self) -> NamedTokens:
        """Knows the named tokens."""
        ...

    @property
    def policy(self) -> Policy:
        """Says what clients are granted."""
        ...

    @property
    def catalog(self) -> Catalog:
        """Says what is known about the servers and tools now."""
        ...

    @property
    def known_catalog(self) -> Catalog:
        """Gives the catalog with servers that are out of reach at the moment, as they last were: stable text for
        agents."""
        ...

    async def about_to_answer(self) -> None:
        """Waits, at most `upstream.list_wait_ms`, for servers in their first attempt to connect."""
        ...

    def watch_catalog(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Has `listener` called whenever a catalog or the settings have changed; what this gives ends that."""
        ...

    def output_of(self, server: ServerEntry, tool: ToolEntry) -> ToolOutput | None:
        """Says what is known now of a tool's output: given, declared or observed. Not for text that a client caches."""
        ...

    def observed_of(self, server: ServerEntry, tool: ToolEntry) -> ToolOutput | None:
        """Says what has been observed of a tool's output, whatever is given or declared."""
        ...

    async def wait_for_looks(self, bound: float) -> None:
        """Waits until all results so far are looked at, at most `bound` seconds."""
        ...

    async def run_request(
        self, request: Mapping[str, Any], caller: Caller, *, run_id: str = ""
    ) -> RunResponse:
        """Runs a `codemode.run` request of a client, such as one MCP connection. Raises InvalidRequest."""
        ...

    @property
    def parked_runs(self) -> ParkedRuns:
        """Gives the runs that wait for a person."""
        ...

    def lendable(self, server: str) -> UpstreamSession | None:
        """Returns the session with a server that exists once among several brokers; None of any other."""
        ...

    async def gives_up_singles(self) -> None:
        """Has the servers that exist once handed on to other brokers; bounded."""
        ...

    @property
    def replica(self) -> str:
        """Names the broker among those that share its state; empty where it is alone."""
        ...

    async def call_tool(
        self,
        server: ServerEntry,
        tool: ToolEntry,
        arguments: Any,
        caller: Caller,
        used: Counter[tuple[int, str]],
    ) -> Any:
        """Makes one tool call for a client, without a script: gives a `CallToolResult` or plain data, of a
        `RequestEntry` its own result. Raises ScriptError."""
        ...

    async def entries(self, server: ServerEntry, kind: Kind, *, fresh: bool) -> list[Entry]:
        """Returns what a server lists beside tools; `fresh` asks it."""
        ...

    def watch_updates(self, listener: Callable[[str, str], object]) -> None:
        """Has `listener` called with a server's name and a URI when a resource has changed that is subscribed to."""
        ...

    async def unfollow(self, server: str, uri: str) -> None:
        """Ends the subscription to a resource, by the server's name."""
        ...
