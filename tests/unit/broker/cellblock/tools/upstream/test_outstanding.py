"""What a person or a model reads of what a server asks: whose it is, and nothing hidden."""

import asyncio
from types import SimpleNamespace
from typing import Any

import mcp_types as types
import pytest

from cellblock.base.redaction import Redactor
from cellblock.base.settings.settings import ServerConfig
from cellblock.tools.upstream.outstanding import Outstanding, Routing
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


def _context(call: Outstanding) -> Any:
    """Makes what the SDK gives a callback for what a server asks on the stream of a call's answer."""
    return SimpleNamespace(request_id=call.number)


async def test_texts_of_servers_are_plain_and_named() -> None:
    person, routing = Person(), Routing("files", Redactor(ServerConfig(command="x")))
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
    async with asyncio.timeout(30) as clock:
        with routing.call("x", {}, clock, CallOrigin(person)) as call:
            await routing.elicit(_context(call), form)
            await routing.sample(_context(call), sampled)
            routing.logged(logged)
    shown = "".join(one.model_dump_json() for one in person.asked)
    assert not any(part in shown for part in ("\u202e", "\U000e0041", "\u200b", "\\u001b", "\\u0007")), shown
    assert person.asked[0].message.startswith("files: bank: a\n")
    assert person.asked[1].system_prompt.startswith("files asks:\nYou are")


@pytest.mark.parametrize(
    ("properties", "asked"),
    [
        ({"f": {"type": "string", "enum": ["a", "b"], "default": "a"}}, True),
        ({"f": {"type": "string", "enum": ["می‌خواهم"]}}, True),
        ({"f": {"type": "string", "enum": ["a", "b\u202e"]}}, False),
        ({"f": {"type": "string", "oneOf": [{"const": "a\x1b[2J", "title": "A"}]}}, False),
        ({"f": {"type": "array", "items": {"type": "string", "enum": ["a\U000e0041"]}}}, False),
        ({"f\u200b": {"type": "string"}}, False),
    ],
)
async def test_a_form_whose_choices_hide_something_is_not_shown(
    properties: dict[str, Any], asked: bool
) -> None:
    person, routing = Person(), Routing("files", Redactor(ServerConfig(command="x")))
    form = types.ElicitRequestFormParams.model_validate(
        {
            "mode": "form",
            "message": "m",
            "requestedSchema": {"type": "object", "properties": properties},
        }
    )
    async with asyncio.timeout(30) as clock:
        with routing.call("x", {}, clock, CallOrigin(person)) as call:
            answer = await routing.elicit(_context(call), form)
    assert isinstance(answer, types.ElicitResult) is asked is bool(person.asked), answer


@pytest.mark.parametrize(
    ("url", "opened"),
    [
        ("https://example.com/x?y=1", True),
        ("http://127.0.0.1:9/x", True),
        ("javascript:alert(1)", False),
        ("data:text/html,x", False),
        ("file:///etc/passwd", False),
        ("vscode://x/y", False),
        ("https://bank.example@evil.example/", False),
        ("https://ex\u202eample.com/", False),
        ("https:///x", False),
    ],
)
async def test_only_pages_of_the_web_are_opened(url: str, opened: bool) -> None:
    person, routing = Person(), Routing("files", Redactor(ServerConfig(command="x")))
    params = types.ElicitRequestURLParams.model_validate(
        {"mode": "url", "message": "m", "url": url, "elicitationId": "1"}
    )
    async with asyncio.timeout(30) as clock:
        with routing.call("x", {}, clock, CallOrigin(person)) as call:
            answer = await routing.elicit(_context(call), params)
    assert isinstance(answer, types.ElicitResult) is opened is bool(person.asked), answer
