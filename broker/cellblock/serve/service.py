"""Says whose a client's request is, and what a front-end needs of the broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from cellblock.base.json import is_object
from cellblock.run.policy.asking import Caller
from cellblock.run.policy.counts import Counts
from cellblock.run.policy.named_tokens import NamedTokens
from cellblock.run.policy.policy import Policy
from cellblock.run.response import RunResponse
from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry, ToolOutput

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

    from cellblock.base.settings.settings import Settings
    from cellblock.base.store import Store
    from cellblock.record.parked_runs import ParkedRuns
    from cellblock.tools.upstream.registry import Registry


Context: TypeAlias = "ServerRequestContext[dict[str, Any], Any]"


@dataclass(frozen=True, slots=True)
class Owner:
    """Names the principal and the connection that a request is from.

    `principal` is on whose behalf it is, as `cellblock.policy` knows clients. `client` is its connection, the same for
    all requests of one; clients share the workers fairly.
    """

    principal: str
    client: str


OwnerOf = Callable[[Context], Owner]


def client_name(context: Context) -> str:
    """Returns what the client of a request says that it is called; nothing proves it. Empty where it has not said
    it."""
    return _said(context, "name")


def client_version(context: Context) -> str:
    """Returns what the client of a request says of its version; empty where it has not."""
    return _said(context, "version")


def _said(context: Context, key: str) -> str:
    if context.method == "initialize":
        info: object = (context.params or {}).get("clientInfo")
        value: object = info.get(key) if is_object(info) else None
    else:
        known = context.session.client_params
        value = getattr(known.client_info, key) if known is not None else None
    return value if isinstance(value, str) else ""


class RunService(Protocol):
    """Says what a front-end calls; `app.broker.Broker` implements it."""

    @property
    def settings(self) -> Settings:
        """Gives the configuration in force."""
        ...

    @property
    def store(self) -> Store:
        """Gives the place of what outlives the broker."""
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
        """Says what is known about the servers and tools now, for the user of this machine."""
        ...

    @property
    def known_catalog(self) -> Catalog:
        """Gives the catalog that all share, with servers that are out of reach at the moment, as they last were: stable
        text for agents."""
        ...

    def catalogs_of(self, principal: str) -> tuple[Catalog, Catalog]:
        """Gives what `catalog` and `known_catalog` are for a principal, with its own sessions."""
        ...

    async def about_to_answer(self, principal: str) -> None:
        """Waits, at most `upstream.list_wait_ms`, for servers of a principal's in their first attempt to connect."""

    def watch_catalog(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Has `listener` called whenever a catalog or the settings have changed; the function that is returned ends
        that."""
        ...

    def output_of(self, server: ServerEntry, tool: ToolEntry, principal: str) -> ToolOutput | None:
        """Says what a principal knows now of a tool's output: given, declared or observed."""
        ...

    def observed_of(self, server: ServerEntry, tool: ToolEntry, principal: str) -> ToolOutput | None:
        """Says what has been observed of a tool's output, whatever is given or declared."""
        ...

    async def wait_until_learnt(self, bound: float) -> None:
        """Waits until all results so far are looked at, at most `bound` seconds."""

    async def run_request(
        self, request: Mapping[str, Any], caller: Caller, *, run_id: str = ""
    ) -> RunResponse:
        """Runs a `codemode.run` request of a client, such as one MCP connection. Raises InvalidRequest."""
        ...

    @property
    def parked_runs(self) -> ParkedRuns:
        """Gives the runs that wait for a person."""
        ...

    @property
    def registry(self) -> Registry:
        """Gives the sessions with servers."""
        ...

    async def call_tool(
        self,
        server: ServerEntry,
        tool: ToolEntry,
        arguments: Any,
        caller: Caller,
        used: Counter[tuple[int, str]],
    ) -> Any:
        """Makes one tool call for a client, without a script: gives a `ToolResult` or plain data, of a
        `RequestEntry` its own result. Raises ScriptError."""
        ...
