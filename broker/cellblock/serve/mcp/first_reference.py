"""Some declarations come with a response: those of a server that a script names and its client has not been shown.

The Code Mode specification (section 4.4) lets declarations wait until a server is first imported or requested; then
they must reach the agent. A client is shown them once for each state of a server's tools: in the description of its
tool, by reading their resource, or here.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from typing import Final

from cellblock.base.errors import first_few
from cellblock.base.kept import Newest
from cellblock.serve.mcp.context import Part, resource_uri, shared_out
from cellblock.serve.service import RunService
from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry
from cellblock.tools.catalog.outputs import ToolOutput
from cellblock.types.typescript import ServerText, declare_server

MAX_KEPT: Final = 4_096
"""Bounds the pairs of a client and a server that are remembered; a client that is forgotten is shown a server once
more."""

MAX_CHARS: Final = 12_000
"""Caps the declarations in one response, about 3,000 tokens; functions that do not fit appear by name."""

MAX_NAMES: Final = 50
"""Bounds the names of functions that have no room."""

SHORT_SIGHTED: Final = frozenset({"claude-code"})
"""Names clients, as they call themselves, of which it is known that they cut a tool's description before the
declarations (docs/clients.md): what stands there has not been shown."""


_WORD: Final = re.compile(r"[\w$]+")


class FirstReferences:
    """Remembers which declarations each client has been shown."""

    def __init__(self, service: RunService) -> None:
        self._service = service
        self._shown = Newest[tuple[str, str], ServerEntry](MAX_KEPT)

    def show(self, client: str, servers: Iterable[ServerEntry]) -> None:
        """Notes that a client has been shown declarations of servers, whole."""
        for server in servers:
            self._shown[client, server.server_id] = server

    async def declarations_for(
        self, client: str, catalog: Catalog, named: Iterable[str], code: object
    ) -> dict[str, str]:
        """Returns the declarations that a response brings, by server; from then on the client has been shown them.

        Args:
            client: Whose response it is.
            catalog: What the client is granted.
            named: Ids of the servers that its script imports or requests.
            code: The script: functions that it mentions come first.
        """
        found = (catalog.servers.get(server_id) for server_id in named)
        new = [server for server in found if server is not None and not self._knows(client, server)]
        if not new:
            return {}
        # Before anything is waited for: of two runs at once, one brings them.
        self.show(client, new)
        outputs = {
            (server.server_id, tool.tool_name): self._service.output_of(server, tool)
            for server in new
            for tool in server.tools
        }
        return await asyncio.to_thread(_declared, new, outputs, MAX_CHARS, str(code))

    def _knows(self, client: str, server: ServerEntry) -> bool:
        known = self._shown.get((client, server.server_id))
        return known is server or known == server


def _declared(
    servers: Sequence[ServerEntry],
    outputs: dict[tuple[str, str], ToolOutput | None],
    room: int,
    code: str,
) -> dict[str, str]:
    by_id = {server.server_id: server for server in servers}
    words = frozenset(_WORD.findall(code))

    def output_of(server: ServerEntry, tool: ToolEntry) -> ToolOutput | None:
        return outputs[server.server_id, tool.tool_name]

    def some(server_id: str, room: int) -> Part:
        ordered = sorted(by_id[server_id].tools, key=lambda tool: tool.export_name not in words)
        return Part(*ServerText(by_id[server_id], ordered, output_of).within(room))

    whole = {server_id: declare_server(server, outputs=output_of) for server_id, server in by_id.items()}
    parts = shared_out({server_id: len(text) for server_id, text in whole.items()}, room, some)
    return {
        server_id: whole[server_id] if part is None else part.text + _rest(server_id, part.rest)
        for server_id, part in parts.items()
    }


def _rest(server_id: str, names: Sequence[str]) -> str:
    return (
        f"// Not declared here: {first_few(names, MAX_NAMES)}. "
        f'Read {resource_uri(server_id)}, or await getTool("{server_id}", name) of "@codemode/discovery".\n'
    )
