"""Sections 3.2.4, 7.4 and 11: limits that are kept by ending the run, and what is left of it."""

import time
from pathlib import Path

import pytest

from cellblock import Broker, RunResponse
from conformance.world import CAUGHT, CONTRACT, Agent, run, value
from support.entries import ledger

MIB = 2**20


def check_limit(response: RunResponse, says: str, *logs: str) -> None:
    """One SandboxLimitError with a hint that names what was passed, no result, and what was logged before."""
    [found] = [found for found in response.diagnostics if found.severity == "error"]
    assert (found.code, found.error_class) == ("SANDBOX_LIMIT", "SandboxLimitError")
    assert found.hint and says in found.message, found
    assert response.result is None and [entry.message for entry in response.logs] == [*logs]


@pytest.mark.clause("3.2.4.a", "7.4.a", "11.a", "7.1.a")
@pytest.mark.parametrize(
    "stuck",
    [
        "for (;;) {}",
        "for (;;) await null;",
        "await new Promise((resolve) => setTimeout(resolve, 60_000));",
        "/^(a+)+$/.test('a'.repeat(50) + 'b');",
        "while (true) { try { throw new Error('x'); } catch {} }",
        "process: for (;;) { try { for (;;) {} } finally { continue process; } }",
        "setTimeout(function again() { setTimeout(again, 0); }, 0); await new Promise(() => {});",
        "const again = () => Promise.resolve().then(again); again(); await new Promise(() => {});",
    ],
)
async def test_time(broker: Broker, stuck: str) -> None:
    """`timeoutMs` ends whatever runs, in time, and the logs before it are kept."""
    started = time.monotonic()
    response = await run(broker, f"console.log('before'); {stuck} console.log('after');", timeoutMs=400)
    assert time.monotonic() - started < 20, "none of them would end within a minute"
    check_limit(response, "timeoutMs", "before")


@pytest.mark.clause("3.2.4.a", "7.4.a", "11.a")
@pytest.mark.parametrize(
    "greedy",
    [
        "const kept = []; for (;;) kept.push(new Uint8Array(8 * 1024 * 1024).fill(1));",
        "const kept = []; for (;;) kept.push(new Array(100_000).fill({}).map((_, i) => ({ i })));",
        "const kept = []; for (let i = 0; ; i++) { kept.push('x'.repeat(1e6) + i); kept.at(-1).charCodeAt(5); }",
        "const kept = new Map(); for (let i = 0; ; i++) kept.set(i, { i });",
    ],
)
async def test_memory(broker: Broker, greedy: str) -> None:
    """`maxMemoryBytes` holds for buffers, objects, strings and collections."""
    response = await run(
        broker, f"console.log('before'); {greedy}", maxMemoryBytes=64 * MIB, timeoutMs=20_000
    )
    check_limit(response, "maxMemoryBytes", "before")


@pytest.mark.clause("3.2.4.a", "7.4.a", "11.a")
async def test_tool_calls(broker: Broker, ledgers: Path) -> None:
    """The call after the last allowed one ends the run and does not reach the server."""
    file = ledgers / "contract.jsonl"
    before = len([event for event in ledger(file) if event.get("tool") == "echo"])
    response = await run(
        broker,
        f"""{CONTRACT}{CAUGHT}
        for (let i = 0; i < 10; i++) {{ console.log(i); await caught(() => contract.echo({{ i }})); }}
        globalThis.__codemode_result__ = "ended";
    """,
        maxToolCalls=3,
    )
    check_limit(response, "maxToolCalls", "0", "1", "2", "3")
    sent = [event["arguments"] for event in ledger(file) if event.get("tool") == "echo"][before:]
    assert sent == [{"i": 0}, {"i": 1}, {"i": 2}]
    assert [call.ok for call in response.tool_trace] == [True] * 3


@pytest.mark.clause("3.2.4.a", "11.a")
async def test_tool_calls_up_to_the_limit_are_fine(broker: Broker) -> None:
    """Exactly as many as allowed; none at all when the limit is 0."""
    three = f"{CONTRACT} await Promise.all([1, 2, 3].map((i) => contract.echo({{ i }})));"
    assert (await run(broker, three, maxToolCalls=3)).ok
    check_limit(await run(broker, f"{CONTRACT} await contract.echo();", maxToolCalls=0), "maxToolCalls")
    assert (await run(broker, "globalThis.__codemode_result__ = 1", maxToolCalls=0)).result == 1


@pytest.mark.clause("3.2.4.a", "3.3.1.f", "11.a")
async def test_log_bytes_do_not_end_the_run(broker: Broker) -> None:
    """A flood of logs is cut; the script goes on, and the broker does not hold what was cut."""
    code = "for (let i = 0; i < 20_000; i++) console.log('x'.repeat(1000)); globalThis.__codemode_result__ = 'ended';"
    response = await run(broker, code, maxLogBytes=2000)
    assert response.result == "ended" and response.ok
    assert len(response.logs) <= 4 and response.logs[-1].level == "warn"


@pytest.mark.clause("3.2.4.a")
async def test_limits_are_per_run_and_have_defaults(broker: Broker) -> None:
    """A run that asks for nothing gets the defaults, whatever the run before had asked for."""
    await run(broker, "1", timeoutMs=1, maxToolCalls=0, maxLogBytes=0)
    code = f"{CONTRACT} console.log('heard'); globalThis.__codemode_result__ = await contract.one_text();"
    response = await run(broker, code)
    assert response.result == "just this" and [entry.message for entry in response.logs] == ["heard"]


@pytest.mark.clause("3.2.4.a", "11.a")
async def test_more_than_the_host_gives_is_told(broker: Broker) -> None:
    """A limit over the maximum is no error; that it was lowered is not kept secret."""
    response = await run(broker, "globalThis.__codemode_result__ = 1", timeoutMs=10**12, maxToolCalls=10**9)
    told = sorted((found.severity, found.path) for found in response.diagnostics)
    assert response.result == 1
    assert told == [("warning", "/limits/maxToolCalls"), ("warning", "/limits/timeoutMs")]


@pytest.mark.clause("7.4.a", "11.a")
async def test_a_limit_cannot_be_caught(broker: Broker) -> None:
    """Neither `catch` nor `finally` nor a handler of rejections lets a script go on after it."""
    response = await run(
        broker,
        f"""{CONTRACT}
        try {{ await contract.one_text(); await contract.one_text(); }} catch {{ console.log("caught"); }}
        finally {{ console.log("finally"); }}
        globalThis.__codemode_result__ = "went on";
    """,
        maxToolCalls=1,
    )
    check_limit(response, "maxToolCalls")


@pytest.mark.clause("11.a")
async def test_a_normal_run_follows_each_limit_at_once(agent: Agent) -> None:
    """Nothing of a run that was ended hinders the next."""
    for code, limits in (
        ("for (;;) {}", {"timeoutMs": 300}),
        ("const kept = []; for (;;) kept.push(new Uint8Array(1e7).fill(1));", {"maxMemoryBytes": 32 * MIB}),
        (f"{CONTRACT} for (;;) await contract.echo();", {"maxToolCalls": 2}),
        ("function deep() { deep(); } deep();", {}),
    ):
        assert (await agent.run(code, limits=limits))["diagnostics"]
        after = await agent.run(f"{CONTRACT} globalThis.__codemode_result__ = await contract.one_text();")
        assert (after["result"], after["diagnostics"]) == ("just this", [])


@pytest.mark.clause("11.a", "11.b")
async def test_a_result_or_input_without_bounds_is_refused(broker: Broker) -> None:
    """Too large or too deep is a clear error, not a stuck broker."""
    huge = await run(broker, "globalThis.__codemode_result__ = 'x'.repeat(40_000_000);")
    assert huge.result is None and [found.severity for found in huge.diagnostics] == ["error"]
    deep = await run(
        broker, "let a = 1; for (let i = 0; i < 5000; i++) a = [a]; globalThis.__codemode_result__ = a;"
    )
    assert deep.diagnostics and deep.diagnostics[0].hint
    code = f"""{CONTRACT}{CAUGHT} let a = {{}}; for (let i = 0; i < 3000; i++) a = {{ a }};
        globalThis.__codemode_result__ = await caught(() => contract.echo(a));"""
    assert (await value(broker, code))["hint"]
