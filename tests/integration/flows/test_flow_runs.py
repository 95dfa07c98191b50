"""What a run has read, and what it may send then: labels over single calls, resources, used processes and kept scripts.

What a person is asked about a flow, and *always*: a rule that is in force at once and stands in the file.
Secrets of the configuration stay with their servers: `policy.secrets`.
"""

import asyncio
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client

from cellblock import Broker, tool
from cellblock.app.assembly import library_of
from cellblock.app.cli.flows import always_in
from cellblock.base.errors import CallDenied
from cellblock.base.redaction import SecretForms, redacted
from cellblock.record.scripts.script_file import Header, format_script
from cellblock.run.flows.labels import NOTHING, STRICTEST, Label
from cellblock.run.flows.rules import overview
from cellblock.run.flows.secrets import Secrets
from cellblock.run.policy.asking import Caller, Grantee, Question, Verdict, flow_of
from cellblock.serve.http.waiting_runs import WaitingRuns
from cellblock.serve.mcp.mcp_server import FrontServer
from cellblock.tools.catalog.model import READ
from cellblock.tools.upstream.wire.results import ToolResult
from integration.holding import Holding
from support.asking_client import asking
from support.brokers import ready
from support.commands import command
from support.entries import entry, forked_server, ledger, plain_server, settings, write_config
from support.http_daemon import daemon
from support.modern_client import TASKS, ModernClient
from support.oauth_world import world
from support.waits import until, within

LABELS: dict[str, Any] = {
    "mail.*": {"secrecy": "private", "trust": "untrusted", "sink": "private"},
    "out.*": {"secrecy": "public", "trust": "trusted", "sink": "public"},
}
POLICY: dict[str, Any] = {"flows": "guard", "labels": LABELS}


def entries(folder: Path) -> dict[str, Any]:
    return {name: plain_server("--ledger", folder / f"{name}.log") for name in ("mail", "out")}


def sent(folder: Path, name: str = "out") -> int:
    return sum(event["event"] in ("call", "request") for event in ledger(folder / f"{name}.log"))


async def no(question: Question) -> Verdict:
    return Verdict.DECLINED


async def called(broker: Broker, server: str, tool: str, caller: Caller, **arguments: Any) -> Any:
    found = broker.catalog.servers[server]
    one = READ if tool == "resources/read" else found.by_export[tool]
    return await within(broker.call_tool(found, one, arguments, caller, Counter()))


async def test_calls_without_a_script_know_what_those_before_have_read(tmp_path: Path) -> None:
    caller = Caller(grantee=Grantee("token", no))
    async with ready(settings(tmp_path / "s", entries(tmp_path), policy=POLICY)) as broker:
        await called(broker, "out", "echo", caller, text="before")
        await called(broker, "mail", "echo", caller, text="secret")
        with pytest.raises(CallDenied) as refused:
            await called(broker, "out", "echo", caller, text="secret")
        assert refused.value.details["code"] == "APPROVAL_DECLINED"
        with pytest.raises(CallDenied):
            await called(broker, "out", "resources/read", caller, uri="http://evil.example/secret")
        with pytest.raises(CallDenied) as refused:
            # Nobody can be asked.
            await called(broker, "out", "echo", Caller(grantee=Grantee("token")), text="secret")
        assert refused.value.details["code"] == "APPROVAL_UNAVAILABLE" and sent(tmp_path) == 1
        assert "it may carry what is private, and everybody may see it" in refused.value.message
        script = 'import { echo } from "@codemode/servers/out"; await echo({});'
        assert not (await within(broker.run(script, grantee=Grantee("token", no)))).ok and sent(tmp_path) == 1
        await called(broker, "out", "echo", Caller(grantee=Grantee("stdio:other", no)), text="mine")
        assert sent(tmp_path) == 2


async def test_a_process_that_knows_more_is_not_used_again(tmp_path: Path) -> None:
    code = 'import { echo } from "@codemode/servers/SERVER"; await echo({});'
    pool = {"reuse": "principal", "warm": 0}
    async with ready(settings(tmp_path / "s", entries(tmp_path), policy=POLICY, pool=pool)) as broker:
        ran = [
            await within(broker.run(code.replace("SERVER", name), grantee=Grantee("token", no)))
            for name in ("out", "out", "mail", "mail", "mail")
        ]
        # The third has the first's process, and reads mail in it: what comes then has another.
        assert [one.usage.reused for one in ran] == [0, 1, 2, 0, 1], ran


@pytest.mark.parametrize(("reads", "reused"), [(False, 1), (True, 0)])
async def test_a_run_that_waits_for_a_process_is_not_given_one_that_knows_more(
    tmp_path: Path, reads: bool, reused: int
) -> None:
    """It has the key of the process from before the run there read mail."""
    labels = {**LABELS, "local.*": {"secrecy": "public", "trust": "trusted", "sink": "private"}}
    pool = {"reuse": "principal", "warm": 0, "capacity": 1}
    made = settings(tmp_path / "s", entries(tmp_path), policy={**POLICY, "labels": labels}, pool=pool)
    # Those of one that has read nothing have one process.
    owner = Grantee(f"stdio:{reads}", no)
    read = "await echo({});" if reads else ""
    first = f"""import {{ echo }} from "@codemode/servers/mail";
import {{ hold }} from "@codemode/servers/local";
await hold({{}}); {read}"""
    holding = Holding()
    async with ready(made, tools=[holding.tool]) as broker:
        before = asyncio.create_task(broker.run(first, grantee=owner))
        await until(lambda: holding.inside == 1, "it waits")
        after = asyncio.create_task(broker.run(first.replace(read, ""), grantee=owner))
        await until(lambda: broker.facts().pool()["queued"] == 1, "the other one waits")
        holding.go_on.set()
        assert (await within(before)).ok
        response = await within(after)
        assert response.ok and response.usage.reused == reused, response


async def test_an_overlay_labels_where_the_policy_does_not(tmp_path: Path) -> None:
    (tmp_path / "mail.toml").write_text(
        '[tools.echo]\nflow = {secrecy = ["repo:acme"], trust = "trusted", sink = "private"}\n'
    )
    policy = {"flows": "guard", "labels": {"mail.*": {"sink": "public"}}}
    schemas = {"overlays": str(tmp_path)}
    async with ready(settings(tmp_path / "s", entries(tmp_path), policy=policy, schemas=schemas)) as broker:
        code = 'import { echo } from "@codemode/servers/mail"; await echo({});'
        assert (await within(broker.run(code))).label == Label(frozenset({"repo:acme"}))
        assert not (await within(broker.run(code))).ok


async def test_doctor_is_told_what_servers_can_do_together(tmp_path: Path) -> None:
    made = settings(tmp_path / "s", entries(tmp_path), policy={"labels": {"out.*": LABELS["out.*"]}})
    async with ready(made) as broker:
        *servers, together = overview(made.cellblock.policy, made.servers, broker.catalog)
        assert [line.partition(":")[0] for line in servers] == ["mail (unlabelled)", "out (policy)"]
        assert all("; everybody may see calls of announce, deep, die, echo, " in line for line in servers)
        closed = settings(tmp_path / "s", entries(tmp_path), policy={"labels": {"*.*": {"sink": "private"}}})
        private = overview(closed.cellblock.policy, made.servers, broker.catalog)
        assert all(line.endswith("; not everybody may see its calls") for line in private)
        assert "mail" in together and "policy.flows is off" in together
        response = await within(broker.run("globalThis.__codemode_result__ = 1"))
        assert response.label is None and NOTHING.within(STRICTEST)


async def test_a_kept_script_carries_labels_in_and_out(tmp_path: Path) -> None:
    """What its caller knows it knows, and the other way round; to call it tells nobody anything."""
    header = Header(
        description="Does it.",
        input={"type": "object", "properties": {"text": {"type": "number"}}},
        output={},
        tools={"mail.echo": "", "out.echo": ""},
    )
    texts = {
        "reads": 'import { echo } from "@codemode/servers/mail"; globalThis.__codemode_result__ = await echo({});',
        "sends": 'import { echo } from "@codemode/servers/out"; globalThis.__codemode_result__ = await echo(input);',
        "computes": "globalThis.__codemode_result__ = 1;",
    }
    made = settings(tmp_path / "s", entries(tmp_path), policy=POLICY)
    for name, code in texts.items():
        library_of(made, Broker(made).store).approvals.approve(format_script(name, header, code))
    runs = {
        "child reads, caller sends": "await reads({}); await tried(() => echo({ text: 1 }));",
        "caller reads, child sends": "await read({}); await computes({}); await tried(() => sends({ text: 1 }));",
        "one child reads, another sends": "await reads({}); await tried(() => sends({ text: 1 }));",
    }
    async with ready(made) as broker:
        alone = 'import { sends } from "@codemode/scripts"; await sends({ text: 1 });'
        assert (await within(broker.run(alone, grantee=Grantee("stdio:knows nothing", no)))).ok
        for name, body in runs.items():
            code = f"""import {{ computes, reads, sends }} from "@codemode/scripts";
import {{ echo }} from "@codemode/servers/out";
import {{ echo as read }} from "@codemode/servers/mail";
let why;
const tried = async (call) => {{ try {{ await call(); }} catch (error) {{ why = error.code; }} }};
{body}
globalThis.__codemode_result__ = why;"""
            asked: list[str] = []

            async def note(question: Question, asked: list[str] = asked) -> Verdict:
                asked.append(f"{question.server_id}.{question.tool_name}")
                return Verdict.DECLINED

            response = await within(broker.run(code, grantee=Grantee(f"stdio:{name}", note)))
            assert (response.ok, response.label, asked) == (True, STRICTEST, ["out.echo"]), (name, response)
    assert sent(tmp_path) == 1


async def test_a_server_asks_no_model_for_what_it_may_not_know(tmp_path: Path) -> None:
    """Its call was made when the run knew nothing, and it asks when the run has read mail."""
    servers = {**entries(tmp_path), "asking": entry(forked_server("asking_server.py", "stdio", "--older"))}
    labels = {**LABELS, "asking.*": {"secrecy": "public", "trust": "trusted", "sink": "public"}}

    async def sample(context: object, params: object) -> types.CreateMessageResult:
        return types.CreateMessageResult(
            role="assistant", content=types.TextContent(text="secret"), model="m"
        )

    file = tmp_path / "read"
    script = """
import { sample } from "@codemode/servers/asking";
import { echo } from "@codemode/servers/mail";
const first = await sample({});
const later = sample({ file: %s });
await echo({});
await echo({});
globalThis.__codemode_result__ = [first, await later];
"""
    async with ready(
        settings(tmp_path / "s", servers, policy={"flows": "guard", "labels": labels})
    ) as broker:
        client = Client(FrontServer(broker, version="1").open(), mode="legacy", sampling_callback=sample)
        async with client:
            running = asyncio.create_task(
                client.call_tool("codemode.run", {"code": script % json.dumps(str(file))})
            )
            # The second time, the first answer is there.
            await until(lambda: sent(tmp_path, "mail") == 2, "mail is read")
            file.touch()
            first, later = (await within(running)).structured_content["result"]
    assert first == "secret" and later.startswith("refused -32600: The policy"), later


CODE = """
import { echo as read } from "@codemode/servers/mail";
import { echo as send } from "@codemode/servers/out";
const got = await read({ text: %s });
globalThis.__codemode_result__ = await send({ to: %s, body: `Hello! ${got}`, more: "x".repeat(3000) + "THE END",
  gap: "a" + " ".repeat(40) + "b" });
"""
RULE: dict[str, Any] = {
    "from": ["private", "untrusted"],
    "to": "out.echo",
    "arguments": {"to": ["ann@acme.example"]},
    "then": "allow",
}


def code(to: str = "ann@acme.example") -> str:
    return CODE % (json.dumps("payroll-7f3a91c2 of \u202eevil"), json.dumps(to))


ASK = {"to": "mail.*", "then": "ask"}


@pytest.mark.parametrize(
    ("before", "earlier"), [("guard", ["guard"]), ([ASK, "guard"], [ASK, "guard"]), ([], [])]
)
async def test_always_in_a_form_writes_the_rule_that_was_shown(
    before: object, earlier: list[Any], tmp_path: Path
) -> None:
    file = write_config(tmp_path, entries(tmp_path), policy={**POLICY, "flows": before})
    async with ready(settings(tmp_path / "state", entries(tmp_path), policy=POLICY)) as broker:
        broker.on_always = always_in(file)
        content: dict[str, Any] = {}

        async def answer(_: str) -> types.ElicitResult:
            return types.ElicitResult(action="accept", content=dict(content))

        async with asking(FrontServer(broker, version="1").open(), "legacy") as person:
            person.answer = answer
            # Without it, each is asked about.
            assert [(await person.run(code()))["diagnostics"] for _ in range(2)] == [[], []]
            assert len(person.questions) == 2
            content["always"] = True
            for _ in range(2):
                await person.run(code())
            assert len(person.questions) == 3 and sent(tmp_path) == 4
            content.clear()
            await person.run(code("eve@evil.example"))
            assert len(person.questions) == 4
    text = person.questions[0]
    assert "mail.echo" in text and "private and untrusted" in text and "everybody may see" in text
    assert "THE END" in text.replace("\n  ", "") and "⟦" in text and "\u202e" not in text
    assert json.dumps(RULE, ensure_ascii=False) in text
    folded = text.split("Its input: ")[1].split("\nFound in it")[0].splitlines()
    assert max(map(len, folded)) <= 160
    # A part of the input does not pass for a line of the question.
    assert all(line.startswith("  ") for line in folded[1:])
    assert json.loads(file.read_text())["cellblock"]["policy"]["flows"] == [RULE, *earlier]


async def test_a_parked_run_shows_the_same_and_always_is_a_command(tmp_path: Path) -> None:
    file = write_config(tmp_path, entries(tmp_path), policy=POLICY, auth={"keyring": "off"})
    kept = settings(tmp_path / "s", entries(tmp_path), policy=POLICY, auth={"keyring": "off"})
    async with ready(kept) as broker:
        response = await within(broker.run(code(), grantee=Grantee("token"), durable=True))
        (waiting,) = await broker.parked()
        flow = flow_of(waiting.questions[0])
        assert flow is not None and json.loads(flow.rule) == RULE and "payroll" in str(flow.found)
    shown = await command(tmp_path, "runs", "show", response.usage.run_id)
    assert "private and untrusted" in shown and json.dumps(RULE) in shown and "payroll" not in shown
    said = await command(tmp_path, "runs", "approve", response.usage.run_id, "--always")
    assert f"written: {file}" in said and "a\\x20{40}b" in said
    assert json.loads(file.read_text())["cellblock"]["policy"]["flows"] == [RULE, "guard"]
    known = await command(tmp_path, "flows", "list", "--json")
    assert [(one["principal"], one["secrecy"], one["trust"]) for one in json.loads(known)] == [
        ("token", "private", "untrusted")
    ]
    assert await command(tmp_path, "flows", "reset", "--principal", "cli") == "forgotten: nothing was known\n"
    assert await command(tmp_path, "flows", "reset") == "forgotten: token\n"
    async with ready(kept) as broker:
        # What it knew is written down with it.
        await until(lambda: sent(tmp_path) == 1 and not broker.running, "the run has gone on")
        assert not (await within(broker.run(code("eve@evil.example"), grantee=Grantee("token")))).ok


async def test_the_dashboard_shows_the_same_and_takes_always(tmp_path: Path) -> None:
    async with ready(settings(tmp_path / "s", entries(tmp_path), policy=POLICY)) as broker:
        response = await within(broker.run(code(), grantee=Grantee("token"), durable=True))
        allowed: list[Any] = []
        broker.on_always = allowed.append
        waiting = WaitingRuns(broker.parked_runs, broker.events, lambda: lambda value: value)
        (run,) = (await waiting.listed("token"))["runs"]
        (question,) = run["questions"]
        assert json.loads(question["rule"]) == RULE and question["found"]
        assert "everybody may see" in question["said"]
        body = json.dumps({"calls": [question["number"]], "always": True}).encode()
        assert (await waiting.decided(f"{response.usage.run_id}/approve", "token", body))["left"] == []
        await until(lambda: allowed == [RULE], "it is written")


async def test_always_in_a_parked_form_writes_the_rule_that_was_shown(tmp_path: Path) -> None:
    """A client of 2026-07-28 is away while its user reads the question: it comes back, or it has a task."""
    more = {"policy": POLICY, "auth": {"keyring": "off"}, "typecheck": "off"}

    def written() -> list[Any]:
        flows = json.loads((tmp_path / "cellblock.json").read_text())["cellblock"]["policy"]["flows"]
        return flows if isinstance(flows, list) else []

    def answer(questions: dict[str, Any], action: str, **content: Any) -> dict[str, Any]:
        (form,) = questions.values()
        assert "always" in form["params"]["requestedSchema"]["properties"], form
        return {key: {"action": action, "content": content} for key in questions}

    def rule(to: str) -> dict[str, Any]:
        return {**RULE, "arguments": {"to": [to]}}

    async with daemon(tmp_path, servers=entries(tmp_path), **more) as served:
        ann, bob, eve = "ann@acme.example", "bob@acme.example", "eve@evil.example"
        client = ModernClient(served)
        # Whoever declines has nothing written, nor has a yes without it.
        for action, content in (
            ("decline", {"always": True}),
            ("accept", {"always": "true"}),
            ("accept", {}),
        ):
            word, questions = await client.asked(code(ann))
            await client.back(word, answer(questions, action, **content), code(ann))
        assert sent(tmp_path) == 2 and written() == []
        word, questions = await client.asked(code(ann))
        assert json.dumps(rule(ann)) in questions[min(questions)]["params"]["message"].replace("\n", "")
        done = await client.back(word, answer(questions, "accept", always=True), code(ann))
        assert done["result"]["structuredContent"]["diagnostics"] == [], done
        await until(lambda: written() == [rule(ann), "guard"], "the rule is written")
        assert (await client.run(code(ann)))["result"]["structuredContent"]["diagnostics"] == []
        word, questions = await client.asked(code(eve))
        await client.back(word, answer(questions, "decline"), code(eve))
        # The same of a task.
        owner = ModernClient(served, TASKS)
        name = (await owner.task(code(bob)))["taskId"]
        questions = (await owner.told(name))["inputRequests"]
        await owner.told(name, "update", inputResponses=answer(questions, "accept", always=True))
        await until(lambda: written() == [rule(bob), rule(ann), "guard"], "the rule is written")
        await owner.until_status(name, "completed")
        assert sent(tmp_path) == 5


async def test_an_answer_is_good_for_what_was_known_when_it_was_asked(tmp_path: Path) -> None:
    labels = {**LABELS, "out.*": {"secrecy": ["repo:acme"], "trust": "trusted", "sink": "public"}}
    script = """
import { echo } from "@codemode/servers/out";
const got = await echo({ text: "code" });
globalThis.__codemode_result__ = await echo({ got });
"""
    async with ready(
        settings(tmp_path / "s", entries(tmp_path), policy={**POLICY, "labels": labels})
    ) as broker:
        owner = Grantee("token")
        response = await within(broker.run(script, grantee=owner, durable=True))
        assert response.parked and sent(tmp_path) == 1
        # Meanwhile its author reads mail.
        read = (
            'import { echo } from "@codemode/servers/mail"; globalThis.__codemode_result__ = await echo({});'
        )
        assert (await within(broker.run(read, grantee=owner))).ok
        response = await within(broker.resume(str(response.usage.run_id), "accepted"))
        assert response.parked and sent(tmp_path) == 1
        (waiting,) = await broker.parked()
        assert "private and untrusted" in waiting.questions[0].said
        response = await within(broker.resume(waiting.id, "accepted"))
        assert response.ok and sent(tmp_path) == 2


KEY = 'sk-7f"3a91c2-Ünïque'


def owners(folder: Path) -> dict[str, Any]:
    return {
        "owner": plain_server("--ledger", folder / "owner.log", env={"API_KEY": KEY}),
        "other": plain_server("--ledger", folder / "other.log"),
    }


def inputs_of(folder: Path, name: str) -> list[Any]:
    return [event["arguments"] for event in ledger(folder / f"{name}.log") if event["event"] == "call"]


LEAKS = f"""
import * as owner from "@codemode/servers/owner";
import * as other from "@codemode/servers/other";
const key = {json.dumps(KEY)}, said = [];
for (const call of [
  () => owner.echo({{ key }}), () => other.echo({{ deep: [{{ [key]: `Bearer ${{key}}` }}] }}),
  () => other.give({{ safe: 1 }}),
  () => owner.fail({{ text: `no: ${{key}}` }}), () => owner.environment({{}}),
]) {{
  try {{ said.push(await call()); }} catch (error) {{ said.push(`${{error.code}} ${{error.message}}`); }}
}}
globalThis.__codemode_result__ = said;
"""


@pytest.mark.parametrize("mode", ["mask", "deny", "off"])
async def test_a_secret_goes_to_its_server_alone_and_into_no_result(mode: str, tmp_path: Path) -> None:
    used = Counter[tuple[int, str]]()
    async with ready(settings(tmp_path / "state", owners(tmp_path), policy={"secrets": mode})) as broker:
        response = await within(broker.run(LEAKS, grantee=Grantee("token")))
        tool = broker.catalog.servers["owner"].by_export["echo"]
        caller_result = await within(
            broker.call_tool(
                broker.catalog.servers["owner"], tool, {"key": KEY}, Caller(grantee=Grantee("token")), used
            )
        )
    result: Any = response.result
    text = json.dumps(result) + caller_result.body.decode()
    if mode == "off":
        assert text.count("3a91c2") >= 4
        return
    assert "3a91c2" not in text and text.count("[redacted]") >= 3, text
    assert inputs_of(tmp_path, "owner")[0] == {"key": KEY} and result[2] == {"safe": 1}
    others = inputs_of(tmp_path, "other")
    if mode == "mask":
        assert others == [{"deep": [{"[redacted]": "Bearer [redacted]"}]}, {"safe": 1}]
    else:
        assert others == [{"safe": 1}] and result[1].startswith("SECRET_DENIED ")


@pytest.mark.parametrize("mode", ["mask", "deny"])
async def test_a_login_s_tokens_stay_with_its_server(mode: str, tmp_path: Path) -> None:
    """Also those that a renewal has brought; those before it may still be good."""
    tokens: list[str] = []

    @tool()
    def found() -> list[str]:
        "Gives what somebody has found."
        return [f"Bearer {token}" for token in tokens]

    script = """
import { whoami } from "@codemode/servers/notes";
import { echo } from "@codemode/servers/other";
import { found } from "@codemode/servers/local";
const said = [await whoami({}), await found()];
for (const token of TOKENS) {
  try { said.push(await echo({ [token]: `Bearer ${token}` })); } catch (error) { said.push(error.code); }
}
globalThis.__codemode_result__ = said;
"""
    other = {"other": plain_server("--ledger", tmp_path / "other.log")}
    async with world(tmp_path, "--life", "2", policy={"secrets": mode}) as place:
        await place.log_in()
        # The last token was granted, or used, when this was written.
        ledgers = place.folder / "ledger.jsonl"
        made = settings(place.state, {**place.servers, **other}, **place.cellblock)
        async with ready(made, tools=[found]) as broker:
            for _ in range(2):
                # Those that the run begins with; a renewal comes while it waits for nobody.
                granted = len(place.tokens())
                assert (await within(broker.run(script.replace("TOKENS", "[]")))).ok
                tokens[:] = place.tokens()
                assert len(tokens) == 2 or len(tokens) > granted
                response = await within(broker.run(script.replace("TOKENS", json.dumps(tokens))))
                result: Any = response.result
                assert response.ok and result[0] == "ada", response
                assert result[1] == {"result": ["Bearer [redacted]"] * len(tokens)}
                assert not any(token in json.dumps(result) for token in place.tokens())
                if mode == "deny":
                    assert result[2:] == ["SECRET_DENIED"] * len(tokens)
                await until(lambda: time.time() > ledgers.stat().st_mtime + 2.2, "the token has expired")
    every = json.dumps(inputs_of(tmp_path, "other"))
    assert not any(token in every for token in place.tokens())
    assert (every.count("Bearer [redacted]") >= 6) == (mode == "mask")


def test_a_secret_is_found_however_json_writes_it() -> None:
    later = SecretForms()
    secrets = Secrets("mask", {}, ["abc/def+ghi"], later)
    later.add(["tok/en+123456", "short"], "notes")
    for text in (r'"abc\/def+ghi"', r'"\u0061bc/def+ghi"', r'"tok\/en+123456"', '"tok%2Fen%2B123456"'):
        masked = asyncio.run(
            secrets.incoming(ToolResult(b'{"content":[{"type":"text","text":%s}]}' % text.encode()))
        )
        assert b"[redacted]" in masked.body and b"123456" not in masked.body, text
    body = b'{"content":[{"type":"text","text":"short \\/ of it"}]}'
    assert asyncio.run(secrets.incoming(ToolResult(body))).body == body
    assert redacted("tok/en+123456", [later], "notes") == "tok/en+123456"
