"""What one broker tells another of a failed call."""

from __future__ import annotations

import json

import mcp_types as types
import pytest
from mcp import MCPError

from cellblock.base.errors import AuthenticationFailed, Certainty, ToolCallError
from cellblock.upstream import failures


@pytest.mark.parametrize(
    "failure",
    [
        failures.timed_out("plain", "echo", 30),
        failures.refused("plain", "echo", 401, (None, "log in")),
        ToolCallError("m", hint="h", certainty=Certainty.NOT_STARTED, summary="s"),
    ],
)
def test_a_failure_is_the_same_at_the_other_broker(failure: ToolCallError) -> None:
    failure.rpc_code = -32602
    told = types.ErrorData.model_validate_json(
        json.dumps({"code": -32602, "message": failure.message, "data": failures.as_data(failure)})
    )
    found = failures.carried(MCPError.from_error_data(told))
    assert found is not None and type(found) is type(failure) and found.as_json() == failure.as_json()
    assert (found.summary, found.rpc_code) == (failure.summary, -32602)
    assert isinstance(found, AuthenticationFailed) is ("401" in failure.message)


@pytest.mark.parametrize("data", [None, "text", {"cellblock/failure": "text"}, {"another": {}}])
def test_what_a_server_says_itself_is_no_failure_of_a_broker(data: object) -> None:
    assert failures.carried(MCPError(-32000, "so", data)) is None


def test_what_has_not_begun_is_known() -> None:
    assert failures.is_elsewhere(MCPError(-32603, failures.MOVED), None)
    assert failures.is_elsewhere(MCPError(-32600, "Session terminated"), 404)
    assert not failures.is_elsewhere(MCPError(-32603, failures.HTTP_REFUSED), 503)
    assert not failures.is_elsewhere(MCPError(-32000, "Connection closed"), None)
    assert failures.not_taken("plain", "echo", 429).certainty is Certainty.NOT_STARTED
