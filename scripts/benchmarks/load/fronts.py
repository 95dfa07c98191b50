"""The ways in: the embedding API, `serve --stdio` and `serve --http`, behind one `run`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, cast

import anyio
from mcp import Client, StdioServerParameters, stdio_client

from benchmarks.harness import SCRIPTS
from benchmarks.load.plain_http import PlainClient
from benchmarks.load.scenarios import Scenario, configuration
from cellblock import Broker
from cellblock.config.settings import load_settings
from cellblock_worker.host.host import STATUS_INTERVAL_SECONDS

CELLBLOCK: Final = Path(sys.executable).parent / "cellblock"
RAW_SERVER: Final = Path(__file__).with_name("raw_server.py")
ENVIRONMENT: Final = {"PYTHONPATH": str(SCRIPTS)}
CLIENT: Final = "loadtest"

START_SECONDS: Final = 30.0
"""From a server's spawn to its port."""

STOP_SECONDS: Final = 15.0
"""For its shutdown."""

REST_BOUND_SECONDS: Final = 60.0
"""For a dozen boots, on a machine that has much else to do."""


class Front(Protocol):
    """Runs a scenario once."""

    name: str
    pid: int

    async def run(self, scenario: Scenario, *, client: str = CLIENT) -> Mapping[str, Any]:
        """The `codemode.run` response as JSON data."""
        ...

    async def rested(self) -> None:
        """Waits until the last load's workers are replaced: the next turn is another's, who should not pay for it."""
        ...


class Embedded:
    """The embedding API, in this process. `own_seconds` is the CPU that its answers have cost this harness."""

    name = "embedding API"

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.pid = broker.host_pid or 0
        self.own_seconds = 0.0

    async def run(self, scenario: Scenario, *, client: str = CLIENT) -> Mapping[str, Any]:
        """As `Front.run`."""
        response = await self.broker.run(scenario.code, limits=scenario.limits, client=client)
        before = time.thread_time()
        answer = response.as_json()
        self.own_seconds += time.thread_time() - before
        return answer

    async def rested(self) -> None:
        """As `Front.rested`: as the host says of itself after now."""
        async with asyncio.timeout(REST_BOUND_SECONDS):
            await asyncio.sleep(STATUS_INTERVAL_SECONDS)
            while (pool := self.broker.facts().pool())["booting"] or pool["warm"] < pool["warmWanted"]:  # noqa: ASYNC110 - hosts say it now and then
                await asyncio.sleep(0.02)


class Plain:
    """Both servers of a `Served` behind clients that cost next to nothing themselves."""

    def __init__(self, ours: PlainClient, raw: PlainClient) -> None:
        self._ours, self._raw = ours, raw

    def renew(self) -> None:
        """Before some calls after a while without any."""
        self._ours.renew()
        self._raw.renew()

    async def run(self, scenario: Scenario) -> Mapping[str, Any]:
        """As `Front.run`."""
        return await self._ours.call("codemode.run", arguments_of(scenario))

    async def nothing(self) -> None:
        """As `Served.nothing`."""
        await self._raw.call("nothing", {})


class Served:
    """A daemon behind an MCP client of the SDK. `nothing` calls a tool of the SDK alone, the same way.

    `plain` does both without the SDK's client, where that can be.
    """

    def __init__(
        self,
        name: str,
        client: Client,
        pid: int,
        raw: Client,
        plain: Plain | None = None,
    ) -> None:
        self.name, self.pid, self.plain, self._client, self._raw = name, pid, plain, client, raw

    async def nothing(self) -> None:
        """One call of a tool that does nothing, of a server without Cellblock."""
        await self._raw.call_tool("nothing", {})

    async def run(self, scenario: Scenario, *, client: str = CLIENT) -> Mapping[str, Any]:
        """As `Front.run`; who the client is, the session says."""
        result = await self._client.call_tool("codemode.run", arguments_of(scenario))
        return cast("Mapping[str, Any]", result.structured_content or {})

    async def rested(self) -> None:
        """As `Front.rested`, by time alone: what the daemon's host says does not come out."""
        await asyncio.sleep(2 * STATUS_INTERVAL_SECONDS)


def arguments_of(scenario: Scenario) -> dict[str, Any]:
    """Of `codemode.run`."""
    return {"code": scenario.code, "limits": scenario.limits}


def write_config(folder: Path, **pool: Any) -> Path:
    """Writes the configuration of all fronts, with further settings of the pool."""
    config = configuration()
    config["cellblock"]["pool"].update(pool)
    config["cellblock"]["state_dir"] = str(folder / "state")
    file = folder / "cellblock.json"
    file.write_text(json.dumps(config), "utf-8")
    return file


@contextlib.asynccontextmanager
async def embedded(folder: Path, **pool: Any) -> AsyncGenerator[Embedded]:
    """A broker in this process, with further settings of the pool."""
    async with Broker(load_settings(write_config(folder, **pool))) as broker:
        await broker.settled()
        yield Embedded(broker)


@contextlib.asynccontextmanager
async def over_stdio(folder: Path, **pool: Any) -> AsyncGenerator[Served]:
    """`cellblock serve --stdio` and a client at its pipes."""
    parameters = StdioServerParameters(
        command=str(CELLBLOCK),
        args=["serve", "--stdio", "--config", str(write_config(folder, **pool))],
        env=ENVIRONMENT,
    )
    bare = StdioServerParameters(command=sys.executable, args=[str(RAW_SERVER), "stdio"])
    async with Client(stdio_client(parameters)) as client, Client(stdio_client(bare)) as raw:
        yield Served("serve --stdio", client, 0, raw)


@contextlib.asynccontextmanager
async def over_http(folder: Path, **pool: Any) -> AsyncGenerator[Served]:
    """`cellblock serve --http` on a free port of the loopback and a client of it."""
    options = ["--no-auth", "--config", str(write_config(folder, **pool))]
    async with (
        _listening(lambda port: [str(CELLBLOCK), "serve", "--http", f"127.0.0.1:{port}", *options]) as (
            ours,
            pid,
        ),
        _listening(lambda port: [sys.executable, str(RAW_SERVER), "http", str(port)]) as (theirs, _),
        Client(f"http://127.0.0.1:{ours}/mcp") as client,
        Client(f"http://127.0.0.1:{theirs}/mcp") as raw,
    ):
        with (
            contextlib.closing(PlainClient(ours)) as plain,
            contextlib.closing(PlainClient(theirs)) as plain_raw,
        ):
            yield Served("serve --http", client, pid, raw, Plain(plain, plain_raw))


FRONTS: Final = {"embedded": embedded, "stdio": over_stdio, "http": over_http}


@contextlib.asynccontextmanager
async def _listening(command: Callable[[int], list[str]]) -> AsyncGenerator[tuple[int, int]]:
    """Starts a server on a free port; gives port and process id once it takes connections, and stops it at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    process = await anyio.open_process(command(port), env=ENVIRONMENT, stdin=None, stdout=None, stderr=None)
    try:
        with anyio.fail_after(START_SECONDS):
            while True:
                with contextlib.suppress(OSError):
                    await (await anyio.connect_tcp("127.0.0.1", port)).aclose()
                    break
                await anyio.sleep(0.05)
        yield port, process.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        with anyio.move_on_after(STOP_SECONDS, shield=True):
            await process.wait()
