"""Policies with real clients. Grants: what a client may not use it is not shown in any place, and cannot reach by any
name. Approval, progress and logs with the SDK's client: over stdio, over HTTP and through `cellblock connect`, in
both generations of the protocol.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest

from cellblock import Broker
from cellblock.base.errors import ConfigError, InvalidRequest
from cellblock.run.policy.asking import Grantee
from support.asking_client import Asked, always, asking, connect, over_http, stdio
from support.brokers import ready
from support.commands import in_this_process
from support.entries import ledger, plain_server, recorded, settings, write_config
from support.http_daemon import TOOL, Daemon, daemon
from support.identity_provider import AUDIENCE, ISSUER, Issuer
from support.params import mostly
from support.responses import error_of, succeeded
from support.waits import until, within

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
        done = in_this_process(*words, "--config", config, "--state-dir", tmp_path / "state", code=code)
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


SECTION: dict[str, Any] = {
    "policy": {"default": {"approve": ["plain.give"]}},
    "pool": {"warm": 2},
}

FRONTS = mostly(
    ["stdio-legacy", "http-auto", "connect-legacy"],
    [f"{front}-{mode}" for front in ("stdio", "http", "connect") for mode in ("auto", "legacy")],
)

GIVE = """
import { give, echo } from "@codemode/servers/plain";
import { ToolCallError } from "@codemode/errors";
let got;
try { got = await give({ path: "a" }); }
catch (error) {
  const { code, fault, certainty, hint } = error;
  got = { code, fault, certainty, hint, known: error instanceof ToolCallError };
}
globalThis.__codemode_result__ = got;
"""


@dataclass
class Fronts:
    """Where clients connect to."""

    running: Daemon
    config: Path
    folder: Path

    @asynccontextmanager
    async def client(self, front: str, mode: str, **options: Any) -> AsyncGenerator[Asked]:
        transports: dict[str, Callable[[], Any]] = {
            "http": lambda: over_http(self.running),
            "connect": lambda: nullcontext(connect(self.running)),
            "stdio": lambda: nullcontext(stdio(self.config, self.folder / f"s-{mode}")),
        }
        async with transports[front]() as transport, asking(transport, mode, **options) as asked:
            yield asked

    def recorded(self, front: str, **wanted: Any) -> int:
        return recorded(self.folder / "stdio.jsonl" if front == "stdio" else self.running.ledger, **wanted)


@pytest.fixture(scope="module")
async def fronts(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fronts]:
    folder = tmp_path_factory.mktemp("fronts")
    (folder / "daemon").mkdir()
    config = write_config(folder, {"plain": plain_server("--ledger", folder / "stdio.jsonl")}, **SECTION)
    constants = {"cellblock.run.policy.rules.APPROVAL_SECONDS": 5.0}
    async with daemon(folder / "daemon", constants=constants, **SECTION) as running:
        yield Fronts(running, config, folder)


@pytest.fixture(scope="module", params=FRONTS)
async def connection(request: pytest.FixtureRequest, fronts: Fronts) -> AsyncIterator[tuple[str, Asked]]:
    """One client of each kind, and where it is connected."""
    front, mode = request.param.split("-")
    async with fronts.client(front, mode, level="warning") as asked:
        yield front, asked


async def test_what_the_user_says_is_done(fronts: Fronts, connection: tuple[str, Asked]) -> None:
    front, asked = connection
    asked.answer = always("accept")
    before = fronts.recorded(front, tool="give")
    response = await asked.run(GIVE)
    assert response["result"] == {"path": "a"}, response
    assert fronts.recorded(front, tool="give") == before + 1
    (question,) = asked.questions
    assert "plain.give" in question and '{"path":"a"}' in question
    for action, code, said in (
        ("decline", "APPROVAL_DECLINED", "refused by a person"),
        ("cancel", "APPROVAL_CANCELLED", "the user has not chosen"),
    ):
        asked.answer = always(action)
        response = await asked.run(GIVE)
        denied = response["result"]
        assert denied.pop("hint")
        assert denied == {"code": code, "fault": "caller", "certainty": "not_started", "known": True}
        assert response["toolTrace"][0]["error"] == said
    assert (fronts.recorded(front, tool="give"), len(asked.questions)) == (before + 1, 3)


@pytest.mark.parametrize(("front", "mode"), [("stdio", "legacy"), ("http", "auto")])
async def test_the_clock_stands_still_while_the_user_thinks(fronts: Fronts, front: str, mode: str) -> None:
    """The run has three seconds, the user takes longer; calls that need no approval go on meanwhile."""
    async with fronts.client(front, mode) as asked:
        echoes = fronts.recorded(front, tool="echo")

        async def think(_: str) -> str:
            await until(
                lambda: fronts.recorded(front, tool="echo") > echoes, "the other call is made meanwhile"
            )
            await asyncio.sleep(3.2)
            return "accept"

        asked.answer = think
        response = await asked.run(
            """
            import { give, echo } from "@codemode/servers/plain";
            globalThis.__codemode_result__ = await Promise.all([give({ a: 1 }), echo({ b: 2 })]);
        """,
            limits={"timeoutMs": 3000},
        )
        assert response["result"] == [{"a": 1}, '{"b": 2}'], response
        # Where the client goes away with the question, the run is parked meanwhile.
        assert mode == "auto" or response["usage"]["approvalWaitMs"] >= 3200


@pytest.mark.parametrize(("front", "mode"), [("connect", "legacy"), ("http", "auto")])
async def test_a_user_who_is_not_there(fronts: Fronts, front: str, mode: str) -> None:
    """Without elicitation at once, with it after the named time; in both cases the call was not made."""
    before = fronts.recorded(front, tool="give")
    async with fronts.client(front, mode, elicits=False) as asked:
        denied = (await asked.run(GIVE))["result"]
        assert (denied["code"], denied["certainty"]) == ("APPROVAL_UNAVAILABLE", "not_started")
        assert all(way in denied["hint"] for way in ("--durable", "runs approve", "elicitation"))
    if mode == "auto":
        async with fronts.client(front, mode) as asked:

            async def late(_: str) -> str:
                await asyncio.sleep(6.5)
                return "accept"

            asked.answer = late
            # The run waits without a process, and so without that bound.
            response = await asked.run(GIVE, limits={"timeoutMs": 2_000})
            assert response["result"] == {"path": "a"}, response
    assert fronts.recorded(front, tool="give") == before + (mode == "auto")


@pytest.mark.parametrize(
    ("front", "mode"),
    mostly(
        [("http", "legacy"), ("connect", "auto")],
        [(front, mode) for front in ("http", "connect") for mode in ("auto", "legacy")],
    ),
)
async def test_a_client_that_leaves_while_its_user_is_asked(fronts: Fronts, front: str, mode: str) -> None:
    """The call is not made, and its run does not stay: where the client would come back, until that time is over."""
    before = fronts.recorded(front, tool="give")
    async with fronts.client(front, mode) as asked:
        asked.answer = never_answers
        call = asyncio.create_task(asked.client.call_tool(TOOL, {"code": GIVE}))
        await asked.until(lambda: asked.questions)
        # One whose client is to come back has no process.
        await fronts.running.until_live(1 if mode == "legacy" else 0)
        call.cancel()
        await asyncio.wait([call])
    await fronts.running.until_live(0)
    assert fronts.recorded(front, tool="give") == before


async def never_answers(_: str) -> str:
    """A user who does not answer."""
    await asyncio.Event().wait()
    return "accept"


async def test_a_client_that_refuses_to_ask(fronts: Fronts) -> None:
    async with fronts.client("stdio", "legacy") as asked:

        async def refuse(_: str) -> types.ErrorData:
            return types.ErrorData(code=types.INVALID_REQUEST, message="no")

        asked.answer = refuse
        assert (await asked.run(GIVE))["result"]["code"] == "APPROVAL_UNAVAILABLE"


async def test_progress_and_logs_while_it_runs_and_a_cancel_ends_it(
    fronts: Fronts, connection: tuple[str, Asked]
) -> None:
    front, asked = connection
    code = """
        import { echo, never } from "@codemode/servers/plain";
        console.log("too low");
        console.warn("first\\u0007\\nline", "\\u202e" + "x".repeat(500));
        console.error("second");
        await echo({});
        console.log("now waiting");
        await never({});
    """
    before, cancels = fronts.recorded(front, tool="never"), fronts.recorded(front, event="cancelled")
    call = asyncio.ensure_future(asked.run(code, told=True))
    await asked.until(lambda: len(asked.progress) >= 3 and "1 tool call;" in asked.progress[-1][1])
    await asked.until(lambda: len(asked.logs) == 2)
    await until(lambda: fronts.recorded(front, tool="never") == before + 1, "the script is in its call")
    assert asked.logs == [("warning", asked.logs[0][1]), ("error", "second")]
    elapsed = [progress for progress, _ in asked.progress]
    assert elapsed == sorted(set(elapsed)) and elapsed[0] > 0
    assert asked.progress[-1][1].endswith("last log: now waiting")
    assert all(len(message) < 250 and message.isprintable() for _, message in asked.progress)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(call)
    await until(lambda: fronts.recorded(front, event="cancelled") > cancels, "the call is cancelled upstream")
    # Who did not ask is not told.
    told = len(asked.progress)
    await asked.run("await new Promise((done) => setTimeout(done, 400));")
    assert len(asked.progress) == told


@pytest.mark.parametrize(("front", "mode"), [("http", "auto"), ("stdio", "legacy")])
async def test_progress_and_logs_go_on_after_a_question(fronts: Fronts, front: str, mode: str) -> None:
    """Where the client comes back in a request of its own, too."""
    async with fronts.client(front, mode, level="info") as asked:
        asked.answer = always("accept")
        await asked.run(
            """
            import { give, echo, wait } from "@codemode/servers/plain";
            await echo({}); console.log("before");
            await give({}); console.log("after");
            await wait({ ms: 1000 });
        """,
            told=True,
        )
        assert [data for _, data in asked.logs] == ["before", "after"]
        # The last report may come before the last call's end, or after it.
        assert re.search(r"[123] tool calls?; last log: after", asked.progress[-1][1])


async def test_progress_keeps_a_client_from_giving_up_while_the_user_thinks(fronts: Fronts) -> None:
    async with fronts.client("stdio", "legacy") as asked:

        async def think(_: str) -> str:
            told = len(asked.progress)
            await asked.until(lambda: len(asked.progress) > told + 2)
            return "accept"

        asked.answer = think
        assert (await asked.run(GIVE, told=True))["result"] == {"path": "a"}
