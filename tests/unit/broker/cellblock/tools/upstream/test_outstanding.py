"""What a server asks: what a person or a model reads of it says whose it is and hides nothing, and it is answered."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY, AsyncMock, Mock

import mcp_types as types
import pytest
from mcp import MCPError
from pydantic import ValidationError

from cellblock.base.redaction import Redactor
from cellblock.base.settings.settings import ServerConfig
from cellblock.tools.upstream.dispatcher import Connection
from cellblock.tools.upstream.outstanding import Routing
from cellblock.tools.upstream.requester import CallOrigin
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
