"""From an MCP result to the script's value: the rules of section 5.3.2, in their order."""

from __future__ import annotations

from typing import Any

import mcp_types as types
import pytest
from mcp_types.methods import validate_server_result

from cellblock.base.errors import Certainty, ToolCallError
from cellblock.run.unwrap import MAX_ERROR_TEXT, kind_of, unwrap
from cellblock.tools.upstream import lenience


def text(value: str) -> types.TextContent:
    return types.TextContent(text=value)


IMAGE = types.ImageContent(data="aGk=", mime_type="image/png")


def result(*content: Any, **fields: Any) -> types.CallToolResult:
    return types.CallToolResult(content=list(content), **fields)


def value_of(made: types.CallToolResult) -> Any:
    return unwrap(made, server="s", tool="t")


@pytest.mark.parametrize("structured", [{"a": 1}, {}])
def test_structured_content_wins_over_content(structured: dict[str, Any]) -> None:
    assert value_of(result(text("ignored"), IMAGE, structured_content=structured)) == structured


def softened(**fields: Any) -> types.CallToolResult:
    """What comes of a server's answer, after the SDK's checks of both forms that it has of results."""
    answer = {"resultType": "complete", **fields}
    lenience.soften_result(answer)
    for version in ("2025-11-25", "2026-07-28"):
        validate_server_result("tools/call", version, answer)
    return types.CallToolResult.model_validate(answer, by_name=False)


@pytest.mark.parametrize("value", [[1, None], [], "text", 0, 1.5, False, None])
def test_structured_content_may_be_anything(value: Any) -> None:
    made = softened(content=[{"type": "text", "text": "not this"}], structuredContent=value)
    assert (value_of(made), kind_of(made, value)) == (value, "value")
    assert value_of(softened(structuredContent=value)) == value


@pytest.mark.parametrize("others", [[], [{"type": "text", "text": "beside it"}]])
def test_blocks_of_unknown_types_give_the_whole_result(others: list[Any]) -> None:
    content = [*others, {"type": "widget", "rows": [None]}]
    made = softened(content=content, _meta={"a": None})
    assert value_of(made) == {"content": content, "isError": False, "_meta": {"a": None}}
    assert kind_of(made, {}) == "result"
    with pytest.raises(ToolCallError, match="beside it" if others else "no message") as caught:
        value_of(softened(content=content, isError=True))
    assert caught.value.details["result"] == {"content": content, "isError": True}


def test_what_a_server_puts_in_our_place_is_not_believed() -> None:
    mine = {"cellblock/kept": {"structuredContent": 1}}
    assert value_of(softened(content=[{"type": "text", "text": "a"}], _meta=mine)) == "a"


@pytest.mark.parametrize("value", ["hello", "", '{"a": 1}', "0"])
def test_a_single_text_is_that_text_unparsed(value: str) -> None:
    assert value_of(result(text(value))) == value


def test_binary_content_gives_the_whole_result_with_base64() -> None:
    assert value_of(result(IMAGE)) == {
        "content": [{"type": "image", "data": "aGk=", "mimeType": "image/png"}],
        "isError": False,
    }
    mixed = value_of(result(text("a"), types.AudioContent(data="aGk=", mime_type="audio/wav")))
    assert [block["type"] for block in mixed["content"]] == ["text", "audio"]


@pytest.mark.parametrize("blocks", [[], [text("a"), text("b")]], ids=["none", "two texts"])
def test_everything_else_gives_the_whole_result(blocks: list[types.TextContent]) -> None:
    value = value_of(result(*blocks))
    assert [block["text"] for block in value["content"]] == [block.text for block in blocks]
    assert not any("_" in key for key in value)


def test_an_error_is_raised_with_its_text_and_the_whole_result() -> None:
    made = result(text("no such"), IMAGE, text("file"), is_error=True, structured_content={"a": 1})
    with pytest.raises(ToolCallError) as caught:
        value_of(made)
    error = caught.value
    assert error.message == "no such\nfile" and error.hint
    assert error.certainty is Certainty.COMPLETED
    assert (error.details["serverId"], error.details["toolName"]) == ("s", "t")
    whole: Any = error.details["result"]
    assert whole["isError"] is True and whole["structuredContent"] == {"a": 1}


def test_error_texts_are_never_empty_and_never_long() -> None:
    with pytest.raises(ToolCallError, match="no message"):
        value_of(result(is_error=True))
    with pytest.raises(ToolCallError) as caught:
        value_of(result(text("x" * 10_000), is_error=True))
    assert caught.value.message == "x" * MAX_ERROR_TEXT + "…"
