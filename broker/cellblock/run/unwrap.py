"""Turns an MCP tool result into the value a script gets (Code Mode specification, section 5.3.2)."""

from __future__ import annotations

import json
from typing import Any

import mcp_types as types

from cellblock.base.errors import Certainty, ToolCallError
from cellblock.base.json import is_object
from cellblock.base.offload.raw import RawJson
from cellblock.run import payload
from cellblock.tools.catalog.outputs import ResultKind
from cellblock.tools.upstream.lenience import as_sent, kept_of
from cellblock.types.learning.sample import TooDeep, parse_document

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
            has the text itself). The text is the JSON of it.
        box: Gives this property of structured content that has no other (a setting).

    Raises:
        ToolCallError: The result is an error (`isError`).
        PayloadError: The text is JSON that is nested too deeply to be parsed.
    """
    if result.is_error:
        raise _tool_error(result, server, tool)
    structured = _structured(result)
    if structured:
        return _out_of(box, structured[0])
    text = _only_text(result)
    if text is None:
        return as_sent(result)
    try:
        return RawJson(text.encode()) if parse_text and parse_document(text) is not None else text
    except TooDeep as error:
        raise payload.PayloadError(str(error)) from None


def encoded(unwrapped: Any) -> bytes:
    """Gives the JSON of what `unwrap` gave. Raises PayloadError."""
    return unwrapped.raw if isinstance(unwrapped, RawJson) else payload.encode(unwrapped)


def _structured(result: types.CallToolResult) -> tuple[Any, ...]:
    """Gives the structured content, which may be null, or nothing."""
    kept = kept_of(result)
    if "structuredContent" in kept:
        return (kept["structuredContent"],)
    return () if result.structured_content is None else (result.structured_content,)


def _only_text(result: types.CallToolResult) -> str | None:
    if len(result.content) != 1 or "content" in kept_of(result):
        return None
    [block] = result.content
    return block.text if isinstance(block, types.TextContent) else None


def _out_of(box: str | None, content: Any) -> Any:
    return content[box] if box is not None and is_object(content) and list(content) == [box] else content


def kind_of(result: types.CallToolResult, unwrapped: Any) -> ResultKind:
    """Says which of the rules gave a value; for who learns what tools return."""
    if _structured(result):
        return "value"
    if _only_text(result) is not None:
        return "text" if isinstance(unwrapped, str) else "json"
    return "result"


def error_text(result: types.CallToolResult) -> str:
    """Gives what a result says that is an error: its texts, else its structured content; may be empty."""
    texts = [block.text for block in result.content if isinstance(block, types.TextContent)]
    text = "\n".join(texts).strip()
    structured = _structured(result)
    if text or not structured:
        return text
    return json.dumps(structured[0], ensure_ascii=False, default=str)


def _tool_error(result: types.CallToolResult, server: str, tool: str) -> ToolCallError:
    text = error_text(result) or "no message"
    if len(text) > MAX_ERROR_TEXT:
        text = text[:MAX_ERROR_TEXT] + "…"
    return ToolCallError(
        text,
        hint="Read the tool's message and correct the call.",
        certainty=Certainty.COMPLETED,
        summary="the tool answered with an error",
        serverId=server,
        toolName=tool,
        result=as_sent(result),
    )
