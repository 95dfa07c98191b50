"""The ways in: the embedding API, `serve --stdio` and `serve --http`, behind one `run`."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, cast

import anyio
from mcp import Client, StdioServerParameters, stdio_client

from cellblock import Broker
from cellblock.config import load_settings
from load.scenarios import Scenario, configuration

CELLBLOCK: Final = Path(sys.executable).parent / "cellblock"
CLIENT: Final = "loadtest"


class Front(Protocol):
    """Runs a scenario once."""

    name: str
    pid: int

    async def run(self, scenario: Scenario, *, client: str = CLIENT) -> Mapping[str, Any]:
        """The `codemode.run` response as JSON data."""
        ...


class Embedded:
    """The embedding API, in this process."""

    name = "embedding API"

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.pid = broker.host_pid or 0

    async def run(self, scenario: Scenario, *, client: str = CLIENT) -> Mapping[str, Any]:
        """As `Front.run`."""
        response = await self.broker.run(scenario.code, limits=scenario.limits, client=client)
        return response.as_json()


class Served:
    """A daemon behind an MCP client of the SDK."""

    def __init__(self, name: str, client: Client, pid: int) -> None:
        self.name, self.pid, self._client = name, pid, client

    async def run(self, scenario: Scenario, *, client: str = CLIENT) -> Mapping[str, Any]:
        """As `Front.run`; who the client is, the session says."""
        arguments = {"code": scenario.code, "limits": scenario.limits}
        result = await self._client.call_tool("codemode.run", arguments)
        return cast("Mapping[str, Any]", result.structured_content or {})


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
    """A broker in this process."""
    async with Broker(load_settings(write_config(folder, **pool))) as broker:
        await broker.settled()
        yield Embedded(broker)


@contextlib.asynccontextmanager
async def over_stdio(folder: Path) -> AsyncGenerator[Served]:
    """`cellblock serve --stdio` and a client at its pipes."""
    parameters = StdioServerParameters(
        command=str(CELLBLOCK),
        args=["serve", "--stdio", "--config", str(write_config(folder))],
        env={"PYTHONPATH": str(Path(__file__).parents[1])},
    )
    async with Client(stdio_client(parameters)) as client:
        yield Served("serve --stdio", client, 0)


@contextlib.asynccontextmanager
async def over_http(folder: Path) -> AsyncGenerator[Served]:
    """`cellblock serve --http` on a free port of the loopback and a client of it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [str(CELLBLOCK), "serve", "--http", f"127.0.0.1:{port}", "--no-auth"]
    process = await anyio.open_process(
        [*command, "--config", str(write_config(folder))],
        env={"PYTHONPATH": str(Path(__file__).parents[1])},
        stdin=None,
        stdout=None,
        stderr=None,
    )
    try:
        with anyio.fail_after(30):
            while True:
                with contextlib.suppress(OSError):
                    await (await anyio.connect_tcp("127.0.0.1", port)).aclose()
                    break
                await anyio.sleep(0.05)
        async with Client(f"http://127.0.0.1:{port}/mcp") as client:
            yield Served("serve --http", client, process.pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        with anyio.move_on_after(15, shield=True):
            await process.wait()
