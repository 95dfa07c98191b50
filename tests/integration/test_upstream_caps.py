"""What a server may take of the broker: one message, one tool list, one definition; over a cap, only that is lost."""

import json
from pathlib import Path
from typing import Any

import pytest

from cellblock import Broker
from cellblock.app.cli.asking import Person
from cellblock.app.cli.doctor import findings
from support.brokers import ready
from support.entries import http_server, plain_server, settings
from support.responses import error_of, succeeded
from support.waits import until, within

CAP = 100_000
HALF = CAP // 2
"""Is the cap on results, of which the cap on a server's messages is twice."""

FLOOD = """
    import * as server from "@codemode/servers/server";
    const failure = async (work) => {
        try { await work; return "no error"; } catch ({ name, message, hint, certainty }) {
            return { name, message, hint, certainty };
        }
    };
    const [big, other] = await Promise.all([failure(server.flood({ bytes: 300_000 })), server.flood({ bytes: 10 })]);
    const after = await server.flood({ bytes: 20_000 });
    globalThis.__codemode_result__ = { big, other, after: after.length };
"""


def check_flood(result: Any) -> None:
    assert result["big"]["name"] == "ToolCallError", result
    assert "too large" in result["big"]["message"] and str(CAP) in result["big"]["message"]
    assert "server" in result["big"]["message"] and "flood" in result["big"]["message"]
    assert "less at a time" in result["big"]["hint"]
    assert result["big"]["certainty"] == "may_have_run"
    assert result["other"] == "f" * 10
    assert result["after"] == 20_000


async def test_a_message_over_the_cap_fails_its_call_and_no_other_over_stdio(tmp_path: Path) -> None:
    bounds = {"call_timeout_ms": 60_000}
    pid = """
        import { pid } from "@codemode/servers/server";
        globalThis.__codemode_result__ = await pid({});
    """
    async with ready(
        settings(tmp_path, {"server": plain_server()}, max_message_bytes=HALF, upstream=bounds)
    ) as broker:
        before = succeeded(await within(broker.run(pid)))
        check_flood(succeeded(await within(broker.run(FLOOD))))
        assert succeeded(await within(broker.run(pid))) == before


@pytest.mark.parametrize("form", ["events", "json"])
async def test_a_message_over_the_cap_fails_its_call_and_no_other_over_http(
    tmp_path: Path, form: str
) -> None:
    bounds = {"call_timeout_ms": 60_000}
    with http_server("--flood", *(["--json"] if form == "json" else [])) as url:
        servers = {"server": {"url": url}}
        async with ready(settings(tmp_path, servers, max_message_bytes=HALF, upstream=bounds)) as broker:
            check_flood(succeeded(await within(broker.run(FLOOD))))


@pytest.mark.usefixtures("quick_retries")
async def test_a_line_without_end_costs_the_server_its_connection(tmp_path: Path) -> None:
    bounds = {"call_timeout_ms": 60_000}
    servers = {"server": plain_server(), "other": plain_server()}
    code = """
        import { endless } from "@codemode/servers/server";
        import { echo } from "@codemode/servers/other";
        const said = await endless({}).then(() => "no error", (error) => error.message);
        globalThis.__codemode_result__ = { said, other: await echo({}) };
    """
    async with ready(settings(tmp_path, servers, max_message_bytes=HALF, upstream=bounds)) as broker:
        result = succeeded(await within(broker.run(code)))
        assert "closed during endless" in result["said"] and "a line without end" in result["said"]
        assert result["other"] == "{}"
        await until(lambda: "server" in broker.catalog.servers, "the server is connected again")


async def test_a_tool_list_over_the_cap_on_messages_says_so(tmp_path: Path) -> None:
    definitions = tmp_path / "definitions.json"
    many = [tool(f"tool_{number}", "d" * 500) for number in range(400)]
    definitions.write_text(json.dumps({"pages": [many]}))
    servers = {"server": plain_server("--definitions", definitions)}
    async with ready(settings(tmp_path / "s", servers, max_message_bytes=HALF)) as broker:
        assert "twice max_message_bytes" in broker.catalog.unavailable["server"]


def tool(name: str, description: str = "Is harmless", **fields: Any) -> dict[str, Any]:
    return {"name": name, "description": description, "inputSchema": {"type": "object"}, **fields}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


async def test_tools_over_a_cap_are_left_out_one_by_one_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    definitions = tmp_path / "definitions.json"
    bad = [
        tool("long_text", "d" * 100_000),
        tool("deep", inputSchema=nested(70)),
        tool("wide", inputSchema={"type": "object", "enum": list(range(20_000))}),
        tool("n" * 5_000),
        tool("twice", "Is the first"),
        tool("twice", "Is the second"),
        {"name": []},
    ]
    definitions.write_text(json.dumps({"pages": [[tool("good"), *bad], [tool("late")]], "endless": True}))
    servers = {"server": plain_server("--definitions", definitions)}
    monkeypatch.setattr("cellblock.tools.upstream.listing.MAX_PAGES", 4)
    config = settings(tmp_path / "state", servers)
    async with ready(config) as broker:
        server = broker.catalog.servers["server"]
        assert [one.tool_name for one in server.tools] == ["good", "late", "twice"]
        refused = await within(broker.run('import { deep } from "@codemode/servers/server";'))
        found = error_of(refused, "IMPORT_FAILURE")
        assert "levels or more, over 100" in found.message
        asked = """
            import { getTool } from "@codemode/discovery";
            globalThis.__codemode_result__ = await getTool("server", "long_text").catch((error) => error.message);
        """
        assert "characters, over 32768" in succeeded(await within(broker.run(asked)))
    async with Broker(config) as broker:
        found = await findings(broker, {}, Person())
    assert not found["problems"]
    assert "left out" in found["servers"]["server"]
    said = "\n".join(found["warnings"])
    for name in ("long_text", "deep", "wide", "nnn", "twice", "malformed"):
        assert name in said
    assert "after 4 pages" in said
