"""What a script gets of a tool's result, as JSON."""

from __future__ import annotations

from typing import Any, NamedTuple

import mcp_types as types

from cellblock.catalog.model import ToolEntry
from cellblock.errors import Certainty, ToolCallError
from cellblock.execution import payload
from cellblock.execution.unwrap import kind_of, unwrap
from cellblock.schemas.observation import Kind
from cellblock.schemas.sample import UNREAD
from cellblock.upstream.heavy import heavy_value


class FoundResult(NamedTuple):
    """What the script gets, which rule gave it, and what the JSON was made of, where that is here."""

    body: bytes
    kind: Kind
    value: Any


def result_of(result: Any, server: str, tool: ToolEntry, max_bytes: int) -> FoundResult:
    """The JSON for the script.

    Args:
        result: A `CallToolResult`, or the plain data that a Python tool gave.
        server: The server's id.
        tool: The tool.
        max_bytes: Cap of the JSON.

    Raises:
        ToolCallError: The result is an error, has no JSON form, or is over the cap.
    """
    kind: Kind = "value"
    value = result
    if isinstance(result, types.CallToolResult):
        heavy = heavy_value(result)
        if heavy is not None:
            if heavy.no_form is not None:
                raise _no_form(tool, heavy.no_form)
            return FoundResult(_capped(heavy.body, tool, max_bytes), heavy.kind, UNREAD)
        value = unwrap(result, server=server, tool=tool.tool_name, parse_text=tool.parse_text, box=tool.box)
        kind = kind_of(result, value)
    try:
        body = payload.encode(value)
    except payload.PayloadError as error:
        raise _no_form(tool, str(error)) from None
    return FoundResult(_capped(body, tool, max_bytes), kind, value)


def _capped(body: bytes, tool: ToolEntry, max_bytes: int) -> bytes:
    if len(body) > max_bytes:
        raise ToolCallError(
            f"{tool.tool_name} gave {len(body)} bytes, over the maximum of {max_bytes}.",
            hint="Ask for less at a time, for example with a limit or a filter.",
            certainty=Certainty.COMPLETED,
        )
    return body


def _no_form(tool: ToolEntry, why: str) -> ToolCallError:
    return ToolCallError(
        f"{tool.tool_name} gave a result that has no JSON form: {why}.",
        hint="The tool has run; report this to its authors.",
        certainty=Certainty.COMPLETED,
    )
