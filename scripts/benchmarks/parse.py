"""How long parsing a script holds the broker's event loop: the largest gap of a loop that wants to turn all the time.

Ordinary and hostile scripts from 100 bytes to 1 MiB as `execution` parses them
and the rewriting of their imports, as a run does; beside each, the gap of the idle loop for as long, in the same run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from benchmarks.harness import median_and, parser, table
from cellblock.apart.share import Share, share_of_one
from cellblock.script.imports import TooComplex
from cellblock.script.source import encoded, prepare
from cellblock.script.source_apart import INLINE_BYTES, analysed

TARGET_MS: Final = 50.0
SIZES: Final = (100, 1_000, 4_000, INLINE_BYTES - 64, INLINE_BYTES + 64, 1024 * 1024 - 64)
TICK_SECONDS: Final = 0.0005
IDLE_SECONDS: Final = 0.05
"""How long the idle loop is watched where a script takes less."""


def _filled(piece: str, head: str = "", tail: str = "") -> Callable[[int], str]:
    return lambda size: head + piece * max(1, (size - len(head) - len(tail)) // len(piece)) + tail


def _nested(left: str, middle: str, right: str) -> Callable[[int], str]:
    def make(size: int) -> str:
        depth = max(1, size // len(left + right))
        return left * depth + middle + right * depth

    return make


ORDINARY: Final = """
const rows = await listIssues({ state: "open", limit: 20 });
for (const row of rows.items ?? []) {
    if (row.labels.includes("bug")) console.log(`${row.id}: ${row.title}`, { who: row.assignee?.name });
}
"""

SCRIPTS: Final[dict[str, Callable[[int], str]]] = {
    "ordinary": _filled(ORDINARY, 'import { listIssues } from "@codemode/servers/tracker";\n'),
    "ordinary TypeScript": _filled("interface A { a: number }\nconst f = <T,>(x: T): x is T & A => true;\n"),
    "a long string": _filled("x", "const s = '", "';"),
    "a long array": _filled("1,", "const a = [", "];"),
    "parentheses": _nested("(", "1", ")"),
    "braces without end": _filled("{"),
    "brackets without end": _filled("["),
    "arrow heads": _filled("(a=(b=>("),
    "templates in templates": _nested("`${", "1", "}`"),
    "a comment without end": _filled("/* x ", "let a;"),
    "errors everywhere": _filled("let let @ # ] ) } = ; "),
    "less-than, or types": _filled("a<b<c>(d)>e,"),
    "type arguments": _filled("f<"),
    "unary operators": _filled("!-+~"),
    "regexes or divisions": _filled("/a/ /b/g / "),
    "imports": _filled('import a from "@codemode/servers/x";\n'),
    "dynamic imports": _filled("import('@codemode/errors'),"),
    "imports of nothing": _filled("import(`${"),
    "JSX": _filled("<a b={"),
    "one identifier": _filled("a"),
    "semicolons": _filled(";"),
    "lines": _filled("\n"),
    "no text at all": _filled("\ufeff\u2028"),
    "optional chains": _filled("?.a"),
    "else if": _filled("if (a) b; else "),
    "labels": _filled("a:"),
}


async def _gap(work: Awaitable[None]) -> tuple[float, float]:
    """Milliseconds of the longest time between two turns of the loop while the work goes on, and of the work."""
    longest = 0.0
    over = False

    async def watch() -> None:
        nonlocal longest
        last = time.perf_counter()
        while not over:
            await asyncio.sleep(TICK_SECONDS)
            now = time.perf_counter()
            longest, last = max(longest, now - last - TICK_SECONDS), now

    watcher = asyncio.create_task(watch())
    await asyncio.sleep(2 * TICK_SECONDS)
    since = time.perf_counter()
    await work
    taken = time.perf_counter() - since
    await asyncio.sleep(2 * TICK_SECONDS)
    over = True
    await watcher
    return longest * 1000, taken * 1000


async def _parse(share: Share, code: str) -> None:
    with contextlib.suppress(TooComplex, SyntaxError, ValueError):
        found = await analysed(encoded(code), share)
        prepare(code, lambda name: f"data:text/javascript;base64,{name}", "importable", found)


async def measure(rounds: int) -> bool:
    """Prints the table. Returns whether no gap is over the target."""
    share = share_of_one()
    await _parse(share, ORDINARY)
    longest = idle_longest = 0.0
    load = os.getloadavg()[0]
    print(
        f"## Loop held by parsing ({os.cpu_count()} cores, load {load:.1f}, {rounds} round(s) of each size)\n"
    )
    rows: list[tuple[str, ...]] = []
    for name, make in SCRIPTS.items():
        gaps: list[tuple[float, int]] = []
        idle: list[float] = []
        for size in SIZES * rounds:
            gap, taken = await _gap(_parse(share, make(size)))
            gaps.append((gap, size))
            idle.append((await _gap(asyncio.sleep(min(max(IDLE_SECONDS, taken / 1000), 0.5))))[0])
        most, size = max(gaps)
        middle, _ = median_and(100, (gap for gap, _ in gaps))
        idle_middle, idle_most = median_and(100, idle)
        figures = [f"{one:.1f}" for one in (middle, most, idle_middle, idle_most)]
        rows.append((name, *figures[:2], f"{size:,}", *figures[2:]))
        longest, idle_longest = max(longest, most), max(idle_longest, idle_most)
    print(table(("script", "p50 ms", "max ms", "at bytes", "idle loop: p50 ms", "max ms"), rows))
    met = longest <= TARGET_MS
    print(f"\nlongest: {longest:.1f} ms, idle {idle_longest:.1f} ms; target {TARGET_MS:g} ms ", end="")
    print("met" if met else "MISSED")
    return met


def main(arguments: Sequence[str]) -> int:
    """Returns 0 when the target is met, else 1."""
    arguing = parser("parse", __doc__)
    arguing.add_argument(
        "--rounds", type=int, default=2, help="times each script and size is parsed (default 2)"
    )
    return 0 if asyncio.run(measure(arguing.parse_args(arguments).rounds)) else 1
