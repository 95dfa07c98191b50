"""`cellblock add`, `remove`, `enable` and `disable` on files that people write, with their comments."""

import json
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from cellblock.app.cli import approval
from cellblock.app.cli.arguments import default_file
from cellblock.base.settings.syntax import parse
from support.commands import in_this_process as cellblock
from support.entries import plain_server

COMMENTED = """{
  // what I work with
  "mcpServers": {
    "files": {"command": "true", "args": ["/srv"]}, // mine
    "wiki": {
      "url": "https://wiki.example/mcp", /* the team's */
    },
  },
  "cellblock": {"pool": {"warm": 1}},
}
"""

TOML = """# what I work with
[mcpServers.files]
command = "true"  # mine

[cellblock.pool]
warm = 1
"""

TOKEN = "sk-1234567890abcdefghij1234"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def servers(file: Path) -> dict[str, Any]:
    text = file.read_text()
    return (tomllib.loads(text) if file.suffix == ".toml" else parse(text, toml=False))["mcpServers"]


def tool(name: str, description: str = "Is harmless") -> dict[str, Any]:
    return {"name": name, "description": description, "inputSchema": {"type": "object"}}


def copies(file: Path) -> list[str]:
    return [one.read_text() for one in file.parent.glob(f"{file.name}.*.bak")]


@pytest.mark.parametrize(("name", "text"), [("cellblock.json", COMMENTED), ("cellblock.toml", TOML)])
def test_one_entry_changes_and_nothing_else(home: Path, name: str, text: str) -> None:
    file = home / name
    file.write_text(text)
    file.chmod(0o640)
    config = ["--config", str(file)]
    done = cellblock("add", "new", *config, "--env", "A=b=c", "--", "true", "-y", "--", "x y")
    assert done.code == 0, done.err
    assert servers(file)["new"] == {"command": "true", "args": ["-y", "--", "x y"], "env": {"A": "b=c"}}
    assert set(text.splitlines()) <= set(file.read_text().splitlines())
    assert copies(file) == [text]
    assert file.stat().st_mode & 0o777 == 0o640
    assert cellblock("disable", "files", *config).code == 0
    assert servers(file)["files"]["disabled"] is True
    assert "already" in cellblock("disable", "files", *config).out
    assert cellblock("enable", "files", *config).code == 0
    assert cellblock("remove", "new", *config).code == 0
    # Only the comma behind the last entry has gone.
    assert file.read_text().replace(",", "") == text.replace(",", "")


SAID = """{
  // servers
  "mcpServers": {
    "a": {"command": "true"}, // the first
    "b": {"url": "https://b.example/mcp"} // the second
  },
  "cellblock": {
    // times
    "upstream": {"servers": {
      "a": {"call_timeout_ms": 90000}, // slow
      "b": {"call_timeout_ms": 1000} // fast
    }},
    "pins": {"servers": {"b": "warn"}},
    "auth": {"servers": {"b": {"scopes": ["x"]}}}, // log in
    "schemas": {"servers": {"b": {"learn": false}}}
  }
}
"""

SAID_TOML = """# servers
[mcpServers.a]
command = "true" # the first

[mcpServers.b]
url = "https://b.example/mcp" # the second

[cellblock.upstream.servers.a] # slow
call_timeout_ms = 90000

[cellblock.upstream.servers.b]
call_timeout_ms = 1000

[cellblock.auth.servers.b]
scopes = ["x"]

[cellblock.pool]
warm = 1 # few
"""


@pytest.mark.parametrize(("name", "text"), [("c.json", SAID), ("c.toml", SAID_TOML)])
def test_what_the_section_says_of_a_server_goes_with_it(home: Path, name: str, text: str) -> None:
    file = home / name
    file.write_text(text)
    done = cellblock("remove", "b", "--config", str(file))
    assert done.code == 0, done.err
    assert done.out.startswith("Removed: b, and ") and "cellblock.auth.servers.b" in done.out
    left = parse(file.read_text(), toml=name.endswith("toml"))
    assert servers(file) == {"a": {"command": "true"}}
    section = left["cellblock"]
    assert section["upstream"]["servers"] == {"a": {"call_timeout_ms": 90_000}}
    assert not any(section.get(part, {}).get("servers") for part in ("pins", "auth", "schemas"))
    for comment in ("servers", "the first", "slow"):
        assert comment in file.read_text()
    assert cellblock("remove", "a", "--config", str(file)).code == 0
    assert cellblock("config", "check", "--config", str(file)).code == 0


def test_a_server_that_was_imported_with_times_can_be_removed(home: Path) -> None:
    (home / ".codex").mkdir()
    (home / ".codex/config.toml").write_text('[mcp_servers.a]\ncommand = "true"\ntool_timeout_sec = 90\n')
    assert cellblock("import", "--yes", "--from", "codex").code == 0
    done = cellblock("remove", "a")
    assert done.code == 0, done.err


def test_a_policy_that_names_a_server_keeps_it(home: Path) -> None:
    file = home / "c.json"
    file.write_text(
        '{"mcpServers": {"a": {"command": "true"}}, "cellblock": {"policy": {"default": {"tools": ["a.x"]}}}}'
    )
    done = cellblock("remove", "a", "--config", str(file))
    assert done.code == 2
    assert "policy.default.tools" in done.err and "Take a out of these patterns first" in done.err
    assert "a" in servers(file)


def test_several_are_changed_at_once_or_none(home: Path) -> None:
    file = home / "c.json"
    entries = {name: {"command": "true"} for name in ("a", "b", "c")}
    file.write_text(json.dumps({"mcpServers": entries, "cellblock": {"pins": {"a": "off", "b": "off"}}}))
    place = ("--config", str(file))
    assert cellblock("disable", "a", "b", *place).out.startswith("Disabled: a, b (")
    assert [bool(one.get("disabled")) for one in servers(file).values()] == [True, True, False]
    done = cellblock("enable", "c", "a", *place)
    assert done.out.startswith("c is enabled already.\nEnabled: a (")
    assert cellblock("remove", "a", "z", *place).code == 2 and set(servers(file)) == {"a", "b", "c"}
    done = cellblock("remove", "a", "b", "a", *place)
    assert done.code == 0 and "Removed: a, b, and cellblock.pins.a, cellblock.pins.b (" in done.out
    assert set(servers(file)) == {"c"}


def test_by_what_name_scripts_import_it_is_told(home: Path) -> None:
    done = cellblock("add", "bad name!", "--", "no-such-program")
    assert done.code == 0 and "Scripts import it from @codemode/servers/bad-name\n" in done.out
    assert "@codemode" not in cellblock("add", "plain", "--", "no-such-program").out


@pytest.mark.skipif(sys.platform == "darwin", reason="has no /proc")
def test_a_home_that_cannot_be_used_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "file").touch()
    monkeypatch.setenv("HOME", str(home / "file"))
    done = cellblock("add", "x", "--", "true")
    assert f"{home}/file/.local/state/cellblock/secrets cannot be used: Not a directory." in done.err
    assert done.code == 3 and "Is HOME your own folder?" in done.err
    monkeypatch.setenv("HOME", "/proc/nobody")
    done = cellblock("add", "x", "--", "true")
    folder = default_file().parent
    said = f"cellblock.json: No such file or directory. Its folder {folder} cannot be made. Is HOME"
    assert done.code == 2 and said in done.err


def test_what_a_server_lacks_is_told_once_and_where_it_matters(home: Path) -> None:
    file = home / "c.json"
    lacking = '{"command": "true", "env": {"T": "${env:NOT_SET_HERE_AT_ALL}"}}'
    file.write_text(f'{{"mcpServers": {{"a": {{"command": "true"}}, "b": {lacking}}}}}')
    for words in (["disable", "a"], ["enable", "a"], ["add", "c", "--", "true"], ["remove", "a"]):
        done = cellblock(words[0], words[1], "--config", str(file), *words[2:])
        assert done.code == 0 and "NOT_SET_HERE_AT_ALL" not in done.err, done.err
    place = ("--config", str(file), "--state-dir", str(home / "s"))
    for words in (["token", "create", "me"], ["token", "list"], ["token", "revoke", "me"], ["runs", "list"]):
        done = cellblock(*words, *place)
        assert done.code == 0 and "NOT_SET_HERE_AT_ALL" not in done.err, done
    assert "NOT_SET_HERE_AT_ALL" in cellblock("config", "check", "--config", str(file)).out
    for words in (
        ["disable", "b"],
        ["enable", "b"],
        ["add", "d", "--env", "T=${env:NOT_SET_HERE_AT_ALL}", "--", "true"],
    ):
        done = cellblock(words[0], words[1], "--config", str(file), *words[2:])
        assert done.code == 0 and done.err.count("NOT_SET_HERE_AT_ALL is not set") == (
            words[0] != "disable"
        ), done


def test_the_default_file_is_made(home: Path) -> None:
    done = cellblock("add", "wiki", "https://wiki.example/mcp", "--header", "X-Team: a b")
    assert done.code == 0, done.err
    assert servers(default_file()) == {
        "wiki": {"url": "https://wiki.example/mcp", "headers": {"X-Team": "a b"}}
    }
    assert default_file().stat().st_mode & 0o777 == 0o600
    assert "secret" not in done.err


def test_a_name_controls_no_terminal(home: Path) -> None:
    name = "a\x1b[31mb"
    for words in (
        ("add", name, "--", "true"),
        ("add", name, "--", "true"),
        ("enable", name),
        ("disable", name),
        ("remove", name),
    ):
        done = cellblock(*words)
        assert done.code == 0, done.err
        assert "[31mb" in done.out and "\x1b" not in done.out + done.err


def test_a_server_that_is_there_is_replaced_only_when_told(home: Path) -> None:
    file = home / "c.json"
    file.write_text(COMMENTED)
    words = ["add", "wiki", "https://other.example/mcp", "--config", str(file)]
    done = cellblock(*words)
    assert done.code == 2
    assert '-      "url": "https://wiki.example/mcp"' in done.err
    assert '+      "url": "https://other.example/mcp"' in done.err
    assert "--replace" in done.err
    assert file.read_text() == COMMENTED and not copies(file)
    assert cellblock(*words, "--replace").code == 0
    assert servers(file)["wiki"] == {"url": "https://other.example/mcp"}
    assert "already" in cellblock(*words).out


def test_a_secret_is_written_as_told_and_said_once_without_being_shown(home: Path) -> None:
    file = home / "c.json"
    file.write_text(COMMENTED)
    file.chmod(0o644)
    words = ["add", "api", "https://api.example/mcp", "--header", f"Authorization: Bearer {TOKEN}"]
    done = cellblock(*words, "--header", f"X-Api-Key: {TOKEN}", "--config", str(file))
    assert done.code == 0
    assert servers(file)["api"]["headers"]["Authorization"] == f"Bearer {TOKEN}"
    assert done.err.count("${env:NAME}") == 1
    assert TOKEN not in done.err + done.out
    # What others could read is the user's alone now.
    assert file.stat().st_mode & 0o777 == 0o600
    other = cellblock(
        "add", "api", "https://b.example/mcp", "--header", f"X-Api-Key: b{TOKEN}", "--config", str(file)
    )
    assert other.code == 2 and TOKEN not in other.err


def test_what_config_check_finds_is_not_written(home: Path) -> None:
    file = home / "c.json"
    file.write_text(COMMENTED)
    done = cellblock("add", "new", "https://", "--config", str(file))
    assert done.code == 2
    assert f"{file}:9:" in done.err and "mcpServers.new.url" in done.err
    assert file.read_text() == COMMENTED and not copies(file)
    # The daemon's environment is not this one.
    words = [
        "add",
        "new",
        "https://a.example",
        "--header",
        "X-Key: ${env:NOT_SET_HERE}",
        "--config",
        str(file),
    ]
    done = cellblock(*words)
    assert done.code == 0 and "NOT_SET_HERE is not set" in done.err
    # What was wrong before is told, and keeps nobody from taking out one thing after the other.
    file.write_text('{"mcpServers": {"a": {"comand": "x"}, "b": {"comand": "y"}}}')
    done = cellblock("remove", "a", "--config", str(file))
    assert done.code == 0 and "mcpServers.b.comand" in done.err
    assert servers(file) == {"b": {"comand": "y"}}
    file.write_text("{")
    assert cellblock("remove", "b", "--config", str(file)).code == 2
    assert file.read_text() == "{"


def test_a_clients_file_is_edited_where_it_has_its_servers(home: Path) -> None:
    file = home / "mcp.json"
    file.write_text('{\n\t"inputs": [],\n\t"servers": {\n\t\t"a": {"command": "true"}\n\t}\n}\n')
    assert cellblock("add", "b", "--config", str(file), "--", "true").code == 0
    assert parse(file.read_text(), toml=False)["servers"] == {
        "a": {"command": "true"},
        "b": {"command": "true"},
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["add", " ", "--", "npx"], "a server has no name here"),
        (["add", "x"], "either a URL, or a command behind --"),
        (["add", "x", "npx", "-y", "foo"], "unrecognized arguments: -y foo; a command is given behind --"),
        (["add", "x", "npx"], "npx is no http or https URL; a command is given behind --"),
        (["add", "x", "https://a.example", "--", "npx"], "either a URL"),
        (["add", "x", "https://a.example", "--env", "A=b"], "only with a command"),
        (["add", "x", "--header", "A: b", "--", "npx"], "only with a URL"),
        (["add", "x", "--env", TOKEN, "--", "npx"], "--env NAME=VALUE"),
        (["remove", "fils"], "Did you mean files?"),
        (["remove", ""], 'There is no server "" in'),
        (["restart"], "the following arguments are required: SERVER"),
        (["restart", "files", "--url", "http://127.0.0.1:1/mcp"], "No daemon answers"),
        (["logs", "files"], "no server files of a daemon has had one"),
    ],
)
def test_wrong_words_are_told(words: list[str], said: str) -> None:
    default_file().parent.mkdir(parents=True)
    default_file().write_text('{"mcpServers": {"files": {"command": "true"}}}')
    before = default_file().read_text()
    done = cellblock(*words)
    assert done.code in (2, 3)
    assert said in done.err and TOKEN not in done.err
    assert default_file().read_text() == before


def test_a_program_that_is_not_there_is_told(home: Path) -> None:
    done = cellblock("add", "x", "--", "no-such-program")
    assert done.code == 0 and "no program no-such-program" in done.err
    program = home / "server.sh"
    program.write_text("#!/bin/sh\necho 'Error: no database.' >&2\n")
    program.chmod(0o755)
    done = cellblock("add", "y", "--", f".{os.sep}server.sh")
    # The daemon has another folder.
    assert servers(default_file())["y"] == {"command": str(program)}
    said = "it ended by itself; it said: Error: no database. All that it said is in "
    assert done.err.startswith(f"cellblock: Server y is not connected: {said}") and done.err.endswith(
        ".log.\n"
    )


def test_files_are_named_so_that_the_daemon_finds_them_too(home: Path) -> None:
    (home / "dist").mkdir()
    for name in ("crash.py", "dist/index.js", "time"):
        (home / name).touch()
    cellblock(
        "add", "x", "--", "no-such", "crash.py", "dist/index.js", "./dist", "time", "dist", "-c", "absent.py"
    )
    args = [str(home / name) for name in ("crash.py", "dist/index.js", "dist")]
    # The others may be names of something else.
    assert servers(default_file())["x"]["args"] == [*args, "time", "dist", "-c", "absent.py"]


def test_what_a_server_shows_when_it_is_added_is_pinned_then(home: Path) -> None:
    definitions = home / "definitions.json"
    definitions.write_text(json.dumps({"pages": [[tool("one"), tool("two")]]}))
    entry = plain_server("--definitions", definitions)
    done = cellblock("add", "x", "--", str(entry["command"]), *entry["args"])
    assert done.code == 0 and done.err == "cellblock: x: 2 tools\n"
    definitions.write_text(json.dumps({"pages": [[tool("one", "Is another"), tool("two")]]}))
    shown = cellblock("approve", "x", "--show")
    assert "1 of 2 tools are not as they were pinned" in shown.out and "~ one (changed)" in shown.out


def test_what_is_left_out_of_a_server_that_is_added_is_told(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    definitions, file = home / "definitions.json", default_file()
    pages = [[tool("one"), tool("two")]]
    definitions.write_text(json.dumps({"pages": pages, "introduction": {"instructions": "Begin with one."}}))
    file.parent.mkdir(parents=True)
    file.write_text('{"cellblock": {"pins": {"*": "quarantine"}}}')
    entry = plain_server("--definitions", definitions)
    words = ("x", "--", str(entry["command"]), *entry["args"])
    assert cellblock("add", *words).err == "cellblock: x: 2 tools\n"
    # The same command comes again with another tool.
    assert cellblock("remove", "x").code == 0
    pages[0][0] = tool("one", "Is another")
    definitions.write_text(json.dumps({"pages": pages, "introduction": {"instructions": "Begin with two."}}))
    why = "are new or not as they were pinned and are left out: one. Review them: `cellblock pins approve x`."
    said = f"cellblock: x: 1 tool. 1 of its tools and its introduction {why}\n"
    assert cellblock("add", *words).err == said
    assert "x: 1 of 2 tools and its introduction are not" in cellblock("pins", "approve", "x", "--show").out
    # One that takes long is pinned for another command until then.
    monkeypatch.setattr(approval, "TRY_SECONDS", 0)
    why = "2 of its tools and its introduction were pinned for another command or URL"
    said = f"cellblock: x: it still starts after 0 s; {why}: review them by `cellblock pins approve x`\n"
    assert cellblock("add", "--replace", *words, "more").err == said


def test_whatever_key_switched_a_server_off_it_is_switched_on(home: Path) -> None:
    file = home / "c.json"
    file.write_text('{"mcpServers": {"a": {"command": "x", "enabled": false}, "b": 5}}')
    done = cellblock("enable", "a", "--config", str(file))
    assert done.code == 0 and servers(file)["a"] == {"command": "x"}, done.err
    done = cellblock("disable", "b", "--config", str(file))
    assert done.code == 2 and "no object" in done.err
