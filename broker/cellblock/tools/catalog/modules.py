"""Makes the text of `@codemode/*` modules, as `data:` URLs that a worker can import without any permission.

Each is a few lines that take ready-made objects from the sandbox's boot hook and export them. They are evaluated
before the script, and the hook is gone by then.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from cellblock.base.kept import KeptByIdentity
from cellblock.tools.catalog.model import SCRIPTS, Catalog, ServerEntry

HOOK: Final = 'globalThis["__cellblock_boot__"]'

ERRORS_SPECIFIER: Final = "@codemode/errors"
DISCOVERY_SPECIFIER: Final = "@codemode/discovery"
SERVERS_PREFIX: Final = "@codemode/servers/"

IMPORT_SPECIFIER: Final = "@codemode/internal-import"

ERROR_CLASSES: Final = (
    "CodemodeError",
    "SchemaValidationError",
    "ToolNotFoundError",
    "ServerNotFoundError",
    "ToolCallError",
    "AuthenticationError",
    "SandboxLimitError",
)
_URLS_KEPT: Final = 256
"""Bounds the server modules held; a server whose tools change leaves its old module behind."""

DISCOVERY_EXPORTS: Final = (
    "specVersion",
    "listServers",
    "describeServer",
    "listTools",
    "getTool",
    "searchTools",
    "describe",
    "readResource",
)


def data_url(source: str, media_type: str = "text/javascript") -> str:
    """Gives a `data:` URL that imports as a module."""
    return f"data:{media_type};base64,{base64.b64encode(source.encode('utf-8', 'replace')).decode()}"


@lru_cache(maxsize=1)
def fixed_modules() -> Mapping[str, str]:
    """Gives specifier to URL of the modules that do not depend on the catalog."""
    return {
        ERRORS_SPECIFIER: data_url(f"export const {{ {', '.join(ERROR_CLASSES)} }} = {HOOK}.errors;"),
        DISCOVERY_SPECIFIER: data_url(
            f"export const {{ {', '.join(DISCOVERY_EXPORTS)} }} = {HOOK}.discovery;"
        ),
        IMPORT_SPECIFIER: data_url(f"export const {{ importable, inTurn, load }} = {HOOK};"),
    }


def server_module(server: ServerEntry) -> str:
    """Gives the module text of one server: its tools and `__meta__` (section 5.1).

    Bindings get names of our own and are exported under the tools' names, since an export may be called `eval`
    or `enum` where a variable may not. JSON in ASCII is a JavaScript string literal, whatever the text holds.
    """
    lines = [f"const s = {HOOK}.server({json.dumps(server.server_id)});"]
    exports: list[str] = []
    for index, tool in enumerate(server.tools):
        names = f"{json.dumps(tool.tool_name)}, {json.dumps(tool.export_name)}"
        exact = ", true" if tool.exact else ""
        lines.append(f"const t{index} = s.tool({names}, {1 if tool.input_schema else 0}{exact});")
        exports.append(f"t{index} as {tool.export_name}")
    lines.append(f"const meta = s.meta({json.dumps(json.dumps(server_meta(server)))});")
    exports.append("meta as __meta__")
    lines.append(f"export {{ {', '.join(exports)} }};")
    return "\n".join(lines)


def server_meta(server: ServerEntry) -> dict[str, Any]:
    """Makes `__meta__` of one server (section 5.2)."""
    meta: dict[str, Any] = {"serverId": server.server_id, "serverName": server.server_name}
    if server.version:
        meta["serverVersion"] = server.version
    tools: list[dict[str, str]] = []
    for tool in server.tools:
        entry = {"toolName": tool.tool_name, "exportName": tool.export_name}
        if tool.description is not None:
            entry["description"] = tool.description
        tools.append(entry)
    meta["tools"] = tools
    return meta


def server_of(catalog: Catalog, specifier: str) -> ServerEntry | None:
    """Gives the server whose module a specifier names; None where the catalog has none."""
    if specifier == SCRIPTS:
        return next((one for one in catalog.servers.values() if one.is_scripts), None)
    return (
        catalog.servers.get(specifier[len(SERVERS_PREFIX) :])
        if specifier.startswith(SERVERS_PREFIX)
        else None
    )


class ModuleUrls:
    """Keeps the URLs of a catalog's modules, made once per server entry and kept."""

    def __init__(self) -> None:
        self._urls = KeptByIdentity[ServerEntry, str](
            lambda server: data_url(server_module(server)), _URLS_KEPT
        )

    def url_for(self, catalog: Catalog, specifier: str) -> str | None:
        """Gives the URL of a specifier, or None when the catalog has no such module."""
        fixed = fixed_modules().get(specifier)
        if fixed is not None:
            return fixed
        server = server_of(catalog, specifier)
        return None if server is None else self._urls.get_or_make(server)
