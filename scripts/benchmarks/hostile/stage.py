"""Where an attack takes place: a daemon, and the hostile servers behind it."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks import client

SERVER: Final = Path(__file__).with_name("hostile_server.py")
ATTACKER: Final = "127.0.2.1"
"""The address that attackers come from."""

STOP_BOUND_SECONDS: Final = 60.0


@dataclass
class Stage:
    """A running daemon. `go` is the file that hostile servers flood while it is there; `over` ends the attack."""

    port: int
    token: str
    go: Path
    over: threading.Event = field(default_factory=threading.Event)
    endings: Counter[str] = field(default_factory=Counter[str])
    """Counts how the attacker's requests ended."""

    def send(self, body: bytes) -> None:
        """Makes one request of the attacker's."""
        try:
            status, data = client.send(
                self.port, self.token, body, address=ATTACKER, bound=client.TIMEOUT_SECONDS
            )
            ok = status == http.client.OK
            self.endings[_ending(client.response_in(data)) if ok else f"HTTP {status}"] += 1
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.endings[f"{type(error).__name__}: {str(error)[:80]}"] += 1


def _ending(answer: Mapping[str, Any]) -> str:
    for entry in answer.get("diagnostics", []):
        if entry.get("severity") == "error":
            return str(entry.get("code"))
    result = answer.get("result")
    return f"result: {json.dumps(result)}"[:60] if isinstance(result, str | list) else "result"


@contextlib.contextmanager
def upstream(transport: str, go: Path, *arguments: str) -> Generator[dict[str, Any]]:
    """The `mcpServers` entry of a hostile server; one over HTTP or SSE is started here, and ended."""
    command = ["-I", str(SERVER), transport, "--flood-while", str(go), *arguments]
    if transport == "stdio":
        yield {"command": sys.executable, "args": command}
        return
    process = subprocess.Popen([sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    try:
        port = int(process.stdout.readline().split()[1])
        if transport == "sse":
            yield {"url": f"http://127.0.0.1:{port}/sse", "type": "sse"}
        else:
            yield {"url": f"http://127.0.0.1:{port}/mcp"}
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(STOP_BOUND_SECONDS)
