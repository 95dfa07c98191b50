"""Runs that wait for a person outlive their process, their daemon, and the connection they came by.

So do those of which a server asks something during a call, by a form, as a task, or by hand; the call stays with its
broker.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.cellblock_zygote import forked_cellblock, with_constants
from support.commands import command
from support.entries import entry, for_tests, forked_server, ledger, plain_server, recorded, write_config
from support.http_daemon import Daemon, daemon
from support.modern_client import FORMS, PAUSE_SECONDS, TASKS, ModernClient
from support.parked_runs import no_process, until_parked
from support.processes import kill_family
from support.pseudo_terminal import in_terminal
from support.waits import until, until_found, within

SECTION: dict[str, Any] = {
    "policy": {"default": {"approve": ["plain.give"]}},
    "auth": {"keyring": "off"},
    "typecheck": "off",
}

SCRIPT = """import { echo, give } from "@codemode/servers/plain";
const first = await echo({ text: "before" });
console.log("drawn", Math.random());
const given = await Promise.all([give({ text: "one" }), give({ text: "two" })]);
await echo({ text: "after" });
globalThis.__codemode_result__ = given.map((one) => one.text);
"""

EACH_SETTLES = """import { give } from "@codemode/servers/plain";
const settled = await Promise.allSettled([give({ text: "one" }), give({ text: "two" })]);
globalThis.__codemode_result__ = settled.map((one) => one.status === "fulfilled" ? one.value.text : one.reason.message);
"""
"""Where one call is refused and another allowed: the script waits for both, and so does its run."""


def accepted(questions: dict[str, Any], **content: str) -> dict[str, Any]:
    return {key: {"action": "accept", "content": content} for key in questions}


async def parked(folder: Path) -> list[dict[str, Any]]:
    return json.loads(await command(folder, "runs", "list", "--parked", "--json"))


async def came_back(served: Daemon, word: str, given: dict[str, Any], script: str) -> dict[str, Any]:
    """What a client that comes back gets of its run."""
    return (await ModernClient(served).back(word, given, script))["result"]["structuredContent"]


def texts(served: Daemon, tool: str) -> list[str]:
    return sorted(event["arguments"]["text"] for event in ledger(served.ledger) if event.get("tool") == tool)


@contextlib.asynccontextmanager
async def killed(
    folder: Path, script: str = SCRIPT
) -> AsyncGenerator[tuple[Daemon, str, dict[str, Any], str]]:
    """A daemon on the state of one that was killed, host and all, while a run of its was parked; and the word, the
    questions and the id of that run."""
    async with daemon(folder, **SECTION) as served:
        word, questions = await ModernClient(served).asked(script)
        (run_id,) = await until_parked(served)
        kill_family(served.process.pid)
        await within(served.process.wait())
    async with daemon(folder, **SECTION) as again:
        yield again, word, questions, run_id


async def test_an_approval_survives_the_death_of_everything(tmp_path: Path) -> None:
    async with killed(tmp_path) as (served, word, questions, run_id):
        assert len(questions) == 2, "calls that are made at once are asked about together"
        assert texts(served, "echo") == ["before"] and texts(served, "give") == []
        done = await came_back(served, word, accepted(questions), SCRIPT)
        assert done["result"] == ["one", "two"], done
        assert done["usage"]["resumed"] == 1 and done["usage"]["runId"] == run_id
        assert [entry["message"].startswith("drawn 0.") for entry in done["logs"]] == [True]
        assert len(done["toolTrace"]) == 4
        again = await ModernClient(served).back(word, accepted(questions), SCRIPT)
        assert "no run that waits" in again["error"]["message"], "a word is good once"
        assert texts(served, "echo") == ["after", "before"] and texts(served, "give") == ["one", "two"]
        assert await parked(tmp_path) == []


async def test_words_that_are_refused(tmp_path: Path) -> None:
    """Forged, another principal's, of an earlier round."""
    async with killed(tmp_path, EACH_SETTLES) as (served, word, questions, _):
        named = json.loads(await command(tmp_path, "token", "create", "eve", "--json"))
        ann, eve = ModernClient(served), ModernClient(replace(served, token=named["token"]))
        version, body, tag = word.split(".")
        forged = (
            f"{version}.{body}.{tag[::-1]}",
            f"{version}.{body[::-1]}.{tag}",
            word[:-1],
            f"{word}=",
            "x",
            "",
        )
        for client, wrong in ((eve, word), *((ann, one) for one in forged)):
            refused = await client.back(wrong, accepted(questions), SCRIPT)
            assert "no run that waits" in refused["error"]["message"], (wrong, refused)
        # Answered in part: what has no answer was dismissed, and the script is told so.
        first = next(iter(questions))
        came = (await came_back(served, word, accepted({first: None}), EACH_SETTLES))["result"]
        assert sum("the user has not chosen" in one for one in came) == 1, came
        (given,) = texts(served, "give")
        assert given in came


async def test_a_parked_run_has_no_process_and_goes_on_when_it_is_approved_elsewhere(tmp_path: Path) -> None:
    async with daemon(tmp_path, **SECTION) as served:
        word, questions = await ModernClient(served).asked(EACH_SETTLES)
        (run_id,) = await until_parked(served)
        await no_process(served)
        shown = await command(tmp_path, "runs", "show", run_id)
        assert shown.count("waits until you allow call") == 2 and "plain.give" in shown
        first = next(iter(questions)).removeprefix("question-")
        # On a terminal a person sees the input, and is asked.
        words = ("runs", "approve", run_id, "--config", str(tmp_path / "cellblock.json"))
        async with in_terminal(
            str(forked_cellblock()), *words, "--state-dir", str(tmp_path / "s")
        ) as terminal:
            await until(lambda: "Allow this? [y/N]" in terminal.text, "it asks", 60)
            shown = terminal.text.replace('": ', '":')
            assert 'input: {"text":"one"}' in shown and 'input: {"text":"two"}' in shown
            terminal.press(b"n\n")
            assert await within(terminal.process.wait()) == 0
            assert "Nothing was answered." in terminal.text
        assert "still waits" in await command(tmp_path, "runs", "approve", run_id, "--call", first)
        assert "goes on" in await command(tmp_path, "runs", "deny", run_id)
        audit = ledger(tmp_path / "s" / "audit.jsonl")
        decided = [(line["verdict"], line["by"]) for line in audit if line["event"] == "decision"]
        assert decided == [("accepted", "cli"), ("declined", "cli")]
        # The client comes back with its own answer, too late: it gets what became of the run, once.
        allowed, denied = (await came_back(served, word, accepted(questions), EACH_SETTLES))["result"]
        assert allowed == "one" and "the user has said no" in denied
        assert texts(served, "give") == ["one"]
        again = await ModernClient(served).back(word, accepted(questions), SCRIPT)
        assert "no run that waits" in again["error"]["message"]
        assert f"Run {run_id} is over (ok)" in await command(tmp_path, "runs", "approve", run_id, code=2)
        assert json.loads(await command(tmp_path, "runs", "show", run_id, "--json"))["state"] == "ended"


async def test_a_run_goes_on_in_a_command_and_another_is_cancelled(tmp_path: Path) -> None:
    async with daemon(tmp_path, **SECTION) as served:
        for _ in range(2):
            await ModernClient(served).asked(SCRIPT)
        one, other = await until_parked(served, 2)
    assert "waits for answers" in await command(tmp_path, "runs", "resume", one, code=2)
    # How much it has logged is known; what, a replay says.
    assert "log entries that are not shown: 1" in await command(tmp_path, "runs", "show", one)
    # There is no daemon that would take it up.
    at_once = with_constants({"cellblock.app.cli.runs.TAKEN_SECONDS": 0})
    assert "runs resume" in await command(tmp_path, "runs", "approve", one, env=at_once)
    # What was said counts; a no would not.
    assert "waits for an answer" in await command(tmp_path, "runs", "deny", one, code=2)
    done = json.loads(await command(tmp_path, "runs", "resume", one))
    assert done["result"] == ["one", "two"] and done["usage"]["resumed"] == 1, done
    # A process without the server leaves it alone.
    (tmp_path / "none.json").write_text(json.dumps({"cellblock": SECTION | {"policy": {}}}))
    await command(tmp_path, "runs", "approve", other, env=at_once)
    said = await command(tmp_path, "runs", "resume", other, code=2, config="none.json")
    assert "needs the server plain, and this process does not have it" in said
    assert "is ended" in await command(tmp_path, "runs", "cancel", other)
    for words, state in ((("approve", other), "CANCELLED"), (("resume", one), "ok"), (("cancel", one), "ok")):
        told = await command(tmp_path, "runs", *words, code=2)
        assert f"is over ({state})" in told and f"`cellblock runs show {words[1]}" in told, told
    assert "No run 0123 waits for an answer" in await command(tmp_path, "runs", "resume", "0123", code=2)
    assert texts(served, "give") == ["one", "two"]


async def test_the_policy_of_the_time_of_the_answer_counts(tmp_path: Path) -> None:
    async with daemon(tmp_path, **SECTION) as served:
        word, questions = await ModernClient(served).asked(SCRIPT)
        await until_parked(served)
    stricter: dict[str, Any] = {**SECTION, "policy": {"default": {"tools": ["plain.echo"]}}}
    async with daemon(tmp_path, **stricter) as served:
        done = await came_back(served, word, accepted(questions), SCRIPT)
        assert done["result"] is None and "give" in done["diagnostics"][0]["message"], done
        assert texts(served, "give") == []


async def parked_by_shell(folder: Path, **options: Any) -> str:
    """The id of a run of a script from a shell, which waits."""
    script = folder / "script.js"
    script.write_text(SCRIPT)
    response = json.loads(await command(folder, "run", script, "--durable", **options))
    # In another configuration the server has another command.
    assert {entry["code"] for entry in response["diagnostics"]} - {"NOT_AS_PINNED"} == {"RUN_PARKED"}
    return response["usage"]["runId"]


async def test_a_script_from_a_shell_waits_for_a_person_who_is_not_there(tmp_path: Path) -> None:
    async with daemon(tmp_path, **SECTION) as served:
        run_id = await parked_by_shell(tmp_path)
        assert texts(served, "give") == []
        assert "goes on" in await command(tmp_path, "runs", "approve", run_id)
        await until(lambda: texts(served, "give") == ["one", "two"], "the daemon goes on with it")

        async def ended() -> dict[str, Any] | None:
            shown = json.loads(await command(tmp_path, "runs", "show", run_id, "--json"))
            return shown if shown["state"] == "ended" else None

        shown = await until_found(ended, "its end")
        assert (shown["client"], shown["outcome"]) == ("cli", "ok")


async def test_a_run_goes_on_with_the_servers_of_its_own_configuration_alone(tmp_path: Path) -> None:
    """Whatever another daemon of the state directory calls by the same names."""
    other = tmp_path / "other.jsonl"
    servers = {"plain": plain_server("--ledger", other)}
    file = tmp_path / "b.json"
    file.write_text(json.dumps({"mcpServers": servers, "cellblock": for_tests(SECTION)}))
    at_once = with_constants({"cellblock.app.cli.runs.TAKEN_SECONDS": 3})
    async with daemon(tmp_path, **SECTION) as served:
        run_id = await parked_by_shell(tmp_path, config="b.json")
        resume = f"start a daemon with {file}, or run `cellblock runs resume {run_id} --config {file}"
        assert resume in await command(tmp_path, "runs", "show", run_id)
        told = await command(tmp_path, "runs", "approve", run_id, env=at_once, config="b.json")
        assert resume in told and "goes on\n" not in told, told
        told = await command(tmp_path, "runs", "resume", run_id, code=2)
        assert "its server plain has another command or URL in this process" in told and resume in told
        done = json.loads(await command(tmp_path, "runs", "resume", run_id, config="b.json"))
        assert done["result"] == ["one", "two"], done
        assert recorded(other, event="call", tool="give") == 2
        assert served.recorded(event="call") == 0
        # With its own configuration, at another path too, a daemon goes on with it.
        (tmp_path / "copy.json").write_bytes((tmp_path / "cellblock.json").read_bytes())
        run_id = await parked_by_shell(tmp_path, config="copy.json")
        assert "goes on" in await command(tmp_path, "runs", "approve", run_id)
        await until(lambda: texts(served, "give") == ["one", "two"], "the daemon goes on with it")


async def test_a_run_that_is_resumed_waits_for_its_servers_and_stays_where_they_do_not_come(
    tmp_path: Path,
) -> None:
    is_there, served = tmp_path / "is-there", tmp_path / "ledger.jsonl"
    is_there.touch()
    plain = plain_server("--ledger", served, "--start-when", is_there, "--start-delay", "1")
    write_config(tmp_path, {"plain": plain}, **SECTION, upstream={"connect_timeout_ms": 4000})
    at_once = with_constants({"cellblock.app.cli.runs.TAKEN_SECONDS": 0})
    run_id = await parked_by_shell(tmp_path)
    await command(tmp_path, "runs", "approve", run_id, env=at_once)
    is_there.unlink()
    told = await command(tmp_path, "runs", "resume", run_id, code=2)
    assert "it needs the server plain, which is not connected here: it did not answer" in told, told
    assert [run["id"] for run in await parked(tmp_path)] == [run_id]
    is_there.touch()
    hasty = with_constants({"cellblock.tools.upstream.registry.STARTUP_WAIT_SECONDS": 0.1})
    done = json.loads(await command(tmp_path, "runs", "resume", run_id, env=hasty))
    assert done["result"] == ["one", "two"] and recorded(served, event="call", tool="give") == 2, done


ALL: dict[str, Any] = {**TASKS, "sampling": {}, "roots": {}}


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


async def completed(client: ModernClient, task: str) -> dict[str, Any]:
    """What a task gives in the end."""
    return (await client.until_status(task, "completed"))["result"]["structuredContent"]


async def test_a_question_parks_its_run_and_is_answered_over_another_connection(served: Daemon) -> None:
    before, answered = len(events(served, "call")), len(events(served, "answer"))
    ann, script = ModernClient(served, FORMS), code()
    word, questions = await ann.asked(script)
    (form,) = questions.values()
    assert form["params"]["message"] == "asking: Who are you?"
    assert form["params"]["requestedSchema"]["required"] == ["name"]
    (run_id,) = await until_parked(served)
    await no_process(served)
    shown = await command(served.folder, "runs", "show", run_id)
    assert "asking.elicit" in shown and "Who are you?" in shown, shown
    assert len(events(served, "answer")) == answered
    # What does not fit the form is refused, and the question stays.
    for wrong in ({"action": "accept", "content": {}}, {"action": "accept", "content": {"name": 5}}):
        refused = await ann.back(word, dict.fromkeys(questions, wrong), script)
        assert refused["error"]["code"] == -32602, refused
        assert "does not fit" in refused["error"]["message"] and "name" in refused["error"]["message"]
    done = await came_back(served, word, accepted(questions, name="Ann"), script)
    assert done["result"] == "accept Ann", done
    assert done["usage"]["resumed"] == 1 and done["usage"]["runId"] == run_id
    assert [call["ok"] for call in done["toolTrace"]] == [True, True]
    assert len(events(served, "call")) == before + 1
    again = await ann.back(word, accepted(questions, name="Eve"), script)
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
            task, "update", inputResponses={**late, **accepted(questions, name=name)}
        )
        # The next one has come, or none will.
        await ann.until(task, lambda found, key=key: key not in found.get("inputRequests", {}))
    done = await completed(ann, task)
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
            assert (await completed(ann, task))["result"] == f"{action} None"
        # By hand, in another process.
        task = (await ann.task(code()))["taskId"]
        run_id = task.partition(".")[0]
        assert "name" in await command(tmp_path, "runs", "approve", run_id, code=2)
        refused = await command(tmp_path, "runs", "approve", run_id, "--answer", '{"name": 5}', code=2)
        assert "does not fit" in refused and "--values" in refused
        assert '"required":["name"]' in await command(tmp_path, "runs", "show", run_id, "--values")
        said = await command(tmp_path, "runs", "approve", run_id, "--answer", '{"name": "Dan"}')
        assert "goes on when its tools have answered" in said
        assert (await completed(ann, task))["result"] == "accept Dan"
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
        kill_family(served.process.pid)
        await within(served.process.wait())
    async with serving(tmp_path) as served:
        ann = ModernClient(served, TASKS)
        assert (await completed(ann, task))["result"] == "may_have_run"
        # Nobody is asked any more, and nothing is made again.
        await ann.about(task, "update", inputResponses=accepted(questions, name="Ann"))
        assert len(events(served, "call")) == 1


async def test_answers_that_are_forged_or_of_another_kind(served: Daemon) -> None:
    answered = len(events(served, "answer"))
    named = json.loads(await command(served.folder, "token", "create", "eve", "--json"))
    ann, eve = (ModernClient(one, TASKS) for one in (served, replace(served, token=named["token"])))
    task = (await ann.task(code()))["taskId"]
    (key,) = questions = await questions_of(ann, task)
    call = key.removeprefix("question-").partition(".")[0]
    ignored = {
        f"question-{call}": {"action": "accept"},
        f"{key}0": {"action": "accept"},
        "x": {"action": "accept"},
    }
    assert "result" in await ann.about(task, "update", inputResponses=ignored)
    of_a_model = {"role": "assistant", "content": {"type": "text", "text": "x"}, "model": "m"}
    for client, wrong in (
        (eve, accepted(questions, name="Eve")),
        (ann, {key: {"roots": []}}),
        (ann, {key: of_a_model}),
    ):
        refused = await client.about(task, "update", inputResponses=wrong)
        assert refused["error"]["code"] == -32602, refused
    assert await questions_of(ann, task) == questions and len(events(served, "answer")) == answered
    await ann.about(task, "update", inputResponses=accepted(questions, name="Ann"))
    assert (await completed(ann, task))["result"] == "accept Ann"


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
        assert (await completed(ann, task))["result"] == wanted
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
        await ann.about(task, "update", inputResponses=accepted(questions, name="Ann"))
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
    word, first = await ann.asked(script)
    second = (await ann.back(word, accepted(first, name="Ann"), script))["result"]
    assert second["resultType"] == "input_required" and not first.keys() & second["inputRequests"].keys()
    done = await came_back(
        served, second["requestState"], accepted(second["inputRequests"], name="Bob"), script
    )
    assert json.loads(done["result"]) == {"accept Ann": 1, "accept Bob": 1}, done
    assert len(events(served, "call")) == before + 1
