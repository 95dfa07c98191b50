"""Lists that change: who is told, and what they then see."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import mcp_types as types
import pytest
from hypothesis import given, strategies as st
from mcp import Client, MCPError

from cellblock.base.settings.sections import OutputSettings
from cellblock.base.store import LocalStore
from cellblock.run.response import LogEntry, TraceEntry
from cellblock.serve.kept_outputs import Output, keeping
from cellblock.serve.mcp import list_changes, live, surface
from cellblock.serve.mcp.context import rendered_in_thread
from cellblock.serve.mcp.list_changes import GATHER_SECONDS, PAUSE_SECONDS, Gathering
from cellblock.serve.mcp.live import MAX_SHOWN_CHARS, MAX_WAITING, LiveRun, LogLevels, one_line
from cellblock.serve.mcp.mcp_server import FrontServer
from cellblock.serve.service import Owner
from cellblock.tools.catalog.model import Catalog, ServerEntry
from support.entries import settings
from support.standing_service import StandingService, server
from support.virtual_time import virtual_time
from support.waits import until, until_found, within


@pytest.fixture
def service(tmp_path: Path) -> StandingService:
    return StandingService(settings(tmp_path), server("files", "read"))


@asynccontextmanager
async def following(
    service: Any, kept: Any = None, **options: Any
) -> AsyncGenerator[tuple[Client, list[str]]]:
    """A client of an older revision, and the list of what it is told."""
    said: list[str] = []

    async def on_message(message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            said.append("tools")
        elif isinstance(message, types.ResourceListChangedNotification):
            said.append("resources")

    client = Client(
        FrontServer(service, version="1", **options).open(kept),
        mode="legacy",
        message_handler=on_message,
        cache=None,
    )
    async with client:
        # The server has then had what comes before: that the client is initialized.
        await client.list_tools()
        yield client, said


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_changes, "GATHER_SECONDS", 0.0)
    monkeypatch.setattr(list_changes, "PAUSE_SECONDS", 0.0)


async def settled(said: list[str], *wanted: str) -> None:
    await until(lambda: len(said) >= len(wanted), f"{wanted}, of which came {said}")
    assert sorted(said) == sorted(wanted)
    said.clear()


@pytest.mark.usefixtures("at_once")
async def test_a_client_is_told_of_what_it_sees_and_nothing_else(tmp_path: Path) -> None:
    policy = {"clients": {"stdio:guest": {"tools": ["files.*"]}}}
    service = StandingService(settings(tmp_path, policy=policy), server("files", "read"))
    async with (
        following(service, owner_of=lambda _: Owner("stdio:owner", "stdio")) as (_, everyone),
        following(service, owner_of=lambda _: Owner("stdio:guest", "stdio")) as (_, guest),
    ):
        service.show(server("files", "read"), server("secret", "launch"))
        await settled(everyone, "tools", "resources")
        # The same content in other objects, as after a reconnection; another server's tools.
        service.show(server("files", "read"), server("secret", "launch", "abort"))
        await settled(everyone, "tools")
        assert guest == []
        service.show(server("files", "read", "write"))
        await settled(everyone, "tools", "resources")
        await settled(guest, "tools")
    service.show()
    await asyncio.sleep(0)
    assert (everyone, guest) == ([], []), "who has gone is told nothing"


@pytest.mark.usefixtures("at_once")
async def test_who_says_more_than_once_that_it_is_there_is_told_once(service: StandingService) -> None:
    async with following(service) as (client, said):
        for _ in range(50):
            await client.session.send_notification(types.InitializedNotification())
        await client.list_tools()
        service.show(server("files", "read", "write"))
        await until(lambda: said, "the change")
        await client.list_tools()
        assert said == ["tools"]


@pytest.mark.usefixtures("at_once")
async def test_kept_outputs_are_resources_of_their_owner(service: StandingService, tmp_path: Path) -> None:
    async with (
        keeping(OutputSettings(inline_bytes=1024), LocalStore(tmp_path)) as kept,
        following(service, kept, owner_of=lambda _: Owner("ada", "stdio")) as (client, mine),
        following(service, kept, owner_of=lambda _: Owner("bob", "stdio")) as (_, other),
    ):
        await kept.keep(Owner("ada", "stdio"), [Output("result", "application/json", b"[1]")])
        await settled(mine, "resources")
        assert len((await client.list_resources()).resources) == 2
        assert other == []


@virtual_time
async def test_what_changes_all_the_time_is_looked_at_now_and_then() -> None:
    loop = asyncio.get_running_loop()
    looks: list[float] = []
    changes = Gathering(lambda: looks.append(loop.time()))
    while loop.time() < 2 * PAUSE_SECONDS:
        changes.note()
        await asyncio.sleep(GATHER_SECONDS / 100)
    assert looks == pytest.approx([GATHER_SECONDS, GATHER_SECONDS + PAUSE_SECONDS])


async def test_streams_have_a_most(service: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def is_taken() -> bool:
        try:
            async with client.listen(tools_list_changed=True):
                return True
        except MCPError:
            return False

    monkeypatch.setattr(list_changes, "MAX_STREAMS", 2)
    async with Client(FrontServer(service, version="1").open()) as client, AsyncExitStack() as open_streams:
        for _ in range(2):
            await open_streams.enter_async_context(client.listen(tools_list_changed=True))
        with pytest.raises(MCPError, match="2 streams of changes are open already"):
            await within(open_streams.enter_async_context(client.listen(tools_list_changed=True)))
        await open_streams.aclose()
        await until_found(is_taken, "those that ended have given their places back")


async def test_a_new_session_is_greeted_with_what_is_there_now(service: Any) -> None:
    made = FrontServer(service, version="1").open()
    async with Client(made, mode="legacy"):
        service.show(server("files", "read", "write"))
        async with Client(made, mode="legacy") as late:
            assert "- files: read, write" in ((await late.list_tools()).tools[0].description or "")


async def test_that_a_server_has_started_is_told_only_if_it_has_other_tools(
    tmp_path: Path, at_once: None
) -> None:
    """As it is shown by its pins, before anything is known of its name and version."""

    def starting(*servers: ServerEntry) -> Catalog:
        known = {one.server_id: one for one in servers}
        return Catalog(1, known, {}, ids={name: name for name in known}, starting=frozenset(known))

    for other, told in ((("read",), ()), (("read", "write"), ("tools",))):
        service = StandingService(settings(tmp_path))
        service.catalog = service.known_catalog = starting(server("files", "read"))
        async with following(service) as (_, said):
            said.clear()
            started = replace(server("files", *other), server_name="Files", version="2", description="Reads.")
            service.show(started)
            await settled(said, *told)
            service.show(started, server("more", "thing"))
            await settled(said, "tools", "resources")


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("is_looked_at_before", [False, True])
async def test_what_starts_while_the_list_is_made_is_told(
    is_looked_at_before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = StandingService(settings(tmp_path))
    service.catalog = service.known_catalog = Catalog(
        1, {}, {"late": "still connecting"}, ids={"late": "late"}, starting=frozenset({"late"})
    )
    looked: list[Catalog] = []

    async def made(catalog: Catalog) -> None:
        if not looked:
            looked.append(catalog)
            service.show(server("late", "tool"))
            await until(lambda: not is_looked_at_before or "tools" in said, "told while the list is made")

    async with following(service) as (client, said):
        monkeypatch.setattr(surface, "rendered_in_thread", made)
        (tool,) = (await client.list_tools()).tools
        assert "late: tool" not in (tool.description or "")
        await until(
            lambda: said.count("tools") == 1 + is_looked_at_before, f"told after the list, too: {said}"
        )


@pytest.mark.usefixtures("at_once")
async def test_a_server_without_connection_is_no_news_when_another_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manual tells of both: their texts come parsed."""
    parsed = {"servers": {"gone": {"unwrap": "json"}, "files": {"unwrap": "json"}}}
    made = settings(tmp_path, {name: {"command": "x"} for name in ("files", "gone")}, schemas=parsed)
    service = StandingService(made)
    files, ids = server("files", "read"), {name: name for name in ("files", "gone")}
    gone = {"gone": "it exited"}
    service.catalog = service.known_catalog = Catalog(
        1, {"files": files}, gone, ids=ids, starting=frozenset({"files"})
    )
    looked = asyncio.Event()

    async def rendered(catalog: Catalog) -> None:
        await rendered_in_thread(catalog)
        looked.set()

    async with following(service) as (_, said):
        monkeypatch.setattr(list_changes, "rendered_in_thread", rendered)
        service.catalog = service.known_catalog = Catalog(2, {"files": files}, gone, ids=ids)
        service.listeners.tell()
        await within(looked.wait())
        service.show(files, server("more", "thing"))
        await settled(said, "tools", "resources")


CALL = TraceEntry(server_id="a", tool_name="b", duration_ms=1, ok=True)


class Session:
    """Takes what is sent; `reads` False: a client that does not."""

    def __init__(self, *, reads: bool = True) -> None:
        self.reads = reads
        self.logs: list[tuple[str, Any]] = []
        self.progress: list[tuple[float, str]] = []

    async def send_notification(
        self, notification: types.LoggingMessageNotification, related: object
    ) -> None:
        assert related == 7
        if not self.reads:
            await asyncio.sleep(1e6)
        self.logs.append((notification.params.level, notification.params.data))

    async def report_progress(self, progress: float, total: float | None, message: str) -> None:
        self.progress.append((progress, message))


def context(session: Session, **fields: Any) -> Any:
    values = {"session": session, "request_id": 7, "protocol_version": "2025-11-25", "meta": None}
    return cast("Any", SimpleNamespace(**{**values, **fields}))


def log(level: Any, message: str = "m") -> LogEntry:
    return LogEntry(level=level, message=message, time_ms=1)


async def told(level: types.LoggingLevel | None, *entries: LogEntry) -> list[tuple[str, Any]]:
    session = Session()
    run: Any = LiveRun(level, 60)
    async with run.reporting(context(session)):
        for entry in entries:
            run.observer.on_log(entry)
    return session.logs


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (None, []),
        ("debug", ["debug", "info", "warning", "error"]),
        ("info", ["info", "warning", "error"]),
        ("notice", ["warning", "error"]),
        ("error", ["error"]),
        ("critical", []),
    ],
)
async def test_logs_from_the_clients_level_on(level: types.LoggingLevel | None, expected: list[str]) -> None:
    assert [sent for sent, _ in await told(level, *map(log, ("debug", "log", "warn", "error")))] == expected


async def test_of_too_many_logs_the_newest_are_sent_and_it_is_said() -> None:
    entries = [log("error", str(number)) for number in range(2 * MAX_WAITING)]
    newest = [entry.message for entry in entries[MAX_WAITING:]]
    note, *sent = [data for _, data in await told("debug", *entries)]
    assert note == "[200 messages left out: they came faster than you take them]" and sent == newest
    assert [data for _, data in await told("error", *entries)] == newest, "a note is a warning"


async def test_a_long_message_is_cut_and_shows_it() -> None:
    [(_, data)] = await told("debug", log("log", "x" * 9_000))
    assert data == "x" * 7_999 + "…"


async def test_a_client_that_does_not_read_does_not_hold_its_response(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "FAREWELL_SECONDS", 0.05)
    run: Any = LiveRun("debug", 60)
    async with asyncio.timeout(20), run.reporting(context(Session(reads=False))):
        run.observer.on_log(log("error"))


async def test_progress_grows_and_says_what_there_is() -> None:
    session = Session()
    run: Any = LiveRun(None, 0.01)
    async with run.reporting(context(session)):
        await until(lambda: len(session.progress) >= 2, "it is told twice")
        run.observer.on_call(CALL)
        run.observer.on_log(log("log", "a\nb\x1b[31m"))
        seen = len(session.progress)
        await until(lambda: len(session.progress) >= seen + 2, "it is told again")
    values = [progress for progress, _ in session.progress]
    assert values == sorted(set(values))
    assert session.progress[0][1] == "0 s, 0 tool calls"
    assert session.progress[-1][1].endswith(" s, 1 tool call; last log: a b\ufffd[31m")


@given(st.text(max_size=2_000))
def test_a_log_message_is_one_line(text: str) -> None:
    line = one_line(text)
    assert len(line) <= MAX_SHOWN_CHARS + 1 and line.isprintable()


async def test_levels_of_both_generations() -> None:
    levels = LogLevels(lambda context: Owner("ann", cast("Any", context).client))

    def older(client: str = "one") -> Any:
        return context(Session(), client=client)

    def newer(**meta: Any) -> Any:
        return context(Session(), client="one", protocol_version="2026-07-28", meta=meta)

    assert levels.level_for(older()) is None
    await levels.set(older(), types.SetLevelRequestParams(level="warning"))
    assert (levels.level_for(older()), levels.level_for(older("two"))) == ("warning", None)
    assert levels.level_for(newer()) is None
    wanted = [newer(**{"io.modelcontextprotocol/logLevel": level}) for level in ("error", "nonsense", 7, [])]
    assert [*map(levels.level_for, wanted)] == ["error", None, None, None]
    for number in range(3 * live.MAX_CLIENTS):
        await levels.set(older(str(number)), types.SetLevelRequestParams(level="debug"))
    assert levels.level_for(older()) is None


def test_what_a_server_reports_of_a_call_is_shown_until_the_call_ends() -> None:
    """Its words are its own: they can neither break the line nor fill it."""
    run: Any = LiveRun(None, 60)
    run.call_progress("files", "copy", 1, 4, "one\n\x1b[2Jof four")
    assert run.progress_text() == "0 s, 0 tool calls; files.copy: 1 of 4 one \ufffd[2Jof four"
    run.call_progress("files", "copy", 2.5, None, "x" * 10_000)
    assert "files.copy: 2.5 xxx" in run.progress_text() and len(run.progress_text()) < 2 * MAX_SHOWN_CHARS
    run.observer.on_call(CALL)
    assert run.progress_text() == "0 s, 1 tool call"
