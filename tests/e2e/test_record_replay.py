"""`cellblock record` and `cellblock replay`: files, exit codes, and what is on standard output. Kept runs of a daemon
that is killed: what was known is there, for its user and on the next daemon's dashboard. Scripts from a run to cron:
kept, reviewed, approved, run, tested, proposed, by the commands that people type.
"""

import asyncio
import contextlib
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import pytest

from support.browser import WHERE_FROM, browser, browser_path
from support.commands import Said, cellblock
from support.documents import ROOT
from support.entries import CELLBLOCK, ledger, plain_server, tracker, write_config
from support.http_daemon import TOOL, Daemon, daemon
from support.params import mostly
from support.waits import until, within

SCRIPT = """import { echo } from "@codemode/servers/plain";
const [one, two] = await Promise.all([echo({ a: 1 }), echo({ a: "two", big: 1234567890123456789n })]);
console.log(new Date().toISOString(), Math.random());
globalThis.__codemode_result__ = { one, two, id: crypto.randomUUID() };
"""
SECRET = "c0rrect-horse-battery"


def ran(folder: Path, *arguments: object, code: int = 0) -> Said:
    """Runs `cellblock`, which is to end so, in a folder that is its home, too."""
    env = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    return asyncio.run(cellblock(*arguments, code=code, env=env, cwd=folder))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("recorded")
    config = write_config(folder, {"plain": plain_server()}, schemas={"unwrap": "bigint"})
    (folder / "script.js").write_text(SCRIPT)
    done = ran(folder, "record", "script.js", "-o", "run.cellrun", "--config", config)
    assert "recorded: run.cellrun (2 requests)" in done.err
    return folder / "run.cellrun", json.loads(done.out)


@pytest.fixture
def recorded(tmp_path: Path, made: tuple[Path, dict[str, Any]]) -> tuple[Path, dict[str, Any]]:
    """A recording, and the response of the run."""
    return Path(shutil.copy2(made[0], tmp_path)), made[1]


def test_a_recording_is_replayed_without_the_server(
    recorded: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    file, response = recorded
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = json.loads(ran(tmp_path, "replay", file).out)
    assert again["result"]["two"] == {"a": "two", "big": 1234567890123456789}
    head = json.loads(file.read_text().splitlines()[0])
    versions = {"madeBy": head["made_by"], "deno": head["deno"]}
    assert again.pop("replay") == {"same": True, "exact": True, **versions} and all(versions.values())
    parts = ("result", "logs", "diagnostics", "toolTrace")
    assert [again[part] for part in parts] == [response[part] for part in parts]


def test_a_script_that_fails_is_replayed_with_its_name_in_all_places(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "fails.js").write_text("console.log(new Error('seen').stack);\nnull.x;\n")
    response = json.loads(ran(tmp_path, "record", "work/fails.js", "-o", "run.cellrun", code=1).out)
    assert response["diagnostics"][0]["path"].startswith("work/fails.js:2:")
    assert "work/fails.js:1:" in response["logs"][0]["message"]
    assert json.loads(ran(tmp_path, "replay", "run.cellrun").out)["replay"]["same"] is True
    # Another script has its own, and a name that JSON would write otherwise is none.
    (tmp_path / "other.js").write_text("null.x;")
    tried = json.loads(ran(tmp_path, "replay", "run.cellrun", "--script", "other.js", code=1).out)
    assert tried["diagnostics"][0]["path"].startswith("other.js:1:")
    head, *rest = (tmp_path / "run.cellrun").read_text().splitlines()
    odd = json.dumps(json.loads(head) | {"script_name": 'a", "b": "'})
    (tmp_path / "run.cellrun").write_text("\n".join([odd, *rest]))
    found = json.loads(ran(tmp_path, "replay", "run.cellrun", code=1).out)
    assert found["diagnostics"][0]["path"].startswith("script.js:2:")


def test_a_file_that_was_there_is_its_owners_alone_after_it(tmp_path: Path) -> None:
    file = tmp_path / "run.cellrun"
    file.write_text("old")
    file.chmod(0o644)
    (tmp_path / "script.js").write_text("console.log(1);")
    ran(tmp_path, "record", "script.js", "-o", file.name)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text().startswith('{"cellrun"')


def test_no_link_is_followed_and_nothing_is_run_for_it(tmp_path: Path) -> None:
    (tmp_path / "another").write_text("kept")
    (tmp_path / "run.cellrun").symlink_to("another")
    (tmp_path / "script.js").write_text("console.log(1);")
    done = ran(tmp_path, "record", "script.js", "-o", "run.cellrun", code=2)
    assert "is a symbolic link" in done.err and done.out == ""
    assert (tmp_path / "another").read_text() == "kept"


@pytest.mark.parametrize(
    ("field", "name"), mostly([("deno", "Deno")], [("made_by", "Cellblock"), ("deno", "Deno")])
)
def test_a_replay_that_differs_names_the_versions_where_they_do(
    recorded: tuple[Path, dict[str, Any]], tmp_path: Path, field: str, name: str
) -> None:
    file, _ = recorded
    head, *calls, last = file.read_text().splitlines()

    def replayed(field: str, version: str, end: str) -> dict[str, Any]:
        file.write_text("\n".join([json.dumps(json.loads(head) | {field: version}), *calls, end]) + "\n")
        return json.loads(ran(tmp_path, "replay", file, code=int(end != last)).out)["replay"]

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


def test_trace_until_and_another_script(recorded: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    file, _ = recorded
    beyond = ran(tmp_path, "replay", file, "--values", "--until", 3)
    assert "it was not stopped: the script made 2 calls" in beyond.err
    traced = json.loads(beyond.out)["replay"]["trace"]
    assert [(call["name"], call["place"], call["input"]) for call in traced] == [
        ("plain.echo", "script.js:2:39", {"a": 1}),
        ("plain.echo", "script.js:2:55", {"a": "two", "big": 1234567890123456789}),
    ]
    response = json.loads(ran(tmp_path, "replay", file, "--trace", "--until", 2).out)
    assert response["diagnostics"][0]["code"] == "REPLAY_STOPPED"
    assert "input" not in response["replay"]["trace"][0]
    (tmp_path / "other.js").write_text(SCRIPT.replace("id: crypto.randomUUID()", "id: 7"))
    tried = json.loads(ran(tmp_path, "replay", file, "--script", "other.js").out)
    assert (tried["result"]["id"], tried["replay"]["same"]) == (7, None)
    (tmp_path / "other.js").write_text(SCRIPT.replace("a: 1", "a: 2"))
    tried = json.loads(ran(tmp_path, "replay", file, "--script", "other.js", code=1).out)
    assert tried["diagnostics"][0]["code"] == "REPLAY_DIVERGED"


def test_a_call_without_an_answer_is_made_where_that_is_wanted(
    recorded: tuple[Path, dict[str, Any]], tmp_path: Path
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
    assert "nobody can be asked here" in ran(tmp_path, *words, code=2).err
    again = json.loads(ran(tmp_path, *words, "--yes", "--trace").out)["replay"]
    assert again["live"] == [1] and [call["ok"] for call in again["trace"]] == [True, True]
    assert len([event for event in ledger(seen) if event.get("event") == "call"]) == 1, ledger(seen)


def test_secrets_are_taken_out(tmp_path: Path) -> None:
    server = plain_server() | {"env": {"API_TOKEN": SECRET}}
    config = write_config(tmp_path, {"plain": server})
    (tmp_path / "script.js").write_text(SCRIPT.replace('"two"', f'"{SECRET}"'))
    done = ran(tmp_path, "record", "script.js", "-o", "run.cellrun", "--config", config)
    assert "secrets are taken out" in done.err and SECRET in done.out
    assert SECRET not in (tmp_path / "run.cellrun").read_text()
    assert json.loads(ran(tmp_path, "replay", "run.cellrun").out)["replay"]["exact"] is False


def test_a_script_that_is_not_started_is_not_recorded(tmp_path: Path) -> None:
    (tmp_path / "script.js").write_text("import 'nowhere';")
    assert "nothing is recorded" in ran(tmp_path, "record", "script.js", "-o", "run.cellrun", code=1).err
    assert not (tmp_path / "run.cellrun").exists()


SECTION: dict[str, Any] = {
    "journal": "all",
    "auth": {"keyring": "off"},
    "typecheck": "off",
    "scripts": {"dir": "kept", "propose": ["token"]},
}

WAITS = """import { echo, never, give } from "@codemode/servers/plain";
await echo({ text: "before" });
await Promise.all([never({ text: "under way" }), give({ text: "answered" })]);
"""


async def kept(folder: Path, *words: str) -> Any:
    """What `cellblock runs` says."""
    return json.loads(await said(folder, "runs", *words, "--json"))


async def page(served: Daemon, path: str) -> Any:
    answer = await served.ask("GET", path, headers=served.auth)
    assert answer.status == 200
    return json.loads(answer.body)


async def test_a_killed_daemon_leaves_what_was_known(tmp_path: Path) -> None:
    async with daemon(tmp_path, **SECTION) as served:
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
    async with daemon(tmp_path, **{**SECTION, "journal": "off"}) as served:
        assert [run["id"] for run in (await page(served, "/dashboard/kept"))["runs"]] == [lost["id"], whole]
        again = await page(served, f"/dashboard/runs/{lost['id']}")
        assert again["timeline"] == shown["timeline"] and "script" not in again and "values" not in again
        assert (await page(served, f"/dashboard/runs/{whole}"))["outcome"] == "ok"
    replayed = json.loads(await said(tmp_path, "replay", whole))
    assert (replayed["result"], replayed["replay"]["same"]) == (1, True)
    # It stops where nothing more was known, and calls nobody.
    calls = len(ledger(served.ledger))
    ended = json.loads(await said(tmp_path, "replay", lost["id"], code=1))
    assert [found["code"] for found in ended["diagnostics"]] == ["REPLAY_ENDED"]
    assert len(ledger(served.ledger)) == calls
    assert "No run 0123456789abcdef is kept" in await said(tmp_path, "replay", "0123456789abcdef", code=2)


CODE = """// Counts issues by state.
import { list_issues } from "@codemode/servers/tracker";
const { total } = await list_issues({ status: "open", label: 'bug' });
globalThis.__codemode_result__ = { total, of: "open" };
"""


def place(folder: Path) -> tuple[object, ...]:
    return ("--config", folder / "cellblock.json", "--state-dir", folder / "s")


async def said(folder: Path, *words: str, code: int = 0) -> str:
    """What a command says that ends so."""
    done = await cellblock(*words, *place(folder), code=code)
    return done.out if code == 0 else done.out + done.err


async def refused(folder: Path, *cases: tuple[tuple[str, ...], str]) -> None:
    """Commands that are refused, each with what it says."""
    for words, why in cases:
        assert why in await said(folder, *words, code=2), words


async def listed(folder: Path) -> dict[str, Any]:
    return {one["name"]: one for one in json.loads(await said(folder, "scripts", "list", "--json"))}


async def run(served: Daemon, **request: Any) -> Any:
    async with served.client() as client:
        return await within(client.call_tool(TOOL, request))


@pytest.mark.thorough
@pytest.mark.timeout(180)
async def test_from_a_run_to_a_timer(tmp_path: Path) -> None:
    async with daemon(tmp_path, servers={"tracker": tracker()}, **SECTION) as served:
        run_id = (await run(served, code=CODE)).structured_content["usage"]["runId"]
        file = tmp_path / "kept" / "by_state.ts"
        literals = ("--param", "status=open", "--param", "kind=bug")
        done = await cellblock("save", run_id, "by_state", *literals, *place(tmp_path), code=0)
        assert f"kept by_state: 1 tool, in {file}. It runs" in done.err
        text = file.read_text()
        assert "status: input.status, label: input.kind" in text and "of: input.status" in text
        assert '"readOnly": true' in text
        given = ("--input", json.dumps({"status": "closed", "kind": "bug"}))
        run_saved, approve = ("run", "--saved", "by_state"), ("scripts", "approve", "by_state")
        await refused(
            tmp_path,
            (("save", run_id, "by_state"), "already"),
            (("save", run_id, "../x"), "cannot be the name"),
            (("save", run_id, "other", "--param", "a=zzz"), "has no literal"),
            ((*run_saved, *given), "approve"),
            (("run", "--saved", "by_stat"), "Did you mean by_state?"),
            (("scripts", "approve", "by_stat"), "Did you mean by_state?"),
            (("test", "by_stat"), "Did you mean by_state?"),
            (approve, "nobody can be asked"),
            ((*approve, "--digest", "sha256:0"), "another version"),
        )
        digest = (await listed(tmp_path))["by_state"]["digest"]
        shown = await said(tmp_path, "scripts", "approve", "by_state", "--digest", digest)
        assert "+const { total } = await list_issues" in shown

        # The documented line of a crontab.
        ran = json.loads(await said(tmp_path, *run_saved, *given))
        assert ran["result"]["of"] == "closed" and ran["result"]["total"] > 0
        # What is not JSON, or no kept script's file, spoils nothing else.
        await refused(
            tmp_path,
            ((*run_saved, "--input", "{}"), "does not fit"),
            ((*run_saved, "--input", '{"sinc": 1}'), "/sinc is not a property that is known here"),
            ((*run_saved, "--input", '{"sinc": 1}'), " It needs "),
            ((*run_saved, "--input", '{"a": NaN}'), "no JSON"),
        )
        (tmp_path / "kept" / "other.ts").write_text("export const a = 1;\n")
        tested = await said(tmp_path, "test", code=1)
        assert tested.startswith("by_state: works\nother: broken\n") and "does not begin with" in tested
        assert (await listed(tmp_path))["other"]["state"] == "unusable"
        (tmp_path / "kept" / "other.ts").unlink()
        assert await said(tmp_path, "test") == "by_state: works\n"
        assert f"by_state: {digest}, approved by " in await said(tmp_path, "doctor")

        file.write_text(f"{text}// a{' ' * 400}b\n")
        shown = await said(tmp_path, "scripts", "approve", "by_state", "--digest", "sha256:0", code=2)
        assert "+// a\\x20{400}b" in shown, "nothing is pushed out of sight"

        file.write_text(text.replace("{ total,", "{ total: 0 * total,"))
        assert (await listed(tmp_path))["by_state"]["state"] == "changed since it was approved"
        assert json.loads(await said(tmp_path, *run_saved, *given))["result"] == ran["result"]
        tested = await said(tmp_path, "test", "--offline", code=1)
        assert tested.startswith("by_state: broken (this is its file, not the version that runs)\n")
        assert "another result" in tested

        # What is not approved is not called; what is, is.
        call = 'import { by_state } from "@codemode/scripts";\n'
        call += 'export default await by_state({ status: "open", kind: "ux" });'
        done = (await run(served, code=call)).structured_content
        assert (done["result"] or {}).get("of") == "open", done
        await refused(tmp_path, (("scripts", "remove", "by_stat"), "Did you mean by_state?"))
        await said(tmp_path, "scripts", "remove", "by_state")
        assert (await run(served, code=call)).structured_content["result"] is None
        await refused(tmp_path, (("scripts", "remove", "by_state"), "No version"))


@pytest.mark.thorough
@pytest.mark.timeout(180)
async def test_an_agent_and_a_page_only_propose(tmp_path: Path) -> None:
    async with daemon(tmp_path, servers={"tracker": tracker()}, **SECTION) as served:
        for code, told in ((CODE, "SCRIPT_PROPOSED"), (CODE + "// evil", "SCRIPT_NOT_PROPOSED")):
            done = (await run(served, code=code, propose="by_agent")).structured_content
            assert [one["code"] for one in done["diagnostics"]] == [told]
        assert "evil" not in (tmp_path / "kept" / "by_agent.ts").read_text()
        wrong = await run(served, code=CODE, propose="../x")
        assert wrong.is_error and "Give `propose` as a name" in wrong.content[0].text

        run_id = (await run(served, code=CODE)).structured_content["usage"]["runId"]
        for path, headers, status in [
            (f"{run_id}/by_page", {}, 401),
            (f"{run_id}/By-Page", served.auth, 422),
            ("0000000000000000/by_page", served.auth, 422),
            (f"{run_id}/by_page", served.auth, 200),
            (f"{run_id}/by_page", served.auth, 422),
        ]:
            answer = await served.ask("POST", f"/dashboard/scripts/{path}", headers=headers, body=b"")
            assert answer.status == status, (path, answer)
        states = {name: one["state"] for name, one in (await listed(tmp_path)).items()}
        assert states == dict.fromkeys(("by_agent", "by_page"), "waits for approval")


async def test_a_client_that_may_not_propose(tmp_path: Path) -> None:
    section: dict[str, Any] = {**SECTION, "scripts": {"dir": "kept"}}
    async with daemon(tmp_path, **section) as served:
        wrong = await run(served, code="1", propose="by_agent")
        assert wrong.is_error and "may not propose" in wrong.content[0].text
        assert not (tmp_path / "kept").exists()


WEEKLY = """import { list_issues } from "@codemode/servers/tracker";
const { total } = await list_issues({ label: "bug" });
globalThis.__codemode_result__ = { total, since: input.since };
"""

PAGE = (ROOT / "docs" / "scripts.md").read_text(encoding="utf-8")
CRON = re.search(r"^0 7 \* \* 1  (.*)$", PAGE, re.MULTILINE)
UNIT = re.search(r"^ExecStart=%h/.local/bin/cellblock (.*)$", PAGE, re.MULTILINE)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd on this machine")
def test_systemd_understands_the_documented_unit_and_timer(tmp_path: Path) -> None:
    units = re.findall(r"^# ~/.config/systemd/user/(\S+)\n(.*?)(?=^# |^```)", PAGE, re.MULTILINE | re.DOTALL)
    assert [name for name, _ in units] == ["weekly-report.service", "weekly-report.timer"]
    for name, text in units:
        (tmp_path / name).write_text(text.replace("%h/.local/bin/cellblock", str(CELLBLOCK)))
    # Without a runtime directory of the user it looks at nothing.
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    words = ["systemd-analyze", "verify", "--user", "--man=no", *(str(tmp_path / name) for name, _ in units)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def by_cron(home: Path, line: str) -> int:
    """Runs a line of a crontab as cron does."""
    command = home / ".local" / "bin" / "cellblock"
    command.parent.mkdir(parents=True, exist_ok=True)
    command.unlink(missing_ok=True)
    command.symlink_to(CELLBLOCK)
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin", "SHELL": "/bin/sh", "LOGNAME": "someone"}
    return subprocess.run(
        ["/bin/sh", "-c", line], env=environment, cwd=home, timeout=100, check=False
    ).returncode


@pytest.mark.thorough
@pytest.mark.timeout(120)
async def test_the_documented_lines_of_cron_and_systemd(tmp_path: Path) -> None:
    assert CRON is not None and UNIT is not None
    section = {**SECTION, "state_dir": str(tmp_path / "s"), "journal": "parked"}
    write_config(tmp_path, {"tracker": tracker()}, **section)
    (tmp_path / "weekly.js").write_text(WEEKLY)
    given = ("--input", '{"since": "2026-11-02"}')
    await said(tmp_path, "save", str(tmp_path / "weekly.js"), "weekly_report", *given)
    file = tmp_path / "kept" / "weekly_report.ts"
    for approve, code in ((False, 0), (True, 1)):
        if approve:
            file.write_text(file.read_text().replace('"readOnly": true', '"approve": ["tracker.*"]'))
        digest = (await listed(tmp_path))["weekly_report"]["digest"]
        await said(tmp_path, "scripts", "approve", "weekly_report", "--digest", digest)
        ran = json.loads(
            (await said(tmp_path, *shlex.split(UNIT[1]), code=code)).partition("\ncellblock:")[0]
        )
        if not approve:
            assert ran["result"] == {"total": 16, "since": "2026-11-02"}
        # The file of someone's own configuration is where nothing names another.
        own = tmp_path / ".config" / "cellblock" / "cellblock.json"
        own.parent.mkdir(parents=True, exist_ok=True)
        config = (tmp_path / "cellblock.json").read_text()
        own.write_text(config.replace('"kept"', json.dumps(str(tmp_path / "kept"))))
        assert await asyncio.to_thread(by_cron, tmp_path, CRON[1]) == code
        report = json.loads((tmp_path / "report.json").read_text())
        assert report["result"] == (None if approve else {"total": 16, "since": "2026-11-02"})
    assert ran["diagnostics"][0]["code"] == "RUN_PARKED"
    other = ("test", "weekly_report", "--input", '{"since": "2026-11-09"}')
    assert "nobody can be asked" in await said(tmp_path, *other, code=2)
    file.write_text(file.read_text().replace('"approve": ["tracker.*"]', '"readOnly": true'))
    assert json.loads(await said(tmp_path, *other, "--yes"))["result"]["since"] == "2026-11-09"
    run_id = ran["usage"]["runId"]
    await said(tmp_path, "runs", "approve", run_id)
    assert json.loads(await said(tmp_path, "runs", "resume", run_id))["result"]["since"] == "2026-11-02"


@pytest.mark.thorough
@pytest.mark.skipif(browser_path() is None, reason=WHERE_FROM)
async def test_the_button_of_the_dashboard(tmp_path: Path) -> None:
    async with daemon(tmp_path, servers={"tracker": tracker()}, **SECTION) as served, browser() as chromium:
        await run(served, code=CODE)
        words = ("dashboard", "--no-open", "--url", served.url, "--state-dir", served.folder / "s")
        page = await (await chromium.new_context()).new_page()
        page.on("dialog", lambda dialog: dialog.accept("from_page"))
        await page.goto((await cellblock(*words)).out.strip())
        await page.locator("#recent tr button").first.click()
        await page.locator("#detail-keep").click()
        await page.locator("#detail-kept", has_text="Kept. It runs when it is approved").wait_for()
    assert (tmp_path / "kept" / "from_page.ts").is_file()
