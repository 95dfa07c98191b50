"""Sections 2 and 3.2: the one tool, what a request may be, and what is refused before a worker is used."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import mcp_types as types
import psutil
import pytest
from mcp import Client, MCPError

from cellblock import Broker
from cellblock.run.request import RequestBody
from cellblock.serve.mcp.mcp_server import FrontServer
from conformance.world import CAUGHT, CONTRACT, Agent, broker_with, run, value
from support.cellblock_zygote import pid_of
from support.entries import REUSE, WARM, ledger, plain_server, settings
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
    properties = schema["properties"]
    assert {name: part["type"] for name, part in properties.items()} == {
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
    assert properties.keys() | {"propose"} == {field.alias for field in RequestBody.model_fields.values()}
    wanted = {"items": {"type": "string"}, "maxItems": 200}
    assert wanted.items() <= properties["requestedCapabilities"].items()
    # Section 3.2.4: unknown limits are ignored, so no client may refuse them for the schema's sake.
    assert properties["limits"].get("additionalProperties", True) is not False


@pytest.mark.clause("3.2.a", "7.3.a")
async def test_what_is_no_request_is_refused_before_a_worker_is_used(agent: Agent) -> None:
    """An error of the tool, with one sentence of what is wrong and one of what to do; workers stay as they are."""
    await until(lambda: len(workers()) >= WARM, "warm workers")
    before = await steady(workers, "the same workers")
    for what, arguments in REFUSED.items():
        result = await agent.call(arguments)
        assert result.is_error and result.structured_content is None, what
        [block] = result.content
        text = block.text  # type: ignore[union-attr]
        assert len(text.rstrip(".").split(". ")) >= 2, f"{what}: no hint in {text!r}"
        field = next((name for name in arguments if name != "code"), "code")
        assert field in text, f"{what}: {text!r} does not name {field}"
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
    for name, diagnostic in zip(("broken", "no-such-server"), response["diagnostics"], strict=True):
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
    right, base, message, hint = (
        await agent.run(
            f"""
        import {{ ServerNotFoundError, CodemodeError }} from "@codemode/errors";
        try {{ await import("@codemode/servers/{server}"); }} catch (error) {{
            globalThis.__codemode_result__ = [error instanceof ServerNotFoundError,
                error instanceof CodemodeError, error.message, error.hint];
        }}
    """,
            requestedCapabilities=[server],
        )
    )["result"]
    assert right and base and server in message and hint

    failed = await agent.run(
        f'import * as x from "@codemode/servers/{server}";', requestedCapabilities=[server]
    )
    [error] = [found for found in failed["diagnostics"] if found["severity"] == "error"]
    assert (error["code"], error["errorClass"]) == ("IMPORT_FAILURE", "ServerNotFoundError")
    assert error["hint"] and failed["result"] is None


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


SCRIPTS = {
    "nothing": "",
    "a result": "globalThis.__codemode_result__ = { a: [1, null] };",
    "logs and calls": f"{CONTRACT} console.log(await contract.one_text()); await contract.echo();",
    "a syntax error": "const = 1;",
    "an exception": "console.log('before'); throw new Error('x');",
    "a bad import": "import 'node:fs';",
    "a limit": "for (;;) {}",
}


def entries(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    """The schema of a list of objects that have these members and no other."""
    members = {"properties": {**required, **optional}, "required": [*required], "additionalProperties": False}
    return {"type": "array", "items": {"type": "object", **members}}


TEXT = {"type": "string", "minLength": 1}
SHAPE = {
    "properties": {
        "logs": entries(
            {
                "level": {"enum": ["debug", "log", "warn", "error"]},
                "message": {"type": "string"},
                "timeMs": {"type": "integer"},
            }
        ),
        "diagnostics": entries(
            {"severity": {"enum": ["error", "warning", "info"]}, "code": TEXT, "message": TEXT},
            hint=TEXT,
            path=TEXT,
            errorClass=TEXT,
        ),
        "toolTrace": entries(
            {
                "serverId": {"type": "string"},
                "toolName": {"type": "string"},
                "durationMs": {"type": "integer", "minimum": 0},
                "ok": {"type": "boolean"},
            },
            error={"type": "string"},
        ),
    },
    "required": ["logs", "result", "diagnostics"],
}
"""Every field that the specification names, with the type that it names; entries have no other."""


@pytest.mark.clause("3.3.a", "3.3.1.a", "3.3.2.a", "3.3.3.a", "3.3.4.a")
@pytest.mark.parametrize("name", SCRIPTS)
async def test_every_response_has_the_form(agent: Agent, name: str) -> None:
    """Through an MCP client, however the script ends; where the whole is asked for, the text block holds the same
    JSON."""
    request = {"code": SCRIPTS[name], "limits": {"timeoutMs": 3000, "maxCpuMs": 300}, "trace": "full"}
    result = await agent.call(request)
    assert not result.is_error and isinstance(result.structured_content, dict)
    # To that draft, 1.0 is no integer.
    jsonschema.Draft4Validator(SHAPE).validate(result.structured_content)
    [block] = result.content
    assert json.loads(block.text) == result.structured_content  # type: ignore[union-attr]


@pytest.mark.clause("3.3.2.a")
async def test_trace_entries_are_in_the_order_of_the_calls(broker: Broker) -> None:
    """Canonical names, the time that the call took, and how it ended."""
    response = await run(
        broker,
        f"""{CONTRACT}
        await contract._123tool();
        await contract.slow({{ ms: 150 }});
        await contract.fails({{}}).catch(() => {{}});
        await contract.a_b__2({{}});
        """,
    )
    assert response.ok
    trace = response.as_json()["toolTrace"]
    assert [(call["serverId"], call["toolName"], call["ok"], "error" in call) for call in trace] == [
        ("contract", "123tool", True, False),
        ("contract", "slow", True, False),
        ("contract", "fails", False, True),
        ("contract", "a.b", True, False),
    ]
    assert 140 <= trace[1]["durationMs"] < 5000 and trace[2]["error"]


@pytest.mark.clause("3.3.2.b")
async def test_the_trace_has_no_input_and_no_output(broker: Broker) -> None:
    """Canaries in inputs, results and error results of every kind of server, and in what a script throws."""
    canary = "cnry-7f3a9"
    response = await run(
        broker,
        f"""{CONTRACT}{CAUGHT}
        import * as plain from "@codemode/servers/plain";
        import * as local from "@codemode/servers/local";
        const text = "{canary}";
        const ended = [
            await caught(() => contract.echo({{ text, [text]: text }})),
            await caught(() => contract.fails({{ text }})),
            await caught(() => contract.fails_structured({{ text }})),
            await caught(() => contract.checked({{ name: text }})),
            await caught(() => contract.checked({{ name: "ok", count: 1, [text]: text }})),
            await caught(() => contract.checked({{ name: "ok", count: text, kind: text }})),
            await caught(() => contract.refuses({{ text }})),
            await caught(() => contract.echo(text)),
            await caught(() => plain.echo({{ text }})),
            await caught(() => plain.fail({{ text }})),
            await caught(() => local.shout({{ text }})),
            await caught(() => local.explode({{ text }})),
            await caught(() => local.add({{ a: text }})),
            await caught(() => local.add({{ a: 1, [text]: text }})),
        ];
        globalThis.__codemode_result__ = ended.map((one) => "returned" in one);
    """,
    )
    assert response.ok and True in response.result and False in response.result
    trace = response.as_json()["toolTrace"]
    assert len(trace) >= 8
    assert [(call["toolName"], call["error"]) for call in trace if canary in json.dumps(call)] == []


@pytest.mark.clause("3.3.2.b")
async def test_the_trace_has_no_output_of_a_server_that_answers_with_its_data(broker: Broker) -> None:
    """A tool's own error text is its output: the summary says what kind of failure it was instead."""
    code = f"""{CONTRACT} await contract.fails_structured().catch(() => {{}});
        await contract.refuses().catch(() => {{}});"""
    for call in (await run(broker, code)).as_json()["toolTrace"]:
        assert call["ok"] is False and call["error"]
        assert not any(words in call["error"] for words in ("one thing", "another", "as told"))


@pytest.mark.clause("3.3.4.c", "3.3.4.b", "7.4.a")
@pytest.mark.parametrize(
    ("failing", "code"),
    [("throw new Error('late');", "UNCAUGHT_EXCEPTION"), ("for (;;) {}", "SANDBOX_LIMIT")],
)
async def test_calls_before_a_failure_are_in_the_trace(broker: Broker, failing: str, code: str) -> None:
    """With their outcomes; the logs before it too, and no result."""
    response = await run(
        broker,
        f"""{CONTRACT}
        globalThis.__codemode_result__ = "too early";
        console.log("one"); await contract.one_text(); console.warn("two");
        await contract.fails({{}}).catch(() => {{}}); console.log("three");
        {failing}
        console.log("never");
        """,
        timeoutMs=2500,
    )
    assert [entry.message for entry in response.logs] == ["one", "two", "three"]
    calls = [(call.tool_name, call.ok) for call in response.tool_trace]
    assert calls == [("one_text", True), ("fails", False)]
    assert (response.result, [found.code for found in response.diagnostics]) == (None, [code])


@pytest.mark.clause("3.3.2.a", "3.3.a")
async def test_a_call_that_nobody_waited_for_is_in_the_trace(broker: Broker, ledgers: Path) -> None:
    """It is there, without an `ok` that nobody knows; the script is told that it should have waited."""
    before = len(ledger(ledgers / "contract.jsonl"))
    # The pause lets the call reach the server: one that is taken back before has never run, and tells nothing.
    pause = "await new Promise((resolve) => setTimeout(resolve, 300));"
    done = "globalThis.__codemode_result__ = null;"
    response = await run(broker, f"{CONTRACT} contract.slow({{ ms: 30_000 }}); {pause} {done}")
    [call] = response.tool_trace
    assert (call.tool_name, call.ok) == ("slow", False) and call.error
    assert [found.severity for found in response.diagnostics] == ["warning"]

    def ended() -> bool:
        return any(event["event"] == "cancelled" for event in ledger(ledgers / "contract.jsonl")[before:])

    await until(ended, "the upstream was told that nobody waits any more")


@pytest.mark.clause("3.3.a")
async def test_two_requests_at_once_get_their_own_responses(agent: Agent) -> None:
    """Each client request is answered with its own logs and result."""
    codes = [
        f"await new Promise((r) => setTimeout(r, {80 - number * 20})); console.log({number});"
        f"globalThis.__codemode_result__ = {number};"
        for number in range(4)
    ]
    responses = await asyncio.gather(*(agent.run(code) for code in codes))
    assert [response["result"] for response in responses] == [0, 1, 2, 3]
    assert [[entry["message"] for entry in response["logs"]] for response in responses] == [
        [str(number)] for number in range(4)
    ]


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
