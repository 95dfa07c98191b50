"""What the same work costs without Cellblock: a bare `deno run` of the script, and the raw SDK client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any, Final

import deno
from mcp import Client, StdioServerParameters, stdio_client

from benchmarks.load.scenarios import LOCAL, NO_IMPORT, TOOLS, Scenario

BY_NAME: Final[dict[str, Any]] = {tool.__name__: tool for tool in TOOLS}
PRELUDE: Final = """
const waiting = new Map();
let last = 0;
async function listen() {
  const buffer = new Uint8Array(64 * 1024), decoder = new TextDecoder();
  let rest = "";
  for (let count; (count = await Deno.stdin.read(buffer)) !== null;) {
    const lines = (rest + decoder.decode(buffer.subarray(0, count), { stream: true })).split("\\n");
    rest = lines.pop();
    for (const line of lines) {
      const [id, value] = JSON.parse(line);
      waiting.get(id)(value);
    }
  }
}
const call = (name) => (args) =>
  new Promise((resolve) => {
    if (last === 0) listen();
    waiting.set(++last, resolve);
    console.log(JSON.stringify([last, name, args]));
  });
const tools = { noop: call("noop"), nap: call("nap"), rows: call("rows") };
"""
RESULT: Final = "console.log(`=${JSON.stringify(globalThis.__codemode_result__)}`);\n"


class BareDeno:
    """A `deno run` process for each script, its DENO_DIR warm, its end awaited.

    It calls tools as directly as can be: a line of JSON on its stdout, the answer on its stdin.
    """

    name = "bare deno run"
    pid = 0

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._argv = [deno.find_deno_bin(), "run", "--no-remote", "--no-npm", "--no-config"]
        self._environment = {
            "DENO_DIR": str(folder / "deno-dir"),
            "DENO_NO_UPDATE_CHECK": "1",
            "NO_COLOR": "1",
        }
        self._files: dict[str, str] = {}

    async def __call__(self) -> None:
        """One process without any tool, from spawn to exit."""
        await self.run(NO_IMPORT)

    async def run(self, scenario: Scenario, *, client: str = "") -> Mapping[str, Any]:
        """As `Front.run`: one process from spawn to exit."""
        process = await asyncio.create_subprocess_exec(
            *self._argv,
            self._file(scenario),
            env=self._environment,
            stdin=subprocess.PIPE if LOCAL in scenario.code else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        assert process.stdout
        result: Any = None
        calls: set[asyncio.Task[None]] = set()
        async for line in process.stdout:
            if not line.startswith(b"="):
                calls.add(asyncio.create_task(_answer(process.stdin, *json.loads(line))))
                continue
            result = json.loads(line[1:])
            if process.stdin is not None:
                process.stdin.close()
        await process.wait()
        return {"result": result, "diagnostics": []}

    async def rested(self) -> None:
        """As `Front.rested`: its processes are gone with their runs."""

    def _file(self, scenario: Scenario) -> str:
        """Writes the script once."""
        if scenario.name not in self._files:
            file = self._folder / f"bare-{len(self._files)}.js"
            file.write_text(scenario.code.replace(LOCAL, PRELUDE) + RESULT, "utf-8")
            self._files[scenario.name] = str(file)
        return self._files[scenario.name]

    async def cpu_seconds(self, count: int, *, rest: float) -> float:
        """CPU seconds of one process, over `count` of them with `rest` seconds before each: cold caches cost too."""

        def children() -> float:
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            return used.ru_utime + used.ru_stime

        before = children()
        for _ in range(count):
            await asyncio.sleep(rest)
            await self()
        return (children() - before) / count


async def _answer(
    stdin: asyncio.StreamWriter | None, number: int, tool: str, arguments: dict[str, Any]
) -> None:
    assert stdin
    value = await BY_NAME[tool](**arguments)
    stdin.write(json.dumps([number, value]).encode() + b"\n")


@contextlib.asynccontextmanager
async def raw_sdk(*server: str) -> AsyncGenerator[Client]:
    """The SDK's own client at a stdio server in Python, given as its arguments."""
    parameters = StdioServerParameters(command=sys.executable, args=list(server))
    async with Client(stdio_client(parameters)) as client:
        yield client
