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
from cellblock.cli.help import finish

Commands: TypeAlias = "argparse._SubParsersAction[Parser]"  # pyright: ignore[reportPrivateUsage]

CLIENTS: Final = ("claude-code", "claude-desktop", "cursor", "vscode", "windsurf")
"""Names the MCP clients that `import` knows."""

LIMITS: Final = {
    "timeout_ms": "wall time in milliseconds",
    "max_memory_bytes": "memory over an idle worker's, in bytes",
    "max_log_bytes": "console output in bytes",
    "max_tool_calls": "number of tool calls",
    "max_cpu_ms": "CPU time in milliseconds",
}
"""Names the limits that `run` sets, as its options do."""

LOGIN_SECONDS: Final = 300
"""Bounds the time that a person has to log in."""


def make_parser() -> Parser:
    """Returns the parser of all commands and options."""
    parser = Parser(
        prog="cellblock",
        description="Runs an agent's JavaScript against MCP servers, in a process that can touch nothing.",
    )
    parser.add_argument("--version", action="version", version=f"cellblock {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_run(commands)
    _add_daemons(commands)
    _add_tools(commands)
    _add_schemas(commands)
    _add_auth(commands)
    _add_configuration(commands)
    _add_machine(commands)
    finish(parser)
    return parser


def _add(commands: Commands, name: str, work: str, meaning: str, description: str) -> Parser:
    """Adds one command; `work` is `module:function` in this package."""
    parser = commands.add_parser(name, help=meaning, description=description)
    parser.set_defaults(work=work)
    return parser


def _add_actions(commands: Commands, name: str, meaning: str, description: str) -> Commands:
    """Adds a command that has commands below it."""
    parser = commands.add_parser(name, help=meaning, description=description)
    return parser.add_subparsers(dest="action", required=True, metavar="ACTION")


def _add_run(commands: Commands) -> None:
    run = _add(
        commands,
        "run",
        "run:run",
        "run one script and print the response as JSON",
        "Runs one script and prints the codemode.run response as JSON. On a terminal you are asked about "
        "calls that the policy wants approved, unless the script comes from standard input.",
    )
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
    run.value("--require", "SERVER", required, action="append", default=[])
    narrow = "narrow what the script may call, as in docs/howto-policy.md: a JSON object, or a file with one"
    run.value("--grants", "FILE|JSON", narrow)


def _add_daemons(commands: Commands) -> None:
    serve = _add(
        commands,
        "serve",
        "serve:serve",
        "be an MCP server with the tool codemode.run",
        "Serves MCP clients: one tool, codemode.run; with the profile `extended` also search_tools, "
        "inspect_tool and list_servers.",
    )
    serve.common(json=False)
    serve.flag("--stdio", "over standard input and output (the default)")
    profiles = ["default", "extended"]
    serve.add_argument(
        "--profile", choices=profiles, help="the tools that clients see (default: as configured)"
    )
    over = f"over streamable HTTP, at the path /mcp (default {DEFAULT_ADDRESS}; port 0: any free one)"
    serve.value("--http", "HOST:PORT", over, nargs="?", const=DEFAULT_ADDRESS)
    serve.flag("--no-auth", "ask for no token; on the loopback only")
    serve.token_file()
    serve.certificate("PEM certificate chain")

    connect = _add(
        commands,
        "connect",
        "attach:connect",
        "be the stdio end of a daemon that runs already",
        "Relays MCP between standard input and output and a running `cellblock serve --http`, so that "
        "several editors share its workers and its upstream servers.",
    )
    connect.daemon()
    connect.common(json=False)

    service = _add(
        commands,
        "service",
        "service:service",
        "print a systemd unit or a launchd plist that runs the daemon",
        "Prints what makes `cellblock serve --http` a service of the user, and where to put it.",
    )
    kind = service.add_mutually_exclusive_group()
    kind.add_argument("--systemd", action="store_true", help="a systemd user unit (the default on Linux)")
    kind.add_argument("--launchd", action="store_true", help="a launchd agent (the default on macOS)")
    service.address("where it listens")
    service.common(json=False)

    dashboard = _add(
        commands,
        "dashboard",
        "attach:dashboard",
        "open the page of a running daemon in the browser",
        "Prints a URL that is good for one login within a minute, and opens it in the browser where there "
        "is one. The daemon is a `cellblock serve --http`.",
    )
    dashboard.flag("--no-open", "only print the URL")
    top = _add(
        commands,
        "top",
        "attach:top",
        "show a running daemon in the terminal",
        "Shows pool, queue, latencies, servers and runs of a running `cellblock serve --http`. The arrow "
        "keys or j and k select a run, Enter opens it: its timeline, calls, diagnostics and console output. s shows "
        "what is known of the servers' tools, ? all keys, Esc goes back, q quits.",
    )
    top.flag("--once", "print it once and exit (as when output is no terminal)")
    top.flag("--json", "with --once: print JSON")
    for parser in (dashboard, top):
        parser.daemon()
        parser.common(json=False)


def _add_tools(commands: Commands) -> None:
    types = _add(
        commands,
        "types",
        "tools:types",
        "print the TypeScript declarations of servers",
        "Prints the TypeScript declarations that scripts are written against.",
    )
    types.value("servers", "SERVER", "all servers when none is named", nargs="*")
    types.flag("--compiler", "print what scripts are checked against: longer, and open wherever a schema is")
    types.common()

    search = _add(
        commands,
        "search",
        "tools:search",
        "find tools by what they do",
        "Finds the tools that fit a description, best first.",
    )
    search.value("query", "QUERY")
    search.value("--server", "SERVER", "search one server only")
    search.value("--limit", "N", "at most so many results (default 10)", type=int, default=10)
    search.flag("--types", "print TypeScript declarations, as search_tools does")
    search.common()

    inspect = _add(
        commands,
        "inspect",
        "tools:inspect",
        "show one tool's description and schemas",
        "Shows one tool: JSON, or text for people on a terminal.",
    )
    inspect.flag("--json", "print JSON on a terminal, too")
    inspect.value("tool", "TOOL", "SERVER.TOOL, mcp__SERVER__TOOL, or TOOL when it is unique")
    inspect.common(json=False)

    approve = _add(
        commands,
        "approve",
        "approval:run",
        "show how a server's tools differ from their pins, and pin them as they are now",
        "Connects to one server and shows which of its tools are new, or changed since they were pinned.",
    )
    approve.server()
    approve.value("tools", "TOOL", "approve these", nargs="*")
    approve.flag("--all", "approve all tools that differ")
    approve.flag("--show", "approve nothing")
    approve.common()


def _add_schemas(commands: Commands) -> None:
    actions = _add_actions(
        commands,
        "schemas",
        "what tools return: overlay files, and what was observed",
        "Works with what is known of the results of tools. No tool is called.",
    )
    meaning = "write a commented overlay file to fill in"
    description = "Writes a commented overlay file for one server, to say in it what its tools return."
    init = _add(actions, "init", "schemas:init", meaning, description)
    init.value("server", "SERVER", "its id, or its name in the configuration")
    init.flag("--force", "write over an existing file")
    init.common(json=False)
    meaning = "print what is known of outputs as JSON"
    description = "Prints what is known of outputs, declared, given or observed, as JSON."
    export = _add(actions, "export", "schemas:export", meaning, description)
    export.value("server", "SERVER", "all servers when none is named", nargs="?")
    export.common(json=False)
    meaning = "print how what a tool returns has changed"
    description = "Prints how the results of a tool have changed since they were first observed."
    diff = _add(actions, "diff", "schemas:diff", meaning, description)
    diff.value("server", "SERVER", "the server's name in the configuration")
    diff.value("tool", "TOOL", "the tool's name in MCP")
    diff.common()
    description = "Forgets what was observed: of one tool, of one server, or everything."
    clear = _add(actions, "clear", "schemas:clear", "forget what was observed", description)
    clear.value("server", "SERVER", "everything when none is named", nargs="?")
    clear.value("tool", "TOOL", "the tool's name in MCP", nargs="?")
    clear.common()


def _add_auth(commands: Commands) -> None:
    actions = _add_actions(
        commands,
        "auth",
        "log in to upstream servers with OAuth",
        "Logs in to the HTTP servers of the configuration. A daemon that runs already sees it within a "
        "second; it never opens a browser by itself.",
    )
    login = _add(
        actions,
        "login",
        "auth:login",
        "log in to one server in a browser",
        "Opens a browser, waits until you have logged in there, and keeps the login in the system's "
        "keyring, or else in a file that only you can read. Asks for the scopes that calls were refused for, too. "
        "Exit code 3 when nobody has logged in.",
    )
    login.server()
    login.flag("--no-browser", "only print the URL")
    longest = f"longest wait for the browser (default {LOGIN_SECONDS})"
    login.value("--timeout", "SECONDS", longest, type=int, default=LOGIN_SECONDS)
    login.common(json=False)
    status = _add(
        actions,
        "status",
        "auth:status",
        "say how the logins stand",
        "Says how the logins stand, without asking any server. Exit code 1 when SERVER is named and there "
        "is no login that can be used.",
    )
    status.value("server", "SERVER", "all servers with a url when none is named", nargs="?")
    status.common()
    description = "Ends a login, at the authorization server too where it can be ended there, and forgets it."
    logout = _add(actions, "logout", "auth:logout", "end a login", description)
    logout.server()
    logout.common(json=False)


def _add_configuration(commands: Commands) -> None:
    meaning, description = "check a configuration file", "What concerns configuration files."
    actions = _add_actions(commands, "config", meaning, description)
    check = _add(
        actions,
        "check",
        "config_check:check",
        "list everything that is wrong with a file, with line and column",
        "Lists everything that is wrong with a configuration file, as file:line:column, and what it "
        "configures. Shows no values, starts nothing, and loads no Python tools: those `doctor` tries.",
    )
    check.common()

    take = _add(
        commands,
        "import",
        "import_:run",
        "take over the servers of other MCP clients on this machine",
        "Finds the MCP servers of Claude Code, Claude Desktop, Cursor, VS Code and Windsurf, shows what "
        "it would do, and asks. Secrets are not copied unless you say so: references to environment variables stand "
        "in their place.",
    )
    one_of = f"one of {', '.join(CLIENTS)} (repeatable; default: all)"
    take.value("--from", "CLIENT", one_of, dest="clients", action="append", choices=CLIENTS)
    folder = "the folder whose .mcp.json, .cursor and .vscode are looked at (default: the current one)"
    take.value("--project", "DIR", folder, type=Path)
    take.flag("--dry-run", "show what would be done, and do nothing")
    take.flag("--yes", "do not ask")
    take.flag("--copy-secrets", "write secrets into the file as they are")
    take.flag("--json", "print JSON, and do not ask")
    take.value("--config", "FILE", "where to write (default: cellblock.json in your settings folder)")


def _add_machine(commands: Commands) -> None:
    doctor = _add(
        commands,
        "doctor",
        "doctor:run",
        "say what is in force on this machine, what is missing, and what does not work",
        "Starts everything once and says what is in force, missing or broken, and how to mend it.",
    )
    doctor.flag("--json", "print JSON")
    doctor.address("where a daemon serves or is to serve")
    doctor.certificate("PEM certificate chain that it is to use")
    doctor.common(json=False)

    keygen = _add(
        commands,
        "keygen",
        "keygen:keygen",
        "make the key pair of a broker or of a worker host, and print its public key",
        "Makes FILE with a new key pair, readable by you alone, and prints the public key. "
        "Of a FILE that exists, prints the public key.",
    )
    keygen.value("file", "FILE", type=Path)

    description = "Runs a real script against two servers that need nothing external, and shows what happens."
    meaning = "run a real script against two servers that need nothing external"
    _add(commands, "demo", "demo.show:run", meaning, description).state_dir()

    completion = _add(
        commands,
        "completion",
        "completion:run",
        "print what makes a shell complete commands, options and server names",
        "Prints a script for the shell. Completion asks this program, so it is never out of date.",
    )
    completion.add_argument("shell", choices=["bash", "zsh", "fish"])
