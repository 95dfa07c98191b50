"""One-shot commands ask a daemon of the same configuration, and start servers of their own where none runs."""

import asyncio
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from support.cellblock_zygote import forked_cellblock
from support.commands import cellblock, piped
from support.entries import plain_server
from support.http_daemon import daemon
from support.pseudo_terminal import in_terminal
from support.waits import until, until_found, within

SCRIPT = (
    'import { echo } from "@codemode/servers/plain"; console.log("é"); export default await echo({ a: 1.5 });'
)
BROKEN = "import sys; print('Traceback:\\nacme.Error:\\nno key in ACME_KEY', file=sys.stderr); sys.exit(1)"

FAILS_ONCE = '[ -e "$1" ] && exec sleep 600; : > "$1"; echo "Error: no database." >&2; exit 1'

LIGHT: dict[str, Any] = {"pool": {"warm": 0}, "typecheck": "off"}


def starts(folder: Path) -> int:
    return (folder / "starts").read_text().count("x") if (folder / "starts").exists() else 0


def counted(folder: Path) -> dict[str, object]:
    """The plain server, which writes a letter for each of its starts."""
    plain = plain_server()
    begin = f'printf x >> {folder}/starts; exec "$@"'
    return {"command": "sh", "args": ["-c", begin, "sh", plain["command"], *plain["args"]]}


async def test_five_commands_start_a_server_once(tmp_path: Path) -> None:
    script, failing = tmp_path / "script.js", tmp_path / "failing.js"
    script.write_text(SCRIPT)
    failing.write_text("throw new Error('no')")
    servers = {"plain": counted(tmp_path), "broken": {"command": sys.executable, "args": ["-c", BROKEN]}}
    async with daemon(tmp_path, servers=servers, **LIGHT) as running:
        options = ["--config", str(tmp_path / "cellblock.json"), "--state-dir", str(tmp_path / "s")]
        code, out, err = await cellblock("run", script, "--max-tool-calls", "3", *options)
        response = json.loads(out)
        assert (code, response["result"], err) == (0, '{"a": 1.5}', "")
        assert [one["message"] for one in response["logs"]] == ["é"]
        code, out, err = await cellblock("run", failing, *options)
        assert code == 1 and json.loads(out)["diagnostics"][0]["message"].endswith("no")
        assert "the script failed" in err
        code, out, _ = await cellblock("run", script, "--require", "broken", *options)
        assert (code, out) == (2, "")
        code, out, err = await cellblock("types", "plain", *options)
        assert code == 0 and "function echo(" in out and not err
        code, out, err = await cellblock("search", "zzz", *options)
        assert (code, out) == (1, "nothing found; not connected: broken\n") and "no key in ACME_KEY" in err
        code, out, _ = await cellblock("inspect", "plain.echo", *options)
        assert code == 0 and json.loads(out)["toolName"] == "echo"
        code, _, err = await cellblock("inspect", "broken.tool", *options)
        assert code == 2 and "Server broken is not connected" in err and "ACME_KEY" in err
        code, out, _ = await cellblock("doctor", "--json", *options)
        assert code == 1 and json.loads(out)["servers"]["plain"].startswith("connected, ")
        assert starts(tmp_path) == 1

        async def is_between_two_tries() -> bool:
            code, out, _ = await cellblock("status", *options)
            assert code == 1 and "plain: ready" in out and "it said: no key in ACME_KEY" in out
            return "again: cellblock restart broken" in out

        await until_found(is_between_two_tries, "the broken server waits for its next start")
        code, out, _ = await cellblock("logs", "broken", *options)
        assert (
            code == 0 and "cellblock: not connected: it ended by itself; it said: no key in ACME_KEY" in out
        )
        assert (await cellblock("restart", "plain", *options))[0] == 0 and starts(tmp_path) == 2
        code, out, _ = await cellblock("status", "plain", "--json", *options)
        assert code == 0 and json.loads(out)["pid"] == running.process.pid
        assert (await cellblock("status", "none", *options))[0] == 2

        # Another file is another configuration, whatever it says.
        other = tmp_path / "other.json"
        other.write_bytes((tmp_path / "cellblock.json").read_bytes())
        elsewhere = ["--config", str(other), "--state-dir", str(tmp_path / "s")]
        code, out, err = await cellblock("run", script, *elsewhere)
        assert code == 0 and json.loads(out)["result"] == '{"a": 1.5}' and "another configuration file" in err
        assert starts(tmp_path) == 3
        code, out, _ = await cellblock("stop", *elsewhere)
        assert code == 0 and out.startswith("Nothing was ended.")
        # What needs a restart is not in force, and so not what the command would use.
        changed = json.loads(other.read_text())
        changed["cellblock"]["pool"]["warm"] = 1
        changed["cellblock"]["limits"] = {"max_tool_calls": 50}
        (tmp_path / "cellblock.json").write_text(json.dumps(changed))
        code, out, err = await cellblock("run", script, *options)
        assert code == 0 and "cellblock.pool.warm has changed, which needs a restart" in err
        assert starts(tmp_path) == 4
        # The state of the daemon that runs is what `status` is for.
        code, out, err = await cellblock("status", *options)
        assert code == 1 and "plain: ready" in out
        why = "cellblock.pool.warm has changed, which needs a restart\n"
        assert f"the daemon has not taken over its configuration file as it is now: {why}" in err

        code, out, _ = await cellblock("stop", *options)
        assert code == 0 and out == f"The daemon (process {running.process.pid}) has ended.\n"
        await within(running.process.wait())
    code, out, err = await cellblock("stop", *options)
    assert (code, err) == (0, "") and "No daemon" in out
    assert (await cellblock("status", *options))[0] == 3


async def test_a_daemon_asks_the_person_at_the_command_and_ends_the_run_of_one_that_is_ended(
    tmp_path: Path,
) -> None:
    asks, waits = tmp_path / "asks.js", tmp_path / "waits.js"
    asks.write_text(
        'import { give } from "@codemode/servers/plain"; export default (await give({ path: "a" })).path;'
    )
    waits.write_text('import { never } from "@codemode/servers/plain"; await never({});')
    servers = {"plain": plain_server("--ledger", tmp_path / "ledger.jsonl")}
    policy = {"default": {"approve": ["plain.give"]}}
    async with daemon(tmp_path, servers=servers, policy=policy, **LIGHT) as running:
        options = ["--config", str(tmp_path / "cellblock.json"), "--state-dir", str(tmp_path / "s")]
        asked = ["run", str(asks), *options]
        async with in_terminal(
            str(forked_cellblock()), *asked, streams=(0, 2), stdout=asyncio.subprocess.PIPE
        ) as terminal:
            await until(lambda: "Allow it? [y/N] " in terminal.text, "the question", bound=60)
            terminal.press(b"y\n")
            assert json.loads(await within(terminal.process.stdout.read(), 60))["result"] == "a"
        async with piped("run", waits, *options) as command:
            await until(lambda: running.recorded(tool="never") == 1, "the call is made", bound=60)
            command.process.terminate()
            assert await within(command.process.wait()) == 143
        await until(lambda: running.recorded(event="cancelled") == 1, "the run has ended", bound=60)


async def test_a_server_that_is_being_installed_still_starts(tmp_path: Path) -> None:
    servers = {
        "late": {"command": "sleep", "args": ["600"]},
        "absent": {"command": str(tmp_path / "absent")},
        "again": {"command": "sh", "args": ["-c", FAILS_ONCE, "sh", str(tmp_path / "began")]},
    }
    async with daemon(tmp_path, servers=servers, upstream={"connect_timeout_ms": 300_000}, **LIGHT):
        options = ["--config", str(tmp_path / "cellblock.json"), "--state-dir", str(tmp_path / "s")]
        code, out, _ = await cellblock("status", "late", *options)
        assert code == 1 and "late: connecting" in out and out.endswith("  It still starts\n")
        code, out, _ = await cellblock("status", "absent", *options)
        assert code == 1 and "again: cellblock restart absent" in out
        assert out.count("Correct command in its entry") == 1

        # What is tried again has failed, and does not still start.
        async def tried_again() -> str | None:
            out = (await cellblock("status", "again", *options)).out
            return out if "again: connecting" in out and "no database" in out else None

        said = await until_found(tried_again, "the second attempt", bound=60)
        assert "All that it said is in" in said and "It still starts" not in said
        assert "Did you mean again?" in (await cellblock("status", "agan", *options)).err


async def test_a_daemon_whose_state_was_removed_ends(tmp_path: Path) -> None:
    looks = {"cellblock.app.cli.serve_http.POLL_SECONDS": 0.1}
    async with daemon(tmp_path, constants=looks, **LIGHT) as running:
        shutil.rmtree(tmp_path / "s")
        assert await within(running.process.wait(), 60) == 0
