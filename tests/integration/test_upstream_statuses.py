"""HTTP statuses of upstream calls: each says something of its own call, and of no other."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.brokers import ready
from support.entries import settings
from support.http_server import Answering, serving
from support.responses import succeeded
from support.waits import within

TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("answer", "refuse", "fail")]


class Handler(Answering):
    """A streamable HTTP server without the SDK's: it answers with the status that a call asks for.

    `answer` gives `{"ok": true}`; `refuse` a JSON-RPC error with `text`, over HTTP `status`; `fail` HTTP `status`
    without a word of JSON-RPC. Each after `ms` milliseconds.
    """

    def do_POST(self) -> None:
        asked = json.loads(self.body())
        if "id" not in asked:
            return self._say(202)
        if asked["method"] == "initialize":
            version = asked["params"]["protocolVersion"]
            about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
            return self._say(200, asked, result={"protocolVersion": version, **about})
        if asked["method"] == "tools/list":
            return self._say(200, asked, result={"tools": TOOLS})
        if asked["method"] != "tools/call":
            return self._say(200, asked, error={"code": -32601, "message": "no such method"})
        name, given = asked["params"]["name"], asked["params"].get("arguments", {})
        time.sleep(given.get("ms", 0) / 1000)
        if name == "fail":
            return self._say(given["status"])
        if name == "refuse":
            error = {"code": -32000, "message": given["text"]}
            return self._say(given.get("status", 200), asked, error=error)
        return self._say(200, asked, result={"content": [], "structuredContent": {"ok": True}})

    def do_GET(self) -> None:
        self._say(405)

    def do_DELETE(self) -> None:
        self._say(200)

    def _say(self, status: int, asked: dict[str, Any] | None = None, **answer: object) -> None:
        body = json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}).encode() if asked else b""
        self.answer(status, body, Content_Type="application/json", Mcp_Session_Id="one")


@pytest.fixture
def url() -> Iterator[str]:
    with serving(Handler) as address:
        yield f"http://{address}/mcp"


TOLD = """
    import * as remote from "@codemode/servers/remote";
    const told = (work) => work.then(() => "no error", ({ name, message, certainty }) => [name, certainty, message]);
"""


async def test_a_refusal_says_nothing_of_the_calls_after_it(url: str, tmp_path: Path) -> None:
    code = f"""{TOLD}
        const first = await told(remote.refuse({{ text: "bad arguments", status: 400 }}));
        const text = "the user's session limit is reached; 3 of 5 mails were sent";
        const second = await told(remote.refuse({{ text }}));
        globalThis.__codemode_result__ = {{ first, second, after: await remote.answer({{}}) }};
    """
    async with ready(settings(tmp_path, {"remote": {"url": url}})) as broker:
        result = succeeded(await within(broker.run(code)))
    assert result["first"][:2] == ["ToolCallError", "may_have_run"], result
    assert result["second"][:2] == ["ToolCallError", "may_have_run"], result
    assert "3 of 5 mails were sent" in result["second"][2]
    assert result["after"] == {"ok": True}


async def test_of_calls_at_once_each_has_its_own_status(url: str, tmp_path: Path) -> None:
    code = f"""{TOLD}
        globalThis.__codemode_result__ = await Promise.all([
            told(remote.fail({{ status: 500, ms: 100 }})),
            told(remote.fail({{ status: 401, ms: 100 }})),
            told(remote.fail({{ status: 503, ms: 100 }})),
        ]);
    """
    async with ready(settings(tmp_path, {"remote": {"url": url}})) as broker:
        result = succeeded(await within(broker.run(code)))
    assert [one[:2] for one in result] == [
        ["ToolCallError", "may_have_run"],
        ["AuthenticationError", "not_started"],
        ["ToolCallError", "may_have_run"],
    ]
    for one, status in zip(result, (500, 401, 503), strict=True):
        assert f"HTTP {status}" in one[2]
