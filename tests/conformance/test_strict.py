"""The clauses that the profile `strict` is about, with it: nothing but what the specification has.

`bash scripts/conformance --strict` runs the whole suite so.
"""

from collections.abc import AsyncIterator

import mcp_types as types
import pytest
from mcp import Client, MCPError

from cellblock import Broker
from cellblock.serve.mcp.mcp_server import FrontServer
from conformance.world import broker_with, run
from support.waits import within


@pytest.fixture(scope="module")
async def strict(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    async with broker_with(tmp_path_factory.mktemp("strict"), {}, frontend={"profile": "strict"}) as made:
        yield made


@pytest.mark.clause("3.2.2.a")
@pytest.mark.parametrize("code", ["export default 1;", "async () => 1", "function main() { return 1 }"])
async def test_only_an_assignment_is_a_result(strict: Broker, code: str) -> None:
    """A default export is an export, and a function that nothing calls is not called."""
    response = await run(strict, code)
    assert response.ok and response.as_json()["result"] is None
    assert (await run(strict, f"globalThis.__codemode_result__ = 2;\n{code}")).result == 2


@pytest.mark.clause("3.2.1.a")
async def test_a_module_does_not_return(strict: Broker) -> None:
    """A `return` at the top level is the syntax error that it is in every ES module."""
    response = await run(strict, "return 1;")
    assert [(found.code, found.path) for found in response.diagnostics] == [("SYNTAX_ERROR", "script.js:1:1")]


@pytest.mark.clause("2.1")
async def test_the_tool_has_one_name(strict: Broker) -> None:
    """Whatever the client is."""
    info = types.Implementation(name="claude-ai", version="1")
    async with Client(FrontServer(strict, version="1").open(), client_info=info) as client:
        assert [tool.name for tool in (await within(client.list_tools())).tools] == ["codemode.run"]
        with pytest.raises(MCPError, match=r"codemode\.run"):
            await within(client.session.call_tool("codemode_run", {"code": "1"}))
