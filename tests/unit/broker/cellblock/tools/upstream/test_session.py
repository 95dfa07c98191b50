"""A session: how it connects, when it pauses, what is written to its server, and how it ends."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import AsyncMock, Mock

import psutil
import pytest

from cellblock.base.budget import Budget
from cellblock.base.redaction import Redactor
from cellblock.base.settings.settings import ServerConfig, UpstreamSettings
from cellblock.base.tasks import end_tasks, in_background
from cellblock.tools.upstream.failures import ConnectionLost
from cellblock.tools.upstream.installs import Install, has_started, package_of
from cellblock.tools.upstream.lifecycle import (
    AT_ONCE_SECONDS,
    FIRST_PAUSE_SECONDS,
    HOPELESS_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    STEADY_SECONDS,
    Lifecycle,
    State,
)
from cellblock.tools.upstream.listing import (
    MOST_IDLE_LISTS,
    QUIET_SECONDS,
    RELIST_SECONDS,
    ServerFacts,
    ToolList,
)
from cellblock.tools.upstream.pace import FLOOD_SECONDS, MESSAGES_AT_ONCE, Cut, Holding, Pace
from cellblock.tools.upstream.session import CLOSE_BOUND_SECONDS, UpstreamSession
from cellblock.tools.upstream.stdio import stdio_wire
from cellblock.tools.upstream.wire import messages
from support.http_server import OverHttp, serving
from support.processes import descendants, name_of
from support.virtual_time import in_virtual_time, virtual_time
from support.waits import until

MOMENTS = 200
"""Enough that some meet the moment in which a connection fails."""


SILENT = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") == sys.argv[1] or "id" not in asked:
        continue
    answer = {"error": {"code": -32601, "message": "unknown"}}
    if asked["method"] == "initialize":
        answer = {"result": {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}},
                             "serverInfo": {"name": "silent", "version": "1"}}}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}), flush=True)
"""


@pytest.mark.parametrize(
    ("silent_at", "bounds", "why"),
    [
        (
            "initialize",
            (1_500, 20_000),
            "it did not answer `initialize` within upstream.connect_timeout_ms = 1500",
        ),
        ("tools/list", (1_500, 20_000), "no tool list within upstream.connect_timeout_ms = 1500"),
        ("tools/list", (20_000, 300), "no tool list within 0.3 s"),
    ],
)
async def test_a_silent_server_is_told_with_what_it_did_not_answer(
    tmp_path: Path, silent_at: str, bounds: tuple[int, int], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ServerConfig(command=sys.executable, args=["-I", "-c", SILENT, silent_at])
    settings = UpstreamSettings(connect_timeout_ms={"*": bounds[0]}).for_server("silent")
    monkeypatch.setattr("cellblock.tools.upstream.listing.LIST_SECONDS", bounds[1] / 1000)
    monkeypatch.setattr("cellblock.tools.upstream.lifecycle.FIRST_PAUSE_SECONDS", 60.0)
    session = UpstreamSession(
        "silent", config, settings, max_message_bytes=1 << 20, log_dir=tmp_path, on_change=lambda: None
    )
    session.start()
    try:
        await until(lambda: session.life.state is State.WAITING, "it has given up")
        assert session.life.reason == why
    finally:
        await session.close()


BARE = """
import json, sys
ANSWERS = {
    "server/discover": {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}},
    "tools/list": {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]},
    "tools/call": {"content": [{"type": "text", "text": "hi"}]},
}
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") in ANSWERS:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": ANSWERS[asked["method"]]}), flush=True)
"""


async def test_a_server_of_the_new_revision_may_leave_out_what_its_results_must_have(tmp_path: Path) -> None:
    """`resultType`, `ttlMs` and `cacheScope`: absent, they mean what they mean in older revisions."""
    config, settings = ServerConfig(command=sys.executable, args=["-I", "-c", BARE]), UpstreamSettings()
    session = UpstreamSession(
        "bare",
        config,
        settings.for_server("bare"),
        max_message_bytes=1 << 20,
        log_dir=tmp_path,
        on_change=lambda: None,
    )
    session.start()
    try:
        result = await session.call("echo", {}, call_bound=20)
        assert session.tools.facts is not None and [tool.name for tool in session.tools.facts.tools] == [
            "echo"
        ]
        assert result.only_text == b'"hi"'
    finally:
        await session.close()


def _children(argument: str) -> list[psutil.Process]:
    return [one for one in psutil.Process().children() if argument in one.cmdline()]


async def test_a_call_to_a_server_that_has_ended_is_known_not_to_have_begun(tmp_path: Path) -> None:
    """Also where the loop has not heard of it: it has had no turn since."""
    config = ServerConfig(command=sys.executable, args=["-I", "-c", "import sys; sys.stdin.read(1)"])
    with (tmp_path / "log").open("w") as log:
        async with stdio_wire(
            config, stderr=log, cap=1 << 20, holding=Holding(Budget.of_servers(), "ends")
        ) as wire:
            # Its command line is not there at once.
            await until(lambda: _children(config.args[-1]), "it is there")
            (child,) = _children(config.args[-1])
            await wire.post(b"{}", {}, "")
            while psutil.pid_exists(child.pid):
                # Not of asyncio: the loop is to hear of nothing.
                time.sleep(0.01)  # noqa: ASYNC251
            with pytest.raises(ConnectionLost) as lost:
                await wire.post(b"{}", {}, "")
    assert not lost.value.sent


GREETS = SILENT.replace('"capabilities": {"tools": {}}', '"capabilities": {}')


async def test_a_session_that_is_woken_does_not_rest_at_once(tmp_path: Path) -> None:
    """A run that imports its server has it connected, and calls it later."""
    config = ServerConfig(command=sys.executable, args=["-I", "-c", GREETS, "nothing"])
    session = UpstreamSession(
        "greets",
        config,
        UpstreamSettings().for_server("greets"),
        max_message_bytes=1 << 20,
        log_dir=tmp_path,
        on_change=lambda: None,
        rests_after=60.0,
    )
    session.start(asyncio.get_running_loop().time() - 3_600, resting=True)
    try:
        await session.tried()
        for _ in range(20):
            await asyncio.sleep(0)
        assert session.idle_since is not None, session.life.state
        session.rest()
        assert session.life.state is State.RESTING
        await session.tried()
        assert (session.life.state, session.life.attempts) == (State.READY, 2)
    finally:
        await session.close()


class Forgets(OverHttp):
    """Refuses the calls of a session that it has forgotten one after the other, each a little later."""

    sessions: ClassVar[list[str]] = []
    forgotten: ClassVar[set[str]] = set()
    refused: ClassVar[list[float]] = []

    def do_POST(self) -> None:
        asked = json.loads(self.body())
        method, session = asked.get("method"), self.headers.get("mcp-session-id")
        if method == "tools/call" and session in self.forgotten:
            self.refused.append(0.03 * len(self.refused))
            time.sleep(self.refused[-1])
            self.answer(404)
            return
        if method == "initialize":
            session = f"session {len(self.sessions)}"
            self.sessions.append(session)
        results = {
            "initialize": {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "serverInfo": {"name": "forgets", "version": "1"},
            },
            "tools/call": {"content": [{"type": "text", "text": "made"}]},
        }
        unknown = {"error": {"code": -32601, "message": "unknown"}}
        found = {"result": results[method]} if method in results else unknown
        body = json.dumps({"jsonrpc": "2.0", "id": asked.get("id"), **found}).encode()
        self.answer(
            200 if "id" in asked else 202, body, content_type="application/json", mcp_session_id=session or ""
        )

    def do_DELETE(self) -> None:
        self.answer(200)


async def test_all_calls_of_a_session_that_is_forgotten_are_made_in_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first refusal ends the connection; the others are on their way, and say as certainly that nothing began."""
    monkeypatch.setattr("cellblock.tools.upstream.dispatcher.LAST_SECONDS", 30.0)
    with serving(Forgets) as place:
        session = UpstreamSession(
            "forgets",
            ServerConfig(url=f"http://{place}/mcp"),
            UpstreamSettings().for_server("forgets"),
            max_message_bytes=1 << 20,
            log_dir=tmp_path,
            on_change=lambda: None,
        )
        session.start()
        try:
            await until(lambda: session.life.state is State.READY, "it is connected")
            Forgets.forgotten.update(Forgets.sessions)
            found = await asyncio.gather(*(session.call("x", {}, call_bound=30) for _ in range(8)))
        finally:
            await session.close()
    assert [result.only_text for result in found] == [b'"made"'] * 8
    assert (len(Forgets.refused), len(Forgets.sessions)) == (8, 2)


@pytest.mark.slow
async def test_closing_ends_a_session_in_every_moment_of_a_failing_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellblock.tools.upstream.lifecycle.FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr("cellblock.tools.upstream.lifecycle.LONGEST_PAUSE_SECONDS", 0.02)
    loop = asyncio.get_running_loop()
    settings = UpstreamSettings().for_server("none")
    with socket.socket() as bound:
        # Bound and not listening: nobody else can take the port, and every connection is refused.
        bound.bind(("127.0.0.1", 0))
        config = ServerConfig(url=f"http://127.0.0.1:{bound.getsockname()[1]}/mcp")
        slowest, ran = 0.0, 0
        for moment in range(MOMENTS):
            session = UpstreamSession(
                "none", config, settings, max_message_bytes=1 << 20, log_dir=tmp_path, on_change=lambda: None
            )
            session.start()
            await asyncio.sleep(moment * 0.00015)
            began = loop.time()
            await session.close()
            slowest = max(slowest, loop.time() - began)
            ran += session.life.attempts
            assert slowest < CLOSE_BOUND_SECONDS / 2, f"{slowest:.1f} s to close at moment {moment}"
            assert session.life.state is State.CLOSED
        left = [task for task in asyncio.all_tasks() if task.get_name() == "upstream none"]
        assert (left, ran >= MOMENTS) == ([], True)


def test_who_never_pauses_is_cut_off_and_bursts_are_no_flood_whatever_their_size() -> None:
    async def bursts(pause: float) -> None:
        pace = Pace()
        for _ in range(1_000):
            await pace.spend(2 * MESSAGES_AT_ONCE)
            await asyncio.sleep(pause)

    in_virtual_time(bursts(2 * FLOOD_SECONDS))
    with pytest.raises(Cut, match="messages a second"):
        in_virtual_time(asyncio.wait_for(bursts(0), 2 * FLOOD_SECONDS))


READS_LATE = """
import json, os, sys, time
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
for line in sys.stdin.buffer:
    asked = json.loads(line)
    told = {"bytes": len(line)}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": told}), flush=True)
"""


@pytest.mark.parametrize("size", [200_000, 12_000_000])
async def test_a_call_that_is_cancelled_leaves_no_half_a_line(tmp_path: Path, size: int) -> None:
    ready = tmp_path / "ready"
    config = ServerConfig(command=sys.executable, args=["-c", READS_LATE, str(ready)])
    # What the wire tells what came, in the place of a connection.
    told = Mock(received=AsyncMock(return_value=0))

    def asks(number: int, text: str) -> bytes:
        return messages.written({"a": text}, id=number, method="x")

    with (tmp_path / "log").open("w") as log:
        async with stdio_wire(
            config, stderr=log, cap=1 << 24, holding=Holding(Budget.of_servers(), "late")
        ) as wire:
            reading = asyncio.create_task(wire.run(told))
            writing = asyncio.create_task(wire.post(asks(1, "x" * size), {}, ""))
            waits = asyncio.create_task(wire.post(asks(2, "y" * size), {}, ""))
            await asyncio.sleep(0.2)  # no bound: wherever it is cancelled, lines are whole
            assert not writing.done(), "the pipe holds less than that"
            writing.cancel()
            waits.cancel()
            await asyncio.wait([writing, waits])
            last = asyncio.create_task(wire.post(asks(3, "end"), {}, ""))
            ready.touch()
            await until(lambda: told.received.await_count == 2, "two answers")
            await last
            await end_tasks(reading)
    # The first had been begun; of the second nothing was written.
    came: list[Any] = [messages.read(call.args[0]) for call in told.received.await_args_list]
    assert [(one.id, json.loads(one.body)["bytes"]) for one in came] == [
        (1, len(asks(1, "x" * size)) + 1),
        (3, len(asks(3, "end")) + 1),
    ]


async def test_an_installer_that_has_given_up_is_no_installation_to_go_on(tmp_path: Path) -> None:
    """It closes its stdout before it is gone, as npm does for a package that is not there."""
    config = ServerConfig(command="sh", args=["-c", "echo $$ >pid; exec 1>&-; exec sleep 600"], cwd=tmp_path)
    with (tmp_path / "log").open("w") as log:
        install = Install("some-server", tmp_path, log.fileno(), lambda: None)
        async with stdio_wire(
            config, stderr=log, cap=1 << 20, holding=Holding(Budget.of_servers(), "given up"), install=install
        ) as wire:
            await wire.run(Mock())
            assert install.running
    assert not install.running
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text())), "nobody ended it"


# ---- the state machine of a session, and the pacing of its tool list, by tables --------------------------


STEPS: dict[str, Callable[[Lifecycle], object]] = {
    "begin": lambda life: life.begin(),
    "ready": lambda life: life.connected(100.0),
    "lost": lambda life: life.lost("gone"),
    "failed": lambda life: life.ended(100.0, "refused"),
    "asked": lambda life: life.ended(100.0, "it ended", at_question=True),
    "closed": lambda life: life.closed(),
}

CONNECTING, WAITING = State.CONNECTING, State.WAITING


@pytest.mark.parametrize(
    ("steps", "state", "reason", "is_first", "handshake"),
    [
        ("", CONNECTING, "still connecting", True, False),
        ("begin", CONNECTING, "still connecting", True, False),
        ("begin ready", State.READY, "", False, False),
        ("begin ready lost", WAITING, "gone", False, False),
        ("begin failed", WAITING, "refused", False, False),
        ("begin failed begin", CONNECTING, "refused", False, False),
        # Greeted in the old way at once, as the first attempt still; and again for as long as that is good.
        ("begin asked", CONNECTING, "still connecting, for the second time: it ended", True, True),
        ("begin asked begin ready failed begin", CONNECTING, "refused", False, True),
        ("begin asked begin failed", WAITING, "refused", False, False),
        ("begin failed begin asked", WAITING, "it ended", False, True),
        ("begin ready closed", State.CLOSED, "Cellblock is stopping", False, False),
        ("closed", State.CLOSED, "Cellblock is stopping", False, False),
    ],
)
def test_states(steps: str, state: State, reason: str, is_first: bool, handshake: bool) -> None:
    life = Lifecycle()
    for step in steps.split():
        STEPS[step](life)
    assert (life.state, life.reason, life.is_first, life.handshake) == (state, reason, is_first, handshake)


def _pause(life: Lifecycle, held: float | None, *, served: bool = False) -> float:
    life.begin()
    if held is not None:
        life.connected(100.0)
        if served:
            life.served()
    return life.ended(100.0 + (held or 0.0), "x")


def test_pauses_double_to_the_longest_and_start_over_after_a_connection_that_was_good() -> None:
    life = Lifecycle(chance=lambda: 0.0)
    assert [_pause(life, None) for _ in range(8)] == [
        min(FIRST_PAUSE_SECONDS * 2**n, LONGEST_PAUSE_SECONDS) for n in range(8)
    ]
    for held, served, pause in (
        # One that dies at once has failed, too; one that ends after an answer has not.
        (STEADY_SECONDS - 0.1, False, LONGEST_PAUSE_SECONDS),
        (STEADY_SECONDS, False, FIRST_PAUSE_SECONDS),
        (None, False, 2 * FIRST_PAUSE_SECONDS),
        (0.1, True, FIRST_PAUSE_SECONDS),
    ):
        assert _pause(life, held, served=served) == pause
    assert _pause(Lifecycle(chance=lambda: 1.0), None) == FIRST_PAUSE_SECONDS / 2, "chance takes up to half"


def test_a_server_without_a_package_is_tried_ever_less_often() -> None:
    life = Lifecycle(chance=lambda: 0.0)
    life.begin()
    pauses = [life.ended(100.0, "no such package", is_hopeless=True) for _ in range(9)]
    assert pauses == [min(LONGEST_PAUSE_SECONDS * 2**n, HOPELESS_PAUSE_SECONDS) for n in range(9)]
    assert life.ended(100.0, "another reason") == LONGEST_PAUSE_SECONDS


def test_who_needs_the_server_waits_for_an_attempt_unless_one_failed_a_moment_ago() -> None:
    life = Lifecycle()
    life.begin()
    assert life.wanted(0.0) == 1 and not life.is_over(1), "that which is under way"
    life.ended(100.0, "x")
    assert life.is_over(1) and life.wanted(100.0 + AT_ONCE_SECONDS / 2) is None
    assert life.wanted(100.0 + AT_ONCE_SECONDS) == 2 and not life.is_over(2)
    life.begin()
    life.connected(200.0)
    assert life.is_over(2)
    life.ended(200.0, "x")
    assert life.wanted(200.0) == 3, "a connection that was good is no attempt that failed"


@virtual_time
async def test_a_list_that_changes_nothing_is_waited_for_a_few_times_only() -> None:
    loop, says = asyncio.get_running_loop(), SimpleNamespace(during=[])
    session: Any = SimpleNamespace(server_info=None, server_capabilities=None, instructions="one")
    session.connection = SimpleNamespace(notes=())
    redactor = Redactor(ServerConfig(command="x"))
    server: Any = SimpleNamespace(bounds=SimpleNamespace(connect_timeout_ms=1_000), redactor=redactor)

    async def prepare(facts: ServerFacts) -> ServerFacts:
        for more in says.during:
            more()
        return facts

    tools = ToolList(server, prepare, lambda: None)
    await asyncio.sleep(RELIST_SECONDS)
    await tools.first(session)
    async with in_background(tools.keep(session)):
        waited, times = list[bool](), list[float]()
        for _ in range(MOST_IDLE_LISTS + 2):
            tools.note_change()
            waited.append(tools.stale)
            await tools.fresh()
            times.append(loop.time())
        assert waited == [True] * MOST_IDLE_LISTS + [False] * 2
        pauses = [after - before for before, after in pairwise(times[:MOST_IDLE_LISTS])]
        assert pauses == [RELIST_SECONDS] * (MOST_IDLE_LISTS - 1)
        await asyncio.sleep(QUIET_SECONDS + 2 * RELIST_SECONDS)
        tools.note_change()
        assert tools.stale, "a pause makes the server's word good again"
        says.during = [tools.note_change]
        await tools.fresh()
        assert tools.stale, "what was announced during the list is not read"
        says.during, session.instructions = [], "another"
        await tools.fresh()
        assert not tools.stale and tools.facts is not None and tools.facts.instructions == "another"
        for _ in range(MOST_IDLE_LISTS):
            tools.note_change()
            assert tools.stale, "a list that was another makes the server's word good again"
            await tools.fresh()


# ---- which command lines install a server first, and what is a server of what they start -----------------


@pytest.mark.parametrize(
    ("line", "package"),
    [
        ("npx -y @modelcontextprotocol/server-filesystem /srv", "@modelcontextprotocol/server-filesystem"),
        ("/usr/bin/npx some-server", "some-server"),
        ("npm exec --yes some-server", "some-server"),
        ("npm --silent exec some-server", "some-server"),
        ("sh -c npx some-server", "some-server"),
        ("env A=b uvx mcp-server-git", "mcp-server-git"),
        ("uv run server.py", "server.py"),
        ("uv tool run mcp-server-git", "mcp-server-git"),
        ("pipx run some-server", "some-server"),
        ("bunx some-server", "some-server"),
        ("pnpm dlx some-server", "some-server"),
        ("node server.js", None),
        ("npm start", None),
        ("uv --version", None),
        ("/opt/npx-tools/server", None),
        ("docker run -i some/server", None),
    ],
)
def test_what_installs_is_known_by_its_command_line(line: str, package: str | None) -> None:
    assert package_of(line.split()) == package


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="there is no /proc")
@pytest.mark.parametrize(
    ("event", "started"), [("npm_lifecycle_event=npx", True), ("npm_lifecycle_event=postinstall", False)]
)
async def test_npm_says_what_it_has_started(
    event: str, started: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellblock.tools.upstream.installs.STEADY_SECONDS", 0.0)
    line = ["sh", "-c", f"{event} sleep 30; true"]
    with subprocess.Popen(line, start_new_session=True, env={"PATH": "/usr/bin:/bin"}) as process:  # noqa: ASYNC220
        try:
            await until(lambda: "sleep" in map(name_of, descendants(process.pid)), "npm has begun one")
            assert has_started(process.pid) == started
        finally:
            os.killpg(process.pid, signal.SIGKILL)
