"""The declarations that go into an agent's context, within a budget (Code Mode specification, section 4.4).

The text depends on the catalog and the budget alone, byte for byte, so that a model's prompt cache holds. Servers
come in the order of the configuration. A server whose declarations no longer fit is named with its functions, and
its declarations are an MCP resource and a discovery call away.
"""

from __future__ import annotations

from typing import Final

from cellblock.catalog.model import Catalog, ServerEntry
from cellblock.catalog.typescript import declare_server, declare_shared

RESOURCE_PREFIX: Final = "codemode://servers/"
RESOURCE_SUFFIX: Final = ".d.ts"

MAX_NAMES: Final = 100
"""Function names listed for a server beyond the budget."""


def resource_uri(server_id: str) -> str:
    """URI of the resource with one server's whole declarations."""
    return f"{RESOURCE_PREFIX}{server_id}{RESOURCE_SUFFIX}"


def server_of_uri(uri: str) -> str | None:
    """The server id in a resource URI, or None when it is no URI of ours."""
    if not uri.startswith(RESOURCE_PREFIX) or not uri.endswith(RESOURCE_SUFFIX):
        return None
    return uri[len(RESOURCE_PREFIX) : -len(RESOURCE_SUFFIX)]


def declarations_in_budget(catalog: Catalog, budget: int) -> str:
    """Declarations of as many servers as fit, whole; the rest by name.

    Args:
        catalog: The servers to declare.
        budget: Characters that the declarations may take; the summaries of the rest come on top.
    """
    if not catalog.servers:
        return "No server is connected."
    left = budget
    whole: list[str] = []
    named: list[str] = []
    for server in catalog.servers.values():
        text = declare_server(server, shared=True)
        if len(text) <= left:
            left -= len(text)
            whole.append(text)
        else:
            named.append(_summary(server))
    parts: list[str] = []
    if whole:
        parts += ["```ts", declare_shared() + "\n" + "\n".join(whole).rstrip(), "```"]
    if named:
        parts += ["More servers; get a function's declaration with getTool(id, name) or searchTools:", *named]
    return "\n".join(parts)


def _summary(server: ServerEntry) -> str:
    names = [tool.export_name for tool in server.tools]
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    shown = ", ".join(names[:MAX_NAMES]) + more
    return f"- @codemode/servers/{server.server_id} ({resource_uri(server.server_id)}): {shown}"
