"""Grants with real clients: what a client may not use it is not shown in any place, and cannot reach by any name."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cellblock import Broker
from cellblock.base.errors import ConfigError, InvalidRequest
from cellblock.run.policy.asking import Grantee
from support.asking_client import Asked, always, asking, over_http, stdio
from support.brokers import ready
from support.commands import in_this_process
from support.entries import ledger, plain_server, settings, write_config
from support.http_daemon import daemon
from support.identity_provider import AUDIENCE, ISSUER, Issuer
from support.params import mostly
from support.responses import error_of, succeeded
from support.waits import within

NOTE = {"inputSchema": {"type": "object", "properties": {"path": {"type": "string"}}}}
DEFINITIONS: dict[str, Any] = {
    "pages": [
        [
            {"name": "read_note", "description": "Reads.", "annotations": {"readOnlyHint": True}, **NOTE},
            {
                "name": "delete_note",
                "description": "Deletes.",
                "annotations": {"destructiveHint": True},
                **NOTE,
            },
            {"name": "list-notes", "description": "Says nothing of itself.", **NOTE},
        ]
    ]
}
FORBIDDEN = ("delete_note", "list-notes", "list_notes", "secrets")

POLICY: dict[str, Any] = {
    "clients": {
        "stdio:reader": {
            "tools": ["notes.*"],
            "readOnly": True,
            "budgets": {"notes.read_note": 3},
            "arguments": {"notes.read_note": {"properties": {"path": {"pattern": "^public/"}}}},
        },
        "stdio:careful": {"tools": ["notes.*"], "destructive": "approve"},
        "cli": {"tools": ["notes.read_note"]},
    }
}


def servers(folder: Path) -> dict[str, Any]:
    definitions = folder / "definitions.json"
    definitions.write_text(json.dumps(DEFINITIONS))
    return {
        "notes": plain_server("--definitions", definitions, "--ledger", folder / "notes.jsonl"),
        "secrets": plain_server("--ledger", folder / "secrets.jsonl"),
    }


def calls(file: Path) -> list[str]:
    return [event["tool"] for event in ledger(file) if event["event"] == "call"]


async def told(asked: Asked, tool: str, **arguments: Any) -> str:
    """All that comes back from a tool."""
    return (await within(asked.client.call_tool(tool, arguments))).model_dump_json()


async def shown(asked: Asked) -> str:
    """Everything that a client is shown of servers and tools, as one text."""
    client = asked.client
    tools = (await within(client.list_tools())).model_dump_json()
    resources = await within(client.list_resources())
    parts = [tools, resources.model_dump_json(), client.instructions or ""]
    parts += [(await within(client.read_resource(one.uri))).model_dump_json() for one in resources.resources]
    parts.append(await told(asked, "list_servers"))
    parts.append(await told(asked, "search_tools", query="note delete list secrets echo", limit=50))
    script = """
        import * as d from "@codemode/discovery";
        const out = [await d.listServers(), await d.searchTools("delete list note echo", { limit: 100 })];
        for (const { serverId } of await d.listServers()) {
          out.push(await d.describeServer(serverId), await d.listTools(serverId, { detail: "full" }));
          const module = await import(`@codemode/servers/${serverId}`);
          out.push(Object.keys(module), module.__meta__);
        }
        globalThis.__codemode_result__ = out;
    """
    return "\n".join([*parts, json.dumps((await asked.run(script))["result"])])


HOSTILE = """
import * as notes from "@codemode/servers/notes";
import { getTool, listTools } from "@codemode/discovery";
const tried = {};
async function attempt(name, what) {
  try { tried[name] = { got: await what() }; }
  catch (error) { tried[name] = { error: error.name, message: error.message }; }
}
await attempt("function", () => notes.delete_note({ path: "a" }));
await attempt("key", () => notes["delete_note"]({ path: "a" }));
await attempt("namespaced", () => notes.mcp__notes__delete_note({ path: "a" }));
await attempt("prototype", () => Object.getPrototypeOf(notes.read_note).delete_note({ path: "a" }));
await attempt("constructor", () => notes.read_note.constructor("return 1")());
const other = { toolName: "delete_note", tool: "delete_note" };
await attempt("this", () => notes.read_note.call(other, { path: "public/a" }));
await attempt("getTool", () => getTool("notes", "delete_note"));
await attempt("getTool2", () => getTool("notes", "list_notes"));
await attempt("listTools", () => listTools("secrets"));
await attempt("import", () => import("@codemode/servers/secrets"));
await attempt("import2", () => import("@codemode/servers/notes/../secrets"));
await attempt("import3", () => import("@codemode/servers/" + "sec" + "rets"));
Object.prototype.delete_note = Object.prototype.tool = "delete_note";
await attempt("polluted", () => notes.read_note({ path: "public/b" }));
globalThis.__codemode_result__ = tried;
"""


@pytest.mark.parametrize("mode", mostly(["auto"], ["auto", "legacy"]))
async def test_a_client_sees_and_reaches_what_it_is_granted(tmp_path: Path, mode: str) -> None:
    rules = {"servers": {"secrets": {"unwrap": "json"}}}
    config = write_config(
        tmp_path, servers(tmp_path), policy=POLICY, frontend={"profile": "extended"}, schemas=rules
    )
    async with asking(stdio(config, tmp_path / "s"), mode, name="reader") as asked:
        text = await shown(asked)
        assert "read_note" in text and [name for name in FORBIDDEN if name in text] == []
        for name in ("delete_note", "notes.delete_note", "mcp__notes__delete_note", "secrets.echo"):
            found = await told(asked, "inspect_tool", tool_name=name)
            assert "inputSchema" not in found and "Deletes" not in found
        assert "not granted" in await told(asked, "search_tools", query="x", server="secrets")
        tried = (await asked.run(HOSTILE))["result"]
        got = {name: end["got"] for name, end in tried.items() if "error" not in end}
        assert got == {"polluted": '{"path": "public/b"}', "this": '{"path": "public/a"}'}, tried
        assert tried["getTool"]["error"] == "ToolNotFoundError"
        for name, why in (
            ("getTool", "read-only"),
            ("getTool", "destroy"),
            ("getTool2", "not known"),
            ("listTools", "not granted"),
            ("import", "not granted"),
        ):
            assert why in tried[name]["message"]
        assert set(calls(tmp_path / "notes.jsonl")) == {"read_note"}
        assert calls(tmp_path / "secrets.jsonl") == []
        # Static imports fail as those of unknown tools do, and say why.
        (found, *_) = (await asked.run('import { delete_note } from "@codemode/servers/notes";'))[
            "diagnostics"
        ]
        assert found["code"] == "IMPORT_FAILURE"
        assert "not grant" in found["message"] or "read-only" in found["message"]
        # Each run has its own budget; what the policy does not allow costs none of it.
        script = """
            import { read_note } from "@codemode/servers/notes";
            const codes = [];
            for (const path of ["private/x", "public/1", "public/2", "public/3", "public/4"]) {
              codes.push(await read_note({ path }).then(() => "ok", (error) => error.code));
            }
            globalThis.__codemode_result__ = codes;
        """
        for _ in range(2):
            result = (await asked.run(script))["result"]
            assert result == ["ARGUMENTS_NOT_GRANTED", "ok", "ok", "ok", "BUDGET_USED_UP"]


async def test_clients_of_other_names_have_other_grants(tmp_path: Path) -> None:
    transport = stdio(write_config(tmp_path, servers(tmp_path), policy=POLICY), tmp_path / "s")
    async with asking(transport, "legacy", name="careful") as asked:
        asked.answer = always("accept")
        script = """
            import { delete_note, list_notes } from "@codemode/servers/notes";
            globalThis.__codemode_result__ = [await list_notes({}), await delete_note({ path: "a" })];
        """
        assert (await asked.run(script))["result"] == ["{}", '{"path": "a"}']
        assert len(asked.questions) == 1 and "can destroy data" in asked.questions[0]
        # The request narrows for itself; asking for more than there is gives no more.
        (narrowed, *_) = (await asked.run(script, grants={"readOnly": True}))["diagnostics"]
        assert narrowed["code"] == "IMPORT_FAILURE" and "grants" in narrowed["hint"]
        wide = await asked.run('import "@codemode/servers/secrets";', grants={"tools": ["*"]})
        assert wide["diagnostics"][0]["code"] == "IMPORT_FAILURE"
        allowed = await asked.run(script, grants={"destructive": "allow", "approve": []})
        assert allowed["result"] is not None and len(asked.questions) == 2
        bad = await within(asked.client.call_tool("codemode.run", {"code": "1", "grants": {"tols": []}}))
        assert bad.is_error and "tols" in bad.model_dump_json()


async def test_each_subject_of_an_authorization_server_has_its_own_grants(
    tmp_path: Path, issuer: Issuer
) -> None:
    oauth = {"issuer": ISSUER, "audience": AUDIENCE, "jwks_url": issuer.jwks_url}
    policy = {
        "default": {"tools": []},
        "clients": {
            "oauth:ann": {"tools": ["plain.echo"]},
            "token": {},
            "stdio:ann": {},
            "oauth:bob": {},
        },
    }
    script = """
        const module = await import("@codemode/servers/plain").catch((error) => ({ [error.message]: 1 }));
        globalThis.__codemode_result__ = Object.keys(module);
    """

    async def seen(sub: str, mode: str) -> list[str]:
        mine = replace(running, token=issuer.token(sub=sub))
        async with over_http(mine) as transport, asking(transport, mode, name="ann") as asked:
            return (await asked.run(script))["result"]

    async with daemon(tmp_path, http={"oauth": oauth}, token=issuer.token(), policy=policy) as running:
        for mode in ("auto", "legacy"):
            assert await seen("ann", mode) == ["__meta__", "echo"]
            assert len(await seen("bob", mode)) > 10
            assert "not granted" in (await seen("token", mode))[0]


async def test_embedding(tmp_path: Path) -> None:
    made = settings(
        tmp_path / "s", servers(tmp_path), policy={**POLICY, "default": {"destructive": "approve"}}
    )
    code = """
        import { delete_note } from "@codemode/servers/notes";
        globalThis.__codemode_result__ = await delete_note({}).catch((error) => error.code);
    """
    async with ready(made) as broker:
        assert succeeded(await broker.run(code)) == "APPROVAL_UNAVAILABLE"
        error_of(await broker.run(code, grants={"readOnly": True}), "IMPORT_FAILURE")
        error_of(await broker.run(code, grantee=Grantee("cli")), "IMPORT_FAILURE")
        with pytest.raises(InvalidRequest, match="grants"):
            await broker.run(code, grants={"tools": ["notes"]})
        with pytest.raises(InvalidRequest, match="cannot be used"):
            await broker.run(code, grants={"arguments": {"notes.*": {"$ref": "https://example.com/"}}})
        required = await broker.run(
            "globalThis.__codemode_result__ = 1",
            grants={"tools": ["notes.*"]},
            requested_capabilities=["secrets"],
        )
        # What was found late in the scripts before it comes first.
        assert "CAPABILITY_UNAVAILABLE" in [found.code for found in required.diagnostics]
    with pytest.raises(ConfigError, match="notez"):
        Broker(settings(tmp_path / "s", servers(tmp_path), policy={"default": {"approve": ["notez.*"]}}))


async def test_the_users_own_word_on_a_tool_wins(tmp_path: Path) -> None:
    """The class of an overlay, over what the server says of itself or does not say."""
    made = settings(
        tmp_path / "s", servers(tmp_path), policy={"default": {"tools": ["notes.*"], "readOnly": True}}
    )
    overlays = tmp_path / "s" / "overlays"
    overlays.mkdir(parents=True)
    (overlays / "notes.toml").write_text(
        '[tools.read_note]\nclass = "write"\n[tools.delete_note]\nclass = "read"\n[tools.list-notes]\nclass = "read"\n'
    )
    code = """
        import * as notes from "@codemode/servers/notes";
        globalThis.__codemode_result__ = Object.keys(notes);
    """
    async with ready(made) as broker:
        assert succeeded(await broker.run(code)) == ["__meta__", "delete_note", "list_notes"]


async def test_what_an_editors_file_restricts_is_restricted(tmp_path: Path) -> None:
    entries = servers(tmp_path)
    entries["notes"] |= {"excludeTools": ["delete_note"], "alwaysAllow": ["read_note"]}
    entries["secrets"] |= {"enabled": False}
    config = write_config(tmp_path, entries, frontend={"profile": "extended"})
    async with asking(stdio(config, tmp_path / "s"), "auto") as asked:
        asked.answer = always("decline")
        text = await shown(asked)
        assert "read_note" in text and "list_notes" in text
        assert "delete_note" not in text and "secrets" not in text
        tried = (await asked.run(HOSTILE))["result"]
        assert {name for name in tried if "error" not in tried[name]} <= {"polluted", "this", "getTool2"}
        assert asked.questions == []
        code = 'import { list_notes } from "@codemode/servers/notes"; await list_notes({});'
        assert (await asked.run(code))["diagnostics"][0]["errorClass"] == "ToolCallError"
        assert len(asked.questions) == 1 and "list-notes" in asked.questions[0]
    assert set(calls(tmp_path / "notes.jsonl")) == {"read_note"} and not (tmp_path / "secrets.jsonl").exists()


MISSPELT = {"default": {"approve": ["plain.ecoh"]}}
SLIP = "cellblock.policy.default.approve.0: plain has no tool 'ecoh'. Did you mean echo?"


def test_a_rule_for_a_tool_that_its_server_lacks_is_told_wherever_the_tools_are_known(tmp_path: Path) -> None:
    config = write_config(tmp_path, {"plain": plain_server(), "other": plain_server()}, policy=MISSPELT)
    script = tmp_path / "script.js"

    def said(*words: object, code: int = 0) -> str:
        done = in_this_process(*map(str, words), "--config", config, "--state-dir", tmp_path / "state")
        assert done.code == code, done
        return done.out + done.err

    assert SLIP not in said("config", "check"), "nothing has ever known its tools"
    for server, times in (("plain", 1), ("other", 0)):
        script.write_text(f'import * as s from "@codemode/servers/{server}"; await s.echo({{}});')
        assert said("run", script).count(SLIP) == times
    assert f"warning: {SLIP}" in said("config", "check")
    _, problems = said("doctor", code=1).split("Problems\n")
    assert SLIP in problems


async def test_a_rule_for_a_tool_that_its_server_lacks_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING"):
        async with ready(settings(tmp_path / "s", {"plain": plain_server()}, policy=MISSPELT)) as broker:
            broker.reconfigure(broker.settings)
    assert [one.getMessage() for one in caplog.records] == [SLIP]
