"""The hostile workloads by name: what each needs, and what its attacker does, again and again until it is told to."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.hostile.hostile_server import boxes
from benchmarks.hostile.neighbours import NATIVE
from benchmarks.hostile.plain_client import request_body
from benchmarks.hostile.stage import ATTACKER, MISSED, Stage, upstream
from cellblock_worker.wire.frames import encode_frame
from security.native.harness import steps

MIB: Final = 1 << 20
PAUSE_SECONDS: Final = 0.2
"""Between two rounds of an attacker."""

Servers = Callable[[Path], contextlib.AbstractContextManager[dict[str, Any]]]


@dataclass(frozen=True)
class Workload:
    """What is done beside the neighbours.

    `attack` makes one round, in a thread, and is called again until the stage is over; `attackers` threads do so.
    """

    name: str
    says: str
    attack: Callable[[Stage], None]
    servers: Servers
    attackers: int = 1
    cellblock: Mapping[str, Any] = field(default_factory=dict[str, Any])
    bystanders: int = 0
    """Honest clients whose runs hold some memory for some time (see `stand_by`)."""

    native: bool = False
    """Whether it needs the native attacker in the place of some workers."""


@contextlib.contextmanager
def no_servers(_: Path) -> Generator[dict[str, Any]]:
    """None."""
    yield {}


def served(transport: str, *arguments: str) -> Servers:
    """A hostile server by the name `evil`."""

    @contextlib.contextmanager
    def servers(go: Path) -> Generator[dict[str, Any]]:
        with upstream(transport, go, *arguments) as entry:
            yield {"evil": entry}

    return servers


LARGE_INPUTS: Final = """
import { take } from "@codemode/servers/evil";
const values = new Array(4_000_000).fill(0);
for (let i = 0; i < 5; i++) await take({ values }).catch(() => {});
globalThis.__codemode_result__ = 1;
"""

LARGE_RESULTS: Final = """
import { results } from "@codemode/servers/evil";
let said = "nothing";
for (let i = 0; i < 5; i++) {
  try { said = "rows: " + (await results({})).rows.length; } catch (error) { said = error.name; }
}
globalThis.__codemode_result__ = said;
"""

JOURNALED: Final = """
import * as evil from "@codemode/servers/evil";
const text = "x".repeat(6_000_000);
for (let i = 0; i < 5; i++) await evil.take({ values: [], text }).catch(() => {});
globalThis.__codemode_result__ = 1;
"""
"""Holds as much as a journal may."""

PARKED_AFTER: Final = f"{JOURNALED}await evil.results({{}});"
"""Waits for a person then."""

SLEEPS: Final = "await new Promise((go) => setTimeout(go, 5_000)); globalThis.__codemode_result__ = 1;"

LISTS: Final = """
import { listTools } from "@codemode/discovery";
const count = async () => (await listTools("evil", { detail: "full" })).length;
const all = await Promise.all(Array.from({ length: 300 }, count));
globalThis.__codemode_result__ = all.filter((found) => found > 1).length;
"""

PYTHON_RESULTS: Final = """
import * as local from "@codemode/servers/local";
const found = [];
for (const name of ["untyped", "typed", "models"]) found.push((await local[name]({})).rows.length);
globalThis.__codemode_result__ = found;
"""


def _script(code: str) -> Callable[[Stage], None]:
    def attack(stage: Stage) -> None:
        stage.attack(code)

    return attack


def _journals(stage: Stage) -> None:
    stage.attack_parked(PARKED_AFTER)


def _floods(stage: Stage) -> None:
    stage.go.touch()
    stage.over.wait()


META_BYTES: Final = 7_400 * 1024
META_REQUESTS: Final = 10


def _meta(stage: Stage) -> None:
    body = request_body(SLEEPS, None, boxes(META_BYTES))
    threads = [threading.Thread(target=stage.send, args=(body,), daemon=True) for _ in range(META_REQUESTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


IDLE: Final = 256
IDLE_TRIES: Final = 4096


def _idle(stage: Stage) -> None:
    """Keeps 256 connections open that say nothing but `GET /livez`, and opens again what is closed."""
    held: list[socket.socket] = []
    opened = 0
    try:
        while not stage.over.is_set() and opened < IDLE_TRIES:
            held = [one for one in held if not _closed(one)]
            while len(held) < IDLE and opened < IDLE_TRIES:
                opened += 1
                with contextlib.suppress(OSError):
                    held.append(_connected(stage.port))
            stage.bill.notes["connections_held"] = max(stage.bill.notes.get("connections_held", 0), len(held))
            stage.over.wait(PAUSE_SECONDS)
    finally:
        stage.bill.notes["connections_opened"] = opened
        for one in held:
            one.close()


def _connected(port: int) -> socket.socket:
    one = socket.create_connection(("127.0.0.1", port), timeout=5, source_address=(ATTACKER, 0))
    one.sendall(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % port)
    one.setblocking(False)
    return one


def _closed(one: socket.socket) -> bool:
    try:
        while data := one.recv(4096):
            pass
        one.close()
        return data == b""
    except BlockingIOError:
        return False
    except OSError:
        one.close()
        return True


NOTICE_BYTES: Final = 8 * MIB - 1024
NOTICES: Final = 30

LOG_FRAME: Final = encode_frame(b"\x83\xa2ms\x00\xa5level\xa3log\xa1t\xa3log", b"x" * 16)
"""A log entry whose header is right, but for the order of its keys."""

LOG_BLOCK: Final = 100
LOG_BLOCKS: Final = 5_000
"""Half a million entries."""

HALF: Final = encode_frame(b"\x82\xa1t\xa4done\xa2ms\x00", b"x" * 1000)[:500]
SILENT_MS: Final = 20_000

HELD_MIB: Final = 400
SHARED_ANONYMOUS: Final = 0x21
"""MAP_SHARED | MAP_ANONYMOUS."""

TOTAL_BYTES: Final = 1024 * MIB
"""For all workers together: less than the four take, and far more than the others need."""

MEMORY_LIMITS: Final = {"maxMemoryBytes": 64 * MIB}
BY_MEMORY: Final = [
    steps(("fill", HELD_MIB, SHARED_ANONYMOUS), ("sleep", 1000)),
    steps(("fill", HELD_MIB, 0), ("sleep", 1000)),
    steps(
        ("shmget", 0, HELD_MIB * MIB, 0o1600),
        ("shmat", "$0", 0, 0),
        ("touch", "$1", HELD_MIB * MIB),
        ("sleep", 1000),
    ),
]


def _native(*programs: str, limits: Mapping[str, int] | None = None) -> Callable[[Stage], None]:
    """Each round the next program, until a native worker has got it."""
    number = itertools.count()

    def attack(stage: Stage) -> None:
        program = programs[next(number) % len(programs)]
        while stage.attack(program, limits) == MISSED and not stage.over.is_set():
            stage.over.wait(PAUSE_SECONDS)

    return attack


HOLDS: Final = f"""
const held = new Uint8Array({200 * MIB}).fill(1);
await new Promise((go) => setTimeout(go, 2_000));
globalThis.__codemode_result__ = held.at(-1);
"""


def stand_by(stage: Stage, address: str) -> None:
    """Makes honest runs of 200 MiB and 2 s, within their limits, until the stage is over; how they end is noted."""
    while not stage.over.is_set():
        ending = stage.honest(HOLDS, address)
        if NATIVE not in ending:
            stage.note("bystanders", ending)


FLOOD: Final = ("--most", "60")

WORKLOADS: Final = [
    Workload(
        "notices",
        f"a native worker sends {NOTICES} notices of 8 MiB",
        _native(steps(("notices", NOTICES, NOTICE_BYTES))),
        no_servers,
        native=True,
    ),
    Workload(
        "logs",
        "a native worker sends half a million log entries with the keys of their headers in another order",
        _native(steps(("repeat", LOG_FRAME * LOG_BLOCK, len(LOG_FRAME) * LOG_BLOCK, LOG_BLOCKS))),
        no_servers,
        native=True,
    ),
    Workload(
        "half-frame",
        f"native workers send half a frame and are silent, with a timeoutMs of {SILENT_MS}",
        _native(steps(("raw", HALF, len(HALF)), ("sleep", 2 * SILENT_MS)), limits={"timeoutMs": SILENT_MS}),
        no_servers,
        attackers=4,
        native=True,
    ),
    Workload(
        "memory",
        f"four native workers take {HELD_MIB} MiB each past a maxMemoryBytes of 64 MiB: shared maps, read-only pages, "
        "SysV shm; all workers together may have 1 GiB",
        _native(*BY_MEMORY, limits=MEMORY_LIMITS),
        no_servers,
        attackers=4,
        bystanders=3,
        cellblock={"pool": {"total_memory_bytes": TOTAL_BYTES}},
        native=True,
    ),
    Workload(
        "large-inputs",
        "a script sends arrays of four million numbers to a typed tool",
        _script(LARGE_INPUTS),
        served("stdio"),
    ),
    *(
        Workload(
            f"{transport}-notifications",
            f"a server over {transport} sends notifications of 12 MB that nobody asked for",
            _floods,
            served(transport, *FLOOD),
        )
        for transport in ("stdio", "http", "sse")
    ),
    *(
        Workload(
            f"{transport}-results",
            f"a server over {transport} answers a script's calls with 12 MB",
            _script(LARGE_RESULTS),
            served(transport),
        )
        for transport in ("stdio", "http", "sse")
    ),
    Workload(
        "python-results",
        "Python tools give a script 8 MB each: as dict[str, Any], as a TypedDict, and as models",
        _script(PYTHON_RESULTS),
        no_servers,
        cellblock={"tools": ["benchmarks.hostile.large_tools"]},
    ),
    Workload(
        "journals",
        "four durable runs of one client at once send 30 MB each, park, and go on when they are approved",
        _journals,
        served("stdio", "--bytes", "30000"),
        attackers=4,
        cellblock={"policy": {"default": {"approve": ["evil.results"]}}, "auth": {"keyring": "off"}},
    ),
    Workload(
        "http-meta",
        f"{META_REQUESTS} HTTP requests at once with 7.4 MB in _meta, whose scripts sleep for 5 s",
        _meta,
        no_servers,
    ),
    Workload(
        "list-tools",
        "an honest script asks listTools in full 300 times at once, of 1,500 tools",
        _script(LISTS),
        served("stdio", "--tools", "1500"),
    ),
    Workload(
        "idle-connections",
        f"{IDLE} connections without a token, kept open",
        _idle,
        no_servers,
    ),
]
