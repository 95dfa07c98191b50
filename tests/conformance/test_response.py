"""Section 3.3: the response, its trace, and what the trace must not tell."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from cellblock import Broker
from conformance.world import CAUGHT, CONTRACT, Agent, run
from support.entries import ledger
from support.waits import until

SCRIPTS = {
    "nothing": "",
    "a result": "globalThis.__codemode_result__ = { a: [1, null] };",
    "logs and calls": f"{CONTRACT} console.log(await contract.one_text()); await contract.echo();",
    "a syntax error": "const = 1;",
    "an exception": "console.log('before'); throw new Error('x');",
    "a bad import": "import 'node:fs';",
    "a limit": "for (;;) {}",
}


def check_shape(response: dict[str, Any]) -> None:
    """Every field that the specification names has the type that it names, and entries have no other."""
    assert isinstance(response["logs"], list) and isinstance(response["diagnostics"], list)
    assert "result" in response
    for entry in response["logs"]:
        assert set(entry) == {"level", "message", "timeMs"}
        assert entry["level"] in ("debug", "log", "warn", "error")
        assert type(entry["message"]) is str and type(entry["timeMs"]) is int
    for found in response["diagnostics"]:
        assert {"severity", "code", "message"} <= set(found)
        assert set(found) <= {"severity", "code", "message", "hint", "path", "errorClass"}
        assert found["severity"] in ("error", "warning", "info")
        assert all(type(text) is str and text for text in found.values())
    for call in response.get("toolTrace", []):
        assert {"serverId", "toolName", "durationMs", "ok"} <= set(call)
        assert set(call) <= {"serverId", "toolName", "durationMs", "ok", "error"}
        assert type(call["serverId"]) is str and type(call["toolName"]) is str
        assert type(call["durationMs"]) is int and call["durationMs"] >= 0 and type(call["ok"]) is bool
        assert type(call.get("error", "")) is str


@pytest.mark.clause("3.3.a", "3.3.1.a", "3.3.2.a", "3.3.3.a", "3.3.4.a")
@pytest.mark.parametrize("name", SCRIPTS)
async def test_every_response_has_the_form(agent: Agent, name: str) -> None:
    """Through an MCP client, however the script ends; where the whole is asked for, the text block holds the same
    JSON."""
    request = {"code": SCRIPTS[name], "limits": {"timeoutMs": 3000, "maxCpuMs": 300}, "trace": "full"}
    result = await agent.call(request)
    assert not result.is_error
    assert isinstance(result.structured_content, dict)
    check_shape(result.structured_content)
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
    assert 140 <= trace[1]["durationMs"] < 5000
    assert trace[2]["error"]


@pytest.mark.clause("3.3.2.b")
async def test_the_trace_has_no_input_and_no_output(broker: Broker) -> None:
    """Canaries in inputs, results and error results of every kind of server, and in what a script throws."""
    canary = "cnry-7f3a9"
    code = f"""{CONTRACT}{CAUGHT}
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
    """
    response = await run(broker, code)
    assert response.ok and True in response.result and False in response.result
    trace = response.as_json()["toolTrace"]
    assert len(trace) >= 8
    assert [(call["toolName"], call["error"]) for call in trace if canary in json.dumps(call)] == []


@pytest.mark.clause("3.3.2.b")
async def test_the_trace_has_no_output_of_a_server_that_answers_with_its_data(broker: Broker) -> None:
    """A tool's own error text is its output: the summary says what kind of failure it was instead."""
    code = f"""{CONTRACT} await contract.fails_structured().catch(() => {{}});
        await contract.refuses().catch(() => {{}});"""
    failed, refused = (await run(broker, code)).as_json()["toolTrace"]
    assert failed["ok"] is False and failed["error"] and refused["ok"] is False and refused["error"]
    assert "one thing" not in failed["error"] and "another" not in failed["error"]
    assert "as told" not in refused["error"]


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
    assert [(call.tool_name, call.ok) for call in response.tool_trace] == [
        ("one_text", True),
        ("fails", False),
    ]
    assert response.result is None
    assert [found.code for found in response.diagnostics] == [code]


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
