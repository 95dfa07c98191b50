"""What a server says beside its answers: what it asks is answered, says whose it is and hides nothing; what it logs is
bounded and redacted."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import ANY, AsyncMock, Mock

import mcp_types as types
import pytest
from mcp import MCPError
from pydantic import ValidationError

from cellblock.base.redaction import Redactor
from cellblock.base.settings.settings import ServerConfig
from cellblock.tools.upstream.dispatcher import Connection
from cellblock.tools.upstream.input_rounds import read_resource
from cellblock.tools.upstream.outstanding import Routing
from cellblock.tools.upstream.requester import CallOrigin
from cellblock.tools.upstream.server_log import (
    BURST,
    CAP_BYTES,
    MAX_CHARS,
    ServerLog,
    last_said,
    stderr_log,
    upstream_log,
    wanted_level,
)
from cellblock.tools.upstream.wire.results import ToolResult
from support.waits import within

HIDDEN = "\u202e\U000e0041\u200b\x1b]52;c;aGk=\x07"


@asynccontextmanager
async def during_call() -> AsyncIterator[tuple[Mock, Routing, Any]]:
    """While a call is made: a person, what hears the server, and what the SDK gives a callback for what it asks."""
    person = Mock(wants_progress=False)
    person.elicit = AsyncMock(return_value=types.ElicitResult(action="decline"))
    person.sample = AsyncMock(
        return_value=types.CreateMessageResult(
            role="assistant", content=types.TextContent(text="x"), model="m"
        )
    )
    routing = Routing("files", Redactor(ServerConfig(command="x")))
    async with asyncio.timeout(30) as clock:
        with routing.call("x", {}, clock, CallOrigin(person)) as call:
            yield person, routing, SimpleNamespace(request_id=call.number)


@pytest.mark.parametrize("meta", [{"a": 1}, None])
async def test_what_is_sent_beside_a_request_is_not_written_into_it(meta: Any) -> None:
    async def ask(_method: str, params: dict[str, Any], _call: object) -> ToolResult:
        params["_meta"]["version"] = 1
        return ToolResult.of({"contents": []})

    given = {"uri": "a:b", "_meta": meta}
    routing, session = Routing("files", Redactor(ServerConfig(command="x"))), SimpleNamespace(ask=ask)
    async with asyncio.timeout(30) as clock:
        with routing.call("resources/read", given, clock, CallOrigin(None)) as call:
            await read_resource(cast("Any", session), call)
    assert given == {"uri": "a:b", "_meta": {"a": 1} if meta else None}


async def test_texts_of_servers_are_plain_and_named() -> None:
    field = {"type": "string", "title": f"T{HIDDEN}", "enum": ["a"], "enumNames": [f"A{HIDDEN}"]}
    form = types.ElicitRequestFormParams.model_validate(
        {
            "mode": "form",
            "message": f"bank: a\n{HIDDEN}b",
            "requestedSchema": {"type": "object", "properties": {"f": field}},
        }
    )
    sampled = types.CreateMessageRequestParams.model_validate(
        {
            "messages": [{"role": "user", "content": {"type": "text", "text": f"x{HIDDEN}"}}],
            "maxTokens": 9,
            "systemPrompt": f"You are{HIDDEN}",
        }
    )
    logged = types.LoggingMessageNotificationParams(
        level="info", logger=f"l{HIDDEN}", data={f"k{HIDDEN}": [f"v{HIDDEN}"]}
    )
    async with during_call() as (person, routing, context):
        await routing.elicit(context, form)
        await routing.sample(context, sampled)
        routing.logged(logged)
    asked = [call.args[0] for call in person.mock_calls]
    shown = "".join(one.model_dump_json() for one in asked)
    assert not any(part in shown for part in ("\u202e", "\U000e0041", "\u200b", "\\u001b", "\\u0007")), shown
    assert asked[0].message.startswith("files: bank: a\n")
    assert asked[1].system_prompt.startswith("files asks:\nYou are")


def form(**properties: Any) -> types.ElicitRequestParams:
    return types.ElicitRequestFormParams.model_validate(
        {"mode": "form", "message": "m", "requestedSchema": {"type": "object", "properties": properties}}
    )


def page(url: str) -> types.ElicitRequestParams:
    return types.ElicitRequestURLParams.model_validate(
        {"mode": "url", "message": "m", "url": url, "elicitationId": "1"}
    )


@pytest.mark.parametrize(
    ("params", "asked"),
    [
        (form(f={"type": "string", "enum": ["a", "b"], "default": "a"}), True),
        (form(f={"type": "string", "enum": ["می‌خواهم"]}), True),
        # A form whose names or choices hide something.
        (form(f={"type": "string", "enum": ["a", "b\u202e"]}), False),
        (form(f={"type": "string", "oneOf": [{"const": "a\x1b[2J", "title": "A"}]}), False),
        (form(f={"type": "array", "items": {"type": "string", "enum": ["a\U000e0041"]}}), False),
        (form(**{"f\u200b": {"type": "string"}}), False),
        # Only pages of the web are opened.
        (page("https://example.com/x?y=1"), True),
        (page("http://127.0.0.1:9/x"), True),
        (page("javascript:alert(1)"), False),
        (page("data:text/html,x"), False),
        (page("file:///etc/passwd"), False),
        (page("vscode://x/y"), False),
        (page("https://bank.example@evil.example/"), False),
        (page("https://ex\u202eample.com/"), False),
        (page("https:///x"), False),
    ],
    ids=lambda one: ascii(getattr(one, "url", None) or getattr(one, "requested_schema", one)),
)
async def test_what_hides_something_or_is_no_page_of_the_web_is_not_shown(
    params: types.ElicitRequestParams, asked: bool
) -> None:
    async with during_call() as (person, routing, context):
        answer = await routing.elicit(context, params)
    assert isinstance(answer, types.ElicitResult) is asked is person.elicit.called, answer


# ---- what a server asks is answered, whatever becomes of it here -----------------------------------------


ASKED: dict[str, Any] = {"id": 7, "method": "roots/list"}


class OneMessage:
    """A wire on which the server says one thing, and keeps the answer."""

    where = "its stdout"

    def __init__(self, said: dict[str, Any]) -> None:
        self.said = json.dumps({"jsonrpc": "2.0", **said}).encode()
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def post(self, body: bytes, headers: Mapping[str, str], what: str) -> None:
        self.answer.set_result(json.loads(body))

    async def run(self, connection: Connection) -> None:
        assert await connection.received(self.said)
        await asyncio.wait([self.answer])


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (MCPError(-5, "no"), -5),
        (RuntimeError("a fault of ours"), types.INTERNAL_ERROR),
        (ValidationError.from_exception_data("a request", []), types.INVALID_PARAMS),
    ],
    ids=["refused", "failed", "unreadable"],
)
async def test_a_servers_request_that_fails_here_is_answered(failure: Exception, code: int) -> None:
    wire, notes, told = OneMessage(ASKED), list[str](), AsyncMock()
    await within(Connection(wire, asyncio.Event(), notes.append).run(AsyncMock(side_effect=failure), told))
    told.assert_not_called()
    said = wire.answer.result()
    assert (said["id"], said["error"]["code"]) == (7, code) and "fault of ours" not in str(said)
    assert notes == (
        ["The parameters of its request roots/list are none of it."] if code == types.INVALID_PARAMS else []
    )


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        ({"level": "WARN", "message": "low"}, {"level": "warning", "data": "low"}),
        ({"level": 7, "data": None, "logger": {}}, {"level": "info", "data": None}),
        (
            {"level": "error", "data": [1], "logger": "disk"},
            {"level": "error", "data": [1], "logger": "disk"},
        ),
    ],
)
async def test_no_log_message_is_lost_for_one_field(said: dict[str, Any], heard: dict[str, Any]) -> None:
    wire = OneMessage({"method": "notifications/message", "params": said})
    told = AsyncMock(side_effect=lambda *_: wire.answer.set_result(None))
    await within(Connection(wire, asyncio.Event(), lambda _: None).run(told, told))
    told.assert_awaited_once_with(ANY, "notifications/message", heard)


async def test_a_form_of_php_reaches_a_person() -> None:
    """An empty object is a list there, and what is absent null."""
    form = {"title": None, "properties": {"name": {"type": "string", "title": None}}, "required": {}}
    wire = OneMessage({**ASKED, "params": {"message": "Who?", "mode": None, "requestedSchema": form}})
    asked = AsyncMock(return_value={})
    await within(Connection(wire, asyncio.Event(), lambda _: None).run(asked, asked))
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    asked.assert_awaited_once_with(ANY, "roots/list", {"message": "Who?", "requestedSchema": schema})


# ---- what a server logs: bounded, redacted, on one line --------------------------------------------------


NAME = "cellblock.tools.upstream.messages"


def message(
    data: Any, level: Any = "warning", logger: str | None = None
) -> types.LoggingMessageNotificationParams:
    return types.LoggingMessageNotificationParams(level=level, data=data, logger=logger)


def log() -> ServerLog:
    return ServerLog("wiki", Redactor(ServerConfig(command="x", env={"API_KEY": "canary-9a21"})))


async def test_levels_text_and_secrets(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, NAME)
    write = log()
    for level in ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"):
        await write(message("m", level))
    assert [record.levelname for record in caplog.records] == [
        "DEBUG",
        "INFO",
        "INFO",
        "WARNING",
        "ERROR",
        "CRITICAL",
        "CRITICAL",
        "CRITICAL",
    ]
    caplog.clear()
    await write(message({"key": "canary-9a21"}, logger="canary-9a21"))
    await write(message("two\nlines\x1b[2J"))
    await write(message("x" * 100_000))
    *said, cut = [record.getMessage() for record in caplog.records]
    assert said == ['wiki[[redacted]]: {"key": "[redacted]"}', "wiki: two lines [2J"]
    assert len(cut) == MAX_CHARS + len("wiki: ")


async def test_a_flood_is_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, NAME)
    write = log()
    for _ in range(int(BURST) * 3):
        await write(message("m"))
    written = len(caplog.records)
    assert BURST <= written < BURST * 2
    write._bucket._level = 1.0
    await write(message("m"))
    assert "messages were dropped" in caplog.records[written].getMessage()


@pytest.mark.parametrize(("level", "wanted"), [(10, "debug"), (20, "info"), (30, "warning"), (40, "error")])
def test_servers_are_asked_for_what_is_written(
    level: int, wanted: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(level, NAME)
    assert wanted_level() == wanted


async def written(path: Path, *chunks: str, on_said: Callable[[str], None] = lambda _: None) -> None:
    """Writes chunk by chunk, as a process would."""
    redactor = Redactor(ServerConfig(command="x", env={"API_KEY": "s3cret-value"}))
    async with stderr_log(path, redactor, on_said) as (sink, _):
        for chunk in chunks:
            await asyncio.to_thread(sink.write, chunk)
            await asyncio.to_thread(sink.flush)


async def test_secrets_are_replaced_even_in_pieces_and_without_a_line_end(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    await written(file, "one s3cret-", "value\ntwo\n", "last s3cret-value")
    assert file.read_text() == "one [redacted]\ntwo\nlast [redacted]"


async def test_a_file_is_appended_to_and_never_holds_more_than_its_cap(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    await written(file, "before\n")
    await written(file, "after\n")
    assert file.read_text() == "before\nafter\n"
    await written(file, *["x" * 99_999 + "\n"] * 25, "end\n")
    assert file.stat().st_size <= CAP_BYTES
    assert file.read_text().endswith("end\n")


PLAINLY = """\
Failed to validate request: 31 validation errors for ClientRequest
PingRequest.method
  Input should be 'ping' [type=literal_error, input_value='server/discover', input_type=str]
    For further information visit https://errors.pydantic.dev/2.14/v/literal_error
CancelTaskRequest.params.taskId
  Field required [type=missing, input_value={'_meta': {'io.modelconte...lientCapabilities': {}}}, input_type=dict]
    For further information visit https://errors.pydantic.dev/2.14/v/missing
Processing request of type CallToolRequest
about to die
"""
IN_COLUMNS = """\
[11/30/26 17:15:35] WARNING  Failed to validate request: 31       session.py:383
                             validation errors for ClientRequest
                             PingRequest.method
                               Input should be 'ping'
                             [type=literal_error,
                             input_value='server/discover',
                    INFO     Processing request of type            server.py:733
about to die
"""


@pytest.mark.parametrize("stderr", [PLAINLY, IN_COLUMNS], ids=["plainly", "in columns"])
@pytest.mark.parametrize("size", [10_000, 7])
async def test_what_the_sdk_of_before_says_of_the_probe_is_not_what_a_server_said(
    tmp_path: Path, stderr: str, size: int
) -> None:
    """Both are of mcp 1.30, without and with `rich`."""
    said: list[str] = []
    chunks = [stderr[at : at + size] for at in range(0, len(stderr), size)]
    await written(tmp_path / "a.log", "Database: 3 tables\n", *chunks, on_said=said.append)
    assert said[-1] == "about to die"
    kept = (tmp_path / "a.log").read_text().splitlines()
    assert len(kept) == 3 and kept[0] == "Database: 3 tables" and "Processing request" in kept[1]


@pytest.mark.parametrize(
    "chunks",
    [
        ("Error: API_KEY is not set\nbye\n",),
        ("Error: API_KEY is not set\nbye", "\n"),
        ("Error: API_KEY is", " not set\n", "  at main\n" * 40, "bye"),
    ],
)
async def test_what_follows_an_error_does_not_hide_it_in_however_many_pieces_it_comes(
    tmp_path: Path, chunks: tuple[str, ...]
) -> None:
    said: list[str] = []
    await written(tmp_path / "a.log", *chunks, on_said=said.append)
    assert said[-1] == "Error: API_KEY is not set"
    await written(tmp_path / "a.log", *chunks, "x\n" * 4096, on_said=said.append)
    assert said[-1] == "x", "what was long before is of something else"


NPM_LOG = "npm error A complete log of this run can be found in: /home/a/.npm/_logs/x-debug-0.log"


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (
            [
                "npm warn deprecated a@1.0.0: old",
                "npm error code E404",
                "npm error 404 Not Found - GET https://registry.npmjs.org/b",
                "npm error 404",
                "npm error 404  The requested resource 'b@*' could not be found",
                NPM_LOG,
            ],
            "npm error 404 Not Found - GET https://registry.npmjs.org/b",
        ),
        (
            ["npm error could not determine executable to run", NPM_LOG],
            "npm error could not determine executable to run",
        ),
        (
            [
                "npm ERR! code ENOTEMPTY",
                "npm ERR! syscall rename",
                "npm ERR! path /a",
                "npm ERR! ENOTEMPTY: not empty",
            ],
            "npm ERR! ENOTEMPTY: not empty",
        ),
        ([NPM_LOG], NPM_LOG),
        (
            ["error: No solution found", "  cause: Because b was not found", "other"],
            "error: No solution found cause: Because b was not found",
        ),
        (
            [
                "An executable named `a` is not provided by package `b`.",
                "The following are available:",
                "- b",
            ],
            "An executable named `a` is not provided by package `b`.",
        ),
    ],
)
def test_of_what_an_installer_says_its_error_is_told(lines: list[str], told: str) -> None:
    assert last_said("\n".join(lines)) == told


def test_each_server_has_a_log_of_its_own(tmp_path: Path) -> None:
    names = ["a_b", "a.b", "a b", "a/b", "../a_b", "ä", "x" * 60, "x" * 61, "x" * 62, "a\n"]
    logs = {upstream_log(tmp_path, name) for name in names}
    assert len(logs) == len(names) and {log.parent for log in logs} == {tmp_path}
    assert upstream_log(tmp_path, "a_b").name == "upstream-a_b.log"
