"""The caps of one run, kept by killing: each ends in a structured response, and the next run is unharmed."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cellblock import Broker, RunResponse
from support.entries import ledger, plain_server, settings
from support.params import mostly
from support.responses import error_of, succeeded
from support.waits import warmed, within

MIB = 1024 * 1024
MEMORY_CAP = 128 * MIB
ATTEMPTS = 8
"""Tries for a claim about time; other work on the machine may spoil some, a defect spoils all."""


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plain server's ledger."""
    return tmp_path_factory.mktemp("ledger") / "ledger.jsonl"


@pytest.fixture(scope="module")
async def broker(tmp_path_factory: pytest.TempPathFactory, record: Path) -> AsyncIterator[Broker]:
    """A broker with one plain server."""
    config = settings(tmp_path_factory.mktemp("caps"), {"plain": plain_server("--ledger", record)})
    async with Broker(config) as started:
        await started.settled()
        yield started


async def runs_normally(broker: Broker) -> None:
    """What must hold at once after every kill."""
    code = """
        import { echo } from "@codemode/servers/plain";
        const big = new Uint8Array(8 * 1024 * 1024).fill(7);
        globalThis.__codemode_result__ = [await echo({ fine: true }), big.length];
    """
    assert succeeded(await within(broker.run(code))) == ['{"fine": true}', 8 * MIB]


def limit_of(response: RunResponse, name: str) -> None:
    """The response of a run that went over the limit `name` (section 7.4)."""
    found = error_of(response, "SANDBOX_LIMIT")
    assert found.error_class == "SandboxLimitError"
    assert name in found.message


@pytest.mark.parametrize(
    "code",
    [
        "for (;;) {}",
        "while (true) await null;",
        "await new Promise(() => { setTimeout(() => {}, 1e6); });",
        "process_nothing: for (;;) { try { throw 1; } catch {} finally { continue process_nothing; } }",
        "/(a+)+$/.test('a'.repeat(60) + 'b');",
        "Array.from({ length: 1e9 }, (_, i) => i).sort(() => { for (;;) {} });",
    ],
    ids=["loop", "microtasks", "idle", "finally", "regular expression", "sort"],
)
async def test_the_answer_to_an_endless_script_comes_within_700_ms_of_a_500_ms_timeout(
    broker: Broker, code: str
) -> None:
    took: list[float] = []
    for _ in range(ATTEMPTS):
        await warmed(broker, 1)
        started = time.monotonic()
        response = await within(broker.run("console.log('started');\n" + code, limits={"timeoutMs": 500}))
        took.append(time.monotonic() - started)
        limit_of(response, "timeoutMs = 500")
        assert [entry.message for entry in response.logs] == ["started"]
        assert response.usage.wall_ms >= 500
        await runs_normally(broker)
        if min(took) < 0.7:
            break
    assert min(took) >= 0.5
    assert min(took) < 0.7


MEMORY = {
    "buffers": "for (let i = 0; i < 1024; i++) keep.push(new Uint8Array(1024 * 1024).fill(1));",
    "one buffer": "keep.push(new Uint8Array(1024 * 1024 * 1024).fill(1));",
    "strings": "for (;;) keep.push('x'.repeat(1000) + keep.length + Math.random());",
    "objects": "for (;;) keep.push({ a: keep.length, b: [1, 2, 3], c: { d: 'e' + keep.length } });",
    "map": "const map = new Map(); for (let i = 0; ; i++) map.set('key' + i, { i });",
    "doubling": "let text = 'x'; for (;;) { text += text; keep.push(text.replace(/x$/, 'y')); }",
    "clones": "for (;;) keep.push(structuredClone(new ArrayBuffer(1024 * 1024)));",
}


@pytest.mark.parametrize("how", mostly(["buffers", "objects", "doubling"], list(MEMORY)))
async def test_memory_past_its_cap_ends_the_run(broker: Broker, how: str) -> None:
    """However it is taken: off the heap, on the heap, at once or little by little."""
    source = f"console.log('started');\nconst keep = [];\n{MEMORY[how]}\nglobalThis.__codemode_result__ = keep.length;"
    response = await within(
        broker.run(source, limits={"maxMemoryBytes": MEMORY_CAP, "timeoutMs": 90_000}), 100
    )
    limit_of(response, f"maxMemoryBytes = {MEMORY_CAP}")
    assert [entry.message for entry in response.logs] == ["started"]
    # An idle worker has about 32 MiB; far more than both together means that nothing kept the cap.
    assert response.usage.peak_memory_bytes < MEMORY_CAP + 128 * MIB
    await runs_normally(broker)


async def test_memory_under_its_cap_is_there(broker: Broker) -> None:
    code = """
        const keep = [];
        for (let i = 0; i < 96; i++) keep.push(new Uint8Array(1024 * 1024).fill(1));
        globalThis.__codemode_result__ = keep.length;
    """
    assert succeeded(await within(broker.run(code, limits={"maxMemoryBytes": MEMORY_CAP}))) == 96


@pytest.mark.parametrize(
    "loop",
    [
        "for (let call = 1; ; call++) { console.log(call); await echo({ call }); }",
        "await Promise.all(Array.from({ length: 50 }, (_, call) => echo({ call })));",
        "for (;;) { try { await echo({}); } catch { } }",
    ],
    ids=["one after the other", "at once", "errors caught"],
)
async def test_the_call_after_the_last_ends_the_run(broker: Broker, record: Path, loop: str) -> None:
    before = len([event for event in ledger(record) if event["event"] == "call"])
    source = f'import {{ echo }} from "@codemode/servers/plain";\n{loop}'
    response = await within(broker.run(source, limits={"maxToolCalls": 10}))
    limit_of(response, "maxToolCalls = 10")
    assert len(response.tool_trace) == response.usage.tool_calls
    assert len(response.tool_trace) == 10
    calls = len([event for event in ledger(record) if event["event"] == "call"]) - before
    if "Promise.all" in loop:
        # The eleventh call may end the run before the first ten have all been sent.
        assert calls <= 10
        assert sum(entry.ok for entry in response.tool_trace) <= calls
    else:
        assert calls == 10
        assert all(entry.ok for entry in response.tool_trace)
    if "console" in loop:
        assert [entry.message for entry in response.logs] == [str(n) for n in range(1, 12)]
    await runs_normally(broker)


async def test_exactly_the_allowed_number_of_calls_is_fine(broker: Broker) -> None:
    code = """
        import { echo } from "@codemode/servers/plain";
        for (let call = 0; call < 10; call++) await echo({ call });
        globalThis.__codemode_result__ = "done";
    """
    assert succeeded(await within(broker.run(code, limits={"maxToolCalls": 10}))) == "done"
    refused = await within(broker.run(code, limits={"maxToolCalls": 0}))
    limit_of(refused, "maxToolCalls = 0")
    assert refused.tool_trace == []


async def test_logs_past_their_cap_are_cut_and_the_script_goes_on(broker: Broker) -> None:
    """Section 3.3.1: the last entry is a `warn` that names truncation and the limit."""
    code = """
        for (let line = 0; line < 1000; line++) console.log("line " + line + " " + "x".repeat(90));
        globalThis.__codemode_result__ = "went on";
    """
    response = await within(broker.run(code, limits={"maxLogBytes": 2000}))
    assert succeeded(response) == "went on"
    *kept, last = response.logs
    assert sum(len(entry.message.encode()) for entry in kept) == 2000
    assert last.level == "warn"
    assert "truncated" in last.message
    assert "2000" in last.message
    nothing = await within(broker.run("console.log('x');", limits={"maxLogBytes": 0}))
    assert [entry.level for entry in nothing.logs] == ["warn"]


async def test_a_flood_of_logs_neither_delays_the_kill_nor_harms_the_next_run(broker: Broker) -> None:
    response = await within(broker.run("for (;;) console.log('x'.repeat(10000));", limits={"timeoutMs": 500}))
    limit_of(response, "timeoutMs")
    assert response.logs[-1].level == "warn"
    assert sum(len(entry.message) for entry in response.logs[:-1]) <= 64 * 1024
    await runs_normally(broker)


async def test_cpu_time_past_its_cap_ends_the_run(broker: Broker) -> None:
    started = time.monotonic()
    response = await within(broker.run("for (;;) {}", limits={"maxCpuMs": 300, "timeoutMs": 20_000}))
    limit_of(response, "maxCpuMs = 300")
    assert 300 <= response.usage.cpu_ms < 1500
    assert time.monotonic() - started < 10
    await runs_normally(broker)


async def test_waiting_costs_no_cpu_time(broker: Broker) -> None:
    code = """
        import { wait } from "@codemode/servers/plain";
        await wait({ ms: 600 });
        await new Promise((resolve) => setTimeout(resolve, 200));
        globalThis.__codemode_result__ = "waited";
    """
    response = await within(broker.run(code, limits={"maxCpuMs": 300}))
    assert succeeded(response) == "waited"
    assert response.usage.cpu_ms < 300
    assert response.usage.wall_ms >= 800
    assert response.usage.tool_wait_ms >= 600


async def test_logs_and_completed_calls_up_to_a_kill_are_in_the_response(broker: Broker) -> None:
    """Sections 3.3.4 and 7.4: logs before the termination, and a trace of what had been called."""
    code = """
        import { echo, wait } from "@codemode/servers/plain";
        console.log("one");
        await echo({});
        console.warn("two", { b: 2, a: 1 });
        wait({ ms: 60000 });
        await echo({ again: true });
        console.error("three");
        for (;;) {}
    """
    response = await within(broker.run(code, limits={"timeoutMs": 700}))
    limit_of(response, "timeoutMs")
    assert [(entry.level, entry.message) for entry in response.logs] == [
        ("log", "one"),
        ("warn", 'two {"a":1,"b":2}'),
        ("error", "three"),
    ]
    assert [(entry.tool_name, entry.ok) for entry in response.tool_trace] == [
        ("echo", True),
        ("wait", False),
        ("echo", True),
    ]
    assert "2 completed, 1 in flight (may have run), 0 not started" in response.diagnostics[0].message
    await runs_normally(broker)
