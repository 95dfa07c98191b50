"""What a server asks during a call parks the run: who is away answers later, over another connection, as a task, or by
hand; the call stays with its broker."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.commands import command
from support.entries import entry, forked_server, ledger
from support.http_daemon import Daemon, daemon
from support.modern_client import FORMS, PAUSE_SECONDS, TASKS, ModernClient
from support.parked_runs import no_process, until_parked
from support.waits import until, within

ALL: dict[str, Any] = {**TASKS, "sampling": {}, "roots": {}}

SECTION: dict[str, Any] = {
    "auth": {"keyring": "off"},
    "typecheck": "off",
    # Its runs may ask for approval, so they may park.
    "policy": {"default": {"approve": ["plain.give"]}},
}


def code(tool: str = "elicit", **arguments: Any) -> str:
    return f"""
        import {{ {tool} }} from "@codemode/servers/asking";
        import {{ echo }} from "@codemode/servers/plain";
        await echo({{ text: "before" }});
        const said = await {tool}({json.dumps(arguments)}).catch((error) => error.certainty);
        globalThis.__codemode_result__ = said;
    """


@asynccontextmanager
async def serving(folder: Path, **more: Any) -> AsyncGenerator[Daemon]:
    command = forked_server("asking_server.py", "stdio", "--older", "--ledger", folder / "asking.jsonl")
    async with daemon(folder, servers={"asking": entry(command)}, **{**SECTION, **more}) as served:
        yield served


@pytest.fixture(scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Daemon]:
    """One for the tests that bring their runs to an end."""
    async with serving(tmp_path_factory.mktemp("questions")) as running:
        yield running


def events(served: Daemon, event: str) -> list[Any]:
    return [one for one in ledger(served.folder / "asking.jsonl") if one["event"] == event]


async def questions_of(client: ModernClient, task: str) -> dict[str, Any]:
    return (await client.until_status(task, "input_required"))["inputRequests"]


def accepted(questions: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: {"action": "accept", "content": {"name": name}} for key in questions}


async def test_a_question_parks_its_run_and_is_answered_over_another_connection(served: Daemon) -> None:
    before = len(events(served, "call"))
    answers = len(events(served, "answer"))
    ann, script = ModernClient(served, FORMS), code()
    word, questions = await ann.asked(script)
    (form,) = questions.values()
    assert form["params"]["message"] == "asking: Who are you?"
    assert form["params"]["requestedSchema"]["required"] == ["name"]
    (run_id,) = await until_parked(served)
    await no_process(served)
    shown = await command(served.folder, "runs", "show", run_id)
    assert "asking.elicit" in shown and "Who are you?" in shown, shown
    assert len(events(served, "answer")) == answers
    # What does not fit the form is refused, and the question stays.
    for wrong in ({"action": "accept", "content": {}}, {"action": "accept", "content": {"name": 5}}):
        refused = await ann.back(word, dict.fromkeys(questions, wrong), script)
        assert refused["error"]["code"] == -32602, refused
        assert "does not fit" in refused["error"]["message"] and "name" in refused["error"]["message"]
    done = (await ann.back(word, accepted(questions, "Ann"), script))["result"]["structuredContent"]
    assert done["result"] == "accept Ann", done
    assert done["usage"]["resumed"] == 1 and done["usage"]["runId"] == run_id
    assert [call["ok"] for call in done["toolTrace"]] == [True, True]
    assert len(events(served, "call")) == before + 1
    again = await ann.back(word, accepted(questions, "Eve"), script)
    assert "no run that waits" in again["error"]["message"], again


async def test_a_task_asks_again_and_again_until_its_call_has_ended(served: Daemon) -> None:
    """Also what is asked when the run is parked; what its client says to it twice, or too late, is no answer."""
    before = len(events(served, "call"))
    ann, script = ModernClient(served, TASKS), code("many", times=3)
    task = (await ann.task(script))["taskId"]
    seen: list[str] = []
    for name in ("Ann", "Bob", "Cid"):
        (key,) = questions = await questions_of(ann, task)
        seen.append(key)
        assert questions[key]["params"]["requestedSchema"]["required"] == ["name"]
        late = {old: {"action": "accept", "content": {"name": "Eve"}} for old in seen[:-1]}
        wrong = await ann.about(task, "update", inputResponses={key: {"action": "accept"}})
        assert wrong["error"]["code"] == -32602, wrong
        assert "result" in await ann.about(
            task, "update", inputResponses={**late, **accepted(questions, name)}
        )
        # The next one has come, or none will.
        await ann.until(task, lambda found, key=key: key not in found.get("inputRequests", {}))
    done = (await ann.until_status(task, "completed"))["result"]["structuredContent"]
    assert json.loads(done["result"]) == {"accept Ann": 1, "accept Bob": 1, "accept Cid": 1}, done
    assert len(set(seen)) == 3 and len(events(served, "call")) == before + 1
    assert done["usage"]["resumed"] == 1


async def test_what_is_declined_or_dismissed_is_told_to_the_server_and_who_cancels_ends_the_call(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as served:
        ann = ModernClient(served, TASKS)
        for action in ("decline", "cancel"):
            task = (await ann.task(code()))["taskId"]
            questions = await questions_of(ann, task)
            await ann.about(task, "update", inputResponses={key: {"action": action} for key in questions})
            done = (await ann.until_status(task, "completed"))["result"]["structuredContent"]
            assert done["result"] == f"{action} None", done
        # By hand, in another process.
        task = (await ann.task(code()))["taskId"]
        run_id = task.partition(".")[0]
        assert "name" in await command(tmp_path, "runs", "approve", run_id, code=2)
        refused = await command(tmp_path, "runs", "approve", run_id, "--answer", '{"name": 5}', code=2)
        assert "does not fit" in refused and "--values" in refused
        shown = await command(tmp_path, "runs", "show", run_id, "--values")
        assert '"required":["name"]' in shown, shown
        said = await command(tmp_path, "runs", "approve", run_id, "--answer", '{"name": "Dan"}')
        assert "goes on when its tools have answered" in said
        done = (await ann.until_status(task, "completed"))["result"]["structuredContent"]
        assert done["result"] == "accept Dan", done
        # For a while nothing over stdio says whether a question is of a call that was cancelled: this comes last.
        task = (await ann.task(code()))["taskId"]
        await ann.about(task, "cancel")
        assert (await ann.until_status(task, "cancelled"))["taskId"] == task
        assert len(events(served, "call")) == 4


async def test_a_broker_that_is_killed_takes_the_call_with_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        ann = ModernClient(served, TASKS)
        task = (await ann.task(code()))["taskId"]
        questions = await questions_of(ann, task)
        for process in served.family():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        await within(served.process.wait())
    async with serving(tmp_path) as served:
        ann = ModernClient(served, TASKS)
        done = (await ann.until_status(task, "completed"))["result"]["structuredContent"]
        assert done["result"] == "may_have_run", done
        # Nobody is asked any more, and nothing is made again.
        await ann.about(task, "update", inputResponses=accepted(questions, "Ann"))
        assert len(events(served, "call")) == 1


async def test_answers_that_are_forged_or_of_another_kind(served: Daemon) -> None:
    answers = len(events(served, "answer"))
    named = json.loads(await command(served.folder, "token", "create", "eve", "--json"))
    ann = ModernClient(served, TASKS)
    eve = ModernClient(replace(served, token=named["token"]), TASKS)
    task = (await ann.task(code()))["taskId"]
    (key,) = questions = await questions_of(ann, task)
    refused = await eve.about(task, "update", inputResponses=accepted(questions, "Eve"))
    assert refused["error"]["code"] == -32602
    call = key.removeprefix("question-").partition(".")[0]
    ignored = {
        f"question-{call}": {"action": "accept"},
        f"{key}0": {"action": "accept"},
        "x": {"action": "accept"},
    }
    assert "result" in await ann.about(task, "update", inputResponses=ignored)
    for wrong in (
        {"roots": []},
        {"role": "assistant", "content": {"type": "text", "text": "x"}, "model": "m"},
    ):
        refused = await ann.about(task, "update", inputResponses={key: wrong})
        assert refused["error"]["code"] == -32602, refused
    assert await questions_of(ann, task) == questions and len(events(served, "answer")) == answers
    await ann.about(task, "update", inputResponses=accepted(questions, "Ann"))
    done = (await ann.until_status(task, "completed"))["result"]["structuredContent"]
    assert done["result"] == "accept Ann"


async def test_models_and_roots_are_asked_where_the_client_has_them(served: Daemon) -> None:
    said = {"role": "assistant", "content": {"type": "text", "text": "hi"}, "model": "m"}
    given: dict[str, Any] = {"sample": said, "roots": {"roots": [{"uri": "file:///a"}]}}
    for tool, wanted in (("sample", "hi"), ("roots", "file:///a")):
        ann = ModernClient(served, ALL)
        task = (await ann.task(code(tool)))["taskId"]
        (key,) = await questions_of(ann, task)
        # Who has none of it is asked nothing.
        other = (await ModernClient(served, TASKS).about(task))["result"]
        assert other["status"] == "working" and "inputRequests" not in other
        refused = await command(served.folder, "runs", "approve", task.partition(".")[0], code=2)
        assert "answered by the client itself" in refused
        await ann.about(task, "update", inputResponses={key: given[tool]})
        done = (await ann.until_status(task, "completed"))["result"]["structuredContent"]
        assert done["result"] == wanted, done
        refused = (await ModernClient(served, FORMS).run(code(tool)))["result"]["structuredContent"]
        assert "refused" in refused["result"] or refused["result"] == "", refused


async def test_a_server_that_asks_too_often_or_too_much(served: Daemon) -> None:
    ann = ModernClient(served, TASKS)
    # 100 at once: as many as one server may ask at the same time are asked, and no more when the run is parked.
    before, asked = len(events(served, "refused")), set[str]()
    task = (await ann.task(code("many", times=100, at_once=True)))["taskId"]
    # Before the last of them has come, an answer would make room for one more.
    await until(lambda: len(events(served, "refused")) == before + 92, "the rest is refused")
    while (found := await ann.told(task))["status"] != "completed":
        questions = found.get("inputRequests", {})
        assert len(questions) <= 8
        asked |= questions.keys()
        await ann.about(task, "update", inputResponses=accepted(questions, "Ann"))
        await asyncio.sleep(PAUSE_SECONDS)
    counts = json.loads(found["result"]["structuredContent"]["result"])
    assert counts.pop("accept Ann") == len(asked) == 8 and sum(counts.values()) == 92
    assert all(said.startswith("refused") for said in counts), counts
    # A form that is too large to be written down is not asked.
    done = (await ModernClient(served, FORMS).run(code("many", times=1, size=100_000)))["result"]
    (said,) = json.loads(done["structuredContent"]["result"])
    assert "more than 65536 bytes" in said, done


async def test_a_client_comes_back_for_a_run_whose_tool_asks_when_it_is_parked(served: Daemon) -> None:
    """What its server asks next, in the same session, is its client's next question."""
    before = len(events(served, "call"))
    ann, script = ModernClient(served, FORMS), code("many", times=2, ms=1_000)
    second = (await ann.run(script))["result"]
    keys: set[str] = set()
    for name in ("Ann", "Bob"):
        assert second["resultType"] == "input_required", second
        keys |= second["inputRequests"].keys()
        second = (await ann.back(second["requestState"], accepted(second["inputRequests"], name), script))[
            "result"
        ]
    done = second["structuredContent"]
    assert json.loads(done["result"]) == {"accept Ann": 1, "accept Bob": 1}, done
    assert len(keys) == 2 and len(events(served, "call")) == before + 1
