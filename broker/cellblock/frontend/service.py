"""Says what a front-end needs of the broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from cellblock.apart.pool import Apart
from cellblock.catalog.model import Catalog, ServerEntry, ToolEntry
from cellblock.catalog.outputs import ToolOutput
from cellblock.execution.events import Watcher
from cellblock.execution.response import RunResponse
from cellblock.frontend.front_config import FrontConfig
from cellblock.policy.asking import EMBEDDING, Grantee
from cellblock.policy.policy import Policy
from cellblock.upstream.requester import Requester
from cellblock.workers.pool.admission import DEFAULT_CLIENT


class RunService(Protocol):
    """Says what a front-end calls; `daemon.Broker` implements it."""

    @property
    def front_config(self) -> FrontConfig:
        """Gives what front-ends go by, of the configuration in force."""
        ...

    @property
    def apart(self) -> Apart:
        """Does what would hold the loop; the broker's to close."""
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
        self,
        request: Mapping[str, Any],
        *,
        observer: Watcher | None = None,
        client: str = DEFAULT_CLIENT,
        grantee: Grantee = EMBEDDING,
        requester: Requester | None = None,
    ) -> RunResponse:
        """Runs a `codemode.run` request of a client, such as one MCP connection. Raises InvalidRequest."""
        ...

    async def call_tool(
        self,
        server: ServerEntry,
        tool: ToolEntry,
        arguments: Any,
        *,
        client: str,
        grantee: Grantee,
        requester: Requester | None,
        used: Counter[tuple[int, str]],
    ) -> Any:
        """Makes one call for a client, without a script: gives a `CallToolResult` or plain data. Raises ScriptError."""
        ...
