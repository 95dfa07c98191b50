"""What a person is asked about a flow, and *always*: a rule that is in force at once and stands in the file."""

import json
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client

from cellblock import Broker
from cellblock.app.cli.flows import always_in
from cellblock.run.policy.asking import Grantee, flow_of
from cellblock.serve.http.waiting_runs import WaitingRuns
from cellblock.serve.mcp.mcp_server import FrontServer
from support.brokers import ready
from support.commands import command
from support.entries import ledger, plain_server, settings, write_config
from support.http_daemon import daemon
from support.modern_client import TASKS, ModernClient
from support.waits import until, within

LABELS: dict[str, Any] = {
    "mail.*": {"secrecy": "private", "trust": "untrusted", "sink": "private"},
    "out.*": {"secrecy": "public", "trust": "trusted", "sink": "public"},
}
POLICY: dict[str, Any] = {"flows": "guard", "labels": LABELS}
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


def entries(folder: Path) -> dict[str, Any]:
    return {name: plain_server("--ledger", folder / f"{name}.log") for name in ("mail", "out")}


def sent(folder: Path) -> int:
    return sum(event["event"] == "call" for event in ledger(folder / "out.log"))


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
        assert done.structured_content is not None
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
            assert (await person.run(code()))["diagnostics"] == []
            # Without it, each is asked about.
            assert (await person.run(code()))["diagnostics"] == [] and len(person.asked) == 2
            person.content = {"always": True}
            await person.run(code())
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
        assert response.parked
        (waiting,) = await broker.parked()
        (question,) = waiting.questions
        flow = flow_of(question)
        assert (
            flow is not None and json.loads(flow.rule) == RULE and any("payroll" in one for one in flow.found)
        )
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
        assert (
            json.loads(question["rule"]) == RULE
            and "everybody may see" in question["said"]
            and question["found"]
        )
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
