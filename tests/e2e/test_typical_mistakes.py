"""Typical mistakes of a new user, and the sentence that each gets: whose fault it is, what is certain, one hint."""

import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellblock import __version__
from cellblock.app.cli.connect import tell_of
from cellblock.serve.stdio.daemon import DOES_NOT_START
from support.commands import in_this_process
from support.entries import for_tests, plain_server
from support.http_server import Answering, serving

USAGE, UNAVAILABLE = 2, 3


def servers(**entry: Any) -> str:
    return json.dumps({"mcpServers": {"files": entry}})


def section(**settings: Any) -> str:
    return json.dumps({"mcpServers": {}, "cellblock": settings})


FILES = {
    "fine.json": '{"mcpServers": {}}',
    "comma.json": '{"mcpServers": {"a": {"command": "x"} "b": 1}}',
    "quotes.json": "{'mcpServers': {}}",
    "empty.json": "",
    "text.toml": "[mcpServers.a]\ncommand = npx\n",
    "lower.json": '{"mcpservers": {}}',
    "snake.json": '{"mcp_servers": {}}',
    "list.json": '{"mcpServers": [{"name": "a", "command": "x"}]}',
    "both.json": servers(command="npx", url="https://x.example/mcp"),
    "neither.json": servers(args=["x"]),
    "comand.json": servers(comand="npx"),
    "args.json": servers(command="npx", args="-y foo"),
    "env.json": servers(command="npx", env={"PORT": 80}),
    "scheme.json": servers(url="localhost:3000/mcp"),
    "section.json": '{"mcpServers": {}, "celblock": {}}',
    "setting.json": section(limts={}),
    "milliseconds.json": section(limits={"timeout_ms": "5000"}),
    "seconds.json": section(limits={"timeout": 5}),
    "module.json": section(tools=["my_tools_of_nowhere"]),
    "plain_list.json": "[]",
    "number.json": servers(command=5),
    "capacity.json": section(pool={"capacity": 0}),
    "over.json": section(limits={"timeout_ms": [9, 1]}),
    "json.json": section(tools=["json"]),
    "binary.js": "\udcff\udcfe\0",
    "script.js": "1",
    "token": "x" * 40,
    "file": "",
    "short.token": "x",
}

RUN = ("run", "script.js", "--config")
"""Begins a command line that ends with a file."""

OF_PLAIN = ("--config", "plain.json", "--state-dir", "s")

TABLE: dict[str, tuple[tuple[str, ...], int, str]] = {
    # The file.
    "a path that is not there": (
        (*RUN, "absent.json"),
        USAGE,
        "Cannot read the configuration absent.json: No such file or directory. Check its path.",
    ),
    "a folder": (
        (*RUN, "folder"),
        USAGE,
        "Cannot read the configuration folder: Is a directory. Check its path.",
    ),
    "a missing comma": (
        (*RUN, "comma.json"),
        USAGE,
        "comma.json:1:39: not valid JSON: Expecting ',' delimiter. Correct the file there.",
    ),
    "single quotes": (
        (*RUN, "quotes.json"),
        USAGE,
        "quotes.json:1:2: not valid JSON: Expecting property name enclosed in double quotes. Correct the file there.",
    ),
    "an empty file": (
        (*RUN, "empty.json"),
        USAGE,
        'empty.json:1:1: the file is empty. Start with {"mcpServers": {…}}.',
    ),
    "TOML without quotes": (
        (*RUN, "text.toml"),
        USAGE,
        "text.toml:2:11: not valid TOML: Invalid value. Correct the file there.",
    ),
    "mcpservers": (
        (*RUN, "lower.json"),
        USAGE,
        "lower.json:1:2: mcpservers: unknown key. Did you mean mcpServers?",
    ),
    "mcp_servers": ((*RUN, "snake.json"), USAGE, "mcp_servers: unknown key. Did you mean mcpServers?"),
    "servers as a list": (
        (*RUN, "list.json"),
        USAGE,
        "list.json:1:16: mcpServers: an object is needed. Put mcpServers in braces.",
    ),
    # A server's entry.
    "command and url": (
        (*RUN, "both.json"),
        USAGE,
        "mcpServers.files: exactly one of `command` and `url` is needed, and there are both. Correct mcpServers.files",
    ),
    "neither": (
        (*RUN, "neither.json"),
        USAGE,
        "mcpServers.files: exactly one of `command` and `url` is needed, and there is neither. Correct",
    ),
    "comand": (
        (*RUN, "comand.json"),
        USAGE,
        "mcpServers.files.comand: unknown key. Did you mean command? Rename it, or take it out.",
    ),
    "args as a text": (
        (*RUN, "args.json"),
        USAGE,
        "mcpServers.files.args: a list of texts is needed. Put mcpServers.files.args in brackets: [...].",
    ),
    "a number in env": (
        (*RUN, "env.json"),
        USAGE,
        "mcpServers.files.env.PORT: a text is needed. Put the value of mcpServers.files.env.PORT in quotes.",
    ),
    "a url without http": (
        (*RUN, "scheme.json"),
        USAGE,
        "mcpServers.files.url: a URL with http:// or https:// and a host is needed. Correct mcpServers.files.url",
    ),
    # Settings.
    "celblock": ((*RUN, "section.json"), USAGE, "celblock: unknown key. Did you mean cellblock?"),
    "limts": ((*RUN, "setting.json"), USAGE, "cellblock.limts: unknown key. Did you mean limits?"),
    "timeout_ms as a text": (
        (*RUN, "milliseconds.json"),
        USAGE,
        "cellblock.limits.timeout_ms: a whole number (at least 0) or [DEFAULT, MAXIMUM] is needed. Correct "
        "cellblock.limits.timeout_ms",
    ),
    "timeout": (
        (*RUN, "seconds.json"),
        USAGE,
        "cellblock.limits.timeout: unknown key. Did you mean timeout_ms?",
    ),
    "a list": ((*RUN, "plain_list.json"), USAGE, "plain_list.json:1:1: the file holds no object"),
    "a number as a command": ((*RUN, "number.json"), USAGE, "mcpServers.files.command"),
    "no place at all": ((*RUN, "capacity.json"), USAGE, "cellblock.pool.capacity"),
    "a default over its maximum": ((*RUN, "over.json"), USAGE, "over maximum"),
    "a Python module without tools": ((*RUN, "json.json"), USAGE, "@tool()"),
    "a Python module that is not there": (
        (*RUN, "module.json"),
        USAGE,
        "cellblock.tools[0]: there is no module my_tools_of_nowhere. Install it into Cellblock's environment,",
    ),
    # The command line.
    "an unknown command": (
        ("instal",),
        USAGE,
        "there is no command instal. Did you mean `cellblock install`?",
    ),
    "an unknown option": (
        ("run", "script.js", "--confg", "x.json"),
        USAGE,
        "cellblock run: there is no option --confg here. Did you mean --config?",
    ),
    "an option of another program": (
        ("serve", "--host=0.0.0.0"),
        USAGE,
        "cellblock serve: there is no option --host here. `cellblock serve --help` shows what there is.",
    ),
    "one argument too many": (
        ("run", "script.js", "more"),
        USAGE,
        "cellblock run: there is no argument more here. `cellblock run --help` shows what there is.",
    ),
    "5s": (
        ("run", "script.js", "--timeout-ms", "5s"),
        USAGE,
        "argument --timeout-ms: a whole number is needed, not '5s'",
    ),
    "no command": ((), USAGE, "usage:"),
    "no time": (("run", "script.js", "--timeout-ms", "0"), USAGE, "Give limits.timeoutMs"),
    "a script that is no text": (("run", "binary.js"), USAGE, "UTF-8"),
    "a daemon without its file": (("serve", "--config", "absent.json"), USAGE, "absent.json"),
    "no script": (("run",), USAGE, "cellblock: name a script, or a kept one with --saved"),
    "a script that is not there": (
        ("run", "absent.js"),
        USAGE,
        "there is no script absent.js; name a file, or - for standard input",
    ),
    "a script that is a folder": (
        ("run", "folder"),
        USAGE,
        "cannot read the script folder: Is a directory; name a file",
    ),
    "grants that are no JSON": (
        ("run", "script.js", "--grants", "{readOnly: true}"),
        USAGE,
        '--grants: this is no JSON, such as {"readOnly": true}: key must be a string',
    ),
    "a configuration without its option": (
        ("config", "check", "fine.json"),
        USAGE,
        "there is no argument fine.json here. Did you mean --config fine.json?",
    ),
    "a run that is not kept": (
        ("save", "UNKNOWN_RUN", "weekly"),
        USAGE,
        "name a file, or the id of a run that `cellblock runs list` shows",
    ),
    "an unknown client of install": (
        ("install", "claude"),
        USAGE,
        "cellblock install: there is no client claude. Did you mean claude-code?",
    ),
    "an unknown client of import": (
        ("import", "--from", "clade"),
        USAGE,
        "cellblock import: --from: there is no clade. Did you mean claude-code?",
    ),
    "a client that nobody knows": (
        ("install", "emacs"),
        USAGE,
        "cellblock install: there is no client emacs.",
    ),
    "no client": (("install",), USAGE, "Name a client"),
    "a recording that is not there": (
        ("replay", "none.cellrun"),
        USAGE,
        "cannot read the recording none.cellrun",
    ),
    "no recording": (("replay", "script.js"), USAGE, "The file is no recording"),
    "a step before the first": (("replay", "script.js", "--until", "0"), USAGE, "0 is no number from 1"),
    "a negative step": (("replay", "script.js", "--until", "-1"), USAGE, "-1"),
    "a folder that is not there": (
        ("record", "script.js", "-o", "nowhere/run.cellrun"),
        USAGE,
        "there is no folder",
    ),
    "no place for a recording": (("record", "script.js"), USAGE, "-o"),
    "types without a configuration": (
        ("types", "files"),
        USAGE,
        "There is no server files. No server is connected: the configuration (--config FILE) names them.",
    ),
    "a tool without a configuration": (
        ("inspect", "files.read_file"),
        USAGE,
        "There is no tool files.read_file. No server is connected: the configuration (--config FILE) names them.",
    ),
    "an unknown word for an option": (
        ("run", "script.js", "--typecheck", "never"),
        USAGE,
        "cellblock run: --typecheck: there is no never. There are: off, after, before.",
    ),
    "an option before its command": (
        ("--config", "fine.json", "status"),
        USAGE,
        "cellblock: options stand behind the command, as in `cellblock status --config`.",
    ),
    "an option before a command of two words": (
        ("--json", "runs", "list"),
        USAGE,
        "cellblock: options stand behind the command, as in `cellblock runs list --json`.",
    ),
    "an option before a command that has it not": (
        ("--json", "run", "script.js"),
        USAGE,
        "cellblock run: there is no option --json here. `cellblock run --help` shows what there is.",
    ),
    "an option without a command": (
        ("--json",),
        USAGE,
        "cellblock: options stand behind the command, as in `cellblock COMMAND --json`.",
    ),
    # Names of servers.
    "a required server": (
        (*RUN, "fine.json", "--require", "files", "--state-dir", "s"),
        USAGE,
        "the required server files is not connected: it is not in the configuration: {folder}/fine.json",
    ),
    "a required server with a slip": (
        ("run", "script.js", "--require", "plan", *OF_PLAIN),
        USAGE,
        "Did you mean plain?",
    ),
    "an unknown tool": (
        ("inspect", "plain.ecko", *OF_PLAIN),
        USAGE,
        "There is no tool plain.ecko. Did you mean plain.echo",
    ),
    "an unknown server": (
        ("types", "plan", *OF_PLAIN),
        USAGE,
        "There is no server plan. Did you mean plain?",
    ),
    "pins of an unknown server": (
        ("pins", "approve", "plan", "--all", *OF_PLAIN),
        USAGE,
        "Did you mean plain?",
    ),
    "pins of an unknown tool": (("pins", "approve", "plain", "ecko", *OF_PLAIN), USAGE, "Did you mean echo?"),
    "pins of a tool and of all": (
        ("pins", "approve", "plain", "echo", "--all", *OF_PLAIN),
        USAGE,
        "name tools, or give --all",
    ),
    "a login of an unknown server": (
        ("auth", "login", "plan", *OF_PLAIN),
        USAGE,
        "There is no server plan in mcpServers. Servers: plain.",
    ),
    "a login of a command": (
        ("auth", "login", "plain", *OF_PLAIN),
        USAGE,
        "plain is started by a command. Only servers with a url have a login.",
    ),
    # Daemons.
    "no daemon": (
        ("dashboard", "--no-open", "--url", "http://127.0.0.1:{free}/mcp", "--state-dir", "s"),
        UNAVAILABLE,
        "No daemon answers at http://127.0.0.1:{free}/mcp: nobody listens there. Start it with",
    ),
    "another program's port": (
        ("dashboard", "--no-open", "--url", "http://127.0.0.1:{web}/404/mcp", "--state-dir", "s"),
        UNAVAILABLE,
        "http://127.0.0.1:{web}/404/mcp is no Cellblock daemon (HTTP status 404). Check --url.",
    ),
    "no token": (
        ("dashboard", "--no-open", "--url", "http://127.0.0.1:{web}/401/mcp", "--state-dir", "s"),
        UNAVAILABLE,
        "refuses the token: none is shown. Give the same --state-dir or --token-file as to the daemon.",
    ),
    "a token file that is not there": (
        ("dashboard", "--no-open", "--token-file", "absent"),
        USAGE,
        "The token file absent cannot be read: No such file or directory. Check --token-file.",
    ),
    "a token file without a token": (
        ("dashboard", "--no-open", "--token-file", "short.token"),
        USAGE,
        "holds no token of at least 32 visible characters. Put in the one that `cellblock token create` has shown;",
    ),
    "a token for everybody": (
        ("dashboard", "--no-open", "--token-file", "token"),
        USAGE,
        "Other users may read the token file token (mode 0644). Make a new token: rm token.",
    ),
    "a url without http of a daemon": (
        ("dashboard", "--no-open", "--url", "127.0.0.1:7433", "--state-dir", "s"),
        USAGE,
        "--url 127.0.0.1:7433: this is no http or https URL. Give what the daemon printed.",
    ),
    "a port in use": (
        ("serve", "--http", "127.0.0.1:{taken}", "--state-dir", "s"),
        UNAVAILABLE,
        "Cannot listen on 127.0.0.1:{taken}: Address already in use. Is another daemon running there? Use it with",
    ),
    "a port alone": (
        ("serve", "--http", "7433", "--state-dir", "s"),
        USAGE,
        "--http 7433: this is no HOST:PORT with an IP address or localhost. Give for example --http 127.0.0.1:7433.",
    ),
    "all addresses": (
        ("serve", "--http", "0.0.0.0:7433", "--state-dir", "s"),
        USAGE,
        "--http 0.0.0.0:7433 is open to other machines and would send tokens in the clear. Give --tls-cert and",
    ),
    "an option of HTTP": (
        ("serve", "--no-auth"),
        USAGE,
        "--no-auth is of use only with --http. Add --http HOST:PORT.",
    ),
    # The state directory.
    "a state directory of another user": (
        ("run", "script.js", "--state-dir", "{theirs}"),
        USAGE,
        "belongs to another user (uid {their_uid}), who could change what is in it. Make it yours",
    ),
    "a state directory for everybody": (
        ("run", "script.js", "--state-dir", "open"),
        USAGE,
        "All users may write to the state directory {folder}/open (mode 0777). Close it (chmod 700",
    ),
    "a state directory below a file": (
        ("run", "script.js", "--state-dir", "file/s"),
        USAGE,
        "The state directory {folder}/file/s cannot be used: Not a directory. Use another --state-dir.",
    ),
}

UNCONNECTED: dict[str, tuple[dict[str, Any], str]] = {
    "npx": (
        {"command": "npx", "env": {"PATH": "/no/such/folder"}},
        "npx is not on PATH. Install Node.js, which brings it: https://nodejs.org",
    ),
    "uvx": (
        {"command": "uvx", "env": {"PATH": "/no/such/folder"}},
        "uvx is not on PATH. Install uv, which brings it: https://docs.astral.sh/uv",
    ),
    "line": (
        {"command": "npx -y foo"},
        "There is no program npx -y foo. Its arguments go into args, one by one",
    ),
    "cwd": (
        {"command": "ls", "cwd": "/no/such/folder"},
        "Its cwd /no/such/folder is no folder. Correct cwd in its entry",
    ),
    "data": (
        {"command": "{folder}/script.js"},
        "{folder}/script.js is no program that may be started. Correct command in its entry",
    ),
    "exits": (
        {
            "command": sys.executable,
            "args": ["-Ic", "import sys; sys.exit('Error: API_KEY is not set\\nbye')"],
        },
        "it ended by itself; it said: Error: API_KEY is not set",
    ),
    "silent": ({"command": "false"}, "it ended by itself with exit code 1 and did not say why"),
    "unauthorized": (
        {"url": "http://127.0.0.1:{web}/401/mcp"},
        "the server refused the connection: HTTP 401; run: cellblock auth login unauthorized",
    ),
    "elsewhere": ({"url": "http://127.0.0.1:{web}/404/mcp"}, "the server refused the connection: HTTP 404"),
}


class Status(Answering):
    """Answers with the status that a path begins with, else with 401."""

    protocol_version = "HTTP/1.1"

    def say(self) -> None:
        self.body()
        first = self.path.split("/")[1]
        self.answer(int(first) if first.isdigit() else 401)

    do_GET = do_POST = do_HEAD = do_DELETE = say


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What stands for the words in braces; the folder has all files."""
    folder = tmp_path_factory.mktemp("mistakes")
    for name, text in FILES.items():
        (folder / name).write_bytes(text.encode(errors="surrogateescape"))
    (folder / "token").chmod(0o644)
    (folder / "short.token").chmod(0o600)
    (folder / "folder").mkdir()
    (folder / "open").mkdir()
    (folder / "open").chmod(0o777)
    theirs, their_uid = Path("/"), 0
    if os.geteuid() == 0:
        theirs, their_uid = folder / "theirs", 4711
        theirs.mkdir()
        os.chown(theirs, their_uid, -1)
    with (
        serving(Status) as web,
        socket.create_server(("127.0.0.1", 0)) as taken,
        socket.socket() as free,
    ):
        # Bound, so that nobody else gets it, and not listened at.
        free.bind(("127.0.0.1", 0))
        words = {
            "web": web.rpartition(":")[2],
            "taken": taken.getsockname()[1],
            "free": free.getsockname()[1],
        }
        words |= {"folder": folder, "theirs": theirs, "their_uid": their_uid}
        own = {"mcpServers": {"plain": plain_server()}, "cellblock": for_tests({})}
        (folder / "plain.json").write_text(json.dumps(own), encoding="utf-8")
        yield words


@pytest.fixture(autouse=True)
def here(places: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(places["folder"])
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(places["folder"] / "home"))


@pytest.mark.parametrize("mistake", TABLE)
def test_a_mistake_gets_its_sentence(mistake: str, places: dict[str, Any]) -> None:
    words, expected, sentence = TABLE[mistake]
    # Not `format`: there is JSON among the words.
    for name, value in places.items():
        words = tuple(word.replace(f"{{{name}}}", str(value)) for word in words)
        sentence = sentence.replace(f"{{{name}}}", str(value))
    code, output, errors = in_this_process(*words)
    assert (code, output) == (expected, ""), errors
    assert sentence in errors
    assert "Traceback" not in errors and "[Errno" not in errors


def test_what_a_server_lacks_is_told_once_and_not_where_another_is_asked_for(places: dict[str, Any]) -> None:
    entries = {"files": plain_server(), "lacks": plain_server(env={"A": "${NOT_SET_HERE}"})}
    given = {"mcpServers": entries, "cellblock": for_tests({})}
    (places["folder"] / "lacks.json").write_text(json.dumps(given), encoding="utf-8")
    place = ("--config", "lacks.json", "--state-dir", "s")
    for words, times in {
        ("types", "files"): 0,
        ("inspect", "files.none"): 0,
        ("types", "lacks"): 1,
        ("types",): 1,
        ("search", "anything"): 1,
        ("scripts", "list"): 0,
    }.items():
        said = in_this_process(*words, *place)
        assert said.err.count("the environment variable NOT_SET_HERE is not set") == times, said


def test_of_what_a_daemon_does_not_start_a_named_server_hears_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = [f"{DOES_NOT_START}{name}: why." for name in ("a", "ab")] + ["it is behind"]
    tell_of({"version": __version__, "warnings": told}, "a")
    assert capsys.readouterr().err == "".join(f"cellblock: warning: {one}\n" for one in (told[0], told[2]))
    tell_of({"version": __version__, "warnings": told})
    assert capsys.readouterr().err.count("warning") == 3


def test_servers_that_cannot_be_connected_say_why(places: dict[str, Any]) -> None:
    def filled(text: str) -> str:
        return text.replace("{web}", str(places["web"])).replace("{folder}", str(places["folder"]))

    entries = {name: json.loads(filled(json.dumps(entry))) for name, (entry, _) in UNCONNECTED.items()}
    given = {"mcpServers": entries, "cellblock": for_tests({})}
    (places["folder"] / "unconnected.json").write_text(json.dumps(given), encoding="utf-8")
    code, _, errors = in_this_process("types", "--config", "unconnected.json", "--state-dir", "s")
    assert code == 0
    lines = errors.splitlines()
    for name, (_, why) in UNCONNECTED.items():
        assert f"cellblock: server {name} is not connected: {filled(why)}" in lines
    assert "[Errno" not in errors
