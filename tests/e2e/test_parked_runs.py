"""Runs that wait for a person outlive their process, their daemon, and the connection they came by."""

import contextlib
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

from cellblock.base.state_dir import JOURNALS
from support.cellblock_zygote import forked_cellblock, with_constants
from support.commands import command
from support.entries import for_tests, ledger, plain_server, recorded, write_config
from support.http_daemon import Daemon, daemon
from support.modern_client import ModernClient
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


def answers(questions: dict[str, Any], action: str = "accept") -> dict[str, Any]:
    return {key: {"action": action, "content": {}} for key in questions}


async def parked(folder: Path) -> list[dict[str, Any]]:
    if not (folder / "s" / JOURNALS).exists():
        return []
    return json.loads(await command(folder, "runs", "list", "--parked", "--json"))


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
        done = (await ModernClient(served).back(word, answers(questions), SCRIPT))["result"][
            "structuredContent"
        ]
        assert done["result"] == ["one", "two"], done
        assert done["usage"]["resumed"] == 1 and done["usage"]["runId"] == run_id
        assert [entry["message"].startswith("drawn 0.") for entry in done["logs"]] == [True]
        assert len(done["toolTrace"]) == 4
        assert texts(served, "echo") == ["after", "before"] and texts(served, "give") == ["one", "two"]
        again = await ModernClient(served).back(word, answers(questions), SCRIPT)
        assert "no run that waits" in again["error"]["message"], "a word is good once"
        assert texts(served, "give") == ["one", "two"]
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
        for wrong in forged:
            refused = await ann.back(wrong, answers(questions), SCRIPT)
            assert "no run that waits" in refused["error"]["message"], (wrong, refused)
        refused = await eve.back(word, answers(questions), SCRIPT)
        assert "no run that waits" in refused["error"]["message"]
        # Answered in part: what has no answer was dismissed, and the script is told so.
        first = next(iter(questions))
        done = await ann.back(word, answers({first: None}), EACH_SETTLES)
        came = done["result"]["structuredContent"]["result"]
        assert sum("the user has not chosen" in one for one in came) == 1, done
        assert texts(served, "give") == [one for one in came if one in ("one", "two")]
        assert len(texts(served, "give")) == 1


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
        audit = map(json.loads, (tmp_path / "s" / "audit.jsonl").read_text().splitlines())
        decided = [(line["verdict"], line["by"]) for line in audit if line["event"] == "decision"]
        assert decided == [("accepted", "cli"), ("declined", "cli")]
        # The client comes back with its own answer, too late: it gets what became of the run.
        done = await ModernClient(served).back(word, answers(questions), EACH_SETTLES)
        allowed, denied = done["result"]["structuredContent"]["result"]
        assert allowed == "one" and "the user has said no" in denied, done
        assert texts(served, "give") == ["one"]
        assert (
            "no run that waits"
            in (await ModernClient(served).back(word, answers(questions), SCRIPT))["error"]["message"]
        )
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
        done = (await ModernClient(served).back(word, answers(questions), SCRIPT))["result"][
            "structuredContent"
        ]
        assert done["result"] is None and "give" in done["diagnostics"][0]["message"], done
        assert texts(served, "give") == []


async def test_a_script_from_a_shell_waits_for_a_person_who_is_not_there(tmp_path: Path) -> None:
    async with daemon(tmp_path, **SECTION) as served:
        script = tmp_path / "script.js"
        script.write_text(SCRIPT)
        response = json.loads(await command(tmp_path, "run", str(script), "--durable"))
        assert [entry["code"] for entry in response["diagnostics"]] == ["RUN_PARKED"]
        assert texts(served, "give") == []
        assert "goes on" in await command(tmp_path, "runs", "approve", response["usage"]["runId"])
        await until(lambda: texts(served, "give") == ["one", "two"], "the daemon goes on with it")

        async def ended() -> dict[str, Any] | None:
            shown = json.loads(await command(tmp_path, "runs", "show", response["usage"]["runId"], "--json"))
            return shown if shown["state"] == "ended" else None

        shown = await until_found(ended, "its end")
        assert (shown["client"], shown["outcome"]) == ("cli", "ok")


async def test_a_run_goes_on_with_the_servers_of_its_own_configuration_alone(tmp_path: Path) -> None:
    """Whatever another daemon of the state directory calls by the same names."""
    other = tmp_path / "other.jsonl"
    servers = {"plain": plain_server("--ledger", other)}
    config = {"mcpServers": servers, "cellblock": for_tests(SECTION)}
    (tmp_path / "b.json").write_text(json.dumps(config))
    script = tmp_path / "script.js"
    script.write_text(SCRIPT)
    at_once = with_constants({"cellblock.app.cli.runs.TAKEN_SECONDS": 3})
    async with daemon(tmp_path, **SECTION) as served:
        response = json.loads(await command(tmp_path, "run", script, "--durable", config="b.json"))
        run_id = response["usage"]["runId"]
        file = tmp_path / "b.json"
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
        response = json.loads(await command(tmp_path, "run", script, "--durable", config="copy.json"))
        assert "goes on" in await command(tmp_path, "runs", "approve", response["usage"]["runId"])
        await until(lambda: texts(served, "give") == ["one", "two"], "the daemon goes on with it")


async def test_a_run_that_is_resumed_waits_for_its_servers_and_stays_where_they_do_not_come(
    tmp_path: Path,
) -> None:
    is_there, script = tmp_path / "is-there", tmp_path / "script.js"
    is_there.touch()
    script.write_text(SCRIPT)
    served = tmp_path / "ledger.jsonl"
    plain = plain_server("--ledger", served, "--start-when", is_there, "--start-delay", "1")
    write_config(tmp_path, {"plain": plain}, **SECTION, upstream={"connect_timeout_ms": 4000})
    at_once = with_constants({"cellblock.app.cli.runs.TAKEN_SECONDS": 0})
    response = json.loads(await command(tmp_path, "run", script, "--durable"))
    run_id = response["usage"]["runId"]
    await command(tmp_path, "runs", "approve", run_id, env=at_once)
    is_there.unlink()
    told = await command(tmp_path, "runs", "resume", run_id, code=2)
    assert "it needs the server plain, which is not connected here: it did not answer" in told, told
    assert [run["id"] for run in await parked(tmp_path)] == [run_id]
    is_there.touch()
    hasty = with_constants({"cellblock.tools.upstream.registry.STARTUP_WAIT_SECONDS": 0.1})
    done = json.loads(await command(tmp_path, "runs", "resume", run_id, env=hasty))
    assert done["result"] == ["one", "two"] and recorded(served, event="call", tool="give") == 2, done
