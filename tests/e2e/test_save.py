"""Scripts from a run to cron: kept, reviewed, approved, run, tested, proposed, by the commands that people type."""

import asyncio
import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.browser import WHERE_FROM, browser, browser_path
from support.commands import cellblock
from support.documents import ROOT
from support.entries import CELLBLOCK, tracker, write_config
from support.http_daemon import TOOL, Daemon, daemon
from support.waits import within

CODE = """// Counts issues by state.
import { list_issues } from "@codemode/servers/tracker";
const { total } = await list_issues({ status: "open", label: 'bug' });
globalThis.__codemode_result__ = { total, of: "open" };
"""
SECTION: dict[str, Any] = {
    "journal": "all",
    "auth": {"keyring": "off"},
    "typecheck": "off",
    "scripts": {"dir": "kept", "propose": ["token"]},
}


def place(folder: Path) -> tuple[object, ...]:
    return ("--config", folder / "cellblock.json", "--state-dir", folder / "s")


async def said(folder: Path, *words: str, code: int = 0) -> str:
    """What a command says that ends so."""
    done = await cellblock(*words, *place(folder))
    assert done.code == code, done
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
        done = await cellblock("save", run_id, "by_state", *literals, *place(tmp_path))
        assert done.code == 0 and f"kept by_state: 1 tool, in {file}. It runs" in done.err
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
        assert (await run(served, code=call)).structured_content["result"]["of"] == "open"
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
