"""Clients of `cellblock serve --stdio` that read slowly, or not at all, or vanish with their pipe full."""

import asyncio
import json
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.cellblock_zygote import Command, started
from support.entries import CELLBLOCK, plain_server, recorded, write_config
from support.processes import descendants, gone
from support.waits import until, within

pytestmark = pytest.mark.thorough

RUNS = 4
BIG = """
    import { echo } from "@codemode/servers/plain";
    await echo({ number: NUMBER });
    globalThis.__codemode_result__ = { number: NUMBER, filler: "x".repeat(100_000) };
"""
"""One of these is more than a pipe holds (64 KiB)."""


def message(method: str, parameters: dict[str, Any], **number: int) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": parameters, **number}).encode() + b"\n"


@asynccontextmanager
async def served(tmp_path: Path, *, console_script: bool = False) -> AsyncIterator[Process | Command]:
    """A connected server, and runs that have all called their tool; nobody has read an answer yet."""
    config = write_config(tmp_path, {"plain": plain_server("--ledger", tmp_path / "ledger.jsonl")})
    words = ("serve", "--stdio", "--config", str(config), "--state-dir", str(tmp_path / "s"))
    streams: dict[str, Any] = {"stdin": PIPE, "stdout": PIPE, "limit": 1 << 12}
    if console_script:
        process = await asyncio.create_subprocess_exec(CELLBLOCK, *words, **streams)
    else:
        process = await started(*words, **streams)
    try:
        client = {"name": "test", "version": "1"}
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
        process.stdin.write(message("initialize", hello, id=1))
        await within(read_line(process, bytearray()))
        process.stdin.write(message("notifications/initialized", {}))
        for number in range(RUNS):
            arguments = {"name": "codemode.run", "arguments": {"code": BIG.replace("NUMBER", str(number))}}
            process.stdin.write(message("tools/call", arguments, id=100 + number))
        await until(
            lambda: recorded(tmp_path / "ledger.jsonl", tool="echo") == RUNS,
            "every run has called its tool",
            bound=40,
        )
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await within(process.communicate())


async def read_line(process: Process | Command, rest: bytearray) -> bytes:
    """The next line of stdout, read in small pieces; what follows it stays in `rest`."""
    while b"\n" not in rest:
        piece = await process.stdout.read(4096)
        assert piece, "stdout has ended"
        rest += piece
    line, _, after = bytes(rest).partition(b"\n")
    rest[:] = after
    return line


async def test_a_client_that_reads_late_gets_every_answer_once(tmp_path: Path) -> None:
    async with served(tmp_path) as process:
        rest, answered = bytearray(), list[int]()
        while len(answered) < RUNS:
            said = json.loads(await within(read_line(process, rest)))
            if "id" in said:
                answered.append(said["id"])
                assert said["result"]["structuredContent"]["result"]["number"] == said["id"] - 100
        assert sorted(answered) == [100 + number for number in range(RUNS)]
        process.stdin.close()
        assert await within(process.wait()) == 0
    assert recorded(tmp_path / "ledger.jsonl", tool="echo") == RUNS


@pytest.mark.parametrize("way", ["closes stdin", "SIGTERM", "closes both"])
async def test_a_client_that_never_reads_cannot_keep_anything_alive(tmp_path: Path, way: str) -> None:
    """Its pipe is full, so that nothing more can be written to it, also not by an interpreter that ends."""
    async with served(tmp_path, console_script=way != "closes stdin") as process:
        left = descendants(process.pid)
        assert left
        if way == "SIGTERM":
            process.send_signal(signal.SIGTERM)
        else:
            process.stdin.close()
        if way == "closes both":
            process.stdout._transport.close()  # pyright: ignore
        # `Process.wait` waits for the end of the pipe, too, and nobody reads what is left in it.
        await until(lambda: process.returncode is not None, "the server's exit")
        assert process.returncode in (0, 128 + signal.SIGTERM)
        await gone(left)
    assert list((tmp_path / "s" / "run").glob("*")) == []
