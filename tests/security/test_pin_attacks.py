"""A server that its user has put under quarantine shows and runs nothing but what was approved, whatever it lists."""

import json
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from cellblock import Broker
from cellblock.serve.mcp.mcp_server import FrontServer
from cellblock.tools.upstream import listing
from support.brokers import ready
from support.entries import ledger, plain_server, settings
from support.responses import succeeded
from support.waits import until, within

Definition = dict[str, Any]
EVIL = "EVIL"
"""In every text of a definition that nobody has approved."""


def tool(name: str, text: str = "Is harmless") -> Definition:
    return {"name": name, "description": text, "inputSchema": {"type": "object", "title": text}}


APPROVED = [tool("announce"), tool("read.file"), tool("write")]

ATTACKS: dict[str, list[Definition]] = {
    "changed": [tool("announce"), tool("read.file", EVIL), tool("write")],
    "changed in the schema alone": [
        tool("announce"),
        {**tool("read.file"), "inputSchema": {"type": "object", "title": EVIL}},
    ],
    "an output schema": [
        tool("announce"),
        {**tool("write"), "outputSchema": {"type": "object", "title": EVIL}},
    ],
    "a title and annotations": [
        tool("announce"),
        {**tool("read.file"), "title": EVIL},
        {**tool("write"), "annotations": {"title": EVIL, "readOnlyHint": True}},
    ],
    "swapped": [
        tool("announce"),
        {**tool("write", EVIL), "name": "read.file"},
        {**tool("read.file", EVIL), "name": "write"},
    ],
    "twice, the approved one first": [*APPROVED, tool("write", EVIL), tool("read.file", EVIL)],
    "twice, the approved one last": [tool("write", EVIL), tool("read.file", EVIL), *APPROVED],
    "the same export names": [
        tool("read-file", EVIL),
        tool("read_file", EVIL),
        tool("read/file", EVIL),
        *APPROVED,
    ],
    "look-alikes": [
        *APPROVED,
        tool("wr\u0456te", EVIL),
        tool("write\u200b", EVIL),
        tool("\u202ewrite", EVIL),
        tool("write ", EVIL),
        tool("WRITE", EVIL),
        tool("\uff57rite", EVIL),
    ],
    "names that are none": [
        *APPROVED,
        tool("", EVIL),
        tool("x" * 5_000, EVIL),
        tool("__proto__", EVIL),
        tool("__meta__", EVIL),
        tool("default", EVIL),
        tool("constructor", EVIL),
        tool("then", EVIL),
        tool("../announce", EVIL),
        tool('"]; evil(); ["', EVIL),
    ],
    "all gone but one": [tool("announce")],
    "back with others": [*APPROVED, tool("steal", EVIL)],
}

LOOK = """
    import * as shifting from "@codemode/servers/shifting";
    import { listTools, searchTools, getTool } from "@codemode/discovery";
    const seen = [], names = NAMES;
    seen.push(shifting.__meta__, Object.keys(shifting), await listTools("shifting"));
    seen.push((await searchTools("harmless evil")).results);
    for (const name of names) {
        try { seen.push(await getTool("shifting", name)); } catch { }
    }
    for (const [name, call] of Object.entries(shifting)) {
        if (typeof call === "function" && name !== "announce") await call({});
    }
    for (const name of names) {
        // Each by its own name too, as one that has seen the list elsewhere would.
        try { await shifting[name]({}); } catch { }
    }
    globalThis.__codemode_result__ = JSON.stringify(seen);
"""
ANNOUNCE = """
    import { announce } from "@codemode/servers/shifting";
    await Promise.all(Array.from({ length: 20 }, () => announce({})));
"""


async def told_to_clients(broker: Broker, names: list[str]) -> str:
    """All that an MCP client can ask about the server and its tools."""
    seen: list[str] = []
    async with Client(FrontServer(broker, version="1").open()) as client:
        seen += [(await client.list_tools()).model_dump_json(), client.instructions or ""]
        for resource in (await client.list_resources()).resources:
            seen += [resource.model_dump_json(), (await client.read_resource(resource.uri)).model_dump_json()]
        asked: list[tuple[str, dict[str, str]]] = [
            ("search_tools", {"query": "harmless write"}),
            ("list_servers", {}),
        ]
        asked += [("inspect_tool", {"tool_name": f"mcp__shifting__{name}"[:600]}) for name in names]
        for tool_name, arguments in asked:
            seen.append((await client.call_tool(tool_name, arguments)).model_dump_json())
    return "\n".join(seen)


async def test_nothing_is_shown_or_called_that_is_not_approved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All in one session: the server changes its list, says so, and changes it again."""
    monkeypatch.setattr(listing, "RELIST_SECONDS", 0.05)
    file, calls = tmp_path / "definitions.json", tmp_path / "ledger"

    def lists(tools: list[Definition]) -> None:
        # In its place in one step: the server may be reading it.
        fresh = file.with_suffix(".new")
        fresh.write_text(json.dumps({"pages": [tools]}), encoding="utf-8")
        fresh.replace(file)

    servers = {"shifting": plain_server("--definitions", file, "--ledger", calls)}
    extended = {"profile": "extended"}
    config = settings(tmp_path / "state", servers, pins={"reaction": "quarantine"}, frontend=extended)
    lists(APPROVED)
    async with ready(config) as broker:
        for attack, tools in ATTACKS.items():
            honest = {one["name"] for one in tools if EVIL not in json.dumps(one)}
            lists(tools)
            before = broker.catalog.version
            # Many times: nobody waits for a server that says so without end.
            succeeded(await within(broker.run(ANNOUNCE)))
            await until(lambda before=before: broker.catalog.version != before, attack)
            offered = {one.tool_name for one in broker.catalog.servers["shifting"].tools}
            assert "announce" in offered and offered <= honest, attack
            done = len(ledger(calls))
            names = json.dumps([one["name"] for one in tools])
            assert EVIL not in succeeded(await within(broker.run(LOOK.replace("NAMES", names)))), attack
            assert EVIL not in repr(broker.catalog.servers["shifting"].tools), attack
            called = {line["tool"] for line in ledger(calls)[done:] if line["event"] == "call"}
            assert called <= offered, attack
            told = await within(told_to_clients(broker, [one["name"] for one in tools]))
            assert EVIL not in told and "announce" in told, attack


async def test_two_sessions_are_held_against_the_same_pins(tmp_path: Path) -> None:
    """A server that tells one broker something else than the other: what the first has seen is what is approved."""
    file = tmp_path / "definitions.json"
    servers = {"shifting": plain_server("--definitions", file)}
    config = settings(tmp_path / "state", servers, pins={"reaction": "quarantine"})
    file.write_text(json.dumps({"pages": [APPROVED]}), encoding="utf-8")
    async with ready(config) as first:
        file.write_text(json.dumps({"pages": [[*APPROVED[:2], tool("write", EVIL)]]}), encoding="utf-8")
        async with ready(config) as second:
            assert {one.tool_name for one in second.catalog.servers["shifting"].tools} == {
                "announce",
                "read.file",
            }
        assert {one.tool_name for one in first.catalog.servers["shifting"].tools} == {
            "announce",
            "read.file",
            "write",
        }
