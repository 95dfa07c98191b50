"""A daemon with a watch in its loop, and what an attacker needs of it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.harness import SCRIPTS
from benchmarks.hostile import plain_client
from security.native.harness import Native

SERVER: Final = Path(__file__).with_name("hostile_server.py")
ATTACKER: Final = "127.0.2.1"
"""The address that attackers come from."""

START_BOUND_SECONDS: Final = 60.0
STOP_BOUND_SECONDS: Final = 60.0
"""The daemon lets runs in flight go on for 30 s (`http.drain_ms`)."""
RUN_BOUND_SECONDS: Final = 120.0
"""For the answer to one of the attacker's runs."""

MISSED: Final = "deno"
"""What Deno gives of a script for the native attacker."""

PARKED: Final = "RUN_PARKED"

_SERVING: Final = re.compile(rb"127\.0\.0\.1:(\d+)/mcp")


@dataclass
class Bill:
    """What the attacker's runs were told that they have used, and how they ended."""

    runs: int = 0
    cpu_ms: int = 0
    wall_ms: int = 0
    peak_bytes: int = 0
    endings: Counter[str] = field(default_factory=Counter[str])
    notes: dict[str, Any] = field(default_factory=dict[str, Any])

    def as_json(self) -> dict[str, Any]:
        """Times in milliseconds."""
        return {
            "runs": self.runs,
            "cpu_ms": self.cpu_ms,
            "wall_ms": self.wall_ms,
            "peak_mib": round(self.peak_bytes / 2**20, 1),
            "endings": dict(self.endings.most_common()),
            **self.notes,
        }


@dataclass
class Stage:
    """A running daemon. `go` is the file that hostile servers flood while it is there; `over` ends the attack."""

    pid: int
    port: int
    token: str
    folder: Path
    go: Path
    watch: Path
    over: threading.Event = field(default_factory=threading.Event)
    bill: Bill = field(default_factory=Bill)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def attack(self, code: str, limits: Mapping[str, int] | None = None, *, extra_meta: str = "") -> str:
        """One run of the attacker's, which is entered in the bill; gives how it ended."""
        body = plain_client.request_body(code, limits, extra_meta)
        return self.send(body)

    def send(self, body: bytes) -> str:
        """The same of a request that is made already. One that no attacker has got is not in the bill."""
        return self._billed(body)[0]

    def attack_parked(self, code: str) -> None:
        """A run of the attacker's that is written down; if it waits for a person, that one has no objection."""
        ending, answer = self._billed(plain_client.request_body(code, durable=True))
        if ending == PARKED:
            try:
                run_id = str(answer["usage"]["runId"])
                status = plain_client.approve(
                    self.port, self.token, run_id, address=ATTACKER, bound=RUN_BOUND_SECONDS
                )
                self.note("approved", f"HTTP {status}")
            except (OSError, http.client.HTTPException) as error:
                self.note("approved", type(error).__name__)

    def _billed(self, body: bytes) -> tuple[str, Mapping[str, Any]]:
        answer: Mapping[str, Any] = {}
        try:
            status, data = plain_client.send(
                self.port, self.token, body, address=ATTACKER, bound=RUN_BOUND_SECONDS
            )
            if status == http.client.OK:
                answer = plain_client.response_in(data)
            if answer.get("result") == MISSED:
                return MISSED, answer
            ending = _ending(answer) if answer else f"HTTP {status}"
        except (OSError, http.client.HTTPException, ValueError) as error:
            ending = f"{type(error).__name__}: {str(error)[:80]}"
        usage = answer.get("usage", {})
        with self._lock:
            self.bill.runs += 1
            self.bill.cpu_ms += usage.get("cpuMs", 0)
            self.bill.wall_ms += usage.get("wallMs", 0)
            self.bill.peak_bytes = max(self.bill.peak_bytes, usage.get("peakMemoryBytes", 0))
            self.bill.endings[ending] += 1
        return ending, answer

    def honest(self, code: str, address: str) -> str:
        """How a run of another client ends."""
        try:
            return _ending(plain_client.call(self.port, self.token, code, address=address))
        except (OSError, http.client.HTTPException, ValueError) as error:
            return type(error).__name__

    def note(self, what: str, ending: str) -> None:
        """Counts an ending beside the bill."""
        with self._lock:
            endings: Counter[str] = self.bill.notes.setdefault(what, Counter())
            endings[ending] += 1

    def cpu_seconds(self) -> float:
        """CPU time of the broker so far."""
        times = psutil.Process(self.pid).cpu_times()
        return times.user + times.system


def _ending(answer: Mapping[str, Any]) -> str:
    for entry in answer.get("diagnostics", []):
        if entry.get("severity") == "error" or entry.get("code") == PARKED:
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


@contextlib.contextmanager
def stage(
    folder: Path, servers: Mapping[str, Any], cellblock: Mapping[str, Any], go: Path, native: Native | None
) -> Generator[Stage]:
    """Serves over HTTP on a free port of the loopback; at the end the daemon is stopped, and killed if it must be.

    Args:
        folder: An empty one.
        servers: The `mcpServers`.
        cellblock: Settings.
        go: See `Stage`.
        native: The attacker that is to be in the place of some workers.
    """
    config = folder / "cellblock.json"
    config.write_text(json.dumps({"mcpServers": dict(servers), "cellblock": dict(cellblock)}), "utf-8")
    watch, log = folder / "stalls", folder / "daemon.log"
    serve = ["serve", "--http", "127.0.0.1:0", "--config", str(config), "--state-dir", str(folder / "s")]
    path = [str(SCRIPTS), *([native.environment()] if native else [])]
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.hostile.loop_watch", str(watch), *serve],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        )
    try:
        port = port_told_in(log, START_BOUND_SECONDS)
        token = (folder / "s" / "token").read_text("ascii").strip()
        yield Stage(process.pid, port, token, folder, go, watch)
    finally:
        process.terminate()
        try:
            process.wait(STOP_BOUND_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def port_told_in(log: Path, bound: float) -> int:
    """Waits until a daemon has said where it serves. Raises RuntimeError."""
    deadline = time.monotonic() + bound
    while time.monotonic() < deadline:
        if (found := _SERVING.search(log.read_bytes())) is not None:
            return int(found[1])
        time.sleep(0.05)
    raise RuntimeError(f"the daemon did not start: {log.read_bytes()[-2000:].decode(errors='replace')}")
