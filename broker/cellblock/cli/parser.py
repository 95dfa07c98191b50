"""Parser names all commands, their options, and the function that does the work of each.

It imports nothing that costs more than argparse: --help and completion come by. `main` imports the module of the one
command that is wanted.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final, TypeAlias

from cellblock import __version__
from cellblock.cli.arguments import DEFAULT_ADDRESS, Parser
from cellblock.cli.help import EXIT_OK, HELP, shown

Commands: TypeAlias = "argparse._SubParsersAction[Parser]"  # pyright: ignore[reportPrivateUsage]

CLIENTS: Final = (
    *("claude-code", "claude-desktop", "cursor", "vscode", "windsurf"),
    *("codex", "gemini", "zed", "opencode", "goose"),
)
"""Names the MCP clients that `install` and `import` know, in the order in which their servers go before others'."""

LIMITS: Final = {
    "timeout_ms": "wall time in milliseconds",
    "max_memory_bytes": "memory over an idle worker's, in bytes",
    "max_log_bytes": "console output in bytes",
    "max_tool_calls": "number of tool calls",
    "max_cpu_ms": "CPU time in milliseconds",
}
"""Names the limits that `run` sets, as its options do."""

LOG_LINES: Final = 100
"""Sets how much of a log `logs` shows."""

LOGIN_SECONDS: Final = 300
"""Bounds the time that a person has to log in."""


def make_parser() -> Parser:
    """Returns the parser of all commands and options."""
    parser = Parser(prog="cellblock", **shown(""))
    parser.add_argument("--version", action="version", version=f"cellblock {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_brokers(commands)
    _add_tools(commands)
    _add_configuration(commands)
    _add_servers(commands)
    _add_machine(commands)
    return parser


def show_help(parsed: argparse.Namespace) -> int:
    """Prints what `--help` does, as the command `help`. Of a command that is none it says what was probably meant."""
    make_parser().parse_args([*parsed.words, "--help"])
    return EXIT_OK


def _add(commands: Commands, path: str, work: str | None = None) -> Parser:
    """Adds the command of these words; `work` is `module:function` in this package."""
    parser = commands.add_parser(path.split()[-1], help=HELP[path].meaning, **shown(path))
    parser.set_defaults(work=work)
    return parser


def _add_actions(commands: Commands, path: str) -> Commands:
    """Adds a command that has commands below it."""
    return _add(commands, path).add_subparsers(dest="action", required=True, metavar="ACTION")


def _add_script(run: Parser) -> None:
    run.value("script", "SCRIPT", "a file, or - for standard input")
    run.common(json=False)
    for name, meaning in LIMITS.items():
        run.value(f"--{name.replace('_', '-')}", "N", meaning, type=int)
    run.add_argument(
        "--typecheck",
        choices=["off", "after", "before"],
        help="type-check after a failure, or before the start (default: as configured)",
    )
    required = "exit with 2 unless this server is connected (repeatable)"
    run.flag("--durable", "survive the loss of the process, and wait for approvals that nobody here can give")
    run.flag("--plan", "stop before each call that is not known to be read-only, until it is allowed")
    run.value("--require", "SERVER", required, action="append", default=[])
    narrow = "narrow what the script may call, as in docs/howto-policy.md: a JSON object, or a file with one"
    run.value("--grants", "FILE|JSON", narrow)


def _add_brokers(commands: Commands) -> None:
    _add_script(_add(commands, "run", "run:run"))
    record = _add(commands, "record", "recordings:record")
    _add_script(record)
    record.add_argument(
        "-o", "--output", metavar="FILE", help="where the recording goes", required=True, type=Path
    )

    replay = _add(commands, "replay", "recordings:replay_file")
    replay.value("recording", "FILE|RUN", "a recording, or the id of a run that is kept", type=Path)
    replay.flag("--trace", "list the script's calls, each with its place in the script")
    replay.flag("--values", "list them with their inputs and answers")
    replay.value("--until", "N", "stop before call N, from 1", type=_from_1)
    other = "run another script: its calls get the recorded answers, by tool and input"
    replay.value("--script", "SCRIPT", other)
    missed = "with --script: ask about a call that has no recorded answer, and make it with the servers of --config"
    replay.flag("--live-on-miss", missed)
    replay.flag("--yes", "with --live-on-miss: make it without a question")
    replay.common(json=False)

    serve = _add(commands, "serve", "serve:serve")
    serve.common(json=False)
    serve.flag("--stdio", "over standard input and output (the default)")
    profiles = ["default", "extended", "proxy"]
    serve.add_argument(
        "--profile", choices=profiles, help="the tools that clients see (default: as configured)"
    )
    over = f"over streamable HTTP, at the path /mcp (default {DEFAULT_ADDRESS}; port 0: any free one)"
    serve.value("--http", "HOST:PORT", over, nargs="?", const=DEFAULT_ADDRESS)
    idle = (
        "end after cellblock.http.idle_stop_ms without a client, as a daemon does that `connect` has started"
    )
    serve.flag("--until-idle", idle)
    serve.flag("--no-auth", "ask for no token; on the loopback only")
    serve.token_file()
    serve.certificate("PEM certificate chain")

    connect = _add(commands, "connect", "attach:connect")
    connect.daemon()
    connect.flag("--no-start", "start no daemon, and use one of any configuration that runs there")
    connect.common(json=False)

    service = _add(commands, "service", "service:service")
    kind = service.add_mutually_exclusive_group()
    kind.add_argument("--systemd", action="store_true", help="a systemd user unit (the default on Linux)")
    kind.add_argument("--launchd", action="store_true", help="a launchd agent (the default on macOS)")
    service.address("where it listens")
    service.common(json=False)

    actions = _add_actions(commands, "token")
    create = _add(actions, "token create", "token:create")
    create.value("name", "NAME", "a-z, 0-9, - and _; the policy knows it as token:NAME")
    only = "what its holder may call at most, of what the policy grants: a JSON object, or a file with one"
    create.value("--grants", "FILE|JSON", only)
    create.value("--expires", "WHEN", "12h, 30d, 8w, or a day such as 2027-01-31 (default: never)")
    create.common()
    _add(actions, "token list", "token:list_all").common()
    revoke = _add(actions, "token revoke", "token:revoke")
    revoke.value("name", "NAME")
    revoke.common(json=False)

    actions = _add_actions(commands, "runs")
    kept = _add(actions, "runs list", "runs:show_all")
    kept.value("--client", "CLIENT", "whose, as cellblock.policy knows clients (default: everybody's)")
    kept.value("--limit", "N", "at most so many, the newest (default 20)", type=int, default=20)
    kept.flag("--parked", "only those that wait for a person")
    kept.common()
    one = _add(actions, "runs show", "runs:show")
    one.value("run", "RUN", "its id")
    one.flag("--values", "the script, its console output, and what its calls sent and got, too")
    one.common()
    for action in ("approve", "deny"):
        answered = _add(actions, f"runs {action}", f"parked:{action}")
        answered.value("run", "RUN", "its id")
        answered.value(
            "--call", "N", "only the call of this number (repeatable)", type=int, action="append", default=[]
        )
        if action == "approve":
            answered.value(
                "--answer", "JSON", "the fields of the form with which a server asks, as an object"
            )
        answered.common(json=False)
    for action in ("cancel", "resume"):
        over = _add(actions, f"runs {action}", f"parked:{action}")
        over.value("run", "RUN", "its id")
        over.common(json=False)
    delete = _add(actions, "runs delete", "runs:delete")
    delete.value("runs", "RUN", "ids", nargs="+")
    delete.common(json=False)

    dashboard = _add(commands, "dashboard", "attach:dashboard")
    dashboard.flag("--no-open", "only print the URL")
    top = _add(commands, "top", "attach:top")
    top.flag("--once", "print it once and exit (as when output is no terminal)")
    top.flag("--json", "with --once: print JSON")
    for parser in (dashboard, top):
        parser.daemon()
        parser.common(json=False)


def _add_tools(commands: Commands) -> None:
    types = _add(commands, "types", "tools:types")
    types.value("servers", "SERVER", "all servers when none is named", nargs="*")
    types.flag("--compiler", "print what scripts are checked against: longer, and open wherever a schema is")
    types.common()

    search = _add(commands, "search", "tools:search")
    search.value("query", "QUERY")
    search.value("--server", "SERVER", "search one server only")
    search.value("--limit", "N", "at most so many results (default 10)", type=int, default=10)
    search.flag("--types", "print TypeScript declarations, as search_tools does")
    search.common()

    inspect = _add(commands, "inspect", "tools:inspect")
    inspect.flag("--json", "print JSON on a terminal, too")
    inspect.value("tool", "TOOL", "SERVER.TOOL, mcp__SERVER__TOOL, or TOOL when it is unique")
    inspect.common(json=False)

    approve = _add(commands, "approve", "approval:run")
    approve.server()
    approve.value("tools", "TOOL", "approve these", nargs="*")
    approve.flag("--all", "approve all tools that differ")
    approve.flag("--show", "approve nothing")
    approve.common()

    actions = _add_actions(commands, "schemas")
    init = _add(actions, "schemas init", "schemas:init")
    init.value("server", "SERVER", "its id, or its name in the configuration")
    init.flag("--force", "write over an existing file")
    init.common(json=False)
    export = _add(actions, "schemas export", "schemas:export")
    export.value("server", "SERVER", "all servers when none is named", nargs="?")
    formats = ["mcp", "openai", "anthropic", "typescript", "json-schema"]
    export.add_argument("--format", choices=formats, help="whole definitions for others (default: outputs)")
    export.common(json=False)
    diff = _add(actions, "schemas diff", "schemas:diff")
    diff.value("server", "SERVER", "the server's name in the configuration")
    diff.value("tool", "TOOL", "the tool's name in MCP")
    diff.common()
    clear = _add(actions, "schemas clear", "schemas:clear")
    clear.value("server", "SERVER", "everything when none is named", nargs="?")
    clear.value("tool", "TOOL", "the tool's name in MCP", nargs="?")
    clear.common()


def _add_configuration(commands: Commands) -> None:
    actions = _add_actions(commands, "auth")
    login = _add(actions, "auth login", "auth:login")
    login.server()
    login.flag("--no-browser", "only print the URL")
    longest = f"longest wait for the browser (default {LOGIN_SECONDS})"
    login.value("--timeout", "SECONDS", longest, type=int, default=LOGIN_SECONDS)
    login.common(json=False)
    status = _add(actions, "auth status", "auth:status")
    status.value("server", "SERVER", "all servers with a url when none is named", nargs="?")
    status.common()
    logout = _add(actions, "auth logout", "auth:logout")
    logout.server()
    logout.common(json=False)

    actions = _add_actions(commands, "secret")
    for action, work in (("set", "put"), ("list", "show"), ("remove", "remove")):
        secret = _add(actions, f"secret {action}", f"secret:{work}")
        if action == "list":
            secret.flag("--json", "print JSON")
        else:
            secret.value("name", "NAME", "letters, digits, `_`, `-` and `.`")
        if action != "set":
            where = "cellblock.json in your settings folder, if it is there"
            secret.value("--config", "FILE", f"whose references are looked at (default: {where})")

    actions = _add_actions(commands, "config")
    check = _add(actions, "config check", "config_check:check")
    check.common()

    install = _add(commands, "install", "install.install:run")
    install.value("clients", "CLIENT", f"one or more of {', '.join(CLIENTS)}", nargs="*", type=_client)
    install.flag("--all-detected", "every client that is found on this machine")
    of_project = "write the client's file of this project (default folder: the current one)"
    install.value("--project", "DIR", of_project, type=Path, nargs="?", const=Path())
    install.add_argument(
        "--via",
        choices=["connect", "stdio"],
        help="what the client starts (default: `connect`, which shares a daemon; with --config `serve --stdio`)",
    )
    install.flag("--take-over", "take the client's servers over as `import` does, and out of its file")
    install.secrets("with --take-over: ")
    install.flag("--print", "print the entry, and write nothing")
    install.flag("--uninstall", "take Cellblock out again")
    install.flag("--yes", "do not ask")
    install.flag("--json", "print JSON, and do not ask")
    install.value(
        "--config", "FILE", "a configuration of its own (default: cellblock.json in your settings folder)"
    )

    take = _add(commands, "import", "import_:run")
    one_of = f"one of {', '.join(CLIENTS)} (repeatable; default: all)"
    take.value("--from", "CLIENT", one_of, dest="clients", action="append", choices=CLIENTS)
    folder = "the folder whose own files, such as .mcp.json, are looked at (default: the current one)"
    take.value("--project", "DIR", folder, type=Path)
    take.flag("--dry-run", "show what would be done, and do nothing")
    take.flag("--yes", "do not ask")
    take.secrets()
    take.flag("--copy-secrets", "write secrets into the file as they are")
    take.flag("--json", "print JSON, and do not ask")
    take.value("--config", "FILE", "where to write (default: cellblock.json in your settings folder)")


def _add_servers(commands: Commands) -> None:
    where = "which file (default: cellblock.json in your settings folder, made when it is not there)"
    add = _add(commands, "add", "edit_servers:add")
    add.value("server", "SERVER", "what it is to be called")
    add.value("url", "URL", "where it is reached over HTTP; or -- and the command that starts it", nargs="?")
    add.set_defaults(program=None)
    add.behind_dashes = "program"
    header = "an HTTP header, as NAME: VALUE (repeatable)"
    add.value("--header", "HEADER", header, action="append", default=[])
    env = "an environment variable of the command, as NAME=VALUE (repeatable)"
    add.value("--env", "VARIABLE", env, action="append", default=[])
    add.flag("--replace", "in the place of another server of this name")
    add.value("--config", "FILE", where)
    for name in ("remove", "enable", "disable"):
        one = _add(commands, name, f"edit_servers:{name}")
        one.server()
        one.value("--config", "FILE", where)

    restart = _add(commands, "restart", "control:restart")
    logs = _add(commands, "logs", "control:logs")
    restart.server()
    logs.value("server", "SERVER", "its name in mcpServers; the daemon itself when none is named", nargs="?")
    logs.add_argument("-f", "--follow", action="store_true", help="go on with what is written from now on")
    logs.value("--lines", "N", f"the last N lines (default {LOG_LINES}; 0: all)", type=int, default=LOG_LINES)
    for parser in (restart, logs):
        parser.daemon()
        parser.common(json=False)


def _from_1(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text} is no number from 1")
    return int(text)


def _client(name: str) -> str:
    """Returns the name of a client: argparse checks no choices where none is given."""
    if name not in CLIENTS:
        raise argparse.ArgumentTypeError(f"there is no client {name}; there are {', '.join(CLIENTS)}")
    return name


def _add_machine(commands: Commands) -> None:
    doctor = _add(commands, "doctor", "doctor:run")
    doctor.flag("--json", "print JSON")
    doctor.address("where a daemon serves or is to serve")
    doctor.certificate("PEM certificate chain that it is to use")
    doctor.common(json=False)

    keygen = _add(commands, "keygen", "keygen:keygen")
    keygen.value("file", "FILE", type=Path)

    _add(commands, "demo", "demo.show:run").state_dir()

    completion = _add(commands, "completion", "completion:run")
    completion.add_argument("shell", choices=["bash", "zsh", "fish"])

    told = _add(commands, "help", "parser:show_help")
    told.value(
        "words", "COMMAND", "its words, such as `config check` (default: the program itself)", nargs="*"
    )
