"""`cellblock record` and `cellblock replay`: files, exit codes, and what is on standard output. Kept runs of a daemon
that is killed: what was known is there, for its user and on the next daemon's dashboard.
"""

import asyncio
import contextlib
import json
import os
import shutil
import stat
import subprocess
from base64 import b64decode, b64encode
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.cellblock_zygote import forked_cellblock
from support.commands import cellblock
from support.entries import ledger, plain_server, write_config
from support.http_daemon import TOOL, Daemon, daemon
from support.params import mostly
from support.waits import until, within

BOUND_SECONDS = 120
SCRIPT = """import { echo } from "@codemode/servers/plain";
const [one, two] = await Promise.all([echo({ a: 1 }), echo({ a: "two", big: 1234567890123456789n })]);
console.log(new Date().toISOString(), Math.random());
globalThis.__codemode_result__ = { one, two, id: crypto.randomUUID() };
"""
SECRET = "c0rrect-horse-battery"

Outcome = subprocess.CompletedProcess[str]


def ran(folder: Path, *arguments: object, code: int = 0) -> Outcome:
    """Runs `cellblock`, which is to end so, in a folder that is its home, too."""
    done = subprocess.run(
        [str(forked_cellblock()), *map(str, arguments)],
        env={"PATH": os.environ["PATH"], "HOME": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=BOUND_SECONDS,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture
def command(tmp_path: Path) -> Any:
    return partial(ran, tmp_path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("recorded")
    config = write_config(folder, {"plain": plain_server()}, schemas={"unwrap": "bigint"})
    (folder / "script.js").write_text(SCRIPT)
    done = ran(folder, "record", "script.js", "-o", "run.cellrun", "--config", config)
    assert "recorded: run.cellrun (2 requests)" in done.stderr
    return folder / "run.cellrun", json.loads(done.stdout)


@pytest.fixture
def recorded(tmp_path: Path, made: tuple[Path, dict[str, Any]]) -> tuple[Path, dict[str, Any]]:
    """A recording, and the response of the run."""
    return Path(shutil.copy2(made[0], tmp_path)), made[1]


def test_a_recording_is_replayed_without_the_server(
    recorded: tuple[Path, dict[str, Any]], command: Any
) -> None:
    file, response = recorded
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = json.loads(command("replay", file).stdout)
    assert again["result"]["two"] == {"a": "two", "big": 1234567890123456789}
    head = head_of(file)
    versions = {"madeBy": head["made_by"], "deno": head["deno"]}
    assert again.pop("replay") == {"same": True, "exact": True, **versions} and all(versions.values())
    parts = ("result", "logs", "diagnostics", "toolTrace")
    assert [again[part] for part in parts] == [response[part] for part in parts]


def test_a_script_that_fails_is_replayed_with_its_name_in_all_places(command: Any, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "fails.js").write_text("console.log(new Error('seen').stack);\nnull.x;\n")
    response = json.loads(command("record", "work/fails.js", "-o", "run.cellrun", code=1).stdout)
    assert response["diagnostics"][0]["path"].startswith("work/fails.js:2:")
    assert "work/fails.js:1:" in response["logs"][0]["message"]
    assert json.loads(command("replay", "run.cellrun").stdout)["replay"]["same"] is True
    # Another script has its own, and a name that JSON would write otherwise is none.
    (tmp_path / "other.js").write_text("null.x;")
    tried = json.loads(command("replay", "run.cellrun", "--script", "other.js", code=1).stdout)
    assert tried["diagnostics"][0]["path"].startswith("other.js:1:")
    head, *rest = (tmp_path / "run.cellrun").read_text().splitlines()
    odd = json.dumps(json.loads(head) | {"script_name": 'a", "b": "'})
    (tmp_path / "run.cellrun").write_text("\n".join([odd, *rest]))
    found = json.loads(command("replay", "run.cellrun", code=1).stdout)
    assert found["diagnostics"][0]["path"].startswith("script.js:2:")


def test_a_file_that_was_there_is_its_owners_alone_after_it(command: Any, tmp_path: Path) -> None:
    file = tmp_path / "run.cellrun"
    file.write_text("old")
    file.chmod(0o644)
    (tmp_path / "script.js").write_text("console.log(1);")
    command("record", "script.js", "-o", file.name)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text().startswith('{"cellrun"')


def test_no_link_is_followed_and_nothing_is_run_for_it(command: Any, tmp_path: Path) -> None:
    (tmp_path / "another").write_text("kept")
    (tmp_path / "run.cellrun").symlink_to("another")
    (tmp_path / "script.js").write_text("console.log(1);")
    done = command("record", "script.js", "-o", "run.cellrun", code=2)
    assert "is a symbolic link" in done.stderr and done.stdout == ""
    assert (tmp_path / "another").read_text() == "kept"


def head_of(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text().splitlines()[0])


@pytest.mark.parametrize(
    ("field", "name"), mostly([("deno", "Deno")], [("made_by", "Cellblock"), ("deno", "Deno")])
)
def test_a_replay_that_differs_names_the_versions_where_they_do(
    recorded: tuple[Path, dict[str, Any]], command: Any, field: str, name: str
) -> None:
    file, _ = recorded
    head, *calls, last = file.read_text().splitlines()

    def replayed(field: str, version: str, end: str) -> dict[str, Any]:
        file.write_text("\n".join([json.dumps(json.loads(head) | {field: version}), *calls, end]) + "\n")
        return json.loads(command("replay", file, code=int(end != last)).stdout)["replay"]

    mine = json.loads(head)[field]
    other_end = last.replace('"two"', '"2"')
    assert other_end != last
    # What differs with the same versions has another reason, and what is the same needs none.
    assert "reason" not in replayed(field, mine, other_end)
    assert "reason" not in replayed(field, "0.0.7", last)
    found = replayed(field, "0.0.7", other_end)
    assert found["same"] is False and found["differences"]
    assert f"{name} 0.0.7" in found["reason"].split(";")[0], found
    assert f"{name} {mine}" in found["reason"].split(";")[1], found


def test_trace_until_and_another_script(
    recorded: tuple[Path, dict[str, Any]], command: Any, tmp_path: Path
) -> None:
    file, _ = recorded
    beyond = command("replay", file, "--values", "--until", 3)
    assert "it was not stopped: the script made 2 calls" in beyond.stderr
    traced = json.loads(beyond.stdout)["replay"]["trace"]
    assert [(call["name"], call["place"], call["input"]) for call in traced] == [
        ("plain.echo", "script.js:2:39", {"a": 1}),
        ("plain.echo", "script.js:2:55", {"a": "two", "big": 1234567890123456789}),
    ]
    response = json.loads(command("replay", file, "--trace", "--until", 2).stdout)
    assert response["diagnostics"][0]["code"] == "REPLAY_STOPPED"
    assert "input" not in response["replay"]["trace"][0]
    (tmp_path / "other.js").write_text(SCRIPT.replace("id: crypto.randomUUID()", "id: 7"))
    tried = json.loads(command("replay", file, "--script", "other.js").stdout)
    assert (tried["result"]["id"], tried["replay"]["same"]) == (7, None)
    (tmp_path / "other.js").write_text(SCRIPT.replace("a: 1", "a: 2"))
    tried = json.loads(command("replay", file, "--script", "other.js", code=1).stdout)
    assert tried["diagnostics"][0]["code"] == "REPLAY_DIVERGED"


def test_a_call_without_an_answer_is_made_where_that_is_wanted(
    recorded: tuple[Path, dict[str, Any]], command: Any, tmp_path: Path
) -> None:
    file, _ = recorded
    seen = tmp_path / "seen.jsonl"
    config = write_config(tmp_path, {"plain": plain_server("--ledger", seen)})
    (tmp_path / "other.js").write_text(SCRIPT.replace("a: 1", "a: 2"))
    # Modules of a file are its maker's: none of them runs where tools are called.
    head, *lines = file.read_text().splitlines()
    plan, name = json.loads(head)["plan"], "@codemode/servers/plain"
    module = b64decode(plan["modules"][name].partition(",")[2]).decode()
    hostile = (
        "globalThis.__cellblock_boot__.server('plain').tool('echo', 'echo', 1)({ hostile: 1 });" + module
    )
    plan["modules"][name] = f"data:text/javascript;base64,{b64encode(hostile.encode()).decode()}"
    file.write_text("\n".join([json.dumps(json.loads(head) | {"plan": plan}), *lines]))
    words = ("replay", file, "--script", "other.js", "--live-on-miss", "--config", config)
    assert "nobody can be asked here" in command(*words, code=2).stderr
    again = json.loads(command(*words, "--yes", "--trace").stdout)["replay"]
    assert again["live"] == [1] and [call["ok"] for call in again["trace"]] == [True, True]
    assert len([event for event in ledger(seen) if event.get("event") == "call"]) == 1, ledger(seen)


def test_secrets_are_taken_out(command: Any, tmp_path: Path) -> None:
    server = plain_server() | {"env": {"API_TOKEN": SECRET}}
    config = write_config(tmp_path, {"plain": server})
    (tmp_path / "script.js").write_text(SCRIPT.replace('"two"', f'"{SECRET}"'))
    done = command("record", "script.js", "-o", "run.cellrun", "--config", config)
    assert "secrets are taken out" in done.stderr and SECRET in done.stdout
    assert SECRET not in (tmp_path / "run.cellrun").read_text()
    assert json.loads(command("replay", "run.cellrun").stdout)["replay"]["exact"] is False


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["replay", "none.cellrun"], "cannot read the recording none.cellrun"),
        (["replay", "script.js"], "The file is no recording"),
        (["replay", "script.js", "--until", "0"], "0 is no number from 1"),
        (["replay", "script.js", "--until", "-1"], "-1"),
        (["record", "script.js", "-o", "nowhere/run.cellrun"], "there is no folder"),
        (["record", "script.js"], "-o"),
    ],
)
def test_wrong_usage(command: Any, tmp_path: Path, arguments: list[str], said: str) -> None:
    (tmp_path / "script.js").write_text("1")
    done = command(*arguments, code=2)
    assert said in done.stderr and done.stdout == ""


def test_a_script_that_is_not_started_is_not_recorded(command: Any, tmp_path: Path) -> None:
    (tmp_path / "script.js").write_text("import 'nowhere';")
    done = command("record", "script.js", "-o", "run.cellrun", code=1)
    assert "nothing is recorded" in done.stderr
    assert not (tmp_path / "run.cellrun").exists()


KEEPING: dict[str, Any] = {"journal": "all", "auth": {"keyring": "off"}, "typecheck": "off"}

WAITS = """import { echo, never, give } from "@codemode/servers/plain";
await echo({ text: "before" });
await Promise.all([never({ text: "under way" }), give({ text: "answered" })]);
"""


async def said_by(folder: Path, *words: str, code: int = 0) -> Any:
    """What a command says, beside a daemon or without one."""
    done = await cellblock(*words, "--config", folder / "cellblock.json", "--state-dir", folder / "s")
    assert done.code == code, done.err
    return json.loads(done.out) if done.out else done.err


async def kept(folder: Path, *words: str) -> Any:
    """What `cellblock runs` says."""
    return await said_by(folder, "runs", *words, "--json")


async def page(served: Daemon, path: str) -> Any:
    answer = await served.ask("GET", path, headers=served.auth)
    assert answer.status == 200
    return json.loads(answer.body)


async def test_a_killed_daemon_leaves_what_was_known(tmp_path: Path) -> None:
    async with daemon(tmp_path, **KEEPING) as served:
        async with served.client() as client:
            done = await within(client.call_tool(TOOL, {"code": "globalThis.__codemode_result__ = 1"}))
            whole = done.structured_content["usage"]["runId"]

        async def asking() -> None:
            with contextlib.suppress(Exception):
                async with served.client() as client:
                    await client.call_tool(TOOL, {"code": WAITS})

        task = asyncio.create_task(asking())
        await until(lambda: len(ledger(served.ledger)) >= 5, "all three calls are made")
        (lost, _) = await kept(tmp_path, "list")
        steps: list[dict[str, Any]] = []
        while [step["ok"] for step in steps] != [True, None, True]:
            steps = (await kept(tmp_path, "show", lost["id"], "--values"))["values"]
        served.process.kill()
        await within(served.process.wait())
        task.cancel()
    heads = await kept(tmp_path, "list")
    assert [(head["id"], head["outcome"]) for head in heads] == [(lost["id"], None), (whole, "ok")]
    shown = await kept(tmp_path, "show", lost["id"], "--values")
    assert shown["script"] == WAITS and shown["state"] == "no end"
    outcomes = [(call["tool"], call["outcome"]) for call in shown["timeline"]]
    assert outcomes == [("echo", "ok"), ("never", "may_have_run"), ("give", "ok")]
    assert [call["input"]["text"] for call in shown["values"]] == ["before", "under way", "answered"]
    # This one goes on with nothing that it finds (`tests/integration/test_going_on.py` has one that does).
    async with daemon(tmp_path, **{**KEEPING, "journal": "off"}) as served:
        assert [run["id"] for run in (await page(served, "/dashboard/kept"))["runs"]] == [lost["id"], whole]
        again = await page(served, f"/dashboard/runs/{lost['id']}")
        assert again["timeline"] == shown["timeline"] and "script" not in again and "values" not in again
        assert (await page(served, f"/dashboard/runs/{whole}"))["outcome"] == "ok"
    replayed = await said_by(tmp_path, "replay", whole)
    assert (replayed["result"], replayed["replay"]["same"]) == (1, True)
    # It stops where nothing more was known, and calls nobody.
    calls = len(ledger(served.ledger))
    ended = await said_by(tmp_path, "replay", lost["id"], code=1)
    assert [found["code"] for found in ended["diagnostics"]] == ["REPLAY_ENDED"]
    assert len(ledger(served.ledger)) == calls
    assert "No run 0123456789abcdef is kept" in await said_by(tmp_path, "replay", "0123456789abcdef", code=2)
