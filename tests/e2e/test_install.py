"""`cellblock install` on files as each client documents them: what it writes, what it leaves, and how it goes again."""

import io
import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from cellblock.app.cli import approval
from cellblock.app.cli.importing.known import CLIENTS
from cellblock.app.cli.parser import CLIENTS as NAMES
from cellblock.app.config.edit import edited, format_of, read as read_text
from cellblock.app.config.references import names_in
from cellblock.base.settings.syntax import parse
from cellblock_worker.confinement.bubblewrap import find_binary
from support.commands import Said, cellblock, in_this_process, on_terminal
from support.documents import ROOT, examples, statements
from support.entries import CELLBLOCK
from support.params import mostly

pytestmark = pytest.mark.skipif(
    sys.platform == "darwin", reason="the folders of the clients are those of Linux"
)

# The client's file below the home folder, what it may say already, and the keys to Cellblock's entry in it.
FILES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "claude-code": (
        ".claude.json",
        '{\n  "numStartups": 3,\n  "mcpServers": {\n'
        '    "fs": {"type": "stdio", "command": "npx", "args": ["x"], "env": {}}\n  }\n}\n',
        ("mcpServers",),
    ),
    "claude-desktop": (
        ".config/Claude/claude_desktop_config.json",
        '{\n  "mcpServers": {\n    "fs": {"command": "npx", "args": ["-y", "x"]}\n  },\n  "globalShortcut": ""\n}\n',
        ("mcpServers",),
    ),
    "cursor": (".cursor/mcp.json", '{ "mcpServers": {} }', ("mcpServers",)),
    "vscode": (
        ".config/Code/User/mcp.json",
        '{\n\t// asked once\n\t"inputs": [{"type": "promptString", "id": "k", "password": true}],\n'
        '\t"servers": {\n\t\t"fs": {"command": "npx"}, // the disk\n\t},\n}\n',
        ("servers",),
    ),
    "codex": (
        ".codex/config.toml",
        'model = "gpt-5" # mine\n\n[mcp_servers.docs]\ncommand = "docs-server"\n\n[tui]\nnotifications = true\n',
        ("mcp_servers",),
    ),
    "gemini": (".gemini/settings.json", '{\n  "ui": {"theme": "Dark"}\n}\n', ("mcpServers",)),
    "windsurf": (
        ".codeium/windsurf/mcp_config.json",
        '{"mcpServers": {"a": {"serverUrl": "https://a.example"}}}',
        ("mcpServers",),
    ),
    "zed": (
        ".config/zed/settings.json",
        '// Zed settings\n//\n{\n  "theme": "One Dark",\n  "context_servers": {\n'
        '    "a": {"command": "a", "args": [], "env": {}},\n  },\n}\n',
        ("context_servers",),
    ),
    "opencode": (
        ".config/opencode/opencode.json",
        '{\n  "$schema": "https://opencode.ai/config.json",\n  "mcp": {\n'
        '    "a": {"type": "remote", "url": "https://a.example"}\n  }\n}\n',
        ("mcp",),
    ),
    "goose": (
        ".config/goose/config.yaml",
        "GOOSE_PROVIDER: openai # mine\nextensions:\n  developer:\n    bundled: true\n"
        "    enabled: true\n    name: developer\n"
        "    timeout: 300\n    type: builtin\n",
        ("extensions",),
    ),
}  # fmt: skip


OURS = ".config/cellblock/cellblock.json"


def read(file: Path) -> dict[str, Any]:
    return read_text(file.read_text(), format_of(file.name))


def install(
    home: Path,
    *clients: str,
    words: Sequence[str] = ("install",),
    given: str = "",
    code: int = 0,
    **more: str,
) -> Said:
    """Runs the command as its program does, which is to end so."""
    words = (*words, *clients)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "environ", environment(home) | more)
        patch.chdir(home)
        patch.setattr(sys, "argv", [str(CELLBLOCK), *words])
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
        # Servers of other people are not started by a test.
        patch.setattr(approval, "TRY_SECONDS", 0)
        return in_this_process(*words, code=code)


def environment(home: Path) -> dict[str, str]:
    return {"HOME": str(home), "PATH": os.environ["PATH"]}


def with_file(home: Path, client: str, text: str | None = None) -> Path:
    """A client's file, with what it may say already, or with another text."""
    name, usual, _ = FILES[client]
    file = home / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes((usual if text is None else text).encode(errors="surrogateescape"))
    file.chmod(0o644)
    return file


def test_each_client_is_known_in_one_place() -> None:
    assert set(FILES) == set(CLIENTS) == set(NAMES)


@pytest.mark.parametrize("client", FILES)
@pytest.mark.parametrize("there", [True, False])
def test_in_and_out_again(client: str, there: bool, tmp_path: Path) -> None:
    name, text, servers = FILES[client]
    file = with_file(tmp_path, client) if there else tmp_path / name
    install(tmp_path, client, "--yes")
    entry: Any = read(file)
    for key in (*servers, "cellblock"):
        entry = entry[key]
    command: Any = entry.get("command", entry.get("cmd"))
    words: list[Any] = [*command] if isinstance(command, list) else [command, *entry["args"]]
    assert words == [str(CELLBLOCK), "connect"]
    assert file.stat().st_mode & 0o777 == (0o644 if there else 0o600)
    # Every line of before is still there, but for a comma; what others have in the file is untouched.
    kept = [line.rstrip(",") for line in file.read_text().splitlines()]
    for line in text.splitlines() if there and "\n" in text else ():
        assert line.rstrip(",") in kept or any(one.startswith(line) for one in kept), line
    backups = list(file.parent.glob(f"{file.name}.*.bak"))
    assert [one.read_text() for one in backups] == ([text] if there else [])
    assert "as it should be" in install(tmp_path, client, "--yes").out
    out = install(tmp_path, client, "--uninstall", "--yes", "--json").out
    assert json.loads(out)["clients"][0]["written"]
    assert file.read_text() == text if there else not file.exists()


def test_opencode_2_does_not_run_it_from_a_script_of_its_own(tmp_path: Path) -> None:
    file = with_file(tmp_path, "opencode")
    install(tmp_path, "opencode", "--yes")
    assert "codemode" not in read(file)["mcp"]["cellblock"], "opencode 1 has no such key"
    file.write_text('{ "mcp": { "servers": {} } }')
    install(tmp_path, "opencode", "--yes")
    assert read(file)["mcp"]["servers"]["cellblock"]["codemode"] is False
    file.write_text(file.read_text().replace('"codemode": false', '"codemode": true'))
    assert "as it should be" in install(tmp_path, "opencode", "--yes").out, "what the user has set stays"


EDITS: dict[str, tuple[str, str]] = {
    "claude-code": ('"numStartups": 3', '"numStartups": 4'),
    "claude-desktop": ('"globalShortcut": ""', '"globalShortcut":"F1"'),
    "vscode": ("asked once", "asked  twice"),
    "codex": ("notifications = true", "notifications=false"),
    "gemini": ('{"theme": "Dark"}', '{ "theme": "Light" }'),
    "zed": ('"One Dark"', '"Two"'),
    "opencode": ("opencode.ai/config", "opencode.ai/other"),
    "goose": ("openai # mine", "other  # yours"),
}
MINE: dict[str, dict[str, Any]] = {
    "opencode": {"type": "local", "command": ["mine"]},
    "goose": {"type": "stdio", "name": "mine", "cmd": "mine", "args": []},
}


@pytest.mark.parametrize("client", mostly(["claude-code", "codex", "gemini", "goose"], list(FILES)))
@settings(
    max_examples=5,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(edits=st.sets(st.sampled_from(["value", "top", "end"])), adds=st.booleans(), twice=st.booleans())
@example(edits={"value"}, adds=False, twice=False)
@example(edits={"value", "end"}, adds=False, twice=False)
def test_what_was_taken_over_comes_back_among_the_users_own_edits(
    client: str, tmp_path: Path, edits: set[str], adds: bool, twice: bool
) -> None:
    home = tmp_path / secrets.token_hex(4)
    text, servers = FILES[client][1:]
    if client == "codex":
        text += '\n[mcp_servers.keyed]\ncommand  =  "k" # odd\nenv = { API_TOKEN = "sk-abcdefghijklmnopqrst123456" }\n'
    file = with_file(home, client, text)
    form = format_of(file.name)

    def edit(text: str) -> str:
        if "value" in edits and client in EDITS:
            assert text.count(EDITS[client][0]) == 1
            text = text.replace(*EDITS[client])
        text = f"{'//' if form == 'json' else '#'} mine\n{text}" if "top" in edits else text
        text = text + "\n" if "end" in edits and text.endswith("\n") else text
        added = {(*servers, "mine"): MINE.get(client, {"command": "mine"})}
        return edited(text, form, added) if adds else text

    if twice:
        install(home, client, "--yes")
    install(home, client, "--take-over", "--yes", "--secrets", "keyring")
    file.write_text(edit(file.read_text()))
    assert "sk-abc" not in file.read_text() or client != "codex"
    if twice:
        install(home, client, "--yes")
    assert "sk-abc" not in install(home, client, "--uninstall", "--yes").out
    wanted = edit(text)
    if adds:
        # It stood beside Cellblock's entry, so that the lines of the others are written anew.
        assert read(file) == read_text(wanted, form)
        lines = [line for line in file.read_text().splitlines() if line.endswith(" mine")]
        assert lines == [line for line in wanted.splitlines() if line.endswith(" mine")]
    else:
        assert file.read_text() == wanted
    assert len([*file.parent.glob("*.bak")]) <= 3


@pytest.mark.parametrize("client", FILES)
@pytest.mark.parametrize("there", [True, False])
def test_out_where_it_is_not_in_changes_nothing(client: str, there: bool, tmp_path: Path) -> None:
    file = with_file(tmp_path, client) if there else tmp_path / FILES[client][0]
    assert "has no Cellblock" in install(tmp_path, client, "--uninstall", "--yes").out
    assert file.read_text() == FILES[client][1] if there else not any(tmp_path.iterdir())
    both = install(tmp_path, client, "--uninstall", "--print", code=2)
    assert "--print or --uninstall" in both.err and not both.out


async def test_what_is_detected_is_changed_and_nothing_else(tmp_path: Path) -> None:
    for client in ("cursor", "codex"):
        with_file(tmp_path, client)
    env = environment(tmp_path) | {"PATH": "/usr/bin:/bin"}
    words = ("install", "--all-detected", "--yes", "--json")
    done = await cellblock(*words, env=env)
    assert {one["client"] for one in json.loads(done.out)["clients"]} == {"cursor", "codex"}
    nobody = tmp_path / "nobody"
    nobody.mkdir()
    none = await cellblock(*words, code=2, env=env | {"HOME": str(nobody)})
    assert "No client was found" in none.err and not list(nobody.iterdir())


def test_a_project_has_files_of_its_own(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "cb.json").write_text("{}")
    words = ("--project", str(project), "--config", str(project / "cb.json"))
    install(tmp_path, "vscode", "codex", "--yes", *words)
    args = ["serve", "--stdio", "--config", str(project / "cb.json")]
    assert read(project / ".vscode/mcp.json")["servers"]["cellblock"]["args"] == args
    assert read(project / ".codex/config.toml")["mcp_servers"]["cellblock"]["args"] == args
    refused = install(tmp_path, "goose", "--yes", "--project", str(project), code=2)
    assert "no file in projects" in refused.err


def test_its_servers_are_taken_over(tmp_path: Path) -> None:
    file = with_file(tmp_path, "vscode")
    done = install(tmp_path, "vscode", "--take-over", "--yes", "--json")
    assert json.loads(done.out)["clients"][0]["taken_over"] == ["fs"]
    assert set(read(file)["servers"]) == {"cellblock"} and "// asked once" in file.read_text()
    assert read(tmp_path / OURS)["mcpServers"]["fs"]["command"] == "npx"


def test_what_a_client_restricts_elsewhere_goes_along(tmp_path: Path) -> None:
    text = '{"mcpServers": {"gh": {"command": "gh"}, "db": {"command": "db"}}}'
    file = with_file(tmp_path, "claude-code", text)
    (tmp_path / ".claude").mkdir()
    rules = {"deny": ["mcp__gh__delete"], "ask": ["mcp__db__query(table:users)"]}
    (tmp_path / ".claude/settings.json").write_text(json.dumps({"permissions": rules}))
    shown = install(tmp_path, "claude-code", "--take-over", "--yes")
    place = "in ~/.claude/settings.json)"
    assert f"gh: restricted as there: without delete (permissions.deny {place}" in shown.out
    assert f"db: restricted as there: asked about before each call (permissions.ask {place}" in shown.out
    assert read(tmp_path / OURS)["mcpServers"] == {
        "gh": {"command": "gh", "disabledTools": ["delete"]},
        "db": {"command": "db", "askTools": ["*"]},
    }
    assert set(read(file)["mcpServers"]) == {"cellblock"}


SECRET_KEY = "sk-abcdefghijklmnopqrst123456"
OTHERS = {"command": "a", "args": ["--key", SECRET_KEY], "env": {"PASSWORD": "horse"}}
HOW = {"selectedAuthType": "oauth-personal", "keyType": "Ab1horseAb1horse"}


@pytest.mark.parametrize(
    ("client", "text", "told", "hidden"),
    [
        (
            "cursor",
            f'{{"mcpServers": {{\n  "a": {json.dumps(OTHERS)}\n}}}}',
            '"args": ["--key", "…"]',
            [SECRET_KEY, "horse"],
        ),
        # How one logs in is none.
        (
            "gemini",
            f'{{\n  "security": {json.dumps(HOW)}\n}}\n',
            '"selectedAuthType": "oauth-personal"',
            ["horse"],
        ),
    ],
)
def test_secrets_of_others_are_not_shown(
    client: str, text: str, told: str, hidden: list[str], tmp_path: Path
) -> None:
    file = with_file(tmp_path, client, text)
    shown = install(tmp_path, client, "--yes").out
    assert told in shown and not any(secret in shown for secret in hidden), shown
    assert all(secret in file.read_text() for secret in hidden)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"mcpServers": {"cellblock": {"command": "other"}}}', "another server"),
        ('{"mcpServers": []}', "no object"),
        ('{"mcpServers": ', "line 1"),
        ("[1]", "no object"),
        ('{"a": {"x": 1, "x": 2}}', "twice"),
        ("\udcff", "UTF-8"),
    ],
)
def test_what_cannot_be_changed_stays(text: str, why: str, tmp_path: Path) -> None:
    file = with_file(tmp_path, "cursor", text)
    done = install(tmp_path, "cursor", "--yes", code=2)
    assert why in done.err and "Traceback" not in done.err
    assert file.read_bytes() == text.encode(errors="surrogateescape")
    assert [one.name for one in file.parent.iterdir()] == ["mcp.json"]


def test_a_pipe_or_a_folder_in_its_place(tmp_path: Path) -> None:
    (tmp_path / ".cursor/mcp.json").mkdir(parents=True)
    assert "directory" in install(tmp_path, "cursor", "--yes", code=2).err
    (tmp_path / ".codex").mkdir()
    os.mkfifo(tmp_path / ".codex/config.toml")
    assert "is no file" in install(tmp_path, "codex", "--yes", code=2).err


@pytest.mark.parametrize("more", [[], ["--take-over"]])
def test_a_link_that_leads_to_itself_is_told(more: list[str], tmp_path: Path) -> None:
    file = tmp_path / ".cursor" / "mcp.json"
    file.parent.mkdir()
    file.symlink_to(file.name)
    assert "Too many levels of symbolic links" in install(tmp_path, "cursor", "--yes", *more, code=2).err
    assert file.is_symlink()


def test_a_link_stays_one(tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.json"
    real.write_text("{}")
    (tmp_path / ".cursor").mkdir()
    (tmp_path / ".cursor/mcp.json").symlink_to(real)
    install(tmp_path, "cursor", "--yes")
    assert (tmp_path / ".cursor/mcp.json").is_symlink() and "cellblock" in real.read_text()


def test_a_byte_order_mark_stays_and_is_not_shown_as_a_change(tmp_path: Path) -> None:
    file = with_file(tmp_path, "cursor")
    file.write_bytes(b"\xef\xbb\xbf{\r\n" + file.read_bytes().removeprefix(b"{"))
    done = install(tmp_path, "cursor", "--yes")
    assert "\n   {\n" in done.out and "\n  +{\n" not in done.out, done.out
    assert file.read_bytes().startswith(b"\xef\xbb\xbf{\r\n")


def test_print_writes_nothing(tmp_path: Path) -> None:
    done = install(tmp_path, "codex", "goose", "--print")
    assert "[mcp_servers.cellblock]" in done.out and "cmd:" in done.out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("answer", "written"), [("n\n", False), ("y\n", True), ("\x04", False)])
def test_a_person_is_asked(answer: str, written: bool, tmp_path: Path) -> None:
    assert on_terminal(tmp_path, "install", "cursor", keys=answer).code == 0
    assert (tmp_path / ".cursor/mcp.json").exists() is written


def test_nobody_is_there_to_be_asked(tmp_path: Path) -> None:
    assert "--yes" in install(tmp_path, "cursor", code=2).err and not list(tmp_path.iterdir())


def test_what_the_user_has_set_in_the_entry_stays(tmp_path: Path) -> None:
    file = with_file(tmp_path, "zed")
    install(tmp_path, "zed", "--yes")
    own = json.dumps(read(file)["context_servers"]["cellblock"] | {"env": {"TOKEN": "t"}, "timeout": 5})
    file.write_text('{"context_servers": {"cellblock": %s}}' % own.replace('"connect"', '"serve", "--stdio"'))  # noqa: UP031
    install(tmp_path, "zed", "--yes")
    entry = read(file)["context_servers"]["cellblock"]
    assert (entry["env"], entry["timeout"], entry["args"]) == ({"TOKEN": "t"}, 5, ["connect"])


def test_an_entry_by_address_becomes_a_program(tmp_path: Path) -> None:
    headers = {"Authorization": "Bearer t"}
    ours = {"type": "http", "url": "http://127.0.0.1:7433/mcp", "headers": headers, "alwaysLoad": True}
    file = with_file(tmp_path, "claude-code", json.dumps({"mcpServers": {"cellblock": ours}}))
    install(tmp_path, "claude-code", "--yes")
    entry = read(file)["mcpServers"]["cellblock"]
    assert set(entry) == {"type", "command", "args", "alwaysLoad"} and entry["type"] == "stdio"


def test_secrets_are_not_taken_out_of_a_clients_file_unasked(tmp_path: Path) -> None:
    text = '{"mcpServers": {"a": {"command": "a", "env": {"API_KEY": "sk-abcdefghijklmnopqrst123456"}}}}'
    file = with_file(tmp_path, "cursor", text)
    done = install(tmp_path, "cursor", "--take-over", "--yes", code=2)
    assert "(API_KEY of a): say where with --secrets keyring, or with" in done.err
    assert file.read_text() == text and [one.name for one in file.parent.iterdir()] == ["mcp.json"]


@pytest.mark.parametrize("imported", [False, True])
def test_a_server_stays_where_it_works_until_its_variables_are_set(tmp_path: Path, imported: bool) -> None:
    own = {"a": {"command": "a", "env": {"API_KEY": SECRET_KEY}}, "plain": {"command": "p"}}
    cursor = with_file(tmp_path, "cursor", json.dumps({"mcpServers": own}))
    inputs = [{"type": "promptString", "id": "gh-token"}, {"type": "promptString", "id": "x", "default": "y"}]
    asked = {
        "gh": {"command": "g", "env": {"T": "${input:gh-token}"}},
        "x": {"command": "x", "args": ["${input:x}"]},
    }
    vscode = with_file(tmp_path, "vscode", json.dumps({"inputs": inputs, "servers": asked}))
    both = ("cursor", "vscode", "--take-over", "--yes", "--secrets")
    if imported:
        install(tmp_path, words=("import", "--yes"))
    done = install(tmp_path, *both, "environment")
    assert {*read(cursor)["mcpServers"]} == {"cellblock", "a"}
    assert {*read(vscode)["servers"]} == {"cellblock", "gh"}
    for said in (
        "a: stays: without API_KEY it would not start.",
        "or: --secrets keyring",
        "gh: stays: without GH_TOKEN it would not start.",
        "`cellblock secret set GH_TOKEN`, and `cellblock add` it with ${keyring:GH_TOKEN}",
    ):
        assert said in done.out
    install(tmp_path, *both, "environment", GH_TOKEN="t", API_KEY=SECRET_KEY)
    assert {*read(cursor)["mcpServers"]} == {*read(vscode)["servers"]} == {"cellblock"}
    ours = read(tmp_path / OURS)["mcpServers"]
    assert ours["gh"]["env"] == {"T": "${env:GH_TOKEN}"} and ours["a"]["env"] == {"API_KEY": "${env:API_KEY}"}


LACKING = {
    "gemini": '{"mcpServers": {"own": {"command": "p", "env": {"A": "$OWN_VALUE"}}}}',
    "claude-code": '{"mcpServers": {"own": {"command": "p", "args": ["${OWN_VALUE}"]}}}',
    "codex": '[mcp_servers.own]\nurl = "https://h.example"\nbearer_token_env_var = "OWN_VALUE"\n',
    "opencode": '{"mcp": {"own": {"type": "remote", "url": "https://h.example", "headers": {"A": "{env:OWN_VALUE}"}}}}',
    "opencode, file": '{"mcp": {"own": {"type": "local", "command": ["p", "{file:~/own}"]}}}',
    "cursor": '{"mcpServers": {"own": {"command": "p", "envFile": "own"}}}',
}


@pytest.mark.parametrize("named", LACKING)
def test_a_server_whose_own_references_stand_for_nothing_here_stays_with_its_client(
    tmp_path: Path, named: str
) -> None:
    client = named.partition(",")[0]
    file = with_file(tmp_path, client, LACKING[named])
    words = (client, "--take-over", "--yes", "--secrets", "keyring", "--json")
    [why] = json.loads(install(tmp_path, *words).out)["clients"][0]["stay"].values()
    assert "own" in why.lower() and "it would not start" in why
    for there in (tmp_path / "own", file.parent / "own"):
        there.write_text("A=1")
    taken = install(tmp_path, *words, OWN_VALUE="set")
    assert json.loads(taken.out)["clients"][0]["taken_over"] == ["own"], taken.out


@pytest.mark.parametrize("client", ["codex", "claude-code"])
@pytest.mark.parametrize("again", [False, True])
def test_a_secret_that_was_changed_meanwhile_is_given_back_as_it_is_now(
    tmp_path: Path, client: str, again: bool
) -> None:
    first, second = "tok_9876abcdefghijklmnop", "tok_1234zyxwvutsrqponmlk"
    texts = {
        "codex": '[mcp_servers.own]\ncommand  =  "p" # odd\nenv = { ROT_TOKEN = "tok_9876abcdefghijklmnop" }\n',
        "claude-code": '{"mcpServers": {"own": {"url": "https://h.example", "args": [],\n'
        '  "headers": {"Authorization":  "Bearer tok_9876abcdefghijklmnop"}}}}\n',
    }
    file = with_file(tmp_path, client, texts[client])
    install(tmp_path, client, "--take-over", "--yes", "--secrets", "keyring")
    assert first not in file.read_text()
    if again:
        file.write_text(file.read_text().replace("connect", "serve"))
        install(tmp_path, client, "--yes")
    [name] = names_in((tmp_path / OURS).read_text(), "keyring")
    install(tmp_path, words=("secret", "set", name), given=second)
    out = install(tmp_path, client, "--uninstall", "--yes")
    wanted = texts[client].replace(first, second)
    assert read(file) == read_text(wanted, format_of(file.name))
    assert again or client != "codex" or 'command  =  "p" # odd' in file.read_text()
    assert first not in out.out and second not in out.out and "cannot be read" not in out.out


@pytest.mark.parametrize("first", ["remove", "uninstall"])
def test_a_secret_that_nothing_needs_any_more_is_named_with_what_removes_it(
    tmp_path: Path, first: str
) -> None:
    text = '[mcp_servers.own]\ncommand = "p"\nenv = { LEFT_TOKEN = "tok_9876abcdefghijklmnop" }\n'
    with_file(tmp_path, "codex", text)
    install(tmp_path, "codex", "--take-over", "--yes", "--secrets", "keyring")
    install(tmp_path, words=("secret", "set", "MINE"), given="x")
    steps = {"remove": ("remove", "own"), "uninstall": ("install", "codex", "--uninstall", "--yes")}
    said = [install(tmp_path, words=steps[step]) for step in sorted(steps, key=lambda step: step != first)]
    # Until the server is removed, its entry needs it.
    told = [one.out.count("LEFT_TOKEN is not used in") for one in said]
    assert told == ([1, 1] if first == "remove" else [0, 1])
    assert "To remove it: cellblock secret remove LEFT_TOKEN\n" in said[1].out
    assert "MINE" not in said[0].out + said[1].out


def test_of_a_secret_that_is_gone_it_is_said_that_the_old_one_is_given_back(tmp_path: Path) -> None:
    text = '[mcp_servers.own]\ncommand = "p"\nenv = { GONE_TOKEN = "tok_9876abcdefghijklmnop" }\n'
    file = with_file(tmp_path, "codex", text)
    install(tmp_path, "codex", "--take-over", "--yes", "--secrets", "keyring")
    install(tmp_path, words=("secret", "remove", "GONE_TOKEN"))
    out = install(tmp_path, "codex", "--uninstall", "--yes")
    assert (
        "GONE_TOKEN cannot be read here: it is given back as it was" in out.out and file.read_text() == text
    )


def test_what_is_written_imports_nothing_from_the_folder_where_a_client_starts_it(tmp_path: Path) -> None:
    own, repository = tmp_path / "home", tmp_path / "repository"
    own.mkdir()
    (repository / "cellblock").mkdir(parents=True)
    (repository / "cellblock" / "__init__.py").write_text("raise SystemExit('the repository ran')")
    env = environment(own)
    words = [sys.executable, "-P", "-m", "cellblock.cli", "install", "claude-code", "--print"]
    printed = subprocess.run(words, cwd=own, env=env, capture_output=True, text=True, check=True).stdout
    entry = parse(printed, toml=False)["mcpServers"]["cellblock"]
    assert entry["args"][-1] == "connect"
    start = [entry["command"], *entry["args"], "--help"]
    done = subprocess.run(start, cwd=repository, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: cellblock connect")


SCRIPT = (
    'import { list_issues } from "@codemode/servers/tracker"; '
    'globalThis.__codemode_result__ = (await list_issues({ status: "open" })).total;'
)
KEPT = ("PIP_", "SSL_", "REQUESTS_", "NODE_", "HTTP", "http", "NO_PROXY", "no_proxy")
"""Begin the names of what a machine needs to reach the package indexes."""


def lines_of(page: str, word: str) -> list[str]:
    """Those of the page's first block that has the word."""
    block = next(
        one for one in examples() if one.page == ROOT / page and one.language == "bash" and word in one.text
    )
    return [line.partition("  #")[0].strip() for line in statements(block.text)]


@pytest.fixture
def root(tmp_path: Path) -> list[str]:
    """What begins a command in a root of the system's programs, an empty home and the checkout's files alone."""
    bubblewrap = find_binary()
    if bubblewrap is None or not list(Path("/usr/lib").glob("python3*/EXTERNALLY-MANAGED")):
        pytest.skip("needs namespaces, and a Python that is managed by the system")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (tmp_path / "cellblock" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tmp_path / "cellblock" / name)
    (tmp_path / "home").mkdir()
    links = [
        argument for name in ("bin", "lib", "lib64") for argument in ("--symlink", f"usr/{name}", f"/{name}")
    ]
    mounted = ["--ro-bind", "/usr", "/usr", "--ro-bind", "/etc", "/etc", "--proc", "/proc", "--dev", "/dev"]
    own = ["--tmpfs", "/tmp", "--bind", str(tmp_path / "home"), "/home/me"]
    checkout = ["--bind", str(tmp_path / "cellblock"), "/home/me/cellblock", "--chdir", "/home/me/cellblock"]
    files = [
        argument
        for name, value in os.environ.items()
        if name.startswith(KEPT)
        for path in value.split()
        if Path(path).is_absolute() and not path.startswith(("/usr", "/etc"))
        for argument in ("--ro-bind-try", path, path)
    ]
    return [str(bubblewrap), *mounted, *links, *own, *files, *checkout, "--unshare-pid", "--die-with-parent"]


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_the_lines_install_it_and_a_client_gets_an_answer(root: list[str]) -> None:
    kept = {name: value for name, value in os.environ.items() if name.startswith(KEPT)}
    path = "/home/me/.local/bin:/usr/bin:/bin"

    env = {"HOME": "/home/me", "PATH": path, "LANG": "C.UTF-8", **kept}

    def run(command: str) -> str:
        line = [*root, "bash", "-c", command]
        done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    refused = subprocess.run([*root, "pip", "install", "six"], env={"PATH": path}, capture_output=True)
    assert b"externally-managed-environment" in refused.stderr or b"No such file" in refused.stderr
    install, client = lines_of("README.md", "scripts/install")
    run(install)
    (server,) = [line for line in lines_of("docs/start.md", "cellblock add") if " add " in line]
    run(server)
    run(f"{client} --yes")
    entry: dict[str, Any] = json.loads(run("cat ~/.claude.json"))["mcpServers"]["cellblock"]
    messages = [
        {
            "id": 1,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "claude-code", "version": "1"},
            },
        },
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": "codemode.run", "arguments": {"code": SCRIPT}}},
    ]
    asked = "".join(json.dumps({"jsonrpc": "2.0", **one}) + "\n" for one in messages)
    command = [*root, entry["command"], *entry["args"]]
    with subprocess.Popen(command, env=env, stdin=PIPE, stdout=PIPE, text=True) as client_end:
        client_end.stdin.write(asked)
        client_end.stdin.flush()
        answers = (json.loads(line) for line in client_end.stdout)
        result = next(answer["result"] for answer in answers if answer.get("id") == 2)
        client_end.stdin.close()
    assert not result.get("isError"), result
    assert result["structuredContent"]["result"] == 30
    # Removing refuses while a client would start it.
    run(f"{client} --uninstall --yes")
    run("bash scripts/install --remove && ! command -v cellblock")
