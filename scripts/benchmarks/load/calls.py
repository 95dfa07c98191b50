"""What a tool call of a script takes: of a Python tool, and of stdio servers beside the raw SDK's call of it."""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any, Final, NamedTuple

from mcp import Client

from benchmarks.harness import PLAIN_SERVER, broker
from benchmarks.load import yardsticks
from benchmarks.load.fronts import RAW_SERVER, Embedded
from benchmarks.load.scenarios import LOCAL, PLAIN, Scenario

LIMITS: Final = {"maxToolCalls": 400, "timeoutMs": 20_000}
CALLS: Final = 200
SDK: Final = 'import { nothing } from "@codemode/servers/sdk";\n'

CALL_TIMES: Final = """
const times = [];
for (let i = 0; i < 200; i++) { const at = performance.now(); await CALL; times.push(performance.now() - at); }
times.sort((a, b) => a - b);
globalThis.__codemode_result__ = { p50: times[100], p99: times[197] };
"""
PARALLEL_CALLS: Final = (
    LOCAL
    + """
const times = [];
const one = async () => {
  const at = performance.now();
  await tools.nap({ ms: 20 });
  times.push(performance.now() - at);
};
const started = performance.now();
await Promise.all(Array.from({ length: 20 }, one));
globalThis.__codemode_result__ = { total: performance.now() - started, slowest: Math.max(...times) };
"""
)


class Beside(NamedTuple):
    """A script's call and the raw SDK's, p50 in milliseconds."""

    ours: float
    raw: float


class Calls(NamedTuple):
    """p50 of a Python tool's call in milliseconds, of two servers' beside the SDK's, and (total - 1 ms) / slowest."""

    local: float
    plain: Beside
    sdk: Beside
    parallel: float


async def measure(front: Embedded, *, rounds: int) -> Calls:
    """All of it, in turns.

    Args:
        front: With the tools and the plain server of the scenarios.
        rounds: Of 200 calls of each kind; the figures are medians over them.
    """
    servers = {"sdk": {"command": sys.executable, "args": [str(RAW_SERVER), "stdio"]}}
    local: list[float] = []
    plain: list[Beside] = []
    sdk: list[Beside] = []
    parallel: list[float] = []
    async with (
        broker(servers) as other,
        yardsticks.raw_sdk("-I", str(PLAIN_SERVER)) as raw_plain,
        yardsticks.raw_sdk(str(RAW_SERVER), "stdio") as raw_sdk,
    ):
        await other.settled()
        for _ in range(rounds):
            local.append(await _p50(front, LOCAL, "tools.noop({})"))
            plain.append(Beside(await _p50(front, PLAIN, "echo({})"), await raw_p50(raw_plain, "echo")))
            sdk.append(
                Beside(await _p50(Embedded(other), SDK, "nothing({})"), await raw_p50(raw_sdk, "nothing"))
            )
            got = await _result(front, Scenario("", PARALLEL_CALLS, LIMITS))
            parallel.append((got["total"] - 1.0) / got["slowest"])
    return Calls(statistics.median(local), _medians(plain), _medians(sdk), statistics.median(parallel))


def _medians(found: list[Beside]) -> Beside:
    return Beside(statistics.median(one.ours for one in found), statistics.median(one.raw for one in found))


async def _p50(front: Embedded, imports: str, call: str) -> float:
    code = imports + CALL_TIMES.replace("CALL", call)
    return (await _result(front, Scenario("", code, LIMITS)))["p50"]


async def raw_p50(client: Client, tool: str) -> float:
    """p50 of the SDK's call in milliseconds."""
    times: list[float] = []
    for _ in range(CALLS):
        at = time.perf_counter()
        await client.call_tool(tool, {})
        times.append((time.perf_counter() - at) * 1000)
    return statistics.median(times)


async def _result(front: Embedded, scenario: Scenario) -> dict[str, Any]:
    response = await front.run(scenario)
    if not isinstance(response.get("result"), dict):
        raise TypeError(f"the measuring script failed: {response.get('diagnostics')}")
    return response["result"]
