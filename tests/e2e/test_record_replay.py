"""`cellblock record` and `cellblock replay`: files, exit codes, and what is on standard output."""

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
from support.entries import ledger, plain_server, write_config
from support.params import mostly

BOUND_SECONDS = 120
SCRIPT = """import { echo } from "@codemode/servers/plain";
const [one, two] = await Promise.all([echo({ a: 1 }), echo({ a: "two", big: 1234567890123456789n })]);
console.log(new Date().toISOString(), Math.random());
globalThis.__codemode_result__ = { one, two, id: crypto.randomUUID() };
"""
SECRET = "c0rrect-horse-battery"

Outcome = subprocess.CompletedProcess[str]


def ran(folder: Path, *arguments: object) -> Outcome:
    """Runs `cellblock` in a folder that is its home, too."""
    return subprocess.run(
        [str(forked_cellblock()), *map(str, arguments)],
        env={"PATH": os.environ["PATH"], "HOME": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=BOUND_SECONDS,
    )


@pytest.fixture
def command(tmp_path: Path) -> Any:
    return partial(ran, tmp_path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("recorded")
    config = write_config(folder, {"plain": plain_server()}, schemas={"unwrap": "bigint"})
    (folder / "script.js").write_text(SCRIPT)
    done = ran(folder, "record", "script.js", "-o", "run.cellrun", "--config", config)
    assert done.returncode == 0, done.stderr
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
    done = command("replay", file)
    assert done.returncode == 0, done.stderr
    again = json.loads(done.stdout)
    assert again["result"]["two"] == {"a": "two", "big": 1234567890123456789}
    head = head_of(file)
    versions = {"madeBy": head["made_by"], "deno": head["deno"]}
    assert again.pop("replay") == {"same": True, "exact": True, **versions} and all(versions.values())
    for part in ("result", "logs", "diagnostics", "toolTrace"):
        assert again[part] == response[part]


def test_a_script_that_fails_is_replayed_with_its_name_in_all_places(command: Any, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "fails.js").write_text("console.log(new Error('seen').stack);\nnull.x;\n")
    done = command("record", "work/fails.js", "-o", "run.cellrun")
    assert done.returncode == 1
    response = json.loads(done.stdout)
    assert response["diagnostics"][0]["path"].startswith("work/fails.js:2:")
    assert "work/fails.js:1:" in response["logs"][0]["message"]
    again = command("replay", "run.cellrun")
    assert again.returncode == 0, again.stdout
    assert json.loads(again.stdout)["replay"]["same"] is True
    # Another script has its own, and a name that JSON would write otherwise is none.
    (tmp_path / "other.js").write_text("null.x;")
    tried = json.loads(command("replay", "run.cellrun", "--script", "other.js").stdout)
    assert tried["diagnostics"][0]["path"].startswith("other.js:1:")
    head, *rest = (tmp_path / "run.cellrun").read_text().splitlines()
    odd = json.dumps(json.loads(head) | {"script_name": 'a", "b": "'})
    (tmp_path / "run.cellrun").write_text("\n".join([odd, *rest]))
    found = json.loads(command("replay", "run.cellrun").stdout)
    assert found["diagnostics"][0]["path"].startswith("script.js:2:")


def test_a_file_that_was_there_is_its_owners_alone_after_it(command: Any, tmp_path: Path) -> None:
    file = tmp_path / "run.cellrun"
    file.write_text("old")
    file.chmod(0o644)
    (tmp_path / "script.js").write_text("console.log(1);")
    done = command("record", "script.js", "-o", file.name)
    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text().startswith('{"cellrun"')


def test_no_link_is_followed_and_nothing_is_run_for_it(command: Any, tmp_path: Path) -> None:
    (tmp_path / "another").write_text("kept")
    (tmp_path / "run.cellrun").symlink_to("another")
    (tmp_path / "script.js").write_text("console.log(1);")
    done = command("record", "script.js", "-o", "run.cellrun")
    assert done.returncode == 2
    assert "is a symbolic link" in done.stderr
    assert done.stdout == ""
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
        return json.loads(command("replay", file).stdout)["replay"]

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
    assert beyond.returncode == 0
    assert "it was not stopped: the script made 2 calls" in beyond.stderr
    traced = json.loads(beyond.stdout)["replay"]["trace"]
    assert [(call["name"], call["place"]) for call in traced] == [
        ("plain.echo", "script.js:2:39"),
        ("plain.echo", "script.js:2:55"),
    ]
    assert [call["input"] for call in traced] == [{"a": 1}, {"a": "two", "big": 1234567890123456789}]
    stopped = command("replay", file, "--trace", "--until", 2)
    assert stopped.returncode == 0
    response = json.loads(stopped.stdout)
    assert response["diagnostics"][0]["code"] == "REPLAY_STOPPED"
    assert "input" not in response["replay"]["trace"][0]
    (tmp_path / "other.js").write_text(SCRIPT.replace("id: crypto.randomUUID()", "id: 7"))
    tried = command("replay", file, "--script", "other.js")
    assert tried.returncode == 0, tried.stdout
    assert json.loads(tried.stdout)["result"]["id"] == 7
    assert json.loads(tried.stdout)["replay"]["same"] is None
    (tmp_path / "other.js").write_text(SCRIPT.replace("a: 1", "a: 2"))
    tried = command("replay", file, "--script", "other.js")
    assert tried.returncode == 1
    assert json.loads(tried.stdout)["diagnostics"][0]["code"] == "REPLAY_DIVERGED"


def test_a_call_without_an_answer_is_made_where_that_is_wanted(
    recorded: tuple[Path, dict[str, Any]], command: Any, tmp_path: Path
) -> None:
    file, _ = recorded
    seen = tmp_path / "seen.jsonl"
    config = write_config(tmp_path, {"plain": plain_server("--ledger", seen)})
    (tmp_path / "other.js").write_text(SCRIPT.replace("a: 1", "a: 2"))
    # Modules of a file are its maker's: none of them runs where tools are called.
    head, *lines = file.read_text().splitlines()
    plan = json.loads(head)["plan"]
    name = "@codemode/servers/plain"
    module = b64decode(plan["modules"][name].partition(",")[2]).decode()
    hostile = (
        "globalThis.__cellblock_boot__.server('plain').tool('echo', 'echo', 1)({ hostile: 1 });" + module
    )
    plan["modules"][name] = f"data:text/javascript;base64,{b64encode(hostile.encode()).decode()}"
    file.write_text("\n".join([json.dumps(json.loads(head) | {"plan": plan}), *lines]))
    words = ("replay", file, "--script", "other.js", "--live-on-miss", "--config", config)
    unasked = command(*words)
    assert unasked.returncode == 2
    assert "nobody can be asked here" in unasked.stderr
    done = command(*words, "--yes", "--trace")
    assert done.returncode == 0, done.stdout
    again = json.loads(done.stdout)
    assert again["replay"]["live"] == [1]
    assert [call["ok"] for call in again["replay"]["trace"]] == [True, True]
    assert len([event for event in ledger(seen) if event.get("event") == "call"]) == 1, ledger(seen)


def test_secrets_are_taken_out(command: Any, tmp_path: Path) -> None:
    server = plain_server() | {"env": {"API_TOKEN": SECRET}}
    config = write_config(tmp_path, {"plain": server})
    (tmp_path / "script.js").write_text(SCRIPT.replace('"two"', f'"{SECRET}"'))
    done = command("record", "script.js", "-o", "run.cellrun", "--config", config)
    assert done.returncode == 0, done.stderr
    assert "secrets are taken out" in done.stderr
    assert SECRET not in (tmp_path / "run.cellrun").read_text()
    assert SECRET in done.stdout
    again = command("replay", "run.cellrun")
    assert again.returncode == 0, again.stdout
    assert json.loads(again.stdout)["replay"]["exact"] is False


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
    done = command(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stdout == ""


def test_a_script_that_is_not_started_is_not_recorded(command: Any, tmp_path: Path) -> None:
    (tmp_path / "script.js").write_text("import 'nowhere';")
    done = command("record", "script.js", "-o", "run.cellrun")
    assert done.returncode == 1
    assert "nothing is recorded" in done.stderr
    assert not (tmp_path / "run.cellrun").exists()
