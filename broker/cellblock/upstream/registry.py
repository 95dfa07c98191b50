"""All upstream servers together: their sessions, the local Python tools, and the catalog made of both."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import mcp_types as types

from cellblock.catalog.model import Catalog, ServerEntry, ToolEntry
from cellblock.catalog.naming import export_names, module_paths
from cellblock.catalog.tool_names import check_tool_name
from cellblock.config import ServerConfig, UpstreamSettings
from cellblock.errors import ConfigError, ToolNotFound
from cellblock.upstream.lenience import schemas_of
from cellblock.upstream.python_tools import PythonTool, call_tool, read_tool
from cellblock.upstream.session import ServerFacts, State, UpstreamSession

_NAMES_ANY: Final = "@codemode/discovery"
"""A script with this can come to any server."""

LOCAL_SERVER: Final = "local"
"""Configuration name of the server made of Python tools."""


class Registry:
    """Owns every upstream session.

    `catalog` has the servers that are connected, `known_catalog` also those that were, as they last were. Both are
    replaced, never changed.

    Args:
        servers: The configured servers, in order.
        tools: Python functions that become the server `local`.
        settings: Bounds.
        log_dir: For the stderr of started servers.

    Raises:
        ConfigError: Two Python tools share a name, or a configured server is called `local` beside them.
    """

    def __init__(
        self,
        servers: Mapping[str, ServerConfig],
        tools: Sequence[Callable[..., Any]],
        settings: UpstreamSettings,
        *,
        log_dir: Path,
    ) -> None:
        self._settings = settings
        self._local: dict[str, PythonTool] = {}
        for function in tools:
            python_tool = read_tool(function)
            check_tool_name(python_tool.name)
            if python_tool.name in self._local:
                raise ConfigError(f"Two Python tools are called {python_tool.name}.", hint="Rename one.")
            self._local[python_tool.name] = python_tool
        if self._local and LOCAL_SERVER in servers:
            raise ConfigError(
                f"A configured server is called {LOCAL_SERVER}, the name of the Python tools.",
                hint="Rename it in mcpServers.",
            )
        self.sessions = {
            name: UpstreamSession(name, config, settings, log_dir=log_dir, on_change=self._changed)
            for name, config in servers.items()
            if not config.disabled
        }
        names = [*self.sessions, *([LOCAL_SERVER] if self._local else [])]
        self._paths = module_paths(names)
        self._entries: dict[str, tuple[ServerFacts, ServerEntry]] = {}
        self._local_entry = self._make_local_entry() if self._local else None
        self._settled = asyncio.Event()
        self.known_catalog = Catalog()
        self.catalog = Catalog()
        self._changed()

    def start(self) -> None:
        """Connects to every server, in parallel."""
        for session in self.sessions.values():
            session.start()

    async def settled(self, bound: float) -> None:
        """Waits until no server is in its first attempt to connect, at most `bound` seconds."""
        try:
            async with asyncio.timeout(bound):
                await self._settled.wait()
        except TimeoutError:
            return

    async def refreshed(self, code: str, bound: float) -> None:
        """Waits, at most `bound` seconds, until the tools of every server that a script names are those announced
        (Code Mode specification, section 8.1)."""
        stale = [
            session.fresh()
            for name, session in self.sessions.items()
            if session.stale and (self._paths[name] in code or _NAMES_ANY in code)
        ]
        if stale:
            try:
                async with asyncio.timeout(bound):
                    await asyncio.gather(*stale)
            except TimeoutError:
                return

    async def close(self) -> None:
        """Closes every session, in parallel, within their bound."""
        await asyncio.gather(*(session.close() for session in self.sessions.values()))

    def caller(self, server: ServerEntry, tool: ToolEntry) -> Callable[[Any], Awaitable[Any]]:
        """How to call one tool: an async function of the input that gives a `CallToolResult` or plain data.

        Raises:
            ToolNotFound: The Python tool does not exist.
        """
        if server is self._local_entry:
            python_tool = self._local.get(tool.tool_name)
            if python_tool is None:
                raise ToolNotFound(f"There is no tool {tool.tool_name}.", hint="List the server's tools.")
            return lambda arguments: call_tool(python_tool, arguments)
        session = self.sessions[server.config_name]
        bound = self._settings.call_timeout_ms / 1000
        return lambda arguments: session.call(tool.tool_name, arguments, call_bound=bound)

    # ---- inside --------------------------------------------------------------------------------------

    def _changed(self) -> None:
        servers: dict[str, ServerEntry] = {}
        known: dict[str, ServerEntry] = {}
        unavailable: dict[str, str] = {}
        for name, session in self.sessions.items():
            path = self._paths[name]
            if session.facts is not None:
                known[path] = self._entry(name, session.facts)
            if session.state is State.READY and path in known:
                servers[path] = known[path]
            else:
                unavailable[path] = session.reason or session.state.value
        if self._local_entry is not None:
            servers[self._local_entry.server_id] = known[self._local_entry.server_id] = self._local_entry
        version = self.catalog.version + 1
        self.catalog = Catalog(version, servers, unavailable)
        never = {path: reason for path, reason in unavailable.items() if path not in known}
        self.known_catalog = Catalog(version, known, never)
        if all(
            session.state is not State.CONNECTING or session.attempts > 1
            for session in self.sessions.values()
        ):
            self._settled.set()

    def _entry(self, name: str, facts: ServerFacts) -> ServerEntry:
        held = self._entries.get(name)
        if held is not None and held[0] is facts:
            return held[1]
        unique = {tool.name: tool for tool in facts.tools}
        exports = export_names(unique)
        tools = tuple(_tool_entry(unique[tool_name], export) for tool_name, export in exports.items())
        entry = ServerEntry(
            server_id=self._paths[name],
            server_name=facts.name or name,
            config_name=name,
            version=facts.version,
            description=facts.instructions,
            capabilities=facts.capabilities,
            tools=tools,
            by_export={tool.export_name: tool for tool in tools},
        )
        self._entries[name] = (facts, entry)
        return entry

    def _make_local_entry(self) -> ServerEntry:
        exports = export_names(self._local)
        tools = tuple(
            ToolEntry(
                tool_name=name,
                export_name=export,
                description=self._local[name].description,
                input_schema=self._local[name].input_schema,
                output_schema=self._local[name].output_schema,
            )
            for name, export in exports.items()
        )
        return ServerEntry(
            server_id=self._paths[LOCAL_SERVER],
            server_name=LOCAL_SERVER,
            config_name=LOCAL_SERVER,
            capabilities=("tools",),
            tools=tools,
            by_export={tool.export_name: tool for tool in tools},
        )


def _tool_entry(tool: types.Tool, export: str) -> ToolEntry:
    annotations = tool.annotations.model_dump(by_alias=True, exclude_none=True) if tool.annotations else None
    input_schema, output_schema = schemas_of(tool)
    return ToolEntry(
        tool_name=tool.name,
        export_name=export,
        description=tool.description,
        annotations=annotations or None,
        input_schema=input_schema,
        output_schema=output_schema,
    )
