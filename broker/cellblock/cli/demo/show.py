"""`cellblock demo`: a real script against two real servers, shown step by step."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from cellblock import Broker, LogEntry, Observer, TraceEntry
from cellblock.cli.demo.team import capacity, finish_date
from cellblock.config.settings import parse_settings

SCRIPT = Path(__file__).parent / "plan_week.js"


async def show(state_dir: Path | None) -> bool:
    """Runs the demo and prints it. Returns whether the script ended without an error.

    Args:
        state_dir: Where logs go; a temporary directory, removed afterwards, when None.
    """
    if state_dir is not None:
        return await _show(state_dir)
    with tempfile.TemporaryDirectory(prefix="cellblock-demo-") as temporary:
        return await _show(Path(temporary))


async def _show(state_dir: Path) -> bool:
    config = {
        "mcpServers": {"tracker": {"command": sys.executable, "args": ["-m", "cellblock.cli.demo.tracker"]}}
    }
    settings = parse_settings(config).with_state_dir(state_dir)
    code = SCRIPT.read_text(encoding="utf-8")
    _heading("The script")
    print(code)
    async with Broker(settings, tools=[capacity, finish_date]) as broker:
        await broker.settled()
        _heading("Servers")
        for server in broker.catalog.servers.values():
            tools = ", ".join(tool.export_name for tool in server.tools)
            print(f"  @codemode/servers/{server.server_id}: {tools}")
        _heading("Live")
        response = await broker.run(code, observer=Observer(on_log=_print_log, on_call=_print_call))
    _heading("The response")
    print(json.dumps(response.as_json(), indent=2))
    return response.ok


def _heading(text: str) -> None:
    print(f"\n── {text} {'─' * (70 - len(text))}")


def _print_call(entry: TraceEntry) -> None:
    outcome = "ok" if entry.ok else f"failed: {entry.error}"
    print(f"  call  {entry.server_id}.{entry.tool_name}  {entry.duration_ms} ms  {outcome}", flush=True)


def _print_log(entry: LogEntry) -> None:
    print(f"  {entry.level:5} {entry.message}", flush=True)
