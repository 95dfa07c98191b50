"""Measures how long a client waits in its first second: for `initialize`, `tools/list`, and its first two calls.

The yardstick is a server without anything, made with the SDK; all are started in turn, so that what else the machine
does falls on all of them. `serve --stdio` has upstream servers that are fast, take `--slow` seconds to start, are dead,
or never answer; each beside the fast one, which the second call uses. `connect` asks a daemon that runs already.
Medians, in milliseconds from the start of the process, and of `initialize` the ratio to the yardstick. `cellblock run`
runs the script that calls the fast server, beside the others, and without servers one that calls nobody.

The exit code is 1 where a target is missed: `initialize` within 1.3 times the yardstick, over `connect` in 250 ms,
and no `cellblock run` that waits for the slow server.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import PLAIN_SERVER, daemon, in_turns, parser

PLAIN = [str(PLAIN_SERVER)]
CELLBLOCK = [sys.executable, "-m", "cellblock.cli"]
YARDSTICK = "empty SDK server"

EMPTY = """
import asyncio
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

async def main():
    server = Server("empty", version="1")
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())

asyncio.run(main())
"""

INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "bench", "version": "1"},
}
NOTHING = "globalThis.__codemode_result__ = 1;"
FAST = 'import { echo } from "@codemode/servers/fast"; globalThis.__codemode_result__ = await echo({ a: 1 });'

MOST_RATIO = 1.3
MOST_CONNECT_SECONDS = 0.25

STEPS = ("initialize", "tools/list", "run", "run that calls")


def main(arguments: Sequence[str]) -> int:
    """Prints the tables; returns whether the targets are met."""
    arguing = parser("bench start", __doc__)
    arguing.add_argument("--rounds", type=int, default=5)
    arguing.add_argument(
        "--slow", type=float, default=20.0, help="seconds that the slow server takes to start"
    )
    parsed = arguing.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        served = serving(Path(folder), parsed.slow)
        commands = {YARDSTICK: [sys.executable, "-c", EMPTY], **served}
        state = Path(folder) / "daemon"
        with daemon(Path(folder) / "1.json", state) as running:
            url = f"http://127.0.0.1:{running.port}/mcp"
            commands["connect"] = [*CELLBLOCK, "connect", "--url", url, "--state-dir", str(state)]
            sessions = {
                name: partial(session, command, calls=name != YARDSTICK) for name, command in commands.items()
            }
            found = in_turns(sessions, parsed.rounds)
            alone = in_turns(one_shots(Path(folder), served), parsed.rounds)
    is_met = report(found)
    for name, took in alone.items():
        median = statistics.median(took)
        is_met &= median < parsed.slow / 2
        print(f"{name:<44}{1000 * median:>15.0f}")
    return 0 if is_met else 1


def one_shots(folder: Path, served: dict[str, list[str]]) -> dict[str, Callable[[], float]]:
    """`cellblock run` with the same configurations."""

    def run(code: str, options: list[str]) -> float:
        script.write_text(code, encoding="utf-8")
        started = time.perf_counter()
        subprocess.run([*CELLBLOCK, "run", str(script), *options], check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - started

    script = folder / "script.js"
    return {
        f"cellblock run, {name.partition(', ')[2]}": partial(run, FAST if number else NOTHING, command[-4:])
        for number, (name, command) in enumerate(served.items())
    }


def serving(folder: Path, slow: float) -> dict[str, list[str]]:
    """The commands with `serve --stdio`, each with a state directory of its own: the first round makes the pins."""
    fast = {"command": sys.executable, "args": ["-I", *PLAIN]}
    others: dict[str, dict[str, Any]] = {
        "no server": {},
        "a fast server": {"fast": fast},
        f"and one that takes {slow:g} s": {
            "slow": {"command": sys.executable, "args": ["-I", *PLAIN, "--start-delay", str(slow)]},
            "fast": fast,
        },
        "and a dead one": {
            "dead": {"command": sys.executable, "args": ["-c", "raise SystemExit(1)"]},
            "fast": fast,
        },
        "and one that never answers": {
            "hanging": {"command": sys.executable, "args": ["-c", "import sys; sys.stdin.read()"]},
            "fast": fast,
        },
    }
    commands: dict[str, list[str]] = {}
    for number, (name, servers) in enumerate(others.items()):
        file = folder / f"{number}.json"
        file.write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
        state = str(folder / f"state-{number}")
        commands[f"serve --stdio, {name}"] = [
            *CELLBLOCK, "serve", "--stdio", "--config", str(file), "--state-dir", state,
        ]  # fmt: skip
    return commands


def session(command: list[str], *, calls: bool) -> list[float]:
    """Seconds from the start of the process to each answer."""
    started = time.perf_counter()
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        times = [asked(process, 1, "initialize", INITIALIZE, started)]
        if calls:
            tell(process, {"method": "notifications/initialized"})
            times.append(asked(process, 2, "tools/list", {}, started))
            for number, code in enumerate((NOTHING, FAST), 3):
                arguments = {"name": "codemode.run", "arguments": {"code": code}}
                times.append(asked(process, number, "tools/call", arguments, started))
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
    return times


def asked(
    process: subprocess.Popen[bytes], number: int, method: str, params: dict[str, Any], started: float
) -> float:
    """Asks, and gives the seconds since `started` when the answer is there."""
    tell(process, {"id": number, "method": method, "params": params})
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line).get("id") == number:
            return time.perf_counter() - started
    raise SystemExit(f"no answer to {method}")


def tell(process: subprocess.Popen[bytes], message: dict[str, Any]) -> None:
    """Sends one message."""
    assert process.stdin is not None
    process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    process.stdin.flush()


def report(found: dict[str, list[list[float]]]) -> bool:
    """Prints medians; says whether `initialize` is answered in time."""
    yardstick = statistics.median(times[0] for times in found[YARDSTICK])
    print(f"{'':<44}" + "".join(f"{step:>15}" for step in STEPS) + f"{'ratio':>8}")
    is_met = True
    for name, rounds in found.items():
        medians = [statistics.median(column) for column in zip(*rounds, strict=True)]
        shown = [f"{1000 * median:.0f}" for median in medians] + ["–"] * (len(STEPS) - len(medians))
        print(f"{name:<44}" + "".join(f"{one:>15}" for one in shown) + f"{medians[0] / yardstick:>8.2f}")
        is_met &= (
            medians[0] < MOST_CONNECT_SECONDS if name == "connect" else medians[0] <= MOST_RATIO * yardstick
        )
    return is_met
