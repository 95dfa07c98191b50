"""From an MCP tool result to the value a script gets (Code Mode specification, section 5.3.2)."""

from __future__ import annotations

import json
from typing import Any, cast

import mcp_types as types

from cellblock.errors import Certainty, ToolCallError
from cellblock.schemas.observation import Kind
from cellblock.schemas.sample import parse_document

MAX_ERROR_TEXT = 2_000


def unwrap(
    result: types.CallToolResult, *, server: str, tool: str, parse_text: bool = False, box: str | None = None
) -> Any:
    """Applies the rules in order: structured content, a single text block, else the full result.

    Args:
        result: What the server answered.
        server: For the error.
        tool: For the error.
        parse_text: Gives what a single text block says when it is a JSON object or array (a setting; section 5.3.2
            has the text itself).
        box: Gives this property of structured content that has no other (a setting).

    Raises:
        ToolCallError: The result is an error (`isError`).
    """
    if result.is_error:
        raise _tool_error(result, server, tool)
    if result.structured_content is not None:
        return _out_of(box, result.structured_content)
    if len(result.content) == 1 and isinstance(result.content[0], types.TextContent):
        text = result.content[0].text
        document = parse_document(text) if parse_text else None
        return text if document is None else document
    return full_result(result)


def _out_of(box: str | None, content: Any) -> Any:
    if box is None or not isinstance(content, dict):
        return content
    boxed = cast("dict[str, Any]", content)
    return boxed[box] if list(boxed) == [box] else boxed


def kind_of(result: types.CallToolResult, unwrapped: Any) -> Kind:
    """Which of the rules gave a value; for who learns what tools return."""
    if result.structured_content is not None:
        return "value"
    if len(result.content) == 1 and isinstance(result.content[0], types.TextContent):
        return "text" if isinstance(unwrapped, str) else "json"
    return "result"


def full_result(result: types.CallToolResult) -> dict[str, Any]:
    """The MCP result as JSON data, as the server sent it; binary stays base64 text."""
    return result.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"result_type"})


def _tool_error(result: types.CallToolResult, server: str, tool: str) -> ToolCallError:
    texts = [block.text for block in result.content if isinstance(block, types.TextContent)]
    text = "\n".join(texts).strip()
    if not text and result.structured_content is not None:
        text = json.dumps(result.structured_content, ensure_ascii=False, default=str)
    text = text or "no message"
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
