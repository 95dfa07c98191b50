"""An overview says what servers together can read and whom they can tell, whether flows are on or off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cellblock.base.errors import first_few
from cellblock.base.settings.policy import PolicySettings
from cellblock.base.settings.server import ServerConfig
from cellblock.run.flows.rules import FlowRules
from cellblock.tools.catalog.model import Catalog
from cellblock.tools.upstream.definitions import shown

MAX_NAMED: Final = 5
"""Bounds the tools of one server that are named."""


def overview(settings: PolicySettings, servers: Mapping[str, ServerConfig], catalog: Catalog) -> list[str]:
    """Returns a line for each server, and one for all of them."""
    rules = FlowRules(settings, servers)
    untrusted, private, sends = list[str](), list[str](), list[str]()
    lines: list[str] = []
    for server_id, server in catalog.servers.items():
        flows = [(tool.tool_name, rules.of(server, tool)) for tool in server.callable]
        told = [shown(name) for name, flow in flows if flow.sink is None]
        sources = sorted({flow.said_by for _, flow in flows})
        if any(not flow.result().trusted for _, flow in flows):
            untrusted.append(server_id)
        if any(flow.result().secrecy is not None for _, flow in flows):
            private.append(server_id)
        if told:
            sends.append(server_id)
        results = first_few(sorted({str(flow.result()) for _, flow in flows}), MAX_NAMED)
        tells = (
            f"everybody may see calls of {first_few(told, MAX_NAMED)}"
            if told
            else "not everybody may see its calls"
        )
        lines.append(f"{server_id} ({', '.join(sources)}): results are {results}; {tells}")
    if untrusted and private and sends:
        on = "policy.flows is on" if settings.flows != "off" else "nothing stops it: policy.flows is off"
        lines.append(
            f"Together they read what strangers write ({first_few(untrusted, MAX_NAMED)}), read what is private "
            f"({first_few(private, MAX_NAMED)}), and tell everybody ({first_few(sends, MAX_NAMED)}); {on}."
        )
    return lines
