"""What one run does, by name: the scripts, the Python tools they call, and the upstream server they use."""

from __future__ import annotations

import asyncio
import random
import sys
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.harness import PLAIN_SERVER
from cellblock import tool

ROWS: Final = [
    {
        "id": number,
        "name": f"row {number}",
        "state": "open" if number % 100 == 0 else "closed",
        "text": "x" * 48,
    }
    for number in range(1000)
]
"""About 100 KB of JSON, of which a script keeps ten rows."""


@tool()
async def noop() -> str:
    """Answers at once."""
    return "ok"


@tool()
async def rows() -> list[dict[str, Any]]:
    """A hundred kilobytes of rows."""
    return ROWS


@tool()
async def nap(ms: int) -> str:
    """Answers after `ms` milliseconds."""
    await asyncio.sleep(ms / 1000)
    return "slept"


TOOLS: Final = [noop, rows, nap]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of run. `fails` says that an error diagnostic is the right outcome."""

    name: str
    code: str
    limits: dict[str, Any] = field(default_factory=dict[str, Any])
    fails: bool = False


TRIVIAL: Final = Scenario("trivial", "globalThis.__codemode_result__ = 1;")
LOCAL: Final = 'import * as local from "@codemode/servers/local";\n'
PLAIN: Final = 'import { echo } from "@codemode/servers/plain";\n'

HONEST: Final = [
    TRIVIAL,
    Scenario("one call", LOCAL + "globalThis.__codemode_result__ = await local.noop({});"),
    Scenario("one call, stdio server", PLAIN + "globalThis.__codemode_result__ = await echo({});"),
    Scenario("20 calls in sequence", LOCAL + "for (let i = 0; i < 20; i++) await local.noop({});"),
    Scenario(
        "20 calls in parallel",
        LOCAL + "await Promise.all(Array.from({ length: 20 }, () => local.nap({ ms: 20 })));",
    ),
    Scenario(
        "100 KB to 10 rows",
        LOCAL
        + "const got = await local.rows({});\n"
        + "const all = Array.isArray(got) ? got : got.result ?? JSON.parse(got);\n"
        + "globalThis.__codemode_result__ = all.filter((row) => row.state === 'open');",
    ),
    Scenario("CPU 50 ms", "const end = performance.now() + 50; while (performance.now() < end);"),
]

HOSTILE: Final = [
    Scenario("endless loop", "for (;;);", {"timeoutMs": 300}, fails=True),
    Scenario(
        "memory bomb",
        "const kept = []; for (;;) kept.push(new Array(1e5).fill(1.5));",
        {"timeoutMs": 2000},
        True,
    ),
    Scenario("log flood", "for (let i = 0; i < 20000; i++) console.log('x'.repeat(100));"),
    Scenario("escape attempt", "throw Object.getPrototypeOf(async () => {}).constructor;", fails=True),
]

BY_NAME: Final = {one.name: one for one in HONEST}
HOSTILE_SHARE: Final = 0.02


def mixed(random_source: random.Random) -> Scenario:
    """One run of the mixed load: any honest scenario, and in two of a hundred cases a hostile one."""
    return random_source.choice(HOSTILE if random_source.random() < HOSTILE_SHARE else HONEST)


def configuration() -> dict[str, Any]:
    """The configuration that all fronts use: the plain server, and the Python tools by module."""
    return {
        "mcpServers": {"plain": {"command": sys.executable, "args": ["-I", str(PLAIN_SERVER)]}},
        "cellblock": {"tools": ["benchmarks.load.scenarios"], "pool": {"queue_size": 512}},
    }
