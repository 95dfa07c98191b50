"""Measures a type check, cold and warm, next to a yardstick in the same run.

Cold: from nothing to the answer, the process's start included. Warm: another script each time, in the same process.
Small is one server with three tools; large imports all of the recorded catalogs (tests/fixtures/catalogs) at once and
uses one tool; all names each of their tools too.
The yardstick is the start of a process that does nothing (`/bin/true`), which tells how busy the machine is.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Sequence
from statistics import median, quantiles

import psutil

from benchmarks.harness import BOUND_SECONDS, best_of, parser
from cellblock.catalog.model import Catalog, ServerEntry, ToolEntry
from cellblock.typecheck import compiler
from cellblock.typecheck.checker import TypeChecker
from support.recorded_catalogs import CATALOGS, recorded_catalog

WARM_TARGET_MS, COLD_TARGET_MS = 25, 150

TASK = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "due": {"type": "string"}},
    "required": ["name", "due"],
    "additionalProperties": False,
}
LIST = {
    "type": "object",
    "properties": {"tasks": {"type": "array", "items": TASK}},
    "required": ["tasks"],
    "additionalProperties": False,
}


def small() -> Catalog:
    """One server with three tools."""
    tools = tuple(ToolEntry(name, name, None, None, {}, LIST) for name in ("list", "search", "recent"))
    return Catalog(1, {"tracker": ServerEntry("tracker", "tracker", "tracker", tools=tools)})


def large() -> Catalog:
    """All the recorded servers, and the small one."""
    return Catalog(1, {**small().servers, **recorded_catalog(folders=CATALOGS).servers})


def script(catalog: Catalog, number: int, *, every: bool = False) -> str:
    """Thirty lines that use a tool and have one error; another text for each number. `every` names all tools."""
    imports = "".join(
        f'import * as s{n} from "@codemode/servers/{name}";\n' for n, name in enumerate(catalog.servers)
    )
    body = "".join(
        f"const part{n} = tasks.filter((task) => task.due > '{n}').map((task) => task.name);\n"
        for n in range(25)
    )
    if every:
        names = [(n, tool) for n, server in enumerate(catalog.servers.values()) for tool in server.tools]
        body += "".join(f"void s{n}.{tool.export_name};\n" for n, tool in names)
    tracker = list(catalog.servers).index("tracker")
    call = f"const {{ tasks }} = await s{tracker}.list({{}});\n"
    return f"{imports}{call}{body}console.log(tasks[{number}].title);\n"


async def check(checker: TypeChecker, catalog: Catalog, number: int, *, every: bool) -> float:
    """One check in ms; it must find the error and name the likely property."""
    code = script(catalog, number, every=every)
    imports = [f"@codemode/servers/{name}" for name in catalog.servers]
    started = time.perf_counter()
    checked = await checker.check(
        code, typescript=False, catalog=catalog, imports=imports, bound_seconds=BOUND_SECONDS
    )
    took = (time.perf_counter() - started) * 1000
    if len(checked.faults) != 1 or "`name`" not in (checked.faults[0].hint or ""):
        raise SystemExit(f"not what was expected: {checked}")
    return took


def yardstick() -> float:
    """The start and end of a process that does nothing, in ms."""
    return best_of(lambda: subprocess.run(["/bin/true"], check=True), 1) * 1000


def show(name: str, figures: list[float], target: float | None, unit: float) -> None:
    """One line: median, p90, and the median in yardsticks."""
    p90 = quantiles(figures, n=10)[-1]
    against = f"target {target:g} ms" if target is not None else ""
    middle = median(figures)
    print(f"{name:8} p50 {middle:7.1f} ms  p90 {p90:7.1f} ms  {middle / unit:6.1f} yardsticks  {against}")


def _processes(checker: TypeChecker) -> list[psutil.Process]:
    outer = psutil.Process(checker.pid)
    return [outer, *outer.children(recursive=True)]


def _cpu_seconds(processes: list[psutil.Process]) -> float:
    return sum(times.user + times.system for times in (process.cpu_times() for process in processes))


async def measure(runs: int) -> None:
    """Prints a table."""
    unit = median(yardstick() for _ in range(50))
    print(f"TypeScript {compiler.version()}; yardstick (/bin/true) {unit:.1f} ms; {runs} runs")
    for name, catalog, every in (
        ("small", small(), False),
        ("large", large(), False),
        ("all", large(), True),
    ):
        tools = sum(len(server.tools) for server in catalog.servers.values())
        print(f"{name}: {len(catalog.servers)} servers, {tools} tools")
        cold: list[float] = []
        for number in range(runs):
            checker = TypeChecker()
            cold.append(await check(checker, catalog, number, every=every))
            await checker.close()
        show("  cold", cold, COLD_TARGET_MS, unit)
        checker = TypeChecker()
        await check(checker, catalog, 0, every=every)
        processes = _processes(checker)
        own, theirs = time.process_time(), _cpu_seconds(processes)
        warm = [await check(checker, catalog, 1 + number, every=every) for number in range(runs * 5)]
        own, theirs = time.process_time() - own, _cpu_seconds(processes) - theirs
        show("  warm", warm, WARM_TARGET_MS, unit)
        each = 1000 / len(warm)
        print(
            f"  CPU of a warm check: broker {own * each:.1f} ms, compiler {theirs * each:.1f} ms (all its threads)"
        )
        print(f"  resident after it: {max(p.memory_info().rss for p in processes) / 2**20:.0f} MiB")
        await checker.close()


def main(arguments: Sequence[str]) -> int:
    """Measures; the exit code says only whether there is a compiler."""
    arguing = parser("typecheck", __doc__)
    arguing.add_argument("--runs", type=int, default=20, help="cold starts; five times as many warm checks")
    runs = arguing.parse_args(arguments).runs
    absent = compiler.why_absent()
    if absent is not None:
        print(f"{absent}. {compiler.FIX}")
        return 1
    asyncio.run(measure(runs))
    return 0
