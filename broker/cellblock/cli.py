"""The command line: arguments to settings to the daemon. Standard output carries answers and nothing else.

Exit codes: 0 all went well; 1 the script ended with an error diagnostic; 2 wrong usage or configuration; 3 Cellblock
itself could not start.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cellblock import __version__, cli_auth, cli_http, cli_schemas
from cellblock.config import Settings, load_settings
from cellblock.errors import CellblockError, Fault, InvalidRequest

if TYPE_CHECKING:
    from cellblock.catalog.model import Catalog
    from cellblock.catalog.outputs import OutputLookup
    from cellblock.daemon import Broker

EXIT_OK: Final = 0
EXIT_SCRIPT_ERROR: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNAVAILABLE: Final = 3

LIMIT_OPTIONS: Final = {
    "timeout_ms": ("timeoutMs", "wall time in milliseconds"),
    "max_memory_bytes": ("maxMemoryBytes", "memory over an idle worker's, in bytes"),
    "max_log_bytes": ("maxLogBytes", "console output in bytes"),
    "max_tool_calls": ("maxToolCalls", "number of tool calls"),
    "max_cpu_ms": ("maxCpuMs", "CPU time in milliseconds"),
}


class UsageError(Exception):
    """The arguments cannot be used; the text says why."""


def make_parser() -> argparse.ArgumentParser:
    """All commands and options."""
    parser = argparse.ArgumentParser(
        prog="cellblock",
        description="Runs an agent's JavaScript against MCP servers, in a process that can touch nothing.",
    )
    parser.add_argument("--version", action="version", version=f"cellblock {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = commands.add_parser(
        "run",
        help="run one script and print the response as JSON",
        description="Runs one script and prints the codemode.run response as JSON.",
        epilog="example: cellblock run script.js --config cellblock.json --timeout-ms 5000",
    )
    run.add_argument("script", metavar="SCRIPT", help="a file, or - for standard input")
    _common(run)
    for name, (_, meaning) in LIMIT_OPTIONS.items():
        run.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N", help=meaning)
    run.add_argument(
        "--typecheck",
        choices=["off", "after", "before"],
        help="type-check after a failure, or before the start (default: as configured)",
    )
    run.add_argument(
        "--require",
        action="append",
        default=[],
        metavar="SERVER",
        help="exit with 2 unless this server is connected (repeatable)",
    )

    serve = commands.add_parser(
        "serve",
        help="be an MCP server with the tool codemode.run",
        description="Serves MCP clients: one tool, codemode.run; with the profile `extended` also search_tools, "
        "inspect_tool and list_servers.",
        epilog="example: claude mcp add cellblock -- cellblock serve --stdio --config ~/cellblock.json",
    )
    _common(serve)
    serve.add_argument("--stdio", action="store_true", help="over standard input and output (the default)")
    serve.add_argument(
        "--profile",
        choices=["default", "extended"],
        help="the tools that clients see (default: as configured)",
    )
    cli_http.add_serve_options(serve)
    cli_http.add_parsers(commands, _common)

    types = commands.add_parser(
        "types",
        help="print the TypeScript declarations of servers",
        description="Prints the TypeScript declarations that scripts are written against.",
        epilog="example: cellblock types files --config cellblock.json > servers.d.ts",
    )
    types.add_argument("servers", nargs="*", metavar="SERVER", help="all servers when none is named")
    _common(types)

    search = commands.add_parser("search", help="find tools by what they do")
    search.add_argument("query", metavar="QUERY")
    search.add_argument("--server", metavar="SERVER", help="search one server only")
    search.add_argument(
        "--limit", type=int, default=10, metavar="N", help="at most so many results (default 10)"
    )
    search.add_argument(
        "--types", action="store_true", help="print TypeScript declarations, as search_tools does"
    )
    search.add_argument("--json", action="store_true", help="print JSON")
    _common(search)

    inspect = commands.add_parser("inspect", help="print one tool's description and schemas as JSON")
    inspect.add_argument(
        "tool", metavar="TOOL", help="SERVER.TOOL, mcp__SERVER__TOOL, or TOOL when it is unique"
    )
    _common(inspect)

    approve = commands.add_parser(
        "approve",
        help="show how a server's tools differ from their pins, and pin them as they are now",
        description="Connects to one server and shows which of its tools are new, or changed since they were pinned. "
        "Exit code 1 when tools differ and none was approved.",
        epilog="example: cellblock approve files read_file --config cellblock.json",
    )
    approve.add_argument("server", metavar="SERVER", help="its name in mcpServers")
    approve.add_argument("tools", nargs="*", metavar="TOOL", help="approve these")
    approve.add_argument("--all", action="store_true", help="approve all tools that differ")
    approve.add_argument("--show", action="store_true", help="approve nothing")
    _common(approve)

    cli_schemas.add_parser(commands, _common)
    cli_auth.add_parser(commands, _common)

    doctor = commands.add_parser(
        "doctor",
        help="say what is in force on this machine, what is missing, and what does not work",
        description="Starts everything once and says what is in force, missing or broken. Exit code 1 on a problem.",
    )
    doctor.add_argument("--json", action="store_true", help="print JSON")
    _common(doctor)

    keygen = commands.add_parser(
        "keygen",
        help="make the key pair of a broker or of a worker host, and print its public key",
        description="Makes FILE with a new key pair, readable by you alone, and prints the public key. "
        "Of a FILE that exists, prints the public key.",
        epilog="example: cellblock keygen ~/.config/cellblock/broker.key",
    )
    keygen.add_argument("file", type=Path, metavar="FILE")

    demo = commands.add_parser(
        "demo", help="run a real script against two servers that need nothing external"
    )
    demo.add_argument("--state-dir", type=Path, metavar="DIR", help="where logs and stores live")
    return parser


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="mcpServers JSON, or the same as TOML")
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="where logs and stores live")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command. Returns the exit code."""
    logging.basicConfig(
        level=os.environ.get("CELLBLOCK_LOG", "ERROR").upper(),
        stream=sys.stderr,
        format="%(asctime)s %(name)s %(levelname)s %(message)s",
    )
    parsed = make_parser().parse_args(arguments)
    commands: dict[str, Callable[[argparse.Namespace], Coroutine[Any, Any, int]]] = {
        "run": _run,
        "serve": _serve,
        "connect": _connect,
        "service": _service,
        "types": _types,
        "search": _search,
        "inspect": _inspect,
        "approve": _approve,
        "schemas": _schemas,
        "auth": _auth,
        "doctor": _doctor,
        "keygen": _keygen,
        "demo": _demo,
    }
    try:
        return asyncio.run(_with_signals(commands[parsed.command](parsed)))
    except UsageError as error:
        sys.stderr.write(f"cellblock: {error}\n")
        return EXIT_USAGE
    except CellblockError as error:
        sys.stderr.write(f"cellblock: {error}\n")
        return EXIT_USAGE if error.fault is Fault.CALLER else EXIT_UNAVAILABLE
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


async def _with_signals(work: Coroutine[Any, Any, int]) -> int:
    """Turns SIGTERM and SIGHUP into a cancellation, so that everything is closed in order."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)
    return await task


def _settings(parsed: argparse.Namespace) -> Settings:
    return load_settings(parsed.config).with_state_dir(parsed.state_dir)


async def _run(parsed: argparse.Namespace) -> int:
    from cellblock.daemon import Broker
    from cellblock.policy.asking import CLI

    code = _read_script(parsed.script)
    limits = {
        key: value for name, (key, _) in LIMIT_OPTIONS.items() if (value := getattr(parsed, name)) is not None
    }
    async with Broker(_settings(parsed)) as broker:
        await broker.settled()
        _require(broker, parsed.require)
        try:
            response = await broker.run(
                code,
                limits=limits,
                requested_capabilities=parsed.require,
                typecheck=parsed.typecheck,
                grantee=CLI,
            )
        except InvalidRequest as error:
            raise UsageError(str(error)) from None
    sys.stdout.write(json.dumps(response.as_json(), ensure_ascii=False, indent=2) + "\n")
    return EXIT_OK if response.ok else EXIT_SCRIPT_ERROR


def _require(broker: Broker, names: Sequence[str]) -> None:
    catalog = broker.catalog
    config_names = {server.config_name for server in catalog.servers.values()}
    for name in names:
        if name not in catalog.servers and name not in config_names:
            reason = catalog.unavailable.get(name, "it is not in the configuration")
            raise UsageError(f"the required server {name} is not connected: {reason}")


def _read_script(name: str) -> str:
    try:
        raw = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        return raw.decode("utf-8")
    except OSError as error:
        raise UsageError(f"cannot read the script: {error}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"the script {name} is no UTF-8 text: {error}") from None


async def _serve(parsed: argparse.Namespace) -> int:
    cli_http.check_serve(parsed)
    settings = _settings(parsed).with_profile(parsed.profile)
    if parsed.http is not None:
        await cli_http.serve(parsed, settings)
        return EXIT_OK

    from cellblock.daemon import Broker
    from cellblock.frontend.mcp_server import serve_stdio

    async with Broker(settings) as broker:
        await broker.settled()
        await serve_stdio(broker, version=__version__)
    return EXIT_OK


async def _connect(parsed: argparse.Namespace) -> int:
    await cli_http.connect(parsed, _settings(parsed))
    return EXIT_OK


async def _service(parsed: argparse.Namespace) -> int:
    sys.stdout.write(cli_http.service(parsed, _settings(parsed)))
    return EXIT_OK


async def _catalog(parsed: argparse.Namespace) -> tuple[Catalog, Broker]:
    from cellblock.daemon import Broker

    async with Broker(_settings(parsed)) as broker:
        await broker.settled()
        catalog = broker.catalog
    for server_id, reason in catalog.unavailable.items():
        sys.stderr.write(f"cellblock: server {server_id} is not connected: {reason}\n")
    return catalog, broker


async def _types(parsed: argparse.Namespace) -> int:
    from cellblock.knowledge import show_types

    catalog, broker = await _catalog(parsed)
    sys.stdout.write(show_types(catalog, parsed.servers, broker.output_of))
    return EXIT_OK


async def _search(parsed: argparse.Namespace) -> int:
    from cellblock.knowledge import as_json, as_text, declare_found, find_tools, search_tools

    if parsed.limit < 1:
        raise UsageError("--limit must be 1 or more")
    if parsed.json and parsed.types:
        raise UsageError("give --json or --types")
    catalog, broker = await _catalog(parsed)
    asked: dict[str, Any] = {"server": parsed.server, "limit": parsed.limit}
    if parsed.types:
        sys.stdout.write(declare_found(find_tools(catalog, parsed.query, **asked), broker.output_of))
        return EXIT_OK
    results = search_tools(catalog, parsed.query, **asked, outputs=broker.output_of)
    sys.stdout.write((as_json(results) if parsed.json else as_text(results)) + "\n")
    return EXIT_OK


async def _inspect(parsed: argparse.Namespace) -> int:
    from cellblock.knowledge import as_json, inspect_tool

    catalog, broker = await _catalog(parsed)
    found = inspect_tool(catalog, parsed.tool, broker.output_of, broker.observed_of)
    sys.stdout.write(as_json(found) + "\n")
    return EXIT_OK


async def _approve(parsed: argparse.Namespace) -> int:
    from cellblock.approval import approve

    if parsed.tools and parsed.all:
        raise UsageError("name tools, or give --all")
    settings = _settings(parsed)
    done = await approve(settings, parsed.server, parsed.tools, every=parsed.all, show_only=parsed.show)
    sys.stdout.write(done.text + "\n")
    return EXIT_OK if done.approved or not done.differing else EXIT_SCRIPT_ERROR


async def _schemas(parsed: argparse.Namespace) -> int:
    async def known(asked: argparse.Namespace) -> tuple[Catalog, OutputLookup]:
        catalog, broker = await _catalog(asked)
        return catalog, broker.output_of

    sys.stdout.write(await cli_schemas.run(parsed, _settings(parsed), known))
    return EXIT_OK


async def _auth(parsed: argparse.Namespace) -> int:
    return await cli_auth.run(parsed, _settings(parsed))


async def _doctor(parsed: argparse.Namespace) -> int:
    from cellblock.daemon import Broker
    from cellblock.doctor import examine
    from cellblock.knowledge import as_json

    report = await examine(Broker(_settings(parsed)))
    sys.stdout.write((as_json(report.as_json()) if parsed.json else report.as_text()) + "\n")
    return EXIT_OK if report.ok else EXIT_SCRIPT_ERROR


async def _keygen(parsed: argparse.Namespace) -> int:
    from cellblock_worker.keys import KeyFileError, make_key_file, read_key_file

    try:
        pair = read_key_file(parsed.file) if parsed.file.exists() else make_key_file(parsed.file)
    except KeyFileError as error:
        raise UsageError(str(error)) from None
    sys.stdout.write(f"{pair.public}\n")
    return EXIT_OK


async def _demo(parsed: argparse.Namespace) -> int:
    from cellblock.demo.show import show

    return EXIT_OK if await show(parsed.state_dir) else EXIT_SCRIPT_ERROR


if __name__ == "__main__":
    sys.exit(main())
