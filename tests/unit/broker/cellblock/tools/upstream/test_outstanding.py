"""What a person or a model reads of what a server asks: whose it is, and nothing hidden."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import mcp_types as types
import pytest

from cellblock.base.redaction import Redactor
from cellblock.base.settings.settings import ServerConfig
from cellblock.tools.upstream.outstanding import Routing
from cellblock.tools.upstream.requester import CallOrigin

HIDDEN = "\u202e\U000e0041\u200b\x1b]52;c;aGk=\x07"


class Person:
    """Notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    @property
    def wants_progress(self) -> bool:
        return False

    async def elicit(self, params: types.ElicitRequestParams, key: str = "") -> types.ElicitResult:
        self.asked.append(params)
        return types.ElicitResult(action="decline")

    async def sample(
        self, params: types.CreateMessageRequestParams, key: str = ""
    ) -> types.CreateMessageResult:
        self.asked.append(params)
        return types.CreateMessageResult(role="assistant", content=types.TextContent(text="x"), model="m")

    async def roots(self, key: str = "") -> types.ListRootsResult:
        return types.ListRootsResult(roots=[])

    def progress(
        self, server: str, tool: str, progress: float, total: float | None, message: str | None
    ) -> None:
        """Nobody watches."""

    def logged(self, params: types.LoggingMessageNotificationParams) -> None:
        self.asked.append(params)


@asynccontextmanager
async def during_call(person: Person) -> AsyncIterator[tuple[Routing, Any]]:
    """While a call is made: what hears the server, and what the SDK gives a callback for what it asks meanwhile."""
    routing = Routing("files", Redactor(ServerConfig(command="x")))
    async with asyncio.timeout(30) as clock:
        with routing.call("x", {}, clock, CallOrigin(person)) as call:
            yield routing, SimpleNamespace(request_id=call.number)


async def test_texts_of_servers_are_plain_and_named() -> None:
    person = Person()
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
    async with during_call(person) as (routing, context):
        await routing.elicit(context, form)
        await routing.sample(context, sampled)
        routing.logged(logged)
    shown = "".join(one.model_dump_json() for one in person.asked)
    assert not any(part in shown for part in ("\u202e", "\U000e0041", "\u200b", "\\u001b", "\\u0007")), shown
    assert person.asked[0].message.startswith("files: bank: a\n")
    assert person.asked[1].system_prompt.startswith("files asks:\nYou are")


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
    person = Person()
    async with during_call(person) as (routing, context):
        answer = await routing.elicit(context, params)
    assert isinstance(answer, types.ElicitResult) is asked is bool(person.asked), answer
