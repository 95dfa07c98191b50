"""From an MCP tool result to the value a script gets (Code Mode specification, section 5.3.2)."""

from __future__ import annotations

from typing import Any

import mcp_types as types

from cellblock.errors import Certainty, ToolCallError

MAX_ERROR_TEXT = 2_000


def unwrap(result: types.CallToolResult, *, server: str, tool: str) -> Any:
    """Applies the rules in order: structured content, a single text block, else the full result.

    Raises:
        ToolCallError: The result is an error (`isError`).
    """
    if result.is_error:
        raise _tool_error(result, server, tool)
    if result.structured_content is not None:
        return result.structured_content
    if len(result.content) == 1 and isinstance(result.content[0], types.TextContent):
        return result.content[0].text
    return full_result(result)


def full_result(result: types.CallToolResult) -> dict[str, Any]:
    """The MCP result as JSON data, as the server sent it; binary stays base64 text."""
    return result.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"result_type"})


def _tool_error(result: types.CallToolResult, server: str, tool: str) -> ToolCallError:
    texts = [block.text for block in result.content if isinstance(block, types.TextContent)]
    text = "\n".join(texts).strip() or "no message"
    if len(text) > MAX_ERROR_TEXT:
        text = text[:MAX_ERROR_TEXT] + "…"
    return ToolCallError(
        text,
        hint="Read the tool's message and correct the call.",
        certainty=Certainty.COMPLETED,
        summary="the tool answered with an error",
        serverId=server,
        toolName=tool,
        result=full_result(result),
    )
