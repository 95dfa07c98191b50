"""All commands and their options. Nothing here costs more than argparse: --help and completion come by."""

from __future__ import annotations

import argparse
from pathlib import Path

from cellblock import __version__
from cellblock.cli import auth, config, http, import_, observe, run, schemas, usage
from cellblock.cli.help import finish
from cellblock.cli.options import add_common, add_json, add_server, add_state_dir


def make_parser() -> argparse.ArgumentParser:
    """All commands and options."""
    parser = usage.make(
        "cellblock", "Runs an agent's JavaScript against MCP servers, in a process that can touch nothing."
    )
    parser.add_argument("--version", action="version", version=f"cellblock {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run.add_parser(commands)

    serve = commands.add_parser(
        "serve",
        help="be an MCP server with the tool codemode.run",
        description="Serves MCP clients: one tool, codemode.run; with the profile `extended` also search_tools, "
        "inspect_tool and list_servers.",
    )
    add_common(serve)
    serve.add_argument("--stdio", action="store_true", help="over standard input and output (the default)")
    serve.add_argument(
        "--profile",
        choices=["default", "extended"],
        help="the tools that clients see (default: as configured)",
    )
    http.add_serve_options(serve)
    http.add_parsers(commands)
    observe.add_parsers(commands)

    types = commands.add_parser(
        "types",
        help="print the TypeScript declarations of servers",
        description="Prints the TypeScript declarations that scripts are written against.",
    )
    types.add_argument("servers", nargs="*", metavar="SERVER", help="all servers when none is named")
    types.add_argument(
        "--compiler",
        action="store_true",
        help="print what scripts are checked against: longer, and open wherever a schema is",
    )
    add_json(types)
    add_common(types)

    search = commands.add_parser(
        "search",
        help="find tools by what they do",
        description="Finds the tools that fit a description, best first.",
    )
    search.add_argument("query", metavar="QUERY")
    search.add_argument("--server", metavar="SERVER", help="search one server only")
    search.add_argument(
        "--limit", type=int, default=10, metavar="N", help="at most so many results (default 10)"
    )
    search.add_argument(
        "--types", action="store_true", help="print TypeScript declarations, as search_tools does"
    )
    add_json(search)
    add_common(search)

    inspect = commands.add_parser(
        "inspect",
        help="show one tool's description and schemas",
        description="Shows one tool: JSON, or text for people on a terminal.",
    )
    add_json(inspect, "print JSON on a terminal, too")
    inspect.add_argument(
        "tool", metavar="TOOL", help="SERVER.TOOL, mcp__SERVER__TOOL, or TOOL when it is unique"
    )
    add_common(inspect)

    approve = commands.add_parser(
        "approve",
        help="show how a server's tools differ from their pins, and pin them as they are now",
        description="Connects to one server and shows which of its tools are new, or changed since they were pinned.",
    )
    add_server(approve)
    approve.add_argument("tools", nargs="*", metavar="TOOL", help="approve these")
    approve.add_argument("--all", action="store_true", help="approve all tools that differ")
    approve.add_argument("--show", action="store_true", help="approve nothing")
    add_json(approve)
    add_common(approve)

    schemas.add_parser(commands)
    auth.add_parser(commands)
    config.add_parsers(commands)
    import_.add_parser(commands)

    doctor = commands.add_parser(
        "doctor",
        help="say what is in force on this machine, what is missing, and what does not work",
        description="Starts everything once and says what is in force, missing or broken, and how to mend it.",
    )
    add_json(doctor)
    http.add_doctor_options(doctor)
    add_common(doctor)

    keygen = commands.add_parser(
        "keygen",
        help="make the key pair of a broker or of a worker host, and print its public key",
        description="Makes FILE with a new key pair, readable by you alone, and prints the public key. "
        "Of a FILE that exists, prints the public key.",
    )
    keygen.add_argument("file", type=Path, metavar="FILE")

    demo = commands.add_parser(
        "demo",
        help="run a real script against two servers that need nothing external",
        description="Runs a real script against two servers that need nothing external, and shows what happens.",
    )
    add_state_dir(demo)

    completion = commands.add_parser(
        "completion",
        help="print what makes a shell complete commands, options and server names",
        description="Prints a script for the shell. Completion asks this program, so it is never out of date.",
    )
    completion.add_argument("shell", choices=["bash", "zsh", "fish"])
    finish(parser)
    return parser
