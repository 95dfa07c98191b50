"""What integration and end-to-end tests share: entries of the own test servers, processes, bounded waits."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import psutil

from cellblock import Broker, RunResponse
from cellblock.config.settings import Settings, parse_settings

SERVERS = Path(__file__).parent / "servers"
CELLBLOCK = Path(sys.executable).parent / "cellblock"

WAIT_BOUND_SECONDS = 60.0
"""Longest wait for something that takes well under a second on a quiet machine."""

STEADY_SECONDS = 0.3
"""How long processes must be the same to count as the ones that stay: a worker outlives its run by a few
milliseconds, and a boot takes 30."""

LIST_WAIT_MS = 10_000

WARM = 2
"""Workers that brokers under test keep warm: each takes a core for some 70 ms to boot, and few tests use more."""

_T = TypeVar("_T")

Entry = dict[str, Any]


def plain_server(*args: object, env: Mapping[str, str] | None = None) -> Entry:
    """The `mcpServers` entry of `servers/plain_server.py`; starts in 50 ms."""
    return {
        "command": sys.executable,
        "args": ["-I", str(SERVERS / "plain_server.py"), *map(str, args)],
        "env": dict(env or {}),
    }


def sdk_server(*args: object) -> Entry:
    """The `mcpServers` entry of `servers/sdk_server.py` over stdio; starts in about a second."""
    return {"command": sys.executable, "args": ["-I", str(SERVERS / "sdk_server.py"), *map(str, args)]}


def settings(state_dir: Path, servers: Mapping[str, Any] | None = None, **cellblock: Any) -> Settings:
    """Settings as if read from a file; `cellblock` are the sections of the `"cellblock"` key."""
    cellblock = {**for_tests(cellblock), "state_dir": str(state_dir)}
    raw = {"mcpServers": dict(servers or {}), "cellblock": cellblock}
    return parse_settings(raw)


def for_tests(cellblock: Mapping[str, Any]) -> dict[str, Any]:
    """The section with few workers, and time for servers to be listed on a busy machine; tests of these set them."""
    return {
        **cellblock,
        "upstream": {"list_wait_ms": LIST_WAIT_MS, **cellblock.get("upstream", {})},
        "pool": {"warm": WARM, **cellblock.get("pool", {})},
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


async def until(
    holds: Callable[[], object], what: str, bound: float = WAIT_BOUND_SECONDS, pause: float = 0.01
) -> None:
    """Waits until `holds()` is true; fails with `what` after `bound` seconds."""
    deadline = time.monotonic() + bound
    while not holds():
        assert time.monotonic() < deadline, f"not within {bound:g} s: {what}"
        await asyncio.sleep(pause)


async def steady(look: Callable[[], _T], what: str) -> _T:
    """What `look` gives once it has given the same for `STEADY_SECONDS`: no worker is booted or ended meanwhile."""
    seen = [look()]
    since = time.monotonic()

    def stays() -> bool:
        nonlocal since
        if (found := look()) != seen[-1]:
            seen.append(found)
            since = time.monotonic()
        return time.monotonic() > since + STEADY_SECONDS

    await until(stays, what)
    return seen[-1]


async def within(work: Awaitable[Any], bound: float = WAIT_BOUND_SECONDS) -> Any:
    """The result of `work`, or TimeoutError after `bound` seconds."""
    async with asyncio.timeout(bound):
        return await work


async def warmed(broker: Broker, workers: int | None = None) -> None:
    """Waits until so many workers (all that the pool keeps) are warm, as the host has said."""
    wanted = broker.settings.cellblock.pool.warm if workers is None else workers
    await until(lambda: broker.warm_workers >= wanted, f"{wanted} warm workers")


def succeeded(response: RunResponse) -> Any:
    """The result of a run without any error diagnostic."""
    assert response.ok, response.as_json()
    return response.result


def error_of(response: RunResponse, code: str) -> Any:
    """The first diagnostic, which must be an error with this code and a hint; the result must be null."""
    first = response.diagnostics[0]
    assert (first.severity, first.code) == ("error", code), response.as_json()
    assert first.hint
    assert response.result is None
    return first


def alive(process: psutil.Process) -> bool:
    """Whether this very process (not another with its pid) still runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def descendants(pid: int) -> list[psutil.Process]:
    """All living children of a process, their children and so on."""
    return [process for process in psutil.Process(pid).children(recursive=True) if alive(process)]


def command_line(process: psutil.Process) -> list[str]:
    """A process's arguments; none when it has ended, which any process may do between two looks at it."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def told_to(process: psutil.Process) -> list[str]:
    """A process's environment and command line; nothing for one that has ended."""
    try:
        return [json.dumps(process.environ()), " ".join(process.cmdline())]
    except psutil.NoSuchProcess:
        return []


def name_of(process: psutil.Process) -> str:
    """The name of a process's program; nothing when it has ended."""
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


def workers_of(host_pid: int) -> list[psutil.Process]:
    """The Deno processes of a worker host, without the bubblewrap that watches over each."""
    return [process for process in descendants(host_pid) if name_of(process) == "deno"]


async def gone(processes: Iterable[psutil.Process], bound: float = 10.0) -> None:
    """Waits until none of the processes runs any more."""
    watched = list(processes)
    left: list[psutil.Process] = watched

    def none_left() -> bool:
        nonlocal left
        left = [process for process in left if alive(process)]
        return not left

    deadline = time.monotonic() + bound
    while not none_left():
        assert time.monotonic() < deadline, f"still running after {bound:g} s: {[_shown(p) for p in left]}"
        await asyncio.sleep(0.02)


def _shown(process: psutil.Process) -> str:
    return f"{process.pid} {' '.join(command_line(process))[:120]}"
