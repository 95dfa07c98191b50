"""Unusual tools pass the SDK's typed messages, and come out as they went in."""

from __future__ import annotations

from typing import Any

import mcp_types as types
import pytest
from mcp.shared.message import SessionMessage

from cellblock.tools.upstream.lenience import as_arguments, malformed_of, restore, schemas_of, soften


def listed(*tools: Any) -> types.ListToolsResult:
    """What the SDK makes of a tool list after softening."""
    response = types.JSONRPCResponse(jsonrpc="2.0", id=1, result={"tools": list(tools)})
    item = soften(SessionMessage(response))
    assert isinstance(item, SessionMessage) and isinstance(item.message, types.JSONRPCResponse)
    return types.ListToolsResult.model_validate(item.message.result, by_name=False)


@pytest.mark.parametrize(
    "schema",
    [{}, {"type": "array", "items": {"type": "integer"}}, {"type": "string"}, True, {"anyOf": [{}]}],
)
def test_any_input_schema_comes_back(schema: Any) -> None:
    [tool] = listed({"name": "odd", "inputSchema": schema}).tools
    assert schemas_of(tool) == (schema, None)


def test_an_absent_schema_is_none() -> None:
    [tool] = listed({"name": "odd"}).tools
    assert schemas_of(tool) == (None, None)


def test_an_output_schema_of_another_root_comes_back() -> None:
    output = {"type": "array"}
    [tool] = listed({"name": "odd", "inputSchema": {"type": "object"}, "outputSchema": output}).tools
    assert schemas_of(tool) == ({"type": "object"}, output)


def test_an_ordinary_tool_is_untouched() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    [tool] = listed({"name": "plain", "inputSchema": schema, "_meta": {"x": 1}}).tools
    assert schemas_of(tool) == (schema, None)
    assert tool.meta == {"x": 1}


@pytest.mark.parametrize("bad", [5, None, {}, {"name": 5}, {"name": "x", "description": []}, {"name": ""}])
def test_a_malformed_tool_costs_no_other(bad: Any) -> None:
    page = listed(bad, {"name": "good"})
    assert [tool.name for tool in page.tools] == ["good"]
    assert len(malformed_of(page)) == 1


def test_other_messages_pass_as_they_are() -> None:
    error = ValueError("x")
    assert soften(error) is error
    response = types.JSONRPCResponse(jsonrpc="2.0", id=1, result={"content": [], "tools": "no list"})
    soften(SessionMessage(response))
    assert response.result == {"content": [], "tools": "no list"}


@pytest.mark.parametrize("value", [[1, 2], "text", 0, False, None])
def test_an_input_that_is_no_object_is_on_the_wire_as_it_is(value: Any) -> None:
    params = {"name": "odd", "arguments": as_arguments(value)}
    request = types.JSONRPCRequest(jsonrpc="2.0", id=1, method="tools/call", params=params)
    sent = restore(SessionMessage(request)).message
    assert isinstance(sent, types.JSONRPCRequest) and sent.params is not None
    assert sent.params["arguments"] == value


def test_an_object_is_its_own_arguments() -> None:
    value = {"a": 1}
    assert as_arguments(value) is value
