"""What upstream servers ask and give beside results: questions, progress, messages, and resources.

What they ask while they serve a call reaches the client whose run made the call, or nobody. What a `resource_link`
names is read by `readResource` of `@codemode/discovery`, as a tool call.
"""

import asyncio
import base64
import json
import logging
import subprocess
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client

from cellblock import Broker
from cellblock.run.policy.asking import Caller
from cellblock.serve.mcp.manual import opening
from cellblock.serve.mcp.mcp_server import FrontServer
from support.brokers import ready
from support.entries import Entry, entry, forked_server, ledger, plain_server, settings
from support.params import mostly
from support.responses import error_of, succeeded
from support.waits import until, within


@contextmanager
def entry_of(*options: str) -> Generator[Entry]:
    """That of `asking_server.py` over stdio, or over HTTP, where it is killed at the end."""
    command = forked_server("asking_server.py", *options)
    if options[0] == "stdio":
        yield entry(command)
        return
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield {"url": f"http://127.0.0.1:{process.stdout.readline().split()[1]}/mcp"}
        finally:
            process.kill()


@asynccontextmanager
async def asking(folder: Path, *options: str, **upstream: Any) -> AsyncGenerator[Broker]:
    """A broker in front of such a server."""
    with entry_of(*options) as made:
        async with ready(settings(folder, {"asking": made}, upstream=upstream)) as broker:
            assert "asking" in broker.catalog.servers, broker.catalog.unavailable
            yield broker


KINDS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "stdio": (["stdio", "--older"], {}),
    "http": (["http", "--older"], {"call_timeout_ms": 3000}),
    "newer": (["stdio"], {}),
    "narrow": (["stdio", "--older"], {"passed_on": ["roots"]}),
}
"""Options of the server and of the broker for each transport, the newer revision, and what is not passed on."""


@pytest.fixture(scope="module")
async def brokers(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[dict[str, Broker]]:
    """One of each kind."""
    async with AsyncExitStack() as stack:
        yield {
            kind: await stack.enter_async_context(asking(tmp_path_factory.mktemp(kind), *options, **upstream))
            for kind, (options, upstream) in KINDS.items()
        }


@pytest.fixture(params=["stdio", "http"])
def older(request: pytest.FixtureRequest, brokers: dict[str, Broker]) -> Broker:
    """Each transport of the older revision."""
    return brokers[request.param]


@pytest.fixture(params=["stdio", "http", "newer"])
def each(request: pytest.FixtureRequest, brokers: dict[str, Broker]) -> Broker:
    """Each transport, and the newer revision."""
    return brokers[request.param]


class Person:
    """A client with everything that servers may ask for."""

    def __init__(
        self,
        broker: Broker,
        name: str,
        *,
        wait: Callable[[], Awaitable[object]] | None = None,
        mode: str = "legacy",
    ) -> None:
        self.asked: list[tuple[str, str]] = []
        self._name = name
        self._wait = wait
        self.client = Client(
            FrontServer(broker, version="1").open(),
            mode=mode,
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
    return run.structured_content["result"]


def script(tool: str, **arguments: Any) -> str:
    return f"""
        import {{ {tool} }} from "@codemode/servers/asking";
        try {{ globalThis.__codemode_result__ = await {tool}({arguments!r}); }}
        catch (error) {{ globalThis.__codemode_result__ = error.message; }}
    """


async def test_the_client_is_asked_in_the_servers_name(older: Broker) -> None:
    ada = Person(older, "ada")
    async with ada.client:
        answers = [await ada.call(tool) for tool in ("elicit", "elicit_url", "sample", "roots")]
    assert answers == ["accept ada", "accept", "hi from ada", "file:///ada"]
    assert ada.asked == [
        ("form", "asking: Who are you?"),
        ("url", "asking: Agree there."),
        ("sample", "10"),
    ]
    async with Client(FrontServer(older, version="1").open(), mode="legacy") as bare:
        assert [await result_of(bare, tool) for tool in ("elicit", "sample", "roots")] == [
            "refused -32601: The client does not support elicitation.",
            "refused -32601: The client does not support sampling.",
            # No roots are none.
            "",
        ]
    nobody = succeeded(await within(older.run(script("elicit"))))
    assert nobody.startswith("refused -32601: There is no client that this could be asked"), nobody


async def test_the_newer_revision_asks_in_rounds(brokers: dict[str, Broker]) -> None:
    ada = Person(brokers["newer"], "ada")
    async with ada.client:
        assert await ada.call("input") == "accept ada"
    assert ada.asked == [("form", "asking: Who are you?")]
    nobody = succeeded(await within(brokers["newer"].run(script("input"))))
    assert nobody.startswith("input of asking asks for input that it cannot have: There is no client"), nobody


async def test_over_http_each_client_is_asked_what_its_own_call_asks(brokers: dict[str, Broker]) -> None:
    """The call's own stream tells which it is for."""
    ada, bob = Person(brokers["http"], "ada"), Person(brokers["http"], "bob")
    async with ada.client, bob.client:
        answers = await asyncio.gather(ada.call("elicit", ms=800), bob.call("elicit", ms=800))
    assert answers == ["accept ada", "accept bob"]


def under_way(broker: Broker) -> int:
    return len(broker.registry.sessions["asking"]._routing.calls)


async def test_over_stdio_nobody_is_asked_when_calls_of_several_are_under_way(
    brokers: dict[str, Broker], tmp_path: Path
) -> None:
    ada, bob = Person(brokers["stdio"], "ada"), Person(brokers["stdio"], "bob")
    done = tmp_path / "done"
    async with ada.client, bob.client:
        waiting = asyncio.create_task(bob.call("wait", file=str(done)))
        await until(lambda: under_way(brokers["stdio"]) == 1, "Bob's call is under way")
        answer = await ada.call("elicit")
        assert answer.startswith("refused -32600: Calls of several clients"), answer
        done.touch()
        assert await waiting == "waited"
        assert (ada.asked, bob.asked) == ([], [])
        assert await ada.call("elicit") == "accept ada", "alone again"


async def test_the_calls_clock_stands_still_while_a_person_thinks(brokers: dict[str, Broker]) -> None:
    slow = Person(brokers["http"], "ada", wait=lambda: asyncio.sleep(3.5))
    async with slow.client:
        assert await slow.call("elicit") == "accept ada"


@pytest.mark.parametrize("mode", mostly(["auto"], ["legacy", "auto"]))
async def test_the_runs_clock_stands_still_while_a_person_thinks(
    brokers: dict[str, Broker], mode: str
) -> None:
    """Of two questions at once, too: it goes on when both are answered. The time of the script itself counts."""
    slow = Person(brokers["http"], "ada", wait=lambda: asyncio.sleep(2.5), mode=mode)
    both = """
        import { elicit } from "@codemode/servers/asking";
        const said = await Promise.all([elicit({}), elicit({ ms: 200 })]);
        globalThis.__codemode_result__ = said;
        if (FOREVER) await new Promise((resolve) => setTimeout(resolve, 60000));
    """
    async with slow.client as client:
        for forever, wanted in (("false", None), ("true", "SANDBOX_LIMIT")):
            arguments = {"code": both.replace("FOREVER", forever), "limits": {"timeoutMs": 2000}}
            run = await within(client.call_tool("codemode.run", arguments), 60)
            codes = [found["code"] for found in run.structured_content["diagnostics"]]
            assert codes == ([wanted] if wanted else []), run.structured_content
            if not wanted:
                assert run.structured_content["result"] == ["accept ada"] * 2


async def test_what_is_not_passed_on_is_told_as_not_there(brokers: dict[str, Broker]) -> None:
    ada = Person(brokers["narrow"], "ada")
    async with ada.client:
        answers = [await ada.call(tool) for tool in ("elicit", "sample", "roots")]
    assert [answer.partition(" ")[0] for answer in answers] == ["refused", "refused", "file:///ada"]
    assert ada.asked == []


class Watching:
    """A requester that only wants progress."""

    wants_progress = True

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def progress(self, *told: Any) -> None:
        self.told.append(told)
        raise RuntimeError("a listener that fails costs nothing")

    def logged(self, params: types.LoggingMessageNotificationParams) -> None:
        raise RuntimeError("a listener that fails costs nothing")


async def test_progress_and_log_messages(each: Broker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cellblock")
    watching = Watching()
    assert (
        succeeded(await within(each.run_request({"code": script("talk")}, Caller(requester=watching))))
        == "talked"
    )  # type: ignore[arg-type]
    await until(lambda: watching.told, "progress was told")
    assert watching.told == [("asking", "talk", 1.0, 2.0, "half")]

    def messages() -> list[logging.LogRecord]:
        return [record for record in caplog.records if record.name == "cellblock.tools.upstream.messages"]

    await until(messages, "the message was logged")
    # The one at level debug is left out.
    [record] = messages()
    assert (record.levelno, record.getMessage()) == (
        logging.ERROR,
        r'asking[disk\x1b[2J]: {"said": "the disk is full"}',
    )
    assert (record.__dict__["server"], record.__dict__["server_logger"]) == ("asking", r"disk\x1b[2J")


async def test_a_client_that_wants_progress_gets_the_servers_too(brokers: dict[str, Broker]) -> None:
    told: list[str] = []
    heard = asyncio.Event()

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        told.append(message or "")
        if "asking.talk: 1 of 2 half" in told[-1]:
            heard.set()

    async with Person(brokers["newer"], "ada").client as client:
        work = asyncio.create_task(
            client.call_tool(
                "codemode.run", {"code": script("talk", ms=20_000)}, progress_callback=on_progress
            )
        )
        await within(heard.wait(), 30)
        work.cancel()
        await asyncio.wait([work])


async def test_a_call_that_was_given_up_asks_no_other_client(
    brokers: dict[str, Broker], tmp_path: Path
) -> None:
    """The last one here: for a minute it leaves a doubt."""
    ada, bob = Person(brokers["stdio"], "ada"), Person(brokers["stdio"], "bob")
    now, done, answer = tmp_path / "now", tmp_path / "done", tmp_path / "now.answer"
    async with ada.client, bob.client:
        given_up = asyncio.create_task(
            ada.client.call_tool("codemode.run", {"code": script("late", file=str(now))})
        )
        await until(lambda: under_way(brokers["stdio"]) == 1, "Ada's call is under way")
        given_up.cancel()
        await until(lambda: under_way(brokers["stdio"]) == 0, "Ada's call was given up")
        waiting = asyncio.create_task(bob.call("wait", file=str(done)))
        await until(lambda: under_way(brokers["stdio"]) == 1, "only Bob's call is under way")
        now.touch()
        await until(answer.exists, "Ada's call goes on at the server, and asks")
        done.touch()
        assert await waiting == "waited"
    assert answer.read_text().startswith("refused -32600: Calls of several clients")
    assert (ada.asked, bob.asked) == ([], [])


LINK = {"type": "resource_link", "uri": "note://1", "name": "one"}
BLOB = base64.b64encode(bytes(range(256))).decode()
LARGE = "é" * 400_000

CODE = """import { readResource } from "@codemode/discovery";
globalThis.__codemode_result__ = await readResource(%s, %s);
"""

CAUGHT = """import { readResource } from "@codemode/discovery";
import * as errors from "@codemode/errors";
let caught = {};
try { await readResource(%s, %s); } catch (error) {
  const { name, message, hint, serverId, toolName, code, certainty } = error;
  caught = { name, message, hint, serverId, toolName, code, certainty, is: error instanceof errors.CodemodeError };
}
globalThis.__codemode_result__ = caught;
"""


def shelf(folder: Path, name: str, contents: Any, *, tools: bool = True) -> dict[str, Any]:
    """A server that answers `resources/read` with these contents, and whose tool `link`, if any, gives a link."""
    file, definitions = folder / f"{name}.json", folder / f"{name}-tools.json"
    answers = {} if contents is None else {"resources/read": {"contents": contents}}
    file.write_text(json.dumps({"capabilities": {"resources": {}}, "answers": answers}))
    tool = {"name": "link", "inputSchema": {"type": "object"}}
    given = {"pages": [[tool] if tools else []], "answers": {"link": {"content": [LINK, LINK]}}}
    definitions.write_text(json.dumps(given))
    return plain_server("--beside", file, "--definitions", definitions, "--ledger", folder / f"{name}.jsonl")


@pytest.fixture(scope="module")
async def shelves(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    folder = tmp_path_factory.mktemp("resources")
    text = {"uri": "note://1", "mimeType": "text/plain", "text": "the note"}
    servers = {
        "notes": shelf(folder, "notes", [text]),
        "blobs": shelf(folder, "blobs", [{"uri": "note://1", "blob": BLOB}]),
        "many": shelf(folder, "many", [text, {"uri": "note://2", "text": "other"}]),
        "large": shelf(folder, "large", [{**text, "text": LARGE}]),
        "php": shelf(folder, "php", {"uri": 7, "text": "odd", "mimeType": None}),
        "nulls": shelf(folder, "nulls", [{"text": None}]),
        "alone": shelf(folder, "alone", [text], tools=False),
        "none": shelf(folder, "none", None),
        "narrow": {**shelf(folder, "narrow", [text]), "enabledTools": ["link"]},
    }
    async with ready(settings(folder, servers)) as started:
        yield started


async def read(shelves: Broker, server: object, uri: object = "note://1", **more: Any) -> Any:
    return succeeded(await within(shelves.run(CODE % (json.dumps(server), json.dumps(uri)), **more)))


async def refused(shelves: Broker, server: object, uri: object = "note://1", **more: Any) -> dict[str, Any]:
    caught = succeeded(await within(shelves.run(CAUGHT % (json.dumps(server), json.dumps(uri)), **more)))
    assert caught["is"] and caught["hint"], caught
    return caught


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ("notes", "the note"),
        ("alone", "the note"),
        ("blobs", {"contents": [{"uri": "note://1", "blob": BLOB}]}),
        ("large", LARGE),
        (
            "many",
            {
                "contents": [
                    {"uri": "note://1", "mimeType": "text/plain", "text": "the note"},
                    {"uri": "note://2", "text": "other"},
                ]
            },
        ),
        ("php", "odd"),
        ("nulls", {"contents": [{"text": None}]}),
    ],
)
async def test_what_a_server_answers_reaches_the_script(
    shelves: Broker, server: str, expected: object
) -> None:
    assert await read(shelves, server) == expected


async def test_a_link_that_a_tool_gives_is_read_and_both_are_tool_calls(shelves: Broker) -> None:
    code = """import { readResource } from "@codemode/discovery";
import { link } from "@codemode/servers/notes";
const { content } = await link({});
globalThis.__codemode_result__ = await readResource("notes", content[0].uri);
"""
    response = await within(shelves.run(code))
    assert succeeded(response) == "the note"
    trace: list[dict[str, Any]] = response.as_json()["toolTrace"]
    assert [(one["serverId"], one["toolName"], one["ok"]) for one in trace] == [
        ("notes", "link", True),
        ("notes", "resources/read", True),
    ]
    assert "note://1" not in json.dumps(trace) and "the note" not in json.dumps(trace)


async def test_it_counts_toward_the_most_calls(shelves: Broker) -> None:
    record = shelves.settings.state_dir / "notes.jsonl"
    before = len(ledger(record))
    code = CODE % ('"notes"', '"note://1"') + 'await readResource("notes", "note://2");'
    assert error_of(await within(shelves.run(code, limits={"maxToolCalls": 1})), "SANDBOX_LIMIT")
    assert len(ledger(record)) == before + 1


@pytest.mark.parametrize(
    ("server", "uri", "name", "said"),
    [
        ("nots", "note://1", "ServerNotFoundError", "There is no server nots."),
        ("", "note://1", "ServerNotFoundError", "serverId is no id of a server."),
        (None, "note://1", "ServerNotFoundError", "serverId is no id of a server."),
        ("x" * 300_000, "note://1", "ServerNotFoundError", "serverId is no id of a server."),
        ("notes", 7, "SchemaValidationError", "does not fit its schema"),
        ("notes", None, "SchemaValidationError", "does not fit its schema"),
        ("none", "note://1", "ToolCallError", "no method resources/read"),
        ("narrow", "note://1", "ToolNotFoundError", "has no resources that scripts may read"),
    ],
)
async def test_what_cannot_be_read_is_an_error_with_a_hint(
    shelves: Broker, server: object, uri: object, name: str, said: str
) -> None:
    caught = await refused(shelves, server, uri)
    assert (caught["name"], said in caught["message"]) == (name, True), caught


async def test_the_policy_knows_it_by_the_name_of_its_request(shelves: Broker) -> None:
    assert (await refused(shelves, "notes", grants={"tools": ["notes.link"]}))["code"] == "NOT_GRANTED"
    assert await read(shelves, "notes", grants={"tools": ["notes.resources/read"]}) == "the note"
    assert await read(shelves, "notes", grants={"readOnly": True}) == "the note"
    code = 'await readResource("notes", "note://2");' + CAUGHT % ('"notes"', '"note://1"')
    caught = succeeded(await within(shelves.run(code, grants={"budgets": {"notes.resources/*": 1}})))
    assert caught["code"] == "BUDGET_USED_UP"


async def test_a_server_with_resources_alone_says_so(shelves: Broker) -> None:
    code = """import { describeServer } from "@codemode/discovery";
globalThis.__codemode_result__ = await describeServer("alone");
"""
    described = succeeded(await within(shelves.run(code)))
    assert "resources and no tools" in described["description"] and "readResource" in described["description"]
    assert "With resources and no functions (readResource of @codemode/discovery): alone." in opening(
        shelves.catalog
    )
