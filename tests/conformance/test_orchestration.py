"""Sections 7.4, 8 and 10: several servers, calls at the same time, cancelling, and tool lists that change."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cellblock import Broker
from conformance.world import (
    CAUGHT,
    CONTRACT,
    Agent,
    agent_with,
    broker_with,
    contract_server,
    evaluated,
    run,
    value,
)
from support.brokers import begun
from support.entries import ledger, plain_server
from support.responses import succeeded
from support.waits import until, within


@pytest.fixture(scope="module")
async def changing(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    """A broker whose servers' tools change."""
    servers = {"contract": contract_server(), "plain": plain_server()}
    async with broker_with(tmp_path_factory.mktemp("changing"), servers) as made:
        yield made


PLAIN = 'import * as plain from "@codemode/servers/plain";\n'
LOCAL = 'import * as local from "@codemode/servers/local";\n'


def events(file: Path, event: str) -> list[dict[str, Any]]:
    """The ledger's events of one kind."""
    return [line for line in ledger(file) if line["event"] == event]


@pytest.mark.clause("10.a")
async def test_values_go_from_one_server_to_another(broker: Broker) -> None:
    """Three servers of three kinds in one script; the trace says which call was whose."""
    response = await run(
        broker,
        f"""{CONTRACT}{PLAIN}{LOCAL}
        const {{ result: sum }} = await local.add({{ a: 20, b: 22 }});
        const echoed = JSON.parse(await plain.echo({{ sum }}));
        const {{ arguments: got }} = await contract.echo(echoed);
        const loud = await local.shout({{ text: `${{await contract.one_text()}} ${{JSON.stringify(got)}}` }});
        globalThis.__codemode_result__ = loud;
        """,
    )
    assert response.ok and response.result == {"text": 'JUST THIS {"SUM":42}'}
    assert [f"{call.server_id}.{call.tool_name}" for call in response.tool_trace] == [
        "local.add",
        "plain.echo",
        "contract.echo",
        "contract.one_text",
        "local.shout",
    ]


@pytest.mark.clause("10.b", "7.1.a")
async def test_a_failure_of_one_server_leaves_the_others(broker: Broker) -> None:
    """Failures of every kind among calls that succeed; the script gets each one's outcome."""
    response = await run(
        broker,
        f"""{CONTRACT}{PLAIN}{LOCAL}import {{ ToolCallError }} from "@codemode/errors";
        const settled = await Promise.allSettled([contract.one_text(), contract.fails({{}}), plain.refuse(),
            local.explode({{ text: "x" }}), plain.echo({{ a: 1 }}), contract.refuses(), local.add({{ a: 1 }})]);
        globalThis.__codemode_result__ = settled.map(({{ status, reason }}) =>
            status === "fulfilled" ? "ok" : reason instanceof ToolCallError);
    """,
    )
    assert (response.result, response.diagnostics) == (["ok", True, True, True, "ok", True, "ok"], [])


@pytest.mark.clause("10.1.a")
async def test_calls_run_at_the_same_time(broker: Broker) -> None:
    """Eight calls of 300 ms each, of two servers, take less than the 2.4 s of one after the other."""
    took, count = await value(
        broker,
        f"""{CONTRACT}{PLAIN}
        const started = performance.now();
        const answers = await Promise.all([1, 2, 3, 4].flatMap(() =>
            [contract.slow({{ ms: 300 }}), plain.wait({{ ms: 300 }})]));
        globalThis.__codemode_result__ = [performance.now() - started, answers.length];
    """,
    )
    assert count == 8 and 290 <= took < 2000


@pytest.mark.clause("10.1.a")
async def test_answers_come_as_they_are_ready(broker: Broker) -> None:
    """A slow call does not hold back a fast one that was made later."""
    assert await value(
        broker,
        f"""{CONTRACT}
        const order = [];
        await Promise.all([400, 10, 150].map((ms) => contract.slow({{ ms }}).then(() => order.push(ms))));
        globalThis.__codemode_result__ = order;
    """,
    ) == [10, 150, 400]


@pytest.mark.clause("7.4.b")
async def test_cancelling_a_run_cancels_its_calls(broker: Broker, ledgers: Path) -> None:
    """Every call in flight gets the MCP notification, to each server; the script does not go on."""
    files = [ledgers / f"{server}.jsonl" for server in ("contract", "plain")]

    def counted(event: str) -> list[int]:
        return [len(events(file, event)) for file in files]

    (contract, plain), cancelled = counted("call"), counted("cancelled")
    task = asyncio.create_task(
        broker.run(f"""{CONTRACT}{PLAIN}{CAUGHT}
        await Promise.all([caught(() => contract.slow({{ ms: 60_000 }})), caught(() => contract.slow({{ ms: 60_000 }})),
            caught(() => plain.never())]);
        await contract.echo({{ after: "cancelled" }});
    """)
    )
    await until(lambda: counted("call") == [contract + 2, plain + 1], "the calls are in flight")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(task)
    told = [cancelled[0] + 2, cancelled[1] + 1]
    await until(lambda: counted("cancelled") == told, "contract was told twice, and plain once")
    assert await value(broker, f"{CONTRACT} globalThis.__codemode_result__ = await contract.one_text();")
    assert not [line for line in events(files[0], "call") if line["arguments"] == {"after": "cancelled"}]


@pytest.mark.clause("7.4.b")
async def test_a_limit_cancels_calls_in_flight(broker: Broker, ledgers: Path) -> None:
    """A run that is ended at its deadline leaves no call running upstream."""
    file = ledgers / "contract.jsonl"
    before = len(events(file, "cancelled"))
    response = await run(broker, f"{CONTRACT} await contract.slow({{ ms: 60_000 }});", timeoutMs=600)
    [found], [call] = response.diagnostics, response.tool_trace
    assert found.code == "SANDBOX_LIMIT" and not call.ok and call.error
    await until(lambda: len(events(file, "cancelled")) == before + 1, "the server was told")


@pytest.mark.clause("7.4.b")
async def test_the_clients_cancel_notification_cancels_the_run(agent: Agent, ledgers: Path) -> None:
    """An MCP client that gives up on its request: the upstream call ends, and the next request is served."""
    file = ledgers / "contract.jsonl"
    before, calls = len(events(file, "cancelled")), len(events(file, "call"))
    task = asyncio.create_task(agent.run(f"{CONTRACT} await contract.slow({{ ms: 60_000 }});"))
    await until(lambda: len(events(file, "call")) == calls + 1, "the call is in flight")
    task.cancel()
    await asyncio.wait([task], timeout=10)
    await until(lambda: len(events(file, "cancelled")) == before + 1, "the upstream was told")
    assert (await agent.run("globalThis.__codemode_result__ = 1"))["result"] == 1


@pytest.mark.clause("7.4.b")
async def test_a_client_that_goes_away_cancels_its_runs(tmp_path: Path) -> None:
    """Disconnecting does the same."""
    file = tmp_path / "ledger.jsonl"
    async with agent_with(tmp_path, {"plain": plain_server("--ledger", file)}) as leaving:
        left = asyncio.gather(leaving.run(f"{PLAIN} await plain.never();"), return_exceptions=True)
        await until(lambda: len(events(file, "call")) == 1, "the call is in flight")
        started = time.monotonic()
    await within(left)
    await until(lambda: len(events(file, "cancelled")) == 1, "the upstream was told")
    assert time.monotonic() - started < 60
    assert events(file, "answer") == []


@pytest.mark.clause("8.a", "8.1.a")
@pytest.mark.parametrize("server", ["plain", "contract"])
async def test_a_changed_list_is_there_for_the_next_run(changing: Broker, server: str) -> None:
    """With no pause in between, again and again: imports, `__meta__`, discovery and search all have the new tool."""
    for number in range(3):
        name = f"fresh_{number}"
        await value(
            changing,
            f'import {{ grow }} from "@codemode/servers/{server}"; await grow({{ name: "{name}" }});',
        )
        assert await value(
            changing,
            f"""import {{ {name}, __meta__ }} from "@codemode/servers/{server}";
            import {{ getTool, listTools, searchTools }} from "@codemode/discovery";
            const has = (tools) => tools.some((tool) => tool.toolName === "{name}");
            await {name}({{ a: 1 }});
            globalThis.__codemode_result__ = [has(__meta__.tools), has(await listTools("{server}")),
                (await getTool("{server}", "{name}")).exportName, has((await searchTools("{name}")).results)];
        """,
        ) == [True, True, name, True]


@pytest.mark.clause("8.1.a")
async def test_a_removed_tool_is_gone_for_the_next_run(changing: Broker) -> None:
    """Its import fails with a diagnostic; the others stay."""
    await value(changing, f"{CONTRACT} await contract.shrink({{ name: 'toString' }});")
    there = "[Object.hasOwn(contract, 'toString'), typeof contract.echo]"
    assert await evaluated(changing, there, CONTRACT) == [False, "function"]


@pytest.mark.clause("8.2.a")
async def test_a_run_in_flight_keeps_its_tools(changing: Broker) -> None:
    """In the run that changes the list, and in another that was there before: nothing appears, nothing vanishes."""
    look = """const look = async () => {
            const { listTools } = await import("@codemode/discovery");
            const module = await import("@codemode/servers/contract");
            return [(await listTools("contract")).map((tool) => tool.toolName).sort().join(),
                Object.keys(module).sort().join(), Object.keys(contract).sort().join(),
                contract.__meta__.tools.map((tool) => tool.toolName).sort().join()];
        };"""
    same = "JSON.stringify(before) === JSON.stringify(after)"
    changes = f"""{CONTRACT}{look}
        const before = await look();
        await contract.grow({{ name: "in_flight" }});
        await contract.shrink({{ name: "of" }});
        await new Promise((resolve) => setTimeout(resolve, 300));
        const after = await look();
        globalThis.__codemode_result__ = [{same}, (await caught(() => contract.one_text())).returned];
    """
    watching = f"""{CONTRACT}{look}
        const before = await look();
        console.log("looked");
        await contract.slow({{ ms: 900 }});
        const after = await look();
        globalThis.__codemode_result__ = [{same}, (await caught(() => contract.one_text())).returned];
    """
    watcher = await begun(changing, f"{CAUGHT}{watching}", "looked")
    assert await value(changing, f"{CAUGHT}{changes}") == [True, "just this"]
    assert succeeded(await within(watcher)) == [True, "just this"]
    after = await evaluated(changing, "[typeof contract.in_flight, typeof contract.of]", CONTRACT)
    assert after == ["function", "undefined"]
