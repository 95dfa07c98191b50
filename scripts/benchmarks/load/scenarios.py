"""What one run does, by name: the scripts, the Python tools they call, and the upstream server they use."""

from __future__ import annotations

import asyncio
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
async def noop() -> dict[str, Any]:
    """Answers at once."""
    return {"ok": 1}


@tool()
async def rows() -> dict[str, Any]:
    """A hundred kilobytes of rows."""
    return {"rows": ROWS}


@tool()
async def nap(ms: int) -> dict[str, Any]:
    """Answers after `ms` milliseconds."""
    await asyncio.sleep(ms / 1000)
    return {"ok": 1}


TOOLS: Final = [noop, rows, nap]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of run, and the value that it gives."""

    name: str
    code: str
    limits: dict[str, Any] = field(default_factory=dict[str, Any])
    gives: Any = None


LOCAL: Final = 'import * as tools from "@codemode/servers/local";\n'
PLAIN: Final = 'import { echo } from "@codemode/servers/plain";\n'


@dataclass(frozen=True, slots=True)
class Body:
    """The inside of an async function that calls `tools.NAME(arguments)`: the same for every system compared."""

    js: str
    python: str
    gives: Any


BODIES: Final = {
    "trivial": Body(
        "let sum = 0;\nfor (let i = 0; i < 1000; i++) sum += i;\nreturn sum;",
        "total = 0\nfor n in range(1000):\n    total += n\nreturn total",
        499_500,
    ),
    "one call": Body(
        "return (await tools.noop({})).ok;", 'got = await call_tool("noop", {})\nreturn got["ok"]', 1
    ),
    "20 calls in a row": Body(
        "let done = 0;\nfor (let i = 0; i < 20; i++) done += (await tools.noop({})).ok;\nreturn done;",
        'done = 0\nfor n in range(20):\n    got = await call_tool("noop", {})\n    done += got["ok"]\nreturn done',
        20,
    ),
    "20 calls at once": Body(
        "const all = await Promise.all(Array.from({ length: 20 }, () => tools.nap({ ms: 20 })));\nreturn all.length;",
        'import asyncio\nnaps = [call_tool("nap", {"ms": 20}) for n in range(20)]\n'
        "return len(await asyncio.gather(*naps))",
        20,
    ),
    "100 KB filtered": Body(
        'return (await tools.rows({})).rows.filter((row) => row.state === "open");',
        'got = await call_tool("rows", {})\nreturn [row for row in got["rows"] if row["state"] == "open"]',
        [row for row in ROWS if row["state"] == "open"],
    ),
}


def importing(name: str, body: str, gives: Any = None, limits: dict[str, Any] | None = None) -> Scenario:
    """Makes a script that imports the Python tools' server and gives what the body returns."""
    code = f"{LOCAL}globalThis.__codemode_result__ = await (async () => {{\n{body}\n}})();\n"
    return Scenario(name, code, limits or {}, gives)


NO_IMPORT: Final = Scenario("no import", "globalThis.__codemode_result__ = 1;\n", gives=1)
SCRIPTS: Final = {name: importing(name, body.js, body.gives) for name, body in BODIES.items()}
TRIVIAL: Final = SCRIPTS["trivial"]


SERVERS: Final[dict[str, Any]] = {"plain": {"command": sys.executable, "args": ["-I", str(PLAIN_SERVER)]}}
"""Has the upstream server of all fronts."""
