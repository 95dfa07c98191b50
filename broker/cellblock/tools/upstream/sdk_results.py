"""Makes what the SDK's session is handed in the place of a server's result: it is small and fits the SDK's models, and
what belongs to it stays the bytes that came, beside it. Pure.
"""

from __future__ import annotations

from typing import Any

from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from cellblock.tools.upstream.wire import messages, repair
from cellblock.tools.upstream.wire.errors import AnswerUnreadable
from cellblock.tools.upstream.wire.messages import Result
from cellblock.tools.upstream.wire.results import ToolResult, fields_of


def sdk_result(method: str, found: Result, version: str | None) -> dict[str, Any]:
    """Makes the result of a request that neither greets nor discovers.

    Args:
        method: Of the request.
        found: As the server sent it.
        version: The negotiated revision of MCP.

    Raises:
        AnswerUnreadable: It is too large, or nested too deeply.
    """
    body = found.body
    try:
        if method in ("tools/call", "tasks/result"):
            return _tool_result(found, version)
        if method in repair.LISTS:
            page = repair.page(body, repair.LISTS[method])
            return repair.stub(repair.LISTS[method], page, fields_of(body))
        is_large = len(body) > messages.SMALL_BYTES
        if method in repair.PASSED_ON and (is_large or method == "resources/read"):
            fields = fields_of(body)
            if is_large or bytes(fields.get("resultType", b"")) != b'"input_required"':
                return repair.stub(repair.PASSED_ON[method], body, fields)
        if is_large:
            raise AnswerUnreadable(
                f"it has {len(body)} bytes, more than it may have for what was asked", too_large=True
            )
        return messages.decoded(body)
    except RecursionError:
        raise AnswerUnreadable("it is nested too deeply") from None


def _tool_result(found: Result, version: str | None) -> dict[str, Any]:
    notes = (f"{found.mended[0].upper()}{found.mended[1:]}.",) if found.mended else ()
    result = ToolResult(found.body, notes, null_is_value=version in MODERN_PROTOCOL_VERSIONS)
    if result.field("resultType") == b'"input_required"':
        if len(found.body) > messages.SMALL_BYTES:
            raise AnswerUnreadable("it asks for input, and is too large to be passed on", too_large=True)
        return messages.decoded(found.body)
    return repair.stub("content", result, result.fields)
