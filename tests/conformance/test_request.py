"""Sections 2 and 3.2: the one tool, what a request may be, and what is refused before a worker is used."""

from pathlib import Path
from typing import Any

import psutil
import pytest
from mcp import MCPError

from cellblock import Broker
from cellblock.run.request import RequestBody
from conformance.world import CAUGHT, CONTRACT, Agent, broker_with, run, value
from support.cellblock_zygote import pid_of
from support.entries import REUSE, WARM, plain_server, settings
from support.processes import command_line, workers_of
from support.responses import succeeded
from support.waits import steady, until, within

REFUSED: dict[str, dict[str, Any]] = {
    "no code": {},
    "code is null": {"code": None},
    "code is a number": {"code": 1},
    "code is a list": {"code": ["1"]},
    "code is an object": {"code": {"source": "1"}},
    "limits is a list": {"code": "1", "limits": []},
    "limits is a string": {"code": "1", "limits": "timeoutMs=1"},
    "limits is a number": {"code": "1", "limits": 1000},
    "timeoutMs is a string": {"code": "1", "limits": {"timeoutMs": "1000"}},
    "timeoutMs is a fraction": {"code": "1", "limits": {"timeoutMs": 10.5}},
    "timeoutMs is a boolean": {"code": "1", "limits": {"timeoutMs": True}},
    "timeoutMs is negative": {"code": "1", "limits": {"timeoutMs": -1}},
    "maxMemoryBytes is a list": {"code": "1", "limits": {"maxMemoryBytes": [1]}},
    "maxLogBytes is negative": {"code": "1", "limits": {"maxLogBytes": -1}},
    "maxToolCalls is an object": {"code": "1", "limits": {"maxToolCalls": {}}},
    "requestedCapabilities is a string": {"code": "1", "requestedCapabilities": "contract"},
    "requestedCapabilities has a number": {"code": "1", "requestedCapabilities": ["contract", 1]},
    "requestedCapabilities is an object": {"code": "1", "requestedCapabilities": {"contract": True}},
    "a field that there is not": {"code": "1", "language": "python"},
    "a field with another case": {"code": "1", "requested_capabilities": []},
}


def workers() -> set[int]:
    """Process ids of the Deno processes of the agent's Cellblock."""
    # Not all descendants: between fork and exec the children of a daemon carry its command line.
    served = [child for child in psutil.Process().children() if "serve" in command_line(child)]
    below = [child for server in served for child in psutil.Process(pid_of(server.pid)).children()]
    hosts = [pid_of(child.pid) for child in below if "cellblock_worker" in command_line(child)]
    return {worker.pid for host in hosts for worker in workers_of(host)}


@pytest.mark.clause("2.1")
async def test_an_agent_sees_one_tool(agent: Agent) -> None:
    """`codemode.run`, and no other, whatever upstream servers bring along."""
    listed = await agent.client.list_tools()
    assert [tool.name for tool in listed.tools] == ["codemode.run"]
    assert listed.next_cursor is None


@pytest.mark.clause("2.1")
@pytest.mark.parametrize("name", ["echo", "contract.echo", "codemode.Run", "codemode-run", "run"])
async def test_no_other_tool_can_be_called(agent: Agent, name: str) -> None:
    """Upstream tools are reached through scripts only."""
    with pytest.raises(MCPError, match=r"codemode\.run"):
        await within(agent.client.session.call_tool(name, {"code": "1"}))


@pytest.mark.clause("3.2.a")
async def test_the_schema_of_the_tool_says_what_a_request_is(agent: Agent) -> None:
    """What the agent's model is shown."""
    [tool] = (await agent.client.list_tools()).tools
    schema = tool.input_schema
    assert schema["type"] == "object" and schema["required"] == ["code"]
    assert {name: part["type"] for name, part in schema["properties"].items()} == {
        "code": "string",
        "limits": "object",
        "requestedCapabilities": "array",
        "typecheck": "string",
        "grants": "object",
        "plan": "boolean",
        "durable": "boolean",
        "reuse": "boolean",
        "trace": "string",
    }
    # Clients may refuse what it does not name. `propose` is named to those alone that may propose.
    assert schema["properties"].keys() | {"propose"} == {
        field.alias for field in RequestBody.model_fields.values()
    }
    assert schema["properties"]["requestedCapabilities"]["items"] == {"type": "string"}
    assert schema["properties"]["requestedCapabilities"]["maxItems"] == 200
    # Section 3.2.4: unknown limits are ignored, so no client may refuse them for the schema's sake.
    assert schema["properties"]["limits"].get("additionalProperties", True) is not False


@pytest.mark.clause("3.2.a", "7.3.a")
async def test_what_is_no_request_is_refused_before_a_worker_is_used(agent: Agent) -> None:
    """An error of the tool, with one sentence of what is wrong and one of what to do; workers stay as they are."""
    await until(lambda: len(workers()) >= WARM, "warm workers")
    before = await steady(workers, "the same workers")
    for what, arguments in REFUSED.items():
        result = await agent.call(arguments)
        assert result.is_error, what
        [block] = result.content
        text = block.text  # type: ignore[union-attr]
        sentences = [sentence for sentence in text.rstrip(".").split(". ") if sentence]
        assert len(sentences) >= 2, f"{what}: no hint in {text!r}"
        field = next((name for name in arguments if name != "code"), "code")
        assert field in text, f"{what}: {text!r} does not name {field}"
        assert result.structured_content is None
    # Others may come meanwhile: a host boots workers on its own account too.
    assert before <= workers()
    assert (await agent.run("globalThis.__codemode_result__ = 1"))["result"] == 1
    if not REUSE:
        await until(lambda: not before <= workers(), "the run has used a worker up")


@pytest.mark.clause("3.2.a")
async def test_a_whole_request_is_taken(agent: Agent) -> None:
    """All three fields at once, and the least that there is."""
    code = f"{CONTRACT} globalThis.__codemode_result__ = await contract.one_text();"
    limits = {"timeoutMs": 10_000, "maxMemoryBytes": 64 * 2**20, "maxLogBytes": 1000, "maxToolCalls": 1}
    response = await agent.run(code, limits=limits, requestedCapabilities=["contract"])
    assert (response["result"], response["diagnostics"]) == ("just this", [])
    for code in ("", "// nothing"):
        empty = await agent.run(code, limits={}, requestedCapabilities=[])
        assert [found["code"] for found in empty["diagnostics"]] == ["NO_RESULT"]


@pytest.mark.clause("3.2.4.b")
async def test_unknown_limits_are_ignored(agent: Agent) -> None:
    """Whatever their values are; the known ones beside them hold. A warning names them."""
    limits = {"maxRainbows": 3, "timeoutms": "x", "nested": {"a": [1]}, "__proto__": None, "maxLogBytes": 100}
    response = await agent.run("console.log('x'.repeat(200))", limits=limits)
    told = {found["code"]: found for found in response["diagnostics"]}
    assert told.keys() == {"LIMIT_UNKNOWN", "NO_RESULT"} and told["LIMIT_UNKNOWN"]["severity"] == "warning"
    assert "maxRainbows, timeoutms, nested and 1 more" in told["LIMIT_UNKNOWN"]["message"]
    assert response["logs"][-1]["level"] == "warn" and "100" in response["logs"][-1]["message"]


@pytest.mark.clause("3.2.3.b", "3.2.3.c", "3.3.3.a")
async def test_an_unavailable_capability_is_reported_early(agent: Agent) -> None:
    """One diagnostic for each that cannot be had, none for those that can, and the script runs all the same."""
    requested = ["contract", "broken", "plain", "no-such-server"]
    response = await agent.run("globalThis.__codemode_result__ = 'ran'", requestedCapabilities=requested)
    assert response["result"] == "ran"
    found = response["diagnostics"]
    assert len(found) == 2
    for name, diagnostic in zip(("broken", "no-such-server"), found, strict=True):
        assert diagnostic["severity"] in ("warning", "info")
        assert name in diagnostic["message"] and diagnostic["hint"]


@pytest.mark.clause("3.2.3.c")
async def test_what_is_not_connected_is_not_claimed(agent: Agent) -> None:
    """Neither discovery nor the instructions promise a server that cannot be used."""
    code = """
        import { listServers, searchTools } from "@codemode/discovery";
        const ids = (await listServers()).map((server) => server.serverId);
        const found = (await searchTools("broken")).results.map((tool) => tool.serverId);
        globalThis.__codemode_result__ = [ids, found.includes("broken")];
    """
    assert (await agent.run(code))["result"] == [["contract", "plain"], False]
    shown = (await agent.client.list_tools()).tools[0].description or ""
    for line in shown.splitlines():
        assert "broken" not in line or "Not connected" in line or "Still starting" in line


@pytest.mark.clause("3.2.3.d", "7.3.a")
@pytest.mark.parametrize("server", ["broken", "no-such-server"])
async def test_using_an_unavailable_capability_is_a_structured_error(agent: Agent, server: str) -> None:
    """A ServerNotFoundError that a script can catch; a static import of it fails the script."""
    code = f"""
        import {{ ServerNotFoundError, CodemodeError }} from "@codemode/errors";
        try {{ await import("@codemode/servers/{server}"); }} catch (error) {{
            globalThis.__codemode_result__ = [error instanceof ServerNotFoundError,
                error instanceof CodemodeError, error.message, error.hint];
        }}
    """
    right, base, message, hint = (await agent.run(code, requestedCapabilities=[server]))["result"]
    assert right and base and server in message and hint

    failed = await agent.run(
        f'import * as x from "@codemode/servers/{server}";', requestedCapabilities=[server]
    )
    errors = [found for found in failed["diagnostics"] if found["severity"] == "error"]
    assert [(error["code"], error["errorClass"]) for error in errors] == [
        ("IMPORT_FAILURE", "ServerNotFoundError")
    ]
    assert errors[0]["hint"] and failed["result"] is None


@pytest.mark.clause("3.2.3.a")
async def test_a_requested_server_is_waited_for(tmp_path: Path) -> None:
    """A server that takes four seconds to start is there when a run that asked for it needs it."""
    servers = {"late": plain_server("--start-delay", 4.0)}
    code = 'import * as late from "@codemode/servers/late"; globalThis.__codemode_result__ = await late.echo({ a: 1 });'
    async with Broker(settings(tmp_path, servers)) as broker:
        assert list(broker.catalog.servers) == []
        response = await within(broker.run(code, requested_capabilities=["late"]))
    assert succeeded(response) == '{"a": 1}'


@pytest.mark.clause("3.2.3.d", "10.b")
async def test_a_server_lost_between_import_and_call_is_an_exception(tmp_path: Path) -> None:
    """The server dies in a call; the script catches it and goes on."""
    code = (
        CAUGHT
        + """
        import * as plain from "@codemode/servers/plain";
        import { ToolCallError } from "@codemode/errors";
        const first = await caught(() => plain.die());
        const second = await caught(() => plain.echo());
        globalThis.__codemode_result__ = [first, second].filter((one) => one.hint || "returned" in one).length;
    """
    )
    async with broker_with(tmp_path, {"plain": plain_server()}) as broker:
        assert await value(broker, code) == 2
        assert (await run(broker, "globalThis.__codemode_result__ = 1")).result == 1
