"""Patterns says which tools are meant: `server.tool`, with `*` for any characters within either part."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from cellblock.tools.catalog.model import ToolEntry


def fits(pattern: str, server_id: str, tool: ToolEntry) -> bool:
    """Says whether a pattern fits this tool. A server's id has no dot, so the first one ends it."""
    if pattern == "*":
        return True
    server, _, name = pattern.partition(".")
    return glob(server, server_id) and (glob(name, tool.tool_name) or glob(name, tool.export_name))


def may_fit_server(pattern: str, server_id: str) -> bool:
    """Says whether a pattern could be of a tool of this server, whichever tools it has."""
    return pattern == "*" or glob(pattern.partition(".")[0], server_id)


def any_fits(patterns: Iterable[str], server_id: str, tool: ToolEntry) -> bool:
    return any(fits(pattern, server_id, tool) for pattern in patterns)


def glob(pattern: str, text: str) -> bool:
    """Says whether a whole text fits a pattern. Takes time linear in the text, for each `*` that it reaches at most:
    requests bring patterns of their own."""
    parts = _parts(pattern)
    first, last = parts[0], parts[-1]
    if len(parts) == 1:
        return first == text
    if not text.startswith(first):
        return False
    at = len(first)
    for part in parts[1:-1]:
        found = text.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return len(text) - at >= len(last) and text.endswith(last)


@lru_cache(maxsize=2_000)
def _parts(pattern: str) -> tuple[str, ...]:
    """Returns what stands before, between and behind the stars of a pattern; stars in a row are one."""
    first, *rest = pattern.split("*")
    return (first, *(part for part in rest[:-1] if part), rest[-1]) if rest else (first,)
