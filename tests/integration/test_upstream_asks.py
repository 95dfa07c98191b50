"""What upstream servers ask while they serve a call: it reaches the client whose run made the call, or nobody."""

from __future__ import annotations

import asyncio
import logging
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client

from cellblock import Broker
from cellblock.frontend.mcp_server import make_server
from cellblock.upstream.requester import requester
from support import SERVERS, settings, succeeded, until, within

OLDER = ("stdio", "--older")
NEWER = ("stdio",)
HTTP_OLDER = ("http", "--older")

Asked = list[tuple[str, str]]


@asynccontextmanager
async def asking(folder: Path, *options: str, **upstream: Any) -> AsyncGenerator[Broker]:
    """A broker in front of `asking_server.py`."""
    command = [sys.executable, "-I", str(SERVERS / "asking_server.py"), *options]
    if options[0] == "http":
        process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=PIPE)
        try:
            assert process.stdout is not None
            port = (await within(process.stdout.readline())).split()[1].decode()
            async with started(folder, {"url": f"http://127.0.0.1:{port}/mcp"}, upstream) as broker:
                yield broker
        finally:
            process.kill()
            await process.wait()
        return
    async with started(folder, {"command": command[0], "args": command[1:]}, upstream) as broker:
        yield broker


@asynccontextmanager
async def started(folder: Path, entry: dict[str, Any], upstream: dict[str, Any]) -> AsyncGenerator[Broker]:
    async with Broker(settings(folder, {"asking": entry}, upstream=upstream)) as broker:
        await within(broker.settled())
        assert "asking" in broker.catalog.servers, broker.catalog.unavailable
        yield broker


class Person:
    """A client with everything that servers may ask for."""

    def __init__(
        self, broker: Broker, name: str, *, wait: Callable[[], Awaitable[object]] | None = None
    ) -> None:
        self.asked: Asked = []
        self._name = name
        self._wait = wait
        self.client = Client(
            make_server(broker, version="1"),
            mode="legacy",
            elicitation_callback=self.elicit,
            sampling_callback=self.sample,
            list_roots_callback=self.roots,
        )

    async def elicit(self, context: object, params: types.ElicitRequestParams) -> types.ElicitResult:
        self.asked.append((params.mode, params.message))
        if self._wait is not None:
            await self._wait()
        if isinstance(params, types.ElicitRequestURLParams):
            return types.ElicitResult(action="accept")
        return types.ElicitResult(action="accept", content={"name": self._name})

    async def sample(
        self, context: object, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult:
        self.asked.append(("sample", str(params.max_tokens)))
        content = types.TextContent(text=f"hi from {self._name}")
        return types.CreateMessageResult(role="assistant", content=content, model="m")

    async def roots(self, context: object) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root(uri=f"file:///{self._name}")])  # pyright: ignore[reportArgumentType]

    async def call(self, tool: str, **arguments: Any) -> Any:
        return await result_of(self.client, tool, **arguments)


async def result_of(client: Client, tool: str, **arguments: Any) -> Any:
    """The result of a script that calls one tool, or its error."""
    run = await within(client.call_tool("codemode.run", {"code": script(tool, **arguments)}), 60)
    assert run.structured_content is not None
    return run.structured_content["result"]


def script(tool: str, **arguments: Any) -> str:
    return f"""
        import {{ {tool} }} from "@codemode/servers/asking";
        try {{ globalThis.__codemode_result__ = await {tool}({arguments!r}); }}
        catch (error) {{ globalThis.__codemode_result__ = error.message; }}
    """


@pytest.mark.parametrize("options", [OLDER, HTTP_OLDER], ids=["stdio", "http"])
async def test_the_client_is_asked_in_the_servers_name(tmp_path: Path, options: tuple[str, ...]) -> None:
    async with asking(tmp_path, *options) as broker:
        ada = Person(broker, "ada")
        async with ada.client:
            assert await ada.call("elicit") == "accept ada"
            assert await ada.call("elicit_url") == ["accept", "None"][0]
            assert await ada.call("sample") == "hi from ada"
            assert await ada.call("roots") == "file:///ada"
        assert ada.asked == [
            ("form", "asking: Who are you?"),
            ("url", "asking: Agree there."),
            ("sample", "10"),
        ]
        async with Client(make_server(broker, version="1"), mode="legacy") as bare:
            assert (
                await result_of(bare, "elicit") == "refused -32601: The client does not support elicitation."
            )
            assert await result_of(bare, "sample") == "refused -32601: The client does not support sampling."
            assert await result_of(bare, "roots") == "", "no roots are none"
        nobody = succeeded(await within(broker.run(script("elicit"))))
        assert nobody.startswith("refused -32601: There is no client that this could be asked"), nobody


async def test_the_newer_revision_asks_in_rounds(tmp_path: Path) -> None:
    async with asking(tmp_path, *NEWER) as broker:
        ada = Person(broker, "ada")
        async with ada.client:
            assert await ada.call("input") == "accept ada"
        assert ada.asked == [("form", "asking: Who are you?")]
        nobody = succeeded(await within(broker.run(script("input"))))
        assert nobody.startswith("input of asking asks for input that it cannot have: There is no client"), (
            nobody
        )


@pytest.mark.parametrize("options", [OLDER, HTTP_OLDER], ids=["stdio", "http"])
async def test_of_several_clients_only_the_one_that_caused_it_is_asked(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Over HTTP the call's own stream tells; over stdio nothing does, and so nobody is asked."""
    async with asking(tmp_path, *options) as broker:
        ada, bob = Person(broker, "ada"), Person(broker, "bob")
        async with ada.client, bob.client:
            answers = await asyncio.gather(ada.call("elicit", ms=800), bob.call("elicit", ms=800))
        if options is OLDER:
            assert all("refused -32600: Calls of several clients" in answer for answer in answers), answers
            assert (ada.asked, bob.asked) == ([], [])
        else:
            assert answers == ["accept ada", "accept bob"]


async def test_a_call_that_was_given_up_asks_no_other_client(tmp_path: Path) -> None:
    async with asking(tmp_path, *OLDER, call_timeout_ms=3000) as broker:
        ada, bob = Person(broker, "ada"), Person(broker, "bob")
        async with ada.client, bob.client:
            late = await broker_gives_up(ada)
            assert late
            # Ada's call still runs at the server, and asks while only Bob's is under way.
            assert await bob.call("wait", ms=2500) == "waited"
        assert (ada.asked, bob.asked) == ([], [])


async def broker_gives_up(person: Person) -> bool:
    code = script("late", ms=1500)
    run = await within(
        person.client.call_tool("codemode.run", {"code": code, "limits": {"timeoutMs": 700}}), 60
    )
    return run.structured_content is not None and not run.structured_content["result"]


async def test_the_calls_clock_stands_still_while_a_person_thinks(tmp_path: Path) -> None:
    async with asking(tmp_path, *OLDER, call_timeout_ms=1500) as broker:
        slow = Person(broker, "ada", wait=lambda: asyncio.sleep(2.5))
        async with slow.client:
            assert await slow.call("elicit") == "accept ada"
            gone = await slow.call("wait", ms=60_000)
            assert "did not answer wait within 1.5 s" in gone, "and goes on afterwards"


async def test_what_is_not_passed_on_is_told_as_not_there(tmp_path: Path) -> None:
    async with asking(tmp_path, *OLDER, passed_on=["roots"]) as broker:
        ada = Person(broker, "ada")
        async with ada.client:
            assert "refused" in await ada.call("elicit")
            assert "refused" in await ada.call("sample")
            assert await ada.call("roots") == "file:///ada"
        assert ada.asked == []


class Watching:
    """A requester that only wants progress."""

    wants_progress = True

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    async def elicit(self, params: Any) -> types.ErrorData:
        return types.ErrorData(code=-1, message="no")

    sample = elicit

    async def roots(self) -> types.ErrorData:
        return types.ErrorData(code=-1, message="no")

    def progress(self, *told: Any) -> None:
        self.told.append(told)
        raise RuntimeError("a listener that fails costs nothing")


@pytest.mark.parametrize("options", [OLDER, NEWER, HTTP_OLDER], ids=["older", "newer", "http"])
async def test_progress_and_log_messages(
    tmp_path: Path, options: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cellblock")
    async with asking(tmp_path, *options) as broker:
        watching = Watching()
        token = requester.set(watching)
        try:
            assert succeeded(await within(broker.run(script("talk")))) == "talked"
        finally:
            requester.reset(token)
        await until(lambda: watching.told, "progress was told")
        assert watching.told == [("asking", "talk", 1.0, 2.0, "half")]

        def messages() -> list[logging.LogRecord]:
            return [record for record in caplog.records if record.name == "cellblock.upstream.messages"]

        await until(messages, "the message was logged")
        [record] = messages()
        assert record.levelno == logging.ERROR, "and the one at level debug is left out"
        assert record.getMessage() == r'asking[disk\u001b[2J]: {"said": "the disk is full"}'
        assert (record.__dict__["server"], record.__dict__["server_logger"]) == ("asking", r"disk\u001b[2J")


async def test_bounds_of_one_server(tmp_path: Path) -> None:
    """Two places for all runs together, and a time of its own."""
    own = {"asking": {"max_concurrent_calls": 2, "call_timeout_ms": 4000}}
    async with asking(tmp_path, *OLDER, servers=own, call_timeout_ms=20_000) as broker:
        session = broker._registry.sessions["asking"]  # type: ignore[union-attr]
        busy = asyncio.gather(*(broker.run(script("wait", ms=60_000)) for _ in range(2)))
        await until(lambda: session._places.locked(), "both places are taken")  # type: ignore[union-attr]
        waited = succeeded(await within(broker.run(script("roots"))))
        timed_out = [succeeded(run) for run in await within(busy)]
        assert all("did not answer wait within 4 s" in text for text in timed_out), timed_out
        # The third got the place that the first two left, or had waited as long as they had.
        assert waited == "" or "has had its most calls at once for 4 s; roots was not called" in waited
        assert succeeded(await within(broker.run(script("roots")))) == ""
