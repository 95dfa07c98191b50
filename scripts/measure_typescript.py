"""Measures a TypeScript script against the same in JavaScript, through a whole broker, in one interleaved run.

    python scripts/measure_typescript.py [--rounds 20]

`types` is what is sent with blanks; `enum` is what Deno still compiles. Prints medians and ratios; quote ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from cellblock import Broker
from cellblock.config.settings import parse_settings
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
    with tempfile.TemporaryDirectory() as folder:
        raw = {"mcpServers": {}, "cellblock": {"state_dir": folder, "typecheck": "off"}}
        async with Broker(parse_settings(raw)) as broker:
            for _ in range(rounds):
                for name, code in SCRIPTS.items():
                    while broker.warm_workers < broker.settings.cellblock.pool.warm:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                    started = time.perf_counter()
                    response = await broker.run(code)
                    seen[name].append(time.perf_counter() - started)
                    assert response.ok, response.as_json()
    first = statistics.median(seen["javascript"])
    print("one run through a broker with a warm worker")
    for name, seconds in seen.items():
        middle = statistics.median(seconds)
        print(f"  {name:12} {middle * 1000:8.1f} ms   ratio {middle / first:.2f}")


def _parsing() -> None:
    real = (Path(__file__).parents[1] / "worker_runtime" / "sandbox" / "result" / "result.ts").read_text()
    plain = find_imports(real.encode(), PARSE_BOUND_SECONDS).javascript or ""
    print("CPU time of parsing, median of 9; JavaScript is the same source with blanks")
    for size in SIZES:
        medians: list[float] = []
        for text in (plain, real):
            source = (text * 8)[: size * 1024].rpartition("\n}\n")[0].encode() + b"\n}\n"
            times: list[float] = []
            for _ in range(9):
                started = time.thread_time()
                find_imports(source, 20, 20)
                times.append(time.thread_time() - started)
            medians.append(statistics.median(times) * 1000)
        ratio = medians[1] / medians[0]
        print(f"  {size:3} KiB {medians[0]:8.1f} ms, with types {medians[1]:8.1f} ms   ratio {ratio:.1f}")


def main() -> int:
    """Runs both measurements. Returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20, help="runs of each script (default 20)")
    rounds = parser.parse_args().rounds
    _parsing()
    asyncio.run(_runs(rounds))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
