"""The `cellblock` command: options, exit codes, and what is on standard output. Completion: what bash, zsh and fish are
given works in each of them, where it is installed, and asks this program.
"""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cellblock import __version__
from cellblock.app.cli.demo import show
from cellblock_worker.wire.keys import read_key_file
from support.cellblock_zygote import forked_cellblock
from support.commands import on_terminal
from support.entries import plain_server, write_config
from support.http_daemon import Daemon

BOUND_SECONDS = 120


OTHERS = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
"""The streams that are no terminal where standard output is one."""

Outcome = subprocess.CompletedProcess[str]
Place = tuple[object, ...]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A fresh HOME, so that no test writes into anybody's state directory."""
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
def command(home: Path) -> Any:
    """Runs `cellblock` with arguments; `code` is its standard input."""

    def run(*arguments: object, code: str = "", env: Mapping[str, str] | None = None) -> Outcome:
        return subprocess.run(
            [str(forked_cellblock()), *map(str, arguments)],
            input=code,
            env={"PATH": os.environ["PATH"], "HOME": str(home), **(env or {})},
            cwd=home,
            capture_output=True,
            text=True,
            timeout=BOUND_SECONDS,
        )

    return run


@pytest.fixture
def place(served: Daemon) -> Place:
    """The options of a command that asks the daemon of all tests."""
    return ("--config", served.folder / "cellblock.json", "--state-dir", served.folder / "s")


def response_of(outcome: Outcome, code: int = 0) -> dict[str, Any]:
    """Standard output as one JSON document, which it must be as a whole, of a command that ends so."""
    assert outcome.returncode == code, outcome.stderr
    return json.loads(outcome.stdout)


def fails(outcome: Outcome, code: int, *said: str) -> None:
    """It printed nothing on standard output and one message without a traceback on standard error."""
    assert (outcome.returncode, outcome.stdout) == (code, ""), outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert all(part in outcome.stderr for part in said), outcome.stderr


def test_a_file_and_standard_input_give_the_same(command: Any, tmp_path: Path) -> None:
    script = tmp_path / "script.ts"
    script.write_text(
        "const n: number = 40; console.log('ü'); globalThis.__codemode_result__ = { n };", "utf-8"
    )
    for outcome in (command("run", script), command("run", "-", code=script.read_text("utf-8"))):
        response = response_of(outcome)
        assert (outcome.stderr, response["result"], response["diagnostics"]) == ("", {"n": 40}, [])
        assert [log["message"] for log in response["logs"]] == ["ü"]


def test_without_a_named_configuration_the_users_own_is_used(command: Any, home: Path) -> None:
    own = home / ".config" / "cellblock" / "cellblock.json"
    own.parent.mkdir(parents=True)
    own.write_text(json.dumps({"mcpServers": {}, "cellblock": {"limits": {"max_tool_calls": [2, 3]}}}))
    over = ("run", "-", "--max-tool-calls", 99)
    assert "3" in str(response_of(command(*over, code="1"))["diagnostics"])
    other = home / "other.json"
    other.write_text('{"mcpServers": {}}')
    assert "LIMIT" not in str(response_of(command(*over, "--config", other, code="1"))["diagnostics"])
    own.write_text('{"mcpServer": {}}')
    fails(command("types"), 2, str(own), "mcpServers")


def test_config_servers_and_require(command: Any, tmp_path: Path) -> None:
    config = write_config(
        tmp_path, {"Plain One": plain_server(), "Not There": {"command": "no-such-program"}}
    )
    code = """
        import { echo } from "@codemode/servers/plain-one";
        globalThis.__codemode_result__ = await echo({ a: 1 });
    """
    common = ("run", "-", "--config", config, "--state-dir", tmp_path / "s")
    fine = command(*common, "--require", "Plain One", "--require", "plain-one", code=code)
    assert response_of(fine)["result"] == '{"a": 1}'
    fails(command(*common, "--require", "not-there", code=code), 2, "not connected", "no-such-program")


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--timeout-ms", 200), "for (;;) {}", "timeoutMs = 200"),
        (("--max-cpu-ms", 100), "for (;;) {}", "maxCpuMs = 100"),
        (
            ("--max-memory-bytes", 64 << 20),
            "const k = []; for (;;) k.push(new Uint8Array(1 << 20).fill(1));",
            f"maxMemoryBytes = {64 << 20}",
        ),
        (
            ("--max-tool-calls", 2),
            'import { echo } from "@codemode/servers/plain"; for (;;) await echo({});',
            "maxToolCalls = 2",
        ),
    ],
    ids=["timeout", "cpu", "memory", "calls"],
)
def test_every_limit_has_an_option(
    command: Any, place: Place, options: tuple[object, ...], code: str, said: str
) -> None:
    first = response_of(command("run", "-", *place, *options, code=code), 1)["diagnostics"][0]
    assert (first["code"], first["errorClass"]) == ("SANDBOX_LIMIT", "SandboxLimitError")
    assert said in first["message"]


def test_the_log_limit_has_an_option(command: Any, place: Place) -> None:
    outcome = command("run", "-", *place, "--max-log-bytes", 5, code="console.log('123456789');")
    logs = response_of(outcome)["logs"]
    # A part is for the last entries.
    assert [log["message"] for log in logs[:2]] == ["1234", "9"] and logs[2]["level"] == "warn"


@pytest.mark.parametrize("from_file", [False, True])
def test_a_script_that_fails_exits_with_1_and_still_prints_its_response(
    command: Any, home: Path, tmp_path: Path, from_file: bool
) -> None:
    code = "console.log('first');\nthrow new TypeError('on purpose');"
    file = tmp_path / "report.ts"
    file.write_text(code)
    outcome = command("run", file if from_file else "-", code=None if from_file else code)
    response = response_of(outcome, 1)
    used = f"none (no --config, and no {home}/.config/cellblock/cellblock.json)"
    assert outcome.stderr == f"cellblock: the script failed; configuration: {used}\n"
    assert response["result"] is None and [log["message"] for log in response["logs"]] == ["first"]
    (found,) = response["diagnostics"]
    assert found["code"] == "UNCAUGHT_EXCEPTION" and "on purpose" in found["message"]
    assert found["path"].startswith(f"{file if from_file else 'script.js'}:2:")


def test_python_tools_of_a_module(command: Any, tmp_path: Path) -> None:
    """Installed beside Cellblock in real life; found by PYTHONPATH here."""
    (tmp_path / "my_tools.py").write_text(
        "from cellblock import tool\n\n\n@tool()\ndef double(n: int) -> int:\n    return 2 * n\n"
    )
    config = write_config(tmp_path, {}, tools=["my_tools"])
    code = """
        import { double } from "@codemode/servers/local";
        globalThis.__codemode_result__ = (await double({ n: 21 })).result;
    """
    outcome = command("run", "-", "--config", config, code=code, env={"PYTHONPATH": str(tmp_path)})
    assert response_of(outcome)["result"] == 42


def test_a_ctrl_c_while_a_command_loads_leaves_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "asyncio.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-m", "cellblock.cli", "status"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=BOUND_SECONDS,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_version_and_help(command: Any) -> None:
    assert command("--version").stdout.strip() == f"cellblock {__version__}"
    assert "--max-memory-bytes" in command("run", "--help").stdout


def test_the_demo_shows_script_calls_answer_and_what_the_model_reads(command: Any, home: Path) -> None:
    outcome = command("demo")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert len(outcome.stdout.splitlines()) < 60
    for part in ("@codemode/servers/tracker", "call  tracker.list_issues", "call  local.capacity"):
        assert part in outcome.stdout
    answer = next(line for line in outcome.stdout.splitlines() if line.startswith("{"))
    assert json.loads(answer)["open"] > 20
    one_by_one, script = re.findall(r"answers?(?: of tools)?, ([\d,]+) characters", outcome.stdout)
    assert int(script.replace(",", "")) == len(answer)
    assert int(one_by_one.replace(",", "")) > 10 * len(answer)
    assert re.search(r"── Next ─+\n  .*cellblock.* install claude-code", outcome.stdout)
    assert list(home.rglob("*")) == []


async def test_a_demo_that_does_not_begin_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(show, "SCRIPT", tmp_path / "script.js")
    show.SCRIPT.write_text('import * as gone from "@codemode/servers/gone";')
    assert await show.run(Namespace(state_dir=tmp_path / "s")) == 1
    assert "Cannot import '@codemode/servers/gone'" in capsys.readouterr().out
    monkeypatch.setattr(show, "TRACKER", "cellblock.no_such_module")
    assert await show.run(Namespace(state_dir=tmp_path / "s")) == 1
    out, err = capsys.readouterr()
    assert "Its calls" not in out and "Traceback" not in err
    assert err.startswith("cellblock: the demo's own server is not connected: it ended by itself; it said: ")


def test_people_get_text_and_colour_and_machines_json(command: Any, home: Path, place: Place) -> None:
    words = ("inspect", "plain.echo", *place)
    code, shown, _ = on_terminal(home, *words, **OTHERS)
    assert code == 0 and "\x1b[1;36mplain.echo\x1b[0m" in shown and "import { echo }" in shown
    plain = on_terminal(home, *words, env={"NO_COLOR": "1"}, **OTHERS).out
    assert "\x1b" not in plain and "import { echo }" in plain
    machine = json.loads(on_terminal(home, *words, "--json", **OTHERS).out)
    assert machine["toolName"] == "echo" and json.loads(command(*words).stdout) == machine


def test_the_response_of_a_run_is_json_on_a_terminal_too(home: Path, tmp_path: Path) -> None:
    script = tmp_path / "one.js"
    script.write_text("globalThis.__codemode_result__ = 1;")
    code, shown, _ = on_terminal(home, "run", script, env={"FORCE_COLOR": "1"}, **OTHERS)
    assert code == 0 and json.loads(shown)["result"] == 1


def test_lists_for_machines(command: Any, place: Place) -> None:
    types = json.loads(command("types", "--json", *place).stdout)
    assert list(types) == ["plain"] and 'module "@codemode/servers/plain"' in types["plain"]
    assert json.loads(command("search", "echo", "--json", *place).stdout)[0]["toolName"] == "echo"
    pins = json.loads(command("pins", "approve", "plain", "--show", "--json", *place).stdout)
    assert pins["server"] == "plain" and pins["approved"] == []


def test_a_servers_names_cannot_drive_the_terminal(command: Any, tmp_path: Path) -> None:
    """A tool whose name holds escape sequences is the nearest to one that there is not."""
    definitions = tmp_path / "definitions.json"
    tool = {"name": "read\x1b[2J\x9b1mfile", "inputSchema": {"type": "object"}}
    definitions.write_text(json.dumps({"pages": [[tool]]}), encoding="utf-8")
    config = write_config(tmp_path, {"plain": plain_server("--definitions", definitions)})
    refused = command("inspect", "plain.read[2J1mfile", "--config", config)
    fails(refused, 2, "There is no tool", "[2J")
    assert all(char == "\n" or char.isprintable() or char == "\ufffd" for char in refused.stderr)
    found = command("search", "read", "--config", config, "--json")
    assert json.loads(found.stdout)[0]["toolName"] == tool["name"]
    assert "\x9b" not in found.stdout and "\x1b" not in found.stdout


def test_all_places_name_the_file_that_was_run(command: Any, place: Place, home: Path) -> None:
    script = home / "my script.js"
    script.write_text(
        "function f() {\n  console.log(new Error('seen').stack);\n  return null.x;\n}\n"
        "globalThis.__codemode_result__ = new Error('kept').stack;\nf();\n"
    )
    response = response_of(command("run", "my script.js"), 1)
    (failed,) = (found for found in response["diagnostics"] if found["severity"] == "error")
    assert failed["path"] == "my script.js:3:15"
    logged = response["logs"][0]["message"]
    assert "my script.js:2:15" in logged and "my script.js:6:1" in logged
    script.write_text(script.read_text().replace("return null.x;", ""))
    assert "my script.js:5:34" in response_of(command("run", "my script.js"))["result"]
    script.write_text("const a = ;")
    (failed,) = response_of(command("run", "my script.js", *place), 1)["diagnostics"]
    assert failed["path"] == "my script.js:1:11" and "script.js" not in failed["message"]
    quoted = home / 'quo"ted.js'
    quoted.write_text("globalThis.__codemode_result__ = new Error('kept').stack;")
    assert "at script.js:1:34" in response_of(command("run", quoted, *place))["result"]


def test_keygen_makes_a_private_file_once_and_prints_the_public_key(command: Any, tmp_path: Path) -> None:
    file = tmp_path / "host.key"
    made = command("keygen", file)
    assert (made.returncode, made.stderr) == (0, "")
    pair = read_key_file(file)
    assert made.stdout == pair.public + "\n" and pair.secret.hex() not in made.stdout
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert command("keygen", file).stdout == made.stdout
    file.chmod(0o644)
    fails(command("keygen", file), 2, "chmod 600")
    fails(command("keygen", tmp_path / "none" / "host.key"), 2, "No such file")


def printed(shell: str) -> str:
    done = subprocess.run(
        [forked_cellblock(), "completion", shell], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr, "cellblock" in done.stdout) == (0, "", True)
    return done.stdout


def by_bash(line: str, folder: Path) -> str:
    """What bash offers at the end of a line, by the function that the script has registered."""
    driver = f"""
        source {folder / "completion"}
        COMP_LINE={line!r}; COMP_POINT=${{#COMP_LINE}}; COMP_TYPE=9
        read -ra COMP_WORDS <<< "$COMP_LINE"
        [[ "$COMP_LINE" == *" " ]] && COMP_WORDS+=("")
        COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
        spec=$(complete -p cellblock)
        [[ $spec =~ -F\\ ([^ ]+) ]]
        "${{BASH_REMATCH[1]}}" cellblock "${{COMP_WORDS[COMP_CWORD]}}" ""
        printf '%s\n' "${{COMPREPLY[@]}}"
    """
    return run(["bash", "--norc", "-c", driver], folder)


def by_fish(line: str, folder: Path) -> str:
    """What fish offers; it writes an explanation behind a tab."""
    offered = run(["fish", "-c", f"source {folder / 'completion'}; complete -C {line!r}"], folder)
    return "\n".join(row.partition("\t")[0] for row in offered.splitlines())


def by_zsh(line: str, folder: Path) -> str:
    """What an interactive zsh offers when the tab key is pressed: all that its completion system is given to add.

    It sits in a terminal of its own, because its line editor does without one nothing.
    """
    functions, offered = folder / "functions", folder / "offered"
    functions.mkdir(exist_ok=True)
    shutil.copy(folder / "completion", functions / "_cellblock")
    (folder / ".zshrc").write_text(f"""
        fpath=({functions} $fpath)
        autoload -Uz compinit; compinit -u -D
        compadd() {{
            if [[ ${{@[1,(i)(-|--)]}} != *-(O|A|D)\\ * ]]; then
                typeset -a found; builtin compadd -A found "$@"; print -rl -- $found >> {offered}
            fi
            builtin compadd "$@"
        }}
        zle-line-init() {{ BUFFER={line!r}; CURSOR=$#BUFFER; zle complete-word; exit }}
        zle -N zle-line-init
    """)
    terminal = "zmodload zsh/zpty; zpty z zsh -i; while zpty -t z; do zpty -r -t z said; sleep 0.05; done"
    run(["zsh", "-f", "-c", terminal], folder)
    return offered.read_text() if offered.exists() else ""


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command,
        env={
            "PATH": f"{forked_cellblock().parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder),
            "ZDOTDIR": str(folder),
        },
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


SHELLS = {"bash": by_bash, "zsh": by_zsh, "fish": by_fish}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("cellblock co", ["completion", "config", "connect"]),
        ("cellblock run --time", ["--timeout-ms"]),
        ("cellblock run --timeout-ms ", []),
        ("cellblock run scr", ["script.js"]),
        ("cellblock serve --profile ", ["default", "extended", "proxy", "strict"]),
        ("cellblock import --from v", ["vscode"]),
        ("cellblock pins approve --config cellblock.json ", ["files", "wiki"]),
        ("cellblock pins approve --config missing.json ", []),
        ("cellblock pins approve ", ["usual"]),
        ("cellblock search --config cellblock.json --server w", ["wiki"]),
    ],
)
def test_what_a_shell_offers(shell: str, line: str, offered: list[str], tmp_path: Path) -> None:
    script = printed(shell)
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} on this machine")
    servers = {"files": {"command": "x"}, "wiki": {"url": "http://x", "headers": {"K": "${NOT_SET}"}}}
    write_config(tmp_path, servers)
    usual = tmp_path / (
        "Library/Application Support/cellblock" if sys.platform == "darwin" else ".config/cellblock"
    )
    usual.mkdir(parents=True)
    write_config(usual, {"usual": {"command": "x"}})
    (tmp_path / "script.js").touch()
    (tmp_path / "completion").write_text(script)
    words = {word.strip() for word in SHELLS[shell](line, tmp_path).splitlines()} - {""}
    assert sorted(word for word in words if not word.startswith("-") or "--" in line[-8:]) == offered
