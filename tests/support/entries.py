"""Plain entries of the own test servers, and settings and files made of them."""

import json
import os
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cellblock.app.config.load import parse_settings
from cellblock.base.settings.settings import Settings
from support.cellblock_zygote import CONSOLE_SCRIPT, forked_python

SERVERS = Path(__file__).parents[1] / "servers"

CELLBLOCK = CONSOLE_SCRIPT
"""Starts as a user's does, which takes most of a second of CPU: see `cellblock_zygote` for when it is needed."""


WARM = 1
"""Workers that brokers keep warm in tests of those. All others keep none: a boot takes a core for some 50 ms, and what
is warm at the end of a test was booted for nobody."""

REUSE: dict[str, str] = {}
"""What `--reuse` puts into the section `pool` of brokers under test."""

Entry = dict[str, Any]


def plain_server(*args: object, env: Mapping[str, str] | None = None) -> Entry:
    """The `mcpServers` entry of `servers/plain_server.py`; starts in 25 ms."""
    return {
        "command": sys.executable,
        "args": ["-IS", str(SERVERS / "plain_server.py"), *map(str, args)],
        "env": dict(env or {}),
    }


def forked_server(name: str, *args: object) -> list[str]:
    """The command of a server in `servers` that is made with the MCP SDK, whose import would take most of a second."""
    return [str(forked_python()), "-I", str(SERVERS / name), *map(str, args)]


def sdk_server(*args: object) -> Entry:
    """The `mcpServers` entry of `servers/sdk_server.py` over stdio."""
    return entry(forked_server("sdk_server.py", *args))


@contextmanager
def http_server(*options: str) -> Generator[str]:
    """The URL of an `sdk_server.py` over streamable HTTP; killed at the end."""
    command = forked_server("sdk_server.py", "http", *options)
    environment = {"PATH": os.environ["PATH"]}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            port = process.stdout.readline().split()[1]
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.kill()


def tracker() -> Entry:
    """That of the server that `cellblock demo` brings, which is made with the SDK, too."""
    return entry([str(forked_python()), "-m", "cellblock.app.cli.demo.tracker"])


def entry(command: Sequence[str]) -> Entry:
    """That of a command."""
    return {"command": command[0], "args": list(command[1:])}


def settings(state_dir: Path, servers: Mapping[str, Any] | None = None, **cellblock: Any) -> Settings:
    """Settings as if read from a file; `cellblock` are the sections of the `"cellblock"` key."""
    cellblock = {**for_tests(cellblock), "state_dir": str(state_dir)}
    return parse_settings({"mcpServers": dict(servers or {}), "cellblock": cellblock})


def for_tests(cellblock: Mapping[str, Any]) -> dict[str, Any]:
    """The section with few workers, and time for servers to be listed on a busy machine; tests of these set them."""
    return {
        **cellblock,
        "upstream": {"list_wait_ms": 60_000, **cellblock.get("upstream", {})},
        "pool": {"warm": 0, **REUSE, **cellblock.get("pool", {})},
    }


def write_config(folder: Path, servers: Mapping[str, Any], **cellblock: Any) -> Path:
    """The same as a JSON file for `--config`."""
    file = folder / "cellblock.json"
    given = {"mcpServers": dict(servers), "cellblock": for_tests(cellblock)}
    file.write_text(json.dumps(given), encoding="utf-8")
    return file


def ledger(file: Path) -> list[dict[str, Any]]:
    """The events that a plain server has recorded so far, oldest first."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def recorded(file: Path, **wanted: Any) -> int:
    """How many of these events have such values."""
    return sum(wanted.items() <= event.items() for event in ledger(file))
