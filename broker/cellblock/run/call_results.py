"""Makes of a tool's result what a script gets, as JSON."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from cellblock.base.account import Account, Metered
from cellblock.base.errors import Certainty, ToolCallError
from cellblock.base.raw_json import LIGHT_BYTES
from cellblock.base.steps import next_step
from cellblock.base.weight import is_small
from cellblock.run import payload
from cellblock.run.unwrap import unwrap
from cellblock.tools.catalog.model import ToolEntry
from cellblock.tools.catalog.outputs import ResultKind
from cellblock.tools.upstream.definitions import shown
from cellblock.tools.upstream.wire.results import ResourceResult, ToolResult


class FoundResult(NamedTuple):
    """Holds what the script gets, and which rule gave it."""

    body: bytes
    kind: ResultKind


async def result_of(
    result: Any, server: str, tool: ToolEntry, max_bytes: int, account: Account | None = None
) -> FoundResult:
    """Makes the JSON for the script; of large data, which a Python tool gave, in a thread beside the loop.

    Args:
        result: A `ToolResult`, a `ResourceResult`, or the plain data that a Python tool gave.
        server: The server's id.
        tool: The tool.
        max_bytes: Cap of the JSON.
        account: Of the run.

    Raises:
        ToolCallError: The result is an error, has no JSON form, or is over the cap.
    """
    kind: ResultKind = "value"
    try:
        if isinstance(result, ToolResult):
            if len(result.body) > LIGHT_BYTES:
                await next_step()
            body, kind = unwrap(
                result, server=server, tool=tool.tool_name, parse_text=tool.parse_text, box=tool.box
            )
        elif isinstance(result, ResourceResult):
            body, is_text = result.for_script()
            kind = "text" if is_text else kind
        elif is_small(result):
            body = payload.encode(result)
        else:
            body = await asyncio.to_thread(_encoded_in_steps, result, max_bytes, account)
    except payload.PayloadError as error:
        raise _no_form(tool, str(error)) from None
    except payload.TooLong as error:
        raise _too_large(tool, error.size, max_bytes) from None
    if len(body) > max_bytes:
        raise _too_large(tool, len(body), max_bytes)
    return FoundResult(body, kind)


def _encoded_in_steps(value: Any, max_bytes: int, account: Account | None) -> bytes:
    with Metered(account):
        return payload.encode_in_steps(value, max_bytes)


def _too_large(tool: ToolEntry, size: int, most: int) -> ToolCallError:
    return ToolCallError(
        f"{shown(tool.tool_name)} gave {size} bytes, over the maximum of {most}.",
        hint="Ask for less at a time, for example with a limit or a filter.",
        certainty=Certainty.COMPLETED,
    )


def _no_form(tool: ToolEntry, why: str) -> ToolCallError:
    return ToolCallError(
        f"{shown(tool.tool_name)} gave a result that has no JSON form: {why}.",
        hint="The tool has run; report this to its authors.",
        certainty=Certainty.COMPLETED,
    )
