"""A `cellblock serve --http` for tests, and raw HTTP against it.

The process begins by a fork (`cellblock_zygote`), or as a user's does (`console_script=True`).
"""

import asyncio
import contextlib
import json
import ssl
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import psutil
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from support.cellblock_zygote import Command, started, with_constants
from support.entries import CELLBLOCK, plain_server, recorded, write_config
from support.processes import alive, descendants, gone
from support.waits import until_found, within

TOOL = "codemode.run"

INITIALIZE: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}

MCP_HEADERS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


@dataclass
class Answer:
    """What came back on a connection."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class Daemon:
    """The process, and how to reach it."""

    process: asyncio.subprocess.Process | Command
    port: int
    folder: Path
    token: str | None
    tls: ssl.SSLContext | None = None
    said: list[str] = field(default_factory=list[str])
    host: str = "127.0.0.1"

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}/mcp"

    @property
    def ledger(self) -> Path:
        """What the upstream server behind it recorded."""
        return self.folder / "ledger.jsonl"

    def recorded(self, **wanted: Any) -> int:
        """How many events of the plain server have such values."""
        return recorded(self.ledger, **wanted)

    @property
    def auth(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def family(self) -> list[psutil.Process]:
        """The daemon and all below it."""
        return [psutil.Process(self.process.pid), *descendants(self.process.pid)]

    @contextlib.asynccontextmanager
    async def transport(self) -> AsyncGenerator[Any]:
        """The SDK's streamable HTTP transport."""
        async with httpx2.AsyncClient(
            headers=self.auth, timeout=60, verify=self.tls or False, trust_env=False
        ) as http:
            yield streamable_http_client(self.url, http_client=http)

    @contextlib.asynccontextmanager
    async def client(self, mode: str = "auto") -> AsyncGenerator[Client]:
        """The SDK's client, in one of the protocol's generations."""
        async with self.transport() as transport, Client(transport, mode=mode) as client:
            yield client

    async def raw(self, data: bytes) -> Answer | None:
        """Sends bytes on a connection of its own; the answer, or None when the daemon hung up without one."""
        async with connected(self, data) as reader:
            return await within(read_answer(reader))

    async def ask(
        self,
        method: str = "POST",
        path: str = "/mcp",
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Answer:
        """One request with exactly these headers beside `Host` (unless given) and the length."""
        body = json.dumps(INITIALIZE).encode() if body is None and method == "POST" else body or b""
        answer = await self.raw(self.request(method, path, headers=headers, body=body))
        assert answer is not None
        return answer

    async def until_says(self, path: str, holds: Callable[[Answer], object]) -> None:
        """Waits until something holds of what a page says."""

        async def look() -> object:
            return holds(await self.ask("GET", path, headers=self.auth))

        await until_found(look, f"{path} says so")

    async def until_status(self, path: str, status: int) -> None:
        """The same of its status."""
        await self.until_says(path, lambda answer: answer.status == status)

    async def live(self) -> int:
        """How many runs are under way."""
        return len(json.loads((await self.ask("GET", "/dashboard/state", headers=self.auth)).body)["live"])

    async def until_live(self, number: int) -> None:
        """Waits until it is so many."""
        await self.until_says("/dashboard/state", lambda state: len(json.loads(state.body)["live"]) == number)

    def request(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> bytes:
        everything = {"Host": f"{self.host}:{self.port}", "Content-Length": str(len(body)), **(headers or {})}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in everything.items())]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


async def read_answer(reader: asyncio.StreamReader) -> Answer | None:
    """One response, with as much of its body as its length says."""
    try:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines[1:] if line)
        }
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return Answer(int(lines[0].split()[1]), headers, body)


@contextlib.asynccontextmanager
async def connected(served: Daemon, data: bytes) -> AsyncGenerator[asyncio.StreamReader]:
    """What comes back to bytes on a connection of their own, which is cut at the end."""
    reader, writer = await asyncio.open_connection(served.host, served.port, ssl=served.tls)
    try:
        writer.write(data)
        yield reader
    finally:
        writer.transport.abort()


def streaming(
    served: Daemon, method: str, headers: Mapping[str, str], body: bytes = b""
) -> contextlib.AbstractAsyncContextManager[asyncio.StreamReader]:
    """The same of one request."""
    return connected(served, served.request(method, "/mcp", headers=headers, body=body))


async def said(served: Daemon, request: bytes) -> tuple[Answer, dict[str, Any]]:
    """The answer, and the first message of its stream or of its body; then the connection is cut."""
    async with connected(served, request) as reader:
        return await first_message(reader)


async def first_message(reader: asyncio.StreamReader) -> tuple[Answer, dict[str, Any]]:
    """The same on a connection that goes on."""
    answer = await within(read_answer(reader))
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        return answer, await next_message(reader)
    return answer, json.loads(answer.body) if answer.body else {}


async def next_message(reader: asyncio.StreamReader) -> dict[str, Any]:
    """The next message of a stream."""
    while not (line := await within(reader.readline(), 60)).startswith(b"data: {"):
        assert line, "the stream ended"
    return json.loads(line[6:])


async def opened(served: Daemon, **capabilities: Any) -> dict[str, str]:
    """The headers of a new session."""
    hello = {**INITIALIZE, "params": {**INITIALIZE["params"], "capabilities": capabilities}}
    answer = await served.ask(headers={**MCP_HEADERS, **served.auth}, body=json.dumps(hello).encode())
    assert answer.status == 200
    headers = {**MCP_HEADERS, **served.auth, "Mcp-Session-Id": answer.headers["mcp-session-id"]}
    told = json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}).encode()
    assert (await served.ask(headers=headers, body=told)).status == 202
    return headers


@contextlib.asynccontextmanager
async def daemon(
    folder: Path,
    *options: str,
    http: Mapping[str, Any] | None = None,
    tls: ssl.SSLContext | None = None,
    token: str | None = None,
    servers: Mapping[str, Any] | None = None,
    console_script: bool = False,
    constants: Mapping[str, Any] | None = None,
    **cellblock: Any,
) -> AsyncGenerator[Daemon]:
    """Serves on a free port of the loopback, in front of one plain server and more; at the end nothing is left.
    `constants` are as in `with_constants`."""
    servers = {"plain": plain_server("--ledger", folder / "ledger.jsonl"), **(servers or {})}
    config = write_config(folder, servers, http=dict(http or {}), **cellblock)
    serve = ("serve", "--http", "127.0.0.1:0", "--config", config, "--state-dir", folder / "s", *options)
    streams: dict[str, Any] = {"stdin": DEVNULL, "stdout": DEVNULL, "stderr": PIPE}
    if console_script:
        process = await asyncio.create_subprocess_exec(CELLBLOCK, *serve, **streams)
    else:
        process = await started(*serve, **streams, env=with_constants(constants or {}))
    family: list[psutil.Process] = []
    said: list[str] = []
    try:
        while not said or "serving" not in said[-1]:
            line = await within(process.stderr.readline(), 60)
            assert line, f"it did not start: {said}"
            said.append(line.decode())
        said.append((await within(process.stderr.readline())).decode())
        port = int(said[-2].strip().removesuffix("/mcp").rpartition(":")[2])
        if token is None and "--no-auth" not in options:
            token = (folder / "s" / "token").read_text().strip()
        running = Daemon(process, port, folder, token, tls, said)
        family = running.family()
        yield running
    finally:
        if process.returncode is None:
            process.terminate()
            with contextlib.suppress(TimeoutError):
                await within(process.wait(), 15)
        if process.returncode is None:
            family += descendants(process.pid)
            process.kill()
            await process.wait()
        said.append((await within(process.stderr.read())).decode())
        await gone(process for process in family if alive(process))
