"""Who is told of which change, with the SDK's client in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, MCPError

from cellblock.app.assembly import front_config
from cellblock.base.callbacks import Listeners
from cellblock.base.settings.settings import Settings
from cellblock.base.store import LocalStore
from cellblock.run.policy.policy import Policy
from cellblock.serve.client import Owner
from cellblock.serve.mcp import list_changes, surface
from cellblock.serve.mcp.mcp_server import FrontServer
from cellblock.serve.outputs.kept_outputs import Output, keeping
from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry
from support.entries import settings
from support.waits import until, within


class Standing:
    """What a front-end needs of a broker that runs nothing."""

    def __init__(self, made: Settings, *servers: ServerEntry) -> None:
        self.front_config = front_config(made)
        self.policy = Policy(made.cellblock.policy)
        self.listeners = Listeners()
        self.watch_catalog = self.listeners.add
        self.catalog = self.known_catalog = Catalog()
        self.show(*servers)

    async def about_to_answer(self) -> None:
        """Nothing connects here."""

    def show(self, *servers: ServerEntry) -> None:
        self.catalog = self.known_catalog = Catalog(1, {entry.server_id: entry for entry in servers})
        self.listeners.tell()


def server(server_id: str, *names: str) -> ServerEntry:
    tools = tuple(ToolEntry(name, name, f"Does {name}.", None, {"type": "object"}) for name in names)
    return ServerEntry(server_id, server_id, server_id, tools=tools)


@asynccontextmanager
async def following(
    service: Any, said: list[str], kept: Any = None, **options: Any
) -> AsyncGenerator[Client]:
    """A client of an older revision that notes what it is told."""

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
        yield client


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
    service = Standing(settings(tmp_path, policy=policy), server("files", "read"))
    everyone: list[str] = []
    guest: list[str] = []
    async with (
        following(service, everyone, owner_of=lambda _: Owner("stdio:owner", "stdio")),
        following(service, guest, owner_of=lambda _: Owner("stdio:guest", "stdio")),
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
async def test_who_says_more_than_once_that_it_is_there_is_told_once(tmp_path: Path) -> None:
    service = Standing(settings(tmp_path), server("files", "read"))
    said: list[str] = []
    async with following(service, said) as client:
        for _ in range(50):
            await client.session.send_notification(types.InitializedNotification())
        await client.list_tools()
        service.show(server("files", "read", "write"))
        await until(lambda: said, "the change")
        await client.list_tools()
        assert said == ["tools"]


@pytest.mark.usefixtures("at_once")
async def test_kept_outputs_are_resources_of_their_owner(tmp_path: Path) -> None:
    made = settings(tmp_path, outputs={"inline_bytes": 1024})
    service = Standing(made, server("files", "read"))
    mine: list[str] = []
    other: list[str] = []
    async with keeping(made.cellblock.outputs, LocalStore(tmp_path)) as kept:
        assert kept is not None
        async with (
            following(service, mine, owner_of=lambda _: Owner("ada", "stdio"), kept=kept) as client,
            following(service, other, owner_of=lambda _: Owner("bob", "stdio"), kept=kept),
        ):
            await kept.keep(Owner("ada", "stdio"), [Output("result", "application/json", b"[1]")])
            await settled(mine, "resources")
            assert len((await client.list_resources()).resources) == 2
            assert other == []


async def test_a_server_that_changes_all_the_time_is_told_of_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_changes, "GATHER_SECONDS", 0.05)
    monkeypatch.setattr(list_changes, "PAUSE_SECONDS", 3600.0)
    service = Standing(settings(tmp_path), server("files", "read"))
    said: list[str] = []
    async with following(service, said):
        for number in range(1000):
            service.show(server("files", f"tool_{number}"))
        await settled(said, "tools")
        service.show(server("files", "another"))
        await asyncio.sleep(0.2)
        assert said == [], "not before the pause is over"


async def test_streams_have_a_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_changes, "MAX_STREAMS", 2)
    service: Any = Standing(settings(tmp_path), server("files", "read"))
    async with Client(FrontServer(service, version="1").open()) as client, AsyncExitStack() as open_streams:
        for _ in range(2):
            await open_streams.enter_async_context(client.listen(tools_list_changed=True))
        with pytest.raises(MCPError, match="2 streams of changes are open already"):
            await within(open_streams.enter_async_context(client.listen(tools_list_changed=True)))
        await open_streams.aclose()
        await until(room(client), "those that ended have given their places back")


def room(client: Client) -> Callable[[], bool]:
    """Whether one more stream is taken; asked in the background, since `until` does not wait."""
    found: list[bool] = []

    async def ask() -> None:
        while True:
            try:
                async with client.listen(tools_list_changed=True):
                    found.append(True)
                    return
            except MCPError:
                await asyncio.sleep(0.01)

    task = asyncio.create_task(ask())
    return lambda: bool(found) and task.done()


async def test_a_new_session_is_greeted_with_what_is_there_now(tmp_path: Path) -> None:
    service: Any = Standing(settings(tmp_path), server("files", "read"))
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

    for other, told in ((("read",), False), (("read", "write"), True)):
        service = Standing(settings(tmp_path))
        service.catalog = service.known_catalog = starting(server("files", "read"))
        said: list[str] = []
        async with following(service, said):
            said.clear()
            started = replace(server("files", *other), server_name="Files", version="2", description="Reads.")
            service.show(started)
            if told:
                await settled(said, "tools")
            service.show(started, server("more", "thing"))
            await settled(said, "tools", "resources")


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("is_looked_at_before", [False, True])
async def test_what_starts_while_the_list_is_made_is_told(
    is_looked_at_before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Standing(settings(tmp_path))
    service.catalog = service.known_catalog = Catalog(
        1, {}, {"late": "still connecting"}, ids={"late": "late"}, starting=frozenset({"late"})
    )
    said: list[str] = []
    looked: list[Catalog] = []

    async def made(catalog: Catalog) -> None:
        if not looked:
            looked.append(catalog)
            service.show(server("late", "tool"))
            await until(lambda: not is_looked_at_before or "tools" in said, "told while the list is made")

    async with following(service, said) as client:
        monkeypatch.setattr(surface, "made_beside", made)
        (tool,) = (await client.list_tools()).tools
        assert "late: tool" not in (tool.description or "")
        await until(
            lambda: said.count("tools") == 1 + is_looked_at_before, f"told after the list, too: {said}"
        )


@pytest.mark.usefixtures("at_once")
async def test_a_server_without_connection_is_no_news_when_another_has_started(tmp_path: Path) -> None:
    """The manual tells of both: their texts come parsed."""
    parsed = {"servers": {"gone": {"unwrap": "json"}, "files": {"unwrap": "json"}}}
    made = settings(tmp_path, {name: {"command": "x"} for name in ("files", "gone")}, schemas=parsed)
    service = Standing(made)
    files, ids = server("files", "read"), {name: name for name in ("files", "gone")}
    gone = {"gone": "it exited"}
    service.catalog = service.known_catalog = Catalog(
        1, {"files": files}, gone, ids=ids, starting=frozenset({"files"})
    )
    said: list[str] = []
    async with following(service, said):
        service.catalog = service.known_catalog = Catalog(2, {"files": files}, gone, ids=ids)
        service.listeners.tell()
        await asyncio.sleep(0.1)
        service.show(files, server("more", "thing"))
        await settled(said, "tools", "resources")
