"""The ways in: the embedding API, `serve --stdio` and `serve --http`, behind one `run`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Generator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, cast

from mcp import Client, StdioServerParameters, stdio_client

from benchmarks import processes
from benchmarks.client import PlainClient
from benchmarks.harness import CELLBLOCK, SCRIPTS, configured, daemon
from benchmarks.load.scenarios import SERVERS, Scenario
from cellblock import Broker

RAW_SERVER: Final = Path(__file__).with_name("raw_server.py")
ENVIRONMENT: Final = {"PYTHONPATH": str(SCRIPTS)}
CLIENT: Final = "loadtest"

CALM_SECONDS: Final = 1.0
CALM_SHARE: Final = 0.02
"""A daemon has rested when all its processes have used less than this of a core for so long: nothing boots."""

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
        """As `Front.rested`: its host and workers are calm."""
        await calm(self.pid)


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
        """As `Front.rested`."""
        await calm(self.pid)


async def calm(pid: int) -> None:
    """Waits until a process and all below it have next to nothing to do. Raises TimeoutError."""
    async with asyncio.timeout(REST_BOUND_SECONDS):
        used = -1.0
        while used < 0 or used > CALM_SHARE * CALM_SECONDS:
            before = _used(pid)
            await asyncio.sleep(CALM_SECONDS)
            used = sum(now - before.get(one, 0.0) for one, now in _used(pid).items())


def _used(pid: int) -> dict[int, float]:
    return {one.pid: processes.cpu_seconds(one.pid) for one in processes.tree(pid)}


def arguments_of(scenario: Scenario) -> dict[str, Any]:
    """Of `codemode.run`."""
    return {"code": scenario.code, "limits": scenario.limits}


def write_config(folder: Path, **pool: Any) -> Path:
    """Writes the configuration of all fronts, with further settings of the pool."""
    pool = {"queue_size": 512, **pool}
    state = str(folder / "state")
    return configured(folder, SERVERS, tools=["benchmarks.load.scenarios"], pool=pool, state_dir=state)


@contextlib.asynccontextmanager
async def embedded(folder: Path, **pool: Any) -> AsyncGenerator[Embedded]:
    """A broker in this process, with further settings of the pool."""
    async with Broker.from_config(write_config(folder, **pool)) as broker:
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
        yield Served("serve --stdio", client, os.getpid(), raw)


@contextlib.asynccontextmanager
async def over_http(folder: Path, **pool: Any) -> AsyncGenerator[Served]:
    """`cellblock serve --http` on a free port of the loopback and a client of it."""
    config = write_config(folder, **pool)
    with (
        daemon(config, folder / "state", "--no-auth", environment=ENVIRONMENT) as ours,
        raw_server() as theirs,
        contextlib.closing(PlainClient(ours.port)) as plain,
        contextlib.closing(PlainClient(theirs)) as plain_raw,
    ):
        async with (
            Client(f"http://127.0.0.1:{ours.port}/mcp") as client,
            Client(f"http://127.0.0.1:{theirs}/mcp") as raw,
        ):
            yield Served("serve --http", client, ours.process.pid, raw, Plain(plain, plain_raw))


FRONTS: Final = {"embedded": embedded, "stdio": over_stdio, "http": over_http}


@contextlib.contextmanager
def raw_server() -> Generator[int]:
    """Starts the server of the SDK alone; gives its port."""
    with subprocess.Popen([sys.executable, str(RAW_SERVER), "http"], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.terminate()
