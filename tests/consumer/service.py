"""A service that embeds Cellblock, as its author would write it: what it needs comes from the top of the package.

Run by `tests/e2e/test_consumer.py`, and checked there by mypy and pyright at their strictest.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cellblock import (
    Broker,
    CallFacts,
    CellblockError,
    Diagnostic,
    Grantee,
    LogEntry,
    Observer,
    Question,
    RunFacts,
    RunResponse,
    ServerEntry,
    Settings,
    TraceEntry,
    TypecheckMode,
    Verdict,
    Watcher,
    load_settings,
    tool,
)

PRICES = {"apple": 40, "pear": 55}


@tool(annotations={"readOnlyHint": True})
def price(fruit: str) -> int:
    "The price of one fruit, in cents."
    return PRICES[fruit]


@tool
async def buy(fruit: str, count: int = 1) -> dict[str, int]:
    "Buys fruit."
    return {"paid": PRICES[fruit] * count}


class Slow(Watcher):
    """Collects the calls that take long."""

    def __init__(self, bound_ms: int) -> None:
        self.bound_ms = bound_ms
        self.seen: list[str] = []

    def call_ended(self, run: RunFacts, call: CallFacts) -> None:
        if call.duration_ms >= self.bound_ms:
            self.seen.append(f"{run.client} {call.server}.{call.tool}: {call.certainty.value}")


async def ask(question: Question) -> Verdict:
    return Verdict.ACCEPTED if question.tool_name == "buy" else Verdict.DECLINED


def on_log(entry: LogEntry) -> None:
    print(entry.level, entry.message)


def on_call(entry: TraceEntry) -> None:
    print(entry.tool_name, entry.ok)


def errors_of(response: RunResponse) -> list[Diagnostic]:
    return [found for found in response.diagnostics if found.severity == "error"]


def names_of(servers: Mapping[str, ServerEntry]) -> list[str]:
    return [known.export_name for server in servers.values() for known in server.tools]


async def run(broker: Broker, code: str, mode: TypecheckMode = "off") -> Any:
    response = await broker.run(
        code,
        limits={"timeoutMs": 30_000},
        typecheck=mode,
        observer=Observer(on_log=on_log, on_call=on_call),
        grantee=Grantee("embedding", approver=ask),
    )
    for found in errors_of(response):
        print(found.code, found.message, found.hint)
    return response.result


async def main(config: Path) -> int:
    try:
        settings: Settings = load_settings(config)
    except CellblockError as error:
        print(error.message, error.hint, error.fault.value, file=sys.stderr)
        return 1
    watcher = Slow(0)
    async with Broker(settings, tools=[price, buy]) as broker:
        broker.events.add(watcher)
        await broker.settled()
        print(names_of(broker.catalog.servers))
        code = """
            import { price, buy } from "@codemode/servers/local";
            console.log((await price({ fruit: "pear" })).result);
            globalThis.__codemode_result__ = (await buy({ fruit: "pear", count: 3 })).paid;
        """
        print(await run(broker, code), watcher.seen)
    return 0


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main(Path(sys.argv[1]))))
