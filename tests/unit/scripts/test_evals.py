"""Evals: tasks are judged by their effects, whoever is asked; a model is a scripted one on the loopback."""

import json
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.evals import __main__ as evals, arms, world
from benchmarks.evals.models import parsed
from benchmarks.evals.world import TASKS
from clients_model import Model
from support.cellblock_zygote import forked_python
from support.entries import plain_server
from support.params import mostly

TASKS_BY_NAME: dict[str, dict[str, Any]] = {
    one["name"]: one for one in tomllib.loads(TASKS.read_text("utf-8"))["task"]
}

pytestmark = pytest.mark.timeout(600)


def measured(tmp_path: Path, task: str, *arguments: str) -> list[dict[str, Any]]:
    """The attempts of a task in the arm `cellblock`, unless told otherwise; over the servers that its script calls."""
    arm = [] if "--arm" in arguments else ["--arm", "cellblock"]
    file = tmp_path / "found.json"

    def servers_in(folder: Path) -> dict[str, Any]:
        there = world.servers_in(folder)
        there["shop"]["args"].insert(0, "-I")
        for name in ("shop", "tracker"):
            there[name]["command"] = str(forked_python())
            there[name]["args"] = [word for word in there[name]["args"] if word != "-P"]
        script = TASKS_BY_NAME[task]["script"]
        return {name: there[name] for name in there if f"@codemode/servers/{name}" in script}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evals, "servers_in", servers_in)
        patch.setattr(arms, "sys", SimpleNamespace(executable=str(forked_python())))
        assert evals.main([*arm, "--task", task, "--json", str(file), *arguments]) == 0
    return [one for every in json.loads(file.read_text("utf-8")).values() for one in every]


def test_there_are_twenty_tasks_with_scripts_and_checks() -> None:
    assert len(TASKS_BY_NAME) == 20
    assert all({"prompt", "check", "script", "python"} <= set(one) for one in TASKS_BY_NAME.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("api", "repeats"),
    mostly([("/v1/chat/completions", 2)], [("/v1/chat/completions", 2), ("/v1/messages", 1)]),
)
def test_a_model_behind_a_url_is_judged_by_its_effects(
    api: str, repeats: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Model([TASKS_BY_NAME["refund-returned"]["script"]]) as model:
        arguments = ("--url", f"{model.url}{api}", "--model", "stand-in", "--repeats", str(repeats))
        found = measured(tmp_path, "refund-returned", *arguments)
    assert [(one["first"], one["last"], one["calls"], one["failed"]) for one in found] == [
        (True, True, 1, 0)
    ] * repeats
    # Of two turns, the second sends what the first has sent, written and got.
    assert all(
        one["again"] == one["tools"] + one["answers"] + one["out"] - evals.count("Done.") for one in found
    )
    share = evals.interval(repeats, repeats)
    out = capsys.readouterr().out
    assert f"| cellblock | {share} | {share} | 1.00 |" in out
    (shown,) = found[0]["turns"][2]["results"]
    assert shown["text"].startswith("4\n\ndeclarations:\nshop.list_orders(…): Promise<{ data: ")
    # Of the answer, the result is one token.
    assert (shown["results"], shown["answers"]) == (evals.count("4"), evals.count(shown["text"]))
    assert out.rstrip().endswith(f"| {1 / shown['answers']:.0%} |")


@pytest.mark.slow
def test_a_wrong_script_is_right_at_the_last_try_alone_and_one_that_does_nothing_is_wrong(
    tmp_path: Path,
) -> None:
    right = TASKS_BY_NAME["refund-returned"]["script"]
    for scripts, figures in (
        (["throw new Error('no');", right], (False, True, 1)),
        (["export default 3;"], (False, False, 0)),
    ):
        with Model(scripts) as model:
            (found,) = measured(tmp_path, "refund-returned", "--url", f"{model.url}/v1/messages")
        assert (found["first"], found["last"], found["failed"]) == figures


@pytest.mark.slow
@pytest.mark.parametrize("arm", mostly(["proxy"], ["direct", "proxy"]))
def test_what_a_script_calls_is_right_one_by_one(arm: str, tmp_path: Path) -> None:
    (found,) = measured(tmp_path, "unassigned-to-file", "--arm", arm)
    assert found["first"] and found["calls"] == 3


SCRIPT = "import { echo } from '@codemode/servers/plain'; export default await echo({ n: 7 });"


def own(tmp_path: Path, arm: str, *names: str) -> list[str]:
    """Arguments for tasks that have the plain server say 7."""
    tasks, config = tmp_path / "tasks.toml", tmp_path / "cellblock.json"
    of_each = f'prompt = "Echo 7."\ncheck = "says(7)"\nscript = """{SCRIPT}"""\n'
    tasks.write_text("".join(f'[[task]]\nname = "{name}"\n{of_each}' for name in names), "utf-8")
    config.write_text(json.dumps({"mcpServers": {"plain": plain_server()}}), "utf-8")
    return ["--arm", arm, "--tasks", str(tasks), "--config", str(config)]


@pytest.mark.slow
def test_a_reference_script_calls_ones_own_servers(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    assert evals.main([*own(tmp_path, "proxy", "own"), "--json", str(file)]) == 0
    ((found,),) = json.loads(file.read_text("utf-8")).values()
    assert found["first"] and found["calls"] == 1


@pytest.mark.slow
def test_a_task_finds_what_the_tasks_before_it_taught_and_nothing_of_another_repeat(tmp_path: Path) -> None:
    with Model([SCRIPT]) as model:
        arguments = [*own(tmp_path, "cellblock", "one", "two"), "--url", f"{model.url}/v1/messages"]
        assert evals.main([*arguments, "--repeats", "2"]) == 0
    bodies = [one["body"] for one in model.requests]
    shown = [body["tools"][0]["description"] for body in bodies if len(body["messages"]) == 1]
    first, later = shown[:2]
    assert shown == [first, later] * 2
    # Those that were called stand first; no session is told of servers that begin otherwise than before.
    assert "- plain: echo, " in later and "- plain: echo, " not in first
    assert "NOT_AS_PINNED" not in json.dumps(bodies)


@pytest.mark.thorough
def test_a_subject_by_hand_reads_what_a_client_shows_and_writes_replies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "hand/cellblock/todo-done"
    arguments = ("--by-hand", str(tmp_path / "hand"))
    assert measured(tmp_path, "todo-done", *arguments) == []
    assert "1 attempts wait" in capsys.readouterr().out
    first = (folder / "turn-1.md").read_text("utf-8")
    assert "codemode_run" in first and first.rstrip().endswith(TASKS_BY_NAME["todo-done"]["prompt"])
    looks = """import { list_allowed_directories } from "@codemode/servers/files";
export default (await list_allowed_directories()).content;
"""
    (folder / "reply-1.md").write_text(f"I look.\n```js\n{looks}```\n", "utf-8")
    assert measured(tmp_path, "todo-done", *arguments) == []
    # What a reply names of an earlier turn is there in the next attempt, whose world is a new one.
    assert "/world/files\n" in (folder / "turn-2.md").read_text("utf-8")
    changes = """import { edit_file } from "@codemode/servers/files";
await edit_file({ path: "/world/files/todo.txt", edits: [{ oldText: "buy ink", newText: "ink is bought" }] });
export default "done";
"""
    (folder / "reply-2.md").write_text(f"```js\n{changes}```\n", "utf-8")
    assert measured(tmp_path, "todo-done", *arguments) == []
    assert (folder / "turn-3.md").read_text("utf-8").startswith("done\n")
    (folder / "reply-3.md").write_text("It is done.", "utf-8")
    (found,) = measured(tmp_path, "todo-done", *arguments)
    assert found["first"] and found["calls"] == 2


def test_a_written_reply_has_calls_a_script_or_an_answer() -> None:
    run: dict[str, Any] = {"name": "codemode_run", "input_schema": {"properties": {"code": {}}}}
    calls = '```json\n{"name": "a", "arguments": {"x": 1}}\n```\nand\n```json\n{"name": "b", "arguments": {}}\n```'
    assert [(one["name"], one["arguments"]) for one in parsed(calls, [])["calls"]] == [
        ("a", {"x": 1}),
        ("b", {}),
    ]
    assert parsed("```ts\n1;\n```", [run])["calls"][0]["arguments"] == {"code": "1;\n"}
    assert parsed("It is 7.", [run])["calls"] == []


def test_an_interval_is_wilsons() -> None:
    assert evals.interval(20, 20) == "20/20 (84% to 100%)"
    assert evals.interval(1, 2) == "1/2 (9% to 91%)"
