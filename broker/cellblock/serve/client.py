"""Says who sends an MCP request: the client, and on whose behalf."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mcp.server.context import ServerRequestContext

from cellblock.base.json import is_object

Context = ServerRequestContext[dict[str, Any], Any]


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
    if context.method == "initialize":
        info: object = (context.params or {}).get("clientInfo")
        name: object = info.get("name") if is_object(info) else None
    else:
        known = context.session.client_params
        name = known.client_info.name if known is not None else None
    return name if isinstance(name, str) else ""
