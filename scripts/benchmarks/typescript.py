"""Measures a TypeScript script against the same in JavaScript, through a whole broker, in one interleaved run.

`types` is what is sent with blanks; `enum` is what Deno still compiles. Prints medians and ratios; quote ratios.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from benchmarks.harness import ROOT, broker, median_of, parser, ratios, seconds_of, warmed
from cellblock import Broker
from cellblock.script.imports import PARSE_BOUND_SECONDS, find_imports

BODY = (
    "const double = (x{0}){0} => x * 2;\nglobalThis.__codemode_result__ = [1, 2].map((x{0}) => double(x));\n"
)
SCRIPTS = {
    "javascript": BODY.replace("{0}", ""),
    "types": BODY.replace("{0}", ": number"),
    "enum": "enum E { A }\n" + BODY.replace("{0}", ": number"),
}
SIZES = (4, 12, 64)
"""KiB of source whose parsing is timed."""


async def _runs(rounds: int) -> None:
    seen: dict[str, list[float]] = {name: [] for name in SCRIPTS}
    async with broker(typecheck="off") as made:
        for _ in range(rounds):
            for name, code in SCRIPTS.items():
                await warmed(made)
                seen[name].append(await seconds_of(_run(made, code)))
    ratios("one run through a broker with a warm worker", seen)


async def _run(of: Broker, code: str) -> None:
    response = await of.run(code)
    assert response.ok, response.as_json()


def _parsing() -> None:
    real = (ROOT / "worker_runtime" / "sandbox" / "result" / "result.ts").read_text()
    plain = find_imports(real.encode(), PARSE_BOUND_SECONDS).javascript or ""
    print("CPU time of parsing, median of 9; JavaScript is the same source with blanks")
    for size in SIZES:
        medians: list[float] = []
        for text in (plain, real):
            source = (text * 8)[: size * 1024].rpartition("\n}\n")[0].encode() + b"\n}\n"
            parsing = median_of(lambda source=source: find_imports(source, 20, 20), 9, time.thread_time)
            medians.append(parsing * 1000)
        ratio = medians[1] / medians[0]
        print(f"  {size:3} KiB {medians[0]:8.1f} ms, with types {medians[1]:8.1f} ms   ratio {ratio:.1f}")


def main(arguments: Sequence[str]) -> int:
    """Runs both measurements; returns 0."""
    arguing = parser("typescript", __doc__)
    arguing.add_argument("--rounds", type=int, default=20, help="runs of each script (default 20)")
    rounds = arguing.parse_args(arguments).rounds
    _parsing()
    asyncio.run(_runs(rounds))
    return 0
