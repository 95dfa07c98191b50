"""Bodies that are too large for the broker's loop: the same to scripts, servers and clients, and no loop is held."""

import hashlib
import json
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cellblock import Broker
from cellblock.base import payload
from cellblock.base.budget import Metered
from cellblock.base.raw_json import RawJson, is_light
from cellblock.tools.upstream.wire import messages
from servers.large_server import answer
from support.brokers import ready
from support.entries import SERVERS, settings
from support.http_server import mcp_over_http, serving
from support.responses import succeeded
from support.waits import until, within

pytestmark = pytest.mark.thorough

SLOW = {"upstream": {"call_timeout_ms": 120_000}}
SIZE = 5_000
LIMITS = {"timeoutMs": 120_000, "maxMemoryBytes": 512 * 1024 * 1024, "maxCpuMs": 60_000}


def large_server(*options: str) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-I", str(SERVERS / "large_server.py"), *options]}


@contextmanager
def served(form: str) -> Generator[dict[str, Any]]:
    """The entry of a server over stdio, or over HTTP with one form of answers."""
    if form == "stdio":
        yield large_server()
        return
    with serving(mcp_over_http(form, answer)) as address:
        yield (
            {"url": f"http://{address}/sse", "type": "sse"}
            if form == "sse"
            else {"url": f"http://{address}/mcp"}
        )


BOTH = """
    import { seen, give } from "@codemode/servers/large";
    const item = (_, i) => ({ i, t: "é\\u2028\\ud83d\\ude00", f: i / 7, e: 1e-7, l: [[]] });
    const items = (n) => Array.from({ length: n }, item);
    const tried = async (work) => {
        try { return await work; } catch ({ name, message, hint, path, expected, received }) {
            return { name, message: message.replaceAll(/\\d{4,}/g, "N"), hint, path, expected, received };
        }
    };
    const deep = (n) => { let made = []; for (let i = 0; i < n; i++) made = [made]; return made; };
    const of = async (n) => ({
        seen: await seen({ items: items(n) }),
        misfit: await tried(seen({ n: "x", items: items(n) })),
        deep: await tried(seen({ items: items(n), deep: deep(200) })),
        text: (await give({ text: "é\\ud83d\\ude00\\"", times: n, with: {} })).length,
        fails: await tried(give({ text: "no ", times: n, with: { isError: true } })),
        no_result: await tried(give({ text: "x", times: n, with: { content: 7 } })),
    });
    const many = await give({ n: 60_000 });
    const whole = many.many.length === 60_001 && many.many.at(-1)[0] === 2;
    globalThis.__codemode_result__ = { small: await of(10), large: await of(SIZE), whole };
"""


@pytest.mark.parametrize("form", ["stdio", "json", "events", "sse"])
async def test_what_is_large_is_told_and_given_as_what_is_small(tmp_path: Path, form: str) -> None:
    """The server compares what it has got; what a script and its server see differs in sizes alone."""
    with served(form) as entry:
        async with ready(settings(tmp_path, {"large": entry}, **SLOW)) as broker:
            found = succeeded(await within(broker.run(BOTH.replace("SIZE", str(SIZE)), limits=LIMITS)))
    small, large = found["small"], found["large"]
    assert found["whole"] is True
    assert large["misfit"] == small["misfit"] and small["misfit"]["name"] == "SchemaValidationError"
    assert large["deep"] == small["deep"] and "nested deeper" in small["deep"]["message"]
    assert large["fails"]["message"][:100] == ("no " * 50)[:100]
    assert large["fails"]["name"] == small["fails"]["name"] == "ToolCallError"
    assert large["no_result"] == small["no_result"]
    assert (small["text"], large["text"]) == (40, 4 * SIZE)
    assert (small["seen"]["sha"], large["seen"]["sha"]) == (sha_of(10), sha_of(SIZE))


def sha_of(count: int) -> str:
    """As the server makes it of the input that it should get."""
    items = [{"i": i, "t": "é\u2028\U0001f600", "f": i / 7, "e": 1e-7, "l": [[]]} for i in range(count)]
    # JavaScript writes a whole number without a fraction.
    for item in items:
        item["f"] = int(item["f"]) if item["f"].is_integer() else item["f"]
    body = json.dumps({"items": items}, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(body.encode()).hexdigest()


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """All that this process has decoded of what workers and servers have sent."""
    bodies: list[bytes] = []

    def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(data: bytes, **options: Any) -> Any:
            bodies.append(data)
            return function(data, **options)

        return call

    monkeypatch.setattr(payload, "decode", recorded(payload.decode))
    monkeypatch.setattr(messages, "decoded", recorded(messages.decoded))
    return bodies


async def test_large_notices_that_nobody_asked_for_are_not_decoded(
    tmp_path: Path, decoded: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: list[messages.Message] = []
    read = messages.read

    def counted(raw: bytes) -> messages.Message:
        found = read(raw)
        if len(raw) > 1_000_000:
            # Of the second kind, what is large is beside what anybody reads.
            kinds.append(found)
        return found

    monkeypatch.setattr(messages, "read", counted)
    async with Broker(settings(tmp_path, {"large": large_server("notices")})) as broker:
        await until(lambda: len(kinds) >= 4, "some of both kinds have come")
        assert (await within(broker.run("globalThis.__codemode_result__ = 1"))).result == 1
        assert all(is_light(body) for body in decoded)
        assert "large" in broker.catalog.servers, "the session goes on"
    little = messages.Notification("notifications/message", {"level": "info", "data": []})
    assert all(kind in (messages.Notification("", None), little) for kind in kinds)


async def test_a_large_result_is_not_decoded(tmp_path: Path, decoded: list[bytes]) -> None:
    code = """
        const items = Array.from({ length: 300_000 }, () => []);
        globalThis.__codemode_result__ = [true, items];
    """
    async with ready(settings(tmp_path, {})) as broker:
        response = await within(broker.run_request({"code": code, "limits": LIMITS}))
        assert response.ok, response.diagnostics
        assert all(is_light(body) for body in decoded)
        # Not decoded for who passes it on, and decoded for who asks for it.
        assert isinstance(response.result, RawJson)
        assert response.result.raw == b"[true,[" + b"[]," * 299_999 + b"[]]]"
        assert response.decoded().result == [True, [[]] * 300_000]


async def test_a_run_is_billed_for_what_is_read_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An input, and the result of the script; and an input that is too much costs one call alone."""
    each = 1_000_000
    monkeypatch.setattr(Metered, "__exit__", lambda self, *_: self._account and self._account.add_cpu(each))
    code = """
        import { seen, give } from "@codemode/servers/large";
        await seen({ items: Array.from({ length: 90_000 }, () => []) });
        globalThis.__codemode_result__ = await give({ n: 60_000 });
    """
    refused = """
        import { seen } from "@codemode/servers/large";
        const call = (items) => seen({ items }).then(() => "done", (error) => `${error.certainty}: ${error.message}`);
        const items = Array.from({ length: 300_000 }, () => []);
        globalThis.__codemode_result__ = [await call(items), await call([])];
    """
    async with ready(settings(tmp_path, {"large": large_server()}, **SLOW)) as broker:
        assert await billed(broker, code) // each >= 4
        assert await billed(broker, "globalThis.__codemode_result__ = 1") < each
        said = succeeded(await within(broker.run(refused, limits=LIMITS)))
        assert said == ["not_started: seen was not called: its input has over 100000 values.", "done"]


async def billed(broker: Broker, code: str) -> int:
    """CPU time of a run, in milliseconds."""
    return (await within(broker.run_request({"code": code, "limits": LIMITS}))).usage.cpu_ms


async def test_a_large_list_of_tools_is_read_in_pages(tmp_path: Path) -> None:
    async with ready(settings(tmp_path, {"large": large_server("lists")})) as broker:
        await until(lambda: "large" in broker.catalog.servers, "it is connected")
        server = broker.catalog.servers["large"]
    assert len(server.tools) == 802
    (left_out,) = server.withheld
    assert left_out.name == "huge" and "over 131072" in left_out.why
