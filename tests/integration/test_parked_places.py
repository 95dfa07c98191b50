"""What a parked run gives back: its place in the pool, its process, and what its journal holds in memory."""

import asyncio
import gc
from pathlib import Path

import pytest

from cellblock import tool
from cellblock.app.config.load import parse_settings
from cellblock.base.settings.sections import MIB
from cellblock.record import journal
from cellblock.record import kept as keeping
from cellblock.record.journal import JournalBudget
from support.brokers import no_process, ready
from support.entries import entry, for_tests, forked_server
from support.params import mostly
from support.waits import until, until_found, within

CAPACITY = 2
LARGE = 700 * 1024
"""Bytes of one input: of two such, no journal has both."""

CALLS = {
    "approval": "await write({ n: 1 });",
    "question": "await input({});",
}


@tool()
def write(n: int) -> int:
    "Writes."
    return n


@tool()
def read(text: str) -> int:
    "Reads."
    return len(text)


@pytest.mark.parametrize("kind", mostly(["approval"], list(CALLS)))
async def test_others_get_the_place_and_the_memory_of_a_parked_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    budget = JournalBudget(MIB, MIB)
    for module in (journal, keeping):
        monkeypatch.setattr(module, "BUDGET", budget)
    section = {
        "policy": {"default": {"approve": ["local.write"]}},
        "pool": {"capacity": CAPACITY},
        "auth": {"keyring": "off"},
        "typecheck": "off",
    }
    servers = {"asking": entry(forked_server("asking_server.py", "stdio"))}
    settings = parse_settings({"mcpServers": servers, "cellblock": for_tests(section)})
    code = f"""
        import {{ input }} from "@codemode/servers/asking";
        import {{ read, write }} from "@codemode/servers/local";
        globalThis.__codemode_result__ = await read({{ text: "x".repeat({LARGE}) }});
    """
    async with ready(settings, tools=[write, read], state_dir=tmp_path) as broker:
        runs: list[asyncio.Task[object]] = []
        for number in range(CAPACITY):
            runs.append(asyncio.create_task(broker.run(code + CALLS[kind], durable=True, client="one")))

            async def are_parked(count: int = number + 1) -> bool:
                return len(await broker.parked()) == count

            await until_found(are_parked, "it is parked", 60)
            # It is written before this process is done with it.
            await until(lambda: not broker.running, "its memory is given back")
        await no_process(broker)
        # What is in cycles still counts until the collector comes by.
        gc.collect()
        response = await within(broker.run(code, durable=True, client="other"), 60)
        assert response.result == {"result": LARGE} and response.usage.run_id is not None, response
        kept = await broker.keeper._journals.asked(
            lambda store: store.read(response.usage.run_id or ""), None
        )  # pyright: ignore[reportPrivateUsage]
        assert kept is not None and "recording" in [piece.kind for piece in kept[1]]
        assert len(await broker.parked()) == CAPACITY
    await asyncio.wait(runs)
