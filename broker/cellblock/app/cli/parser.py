"""Parser names all commands, their options, and the function that does the work of each.

It imports nothing that costs more than argparse: --help and completion come by. `main` imports the module of the one
command that is wanted.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final, TypeAlias

from cellblock import __version__
from cellblock.app.cli.arguments import DEFAULT_ADDRESS, USERS_OWN, Parser
from cellblock.app.cli.help import HELP, shown

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


def make_parser(wanted: str = "") -> Parser:
    """Makes the parser of all commands, or of no more than it takes for the one that is wanted, which is the sooner at
    work."""
    parser = Parser(prog="cellblock", **shown(""))
    parser.add_argument("--version", action="version", version=f"cellblock {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")
    for add in (_add_brokers, _add_tools, _add_configuration, _add_servers, _add_machine):
        if wanted not in commands.choices:
            add(commands)
    return parser


def show_help(parsed: argparse.Namespace) -> None:
    """Prints what `--help` does, as the command `help`. Of a command that is none it says what was probably meant."""
    make_parser().parse_args([*parsed.words, "--help"])


def _add(commands: Commands, path: str, work: str | None = None) -> Parser:
    """Adds the command of these words; `work` is `module:function` in this package."""
    parser = commands.add_parser(path.split()[-1], help=HELP[path].meaning, **shown(path))
    parser.set_defaults(work=work)
    return parser


def _add_actions(commands: Commands, path: str) -> Commands:
    return _add(commands, path).add_subparsers(dest="action", required=True, metavar="ACTION")


def _add_script(run: Parser, **more: str) -> Parser:
    run.value("script", "SCRIPT", "a file, or - for standard input", **more).common(json=False)
    for name, meaning in LIMITS.items():
        run.value(f"--{name.replace('_', '-')}", "N", meaning, type=int)
    return (
        run.choice(
            "--typecheck",
            ["off", "after", "before"],
            "type-check after a failure, or before the start (default: as configured)",
        )
        .flag(
            "--durable",
            "survive the loss of the process, and wait for approvals that nobody here can give",
        )
        .flag("--plan", "stop before each call that is not known to be read-only, until it is allowed")
        .value(
            "--require",
            "SERVER",
            "exit with 2 unless this server is connected (repeatable)",
            action="append",
            default=[],
        )
        .value(
            "--grants",
            "FILE|JSON",
            "narrow what the script may call, as in docs/howto-policy.md: a JSON object, or a file with one",
        )
    )


def _add_brokers(commands: Commands) -> None:
    (
        _add_script(_add(commands, "run", "run:run"), nargs="?")
        .value("--saved", "NAME", "run the approved version of this kept script")
        .value("--input", "JSON", "with --saved: its input, an object")
    )
    _add_script(_add(commands, "record", "recordings:record")).add_argument(
        "-o", "--output", metavar="FILE", help="where the recording goes", required=True, type=Path
    )

    (
        _add(commands, "replay", "recordings:replay_file")
        .value("recording", "FILE|RUN", "a recording, or the id of a run that is kept")
        .flag("--trace", "list the script's calls, each with its line in the script")
        .flag("--values", "list them with their inputs and answers")
        .value("--until", "N", "stop before call N, from 1", type=from_1)
        .value(
            "--script", "SCRIPT", "run another script: its calls get the recorded answers, by tool and input"
        )
        .flag(
            "--live-on-miss",
            "with --script: ask about a call that has no recorded answer, and make it with the servers of --config",
        )
        .flag("--yes", "with --live-on-miss: make it without a question")
        .common(json=False)
    )

    _add_kept_scripts(commands)

    (
        _add(commands, "serve", "serve:serve")
        .common(json=False)
        .flag("--stdio", "over standard input and output (the default)")
        .choice(
            "--profile",
            ["default", "strict", "extended", "proxy"],
            "the tools that clients see (default: as configured)",
        )
        .value(
            "--http",
            "HOST:PORT",
            f"over streamable HTTP, at the path /mcp (default {DEFAULT_ADDRESS}; port 0: any free one)",
            nargs="?",
            const=DEFAULT_ADDRESS,
        )
        .flag(
            "--until-idle",
            "end after 30 minutes without a client, as a daemon does that `connect` has started",
        )
        .flag("--no-auth", "ask for no token; on the loopback only")
        .token_file()
        .certificate("PEM certificate chain")
    )

    (
        _add(commands, "connect", "connect:connect")
        .daemon()
        .flag("--no-start", "start no daemon, and use one of any configuration that runs there")
        .common(json=False)
    )

    service = _add(commands, "service", "service:service")
    kind = service.add_mutually_exclusive_group()
    kind.add_argument("--systemd", action="store_true", help="a systemd user unit (the default on Linux)")
    kind.add_argument("--launchd", action="store_true", help="a launchd agent (the default on macOS)")
    service.address("where it listens").common(json=False)

    actions = _add_actions(commands, "token")

    (
        _add(actions, "token create", "token:create")
        .value("name", "NAME", "a-z, 0-9, - and _; the policy knows it as token:NAME")
        .value(
            "--grants",
            "FILE|JSON",
            "what its holder may call at most, of what the policy grants: a JSON object, or a file with one",
        )
        .value("--expires", "WHEN", "12h, 30d, 8w, or a day such as 2027-01-31 (default: never)")
        .common()
    )
    _add(actions, "token list", "token:list_all").common()
    (
        _add(actions, "token revoke", "token:revoke")
        .value("name", "NAME", "its name")
        .flag(
            "--everything",
            "remove what its holder has, too: logins, secrets, kept outputs and runs, and what was learnt",
        )
        .common(json=False)
    )

    actions = _add_actions(commands, "flows")
    _add(actions, "flows list", "flows:show").common()
    (
        _add(actions, "flows reset", "flows:reset")
        .value("--principal", "NAME", "whose, as cellblock.policy knows clients (default: everybody's)")
        .common(json=False)
    )

    actions = _add_actions(commands, "runs")
    (
        _add(actions, "runs list", "runs:show_all")
        .value("--client", "CLIENT", "whose, as cellblock.policy knows clients (default: everybody's)")
        .value("--limit", "N", "at most so many, the newest (default 20)", type=from_1, default=20)
        .flag("--parked", "only those that wait for a person")
        .common()
    )
    (
        _add(actions, "runs show", "runs:show")
        .value("run", "RUN", "its id")
        .flag("--values", "the script, its console output, and what its calls sent and got, too")
        .common()
    )
    for action in ("approve", "deny"):
        answered = (
            _add(actions, f"runs {action}", f"runs:{action}")
            .value("run", "RUN", "its id")
            .value(
                "--call",
                "N",
                "only the call of this number, or the question of this name (repeatable)",
                action="append",
                default=[],
            )
        )
        if action == "approve":
            answered.value(
                "--answer", "JSON", "the fields of the form with which a server asks, as an object"
            ).flag(
                "--always", "write the rules that allow such calls from now on into the configuration file"
            )
        answered.common(json=False)
    for action in ("cancel", "resume"):
        _add(actions, f"runs {action}", f"runs:{action}").value("run", "RUN", "its id").common(json=False)
    _add(actions, "runs delete", "runs:delete").value("runs", "RUN", "ids", nargs="+").common(json=False)

    (
        _add(commands, "dashboard", "daemon:dashboard")
        .flag("--no-open", "only print the URL")
        .daemon()
        .common(json=False)
    )


def _add_kept_scripts(commands: Commands) -> None:

    (
        _add(commands, "save", "scripts:save")
        .value("source", "RUN|FILE", "the id of a run that is kept, a recording, or with --input a script")
        .value("name", "NAME", "a-z, 0-9 and _: scripts import it by this name")
        .value(
            "--param",
            "NAME=LITERAL",
            "make each literal of this value a parameter (repeatable; the literal as JSON, or a text)",
            action="append",
            default=[],
        )
        .value("--input", "JSON", "run the script with this as `input`, and keep it if it ends well")
        .value("--description", "TEXT", "what it does (default: its first comment)")
        .flag("--replace", "write over a kept script of this name")
        .common(json=False)
    )
    actions = _add_actions(commands, "scripts")
    _add(actions, "scripts list", "scripts:show_all").common()
    (
        _add(actions, "scripts approve", "scripts:approve")
        .value("name", "NAME", "its name")
        .value("--digest", "DIGEST", "approve this very version, without a question")
        .common(json=False)
    )
    _add(actions, "scripts remove", "scripts:remove").value("names", "NAME", "its name", nargs="+").common(
        json=False
    )
    (
        _add(commands, "test", "script_tests:test")
        .value("names", "NAME", "kept scripts; all when none is named", nargs="*")
        .flag("--offline", "replay only: connect to no server")
        .value("--input", "JSON", "run one script with this second input, live, after a question")
        .flag("--yes", "with --input: do not ask")
        .common()
    )


def _add_tools(commands: Commands) -> None:
    (
        _add(commands, "types", "tools:types")
        .value("servers", "SERVER", "all servers when none is named", nargs="*")
        .flag("--compiler", "print what scripts are checked against: longer, and open wherever a schema is")
        .common()
    )

    (
        _add(commands, "search", "tools:search")
        .value("query", "QUERY")
        .value("--server", "SERVER", "search one server only")
        .value("--limit", "N", "at most so many results (default 10)", type=from_1, default=10)
        .flag("--types", "print TypeScript declarations, as search_tools does")
        .common()
    )

    (
        _add(commands, "inspect", "tools:inspect")
        .flag("--json", "print JSON on a terminal, too")
        .value("tool", "TOOL", "SERVER.TOOL, mcp__SERVER__TOOL, or TOOL when it is unique")
        .common(json=False)
    )

    actions = _add_actions(commands, "pins")
    (
        _add(actions, "pins approve", "approval:run")
        .server()
        .value("tools", "TOOL", "approve these", nargs="*")
        .flag("--all", "approve all tools that differ")
        .flag("--show", "approve nothing")
        .value(
            "--principal", "NAME", "whose login shows the tools, of a server where each has one", default=""
        )
        .common()
    )

    actions = _add_actions(commands, "schemas")
    (
        _add(actions, "schemas init", "tools:init")
        .value("server", "SERVER", "its id, or its name in the configuration")
        .flag("--force", "write over an existing file")
        .common(json=False)
    )

    (
        _add(actions, "schemas export", "tools:export")
        .value("server", "SERVER", "all servers when none is named", nargs="?")
        .choice(
            "--format",
            ["mcp", "openai", "anthropic", "typescript", "json-schema"],
            "whole definitions for others (default: outputs)",
        )
        .common(json=False)
    )
    (
        _add(actions, "schemas diff", "tools:diff")
        .value("server", "SERVER", "the server's name in the configuration")
        .value("tool", "TOOL", "the tool's name in MCP")
        .common()
    )
    (
        _add(actions, "schemas clear", "tools:clear")
        .value("server", "SERVER", "everything when none is named", nargs="?")
        .value("tool", "TOOL", "the tool's name in MCP", nargs="?")
        .common()
    )


def _add_configuration(commands: Commands) -> None:
    actions = _add_actions(commands, "auth")

    (
        _add(actions, "auth login", "auth:login")
        .server()
        .flag("--no-browser", "only print the URL")
        .value(
            "--timeout",
            "SECONDS",
            f"longest wait for the browser (default {LOGIN_SECONDS})",
            type=from_1,
            default=LOGIN_SECONDS,
        )
        .common(json=False)
    )
    (
        _add(actions, "auth status", "auth:status")
        .value("server", "SERVER", "all servers with a url when none is named", nargs="?")
        .common()
    )
    _add(actions, "auth list", "auth:show_logins").common()
    (
        _add(actions, "auth logout", "auth:logout")
        .value("server", "SERVER", "its name in mcpServers (with --principal default: all)", nargs="?")
        .value("--principal", "NAME", "whose, as cellblock.policy knows clients (default: your own)")
        .flag("--everything", "with --principal alone: remove all that it has")
        .common(json=False)
    )

    actions = _add_actions(commands, "secret")
    for action, work in (("set", "put"), ("list", "show"), ("remove", "remove")):
        secret = _add(actions, f"secret {action}", f"auth:{work}")
        if action == "list":
            secret.flag("--json", "print JSON")
        else:
            (
                secret.value("name", "NAME", "letters, digits, `_`, `-` and `.`")
                .value("--principal", "NAME", "whose it is, for headers of servers with `login`")
                .state_dir()
            )
        secret.value("--config", "FILE", f"whose references are looked at (default: {USERS_OWN})")

    actions = _add_actions(commands, "config")
    _add(actions, "config check", "config_check:check").common()

    (
        _add(commands, "install", "clients:install")
        .value("clients", "CLIENT", f"one or more of {', '.join(CLIENTS)}", nargs="*", type=_client)
        .flag("--all-detected", "every client that is found on this machine")
        .value(
            "--project",
            "DIR",
            "write the client's file of this project (default folder: the current one)",
            type=Path,
            nargs="?",
            const=Path(),
        )
        .choice(
            "--via",
            ["connect", "stdio"],
            "what the client starts (default: `connect`, which shares a daemon; with --config `serve --stdio`)",
        )
        .flag("--take-over", "take the client's servers over as `import` does, and out of its file")
        .secrets(
            "with --take-over: ", "a server whose variables are not set here stays; --yes needs one of both"
        )
        .flag("--print", "print the entry, and write nothing")
        .flag("--uninstall", "take Cellblock out again")
        .flag("--yes", "do not ask")
        .flag("--json", "print JSON, and do not ask")
        .value(
            "--config", "FILE", "a configuration of its own (default: cellblock.json in your settings folder)"
        )
    )

    (
        _add(commands, "import", "clients:import_servers")
        .value(
            "--from",
            "CLIENT",
            f"one of {', '.join(CLIENTS)} (repeatable; default: all)",
            dest="clients",
            action="append",
            choices=CLIENTS,
        )
        .value(
            "--project",
            "DIR",
            "also the files of this project, such as .mcp.json (default folder: the current one)",
            type=Path,
            nargs="?",
            const=Path(),
        )
        .flag("--dry-run", "show what would be done, and do nothing")
        .flag("--yes", "do not ask")
        .secrets()
        .flag("--copy-secrets", "write secrets into the file as they are")
        .flag("--json", "print JSON, and do not ask")
        .value("--config", "FILE", "where to write (default: cellblock.json in your settings folder)")
    )


def _add_servers(commands: Commands) -> None:
    where = "which file (default: cellblock.json in your settings folder, made when it is not there)"

    add = (
        _add(commands, "add", "edit_servers:add")
        .value("server", "SERVER", "what it is to be called")
        .value("url", "URL", "where it is reached over HTTP; or -- and the command that starts it", nargs="?")
        .value(
            "--header", "HEADER", "an HTTP header, as NAME: VALUE (repeatable)", action="append", default=[]
        )
        .value(
            "--env",
            "VARIABLE",
            "an environment variable of the command, as NAME=VALUE (repeatable)",
            action="append",
            default=[],
        )
        .flag("--replace", "in the place of another server of this name")
        .value("--config", "FILE", where)
    )
    add.set_defaults(program=None)
    add.behind_dashes = "program"
    for name in ("remove", "enable", "disable"):
        (
            _add(commands, name, f"edit_servers:{name}")
            .value("servers", "SERVER", "its name in mcpServers", nargs="+")
            .value("--config", "FILE", where)
        )

    (
        _add(commands, "status", "daemon:status")
        .value("server", "SERVER", "its name in mcpServers (default: all)", nargs="?")
        .common()
    )
    _add(commands, "stop", "daemon:stop").common(json=False)
    _add(commands, "restart", "daemon:restart").server().daemon().common(json=False)
    (
        _add(commands, "logs", "daemon:logs")
        .value("server", "SERVER", "its name in mcpServers; the daemon itself when none is named", nargs="?")
        .flag("--follow", "go on with what is written from now on", short="-f")
        .value("--lines", "N", f"the last N lines (default {LOG_LINES}; 0: all)", type=int, default=LOG_LINES)
        .daemon()
        .common(json=False)
    )


def from_1(text: str) -> int:
    """Reads a number of an option that takes none below 1."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text} is no number from 1")
    return int(text)


def _client(name: str) -> str:
    """Returns the name of a client: argparse checks no choices where none is given."""
    if name not in CLIENTS:
        raise argparse.ArgumentTypeError(f"invalid choice: '{name}' (choose from {', '.join(CLIENTS)})")
    return name


def _add_machine(commands: Commands) -> None:
    (
        _add(commands, "doctor", "doctor:run")
        .flag("--json", "print JSON")
        .address("where a daemon serves or is to serve")
        .certificate("PEM certificate chain that it is to use")
        .common(json=False)
    )

    _add(commands, "keygen", "token:keygen").value("file", "FILE", type=Path)

    _add(commands, "demo", "demo.show:run").state_dir()

    _add(commands, "completion", "completion:run").choice("shell", ["bash", "zsh", "fish"])

    (
        _add(commands, "help", "parser:show_help").value(
            "words",
            "COMMAND",
            "its words, such as `config check` (default: the program itself)",
            nargs="*",
        )
    )
