"""The command line: arguments to settings to the daemon. Standard output carries answers and nothing else.

Exit codes: 0 all went well; 1 the script ended with an error diagnostic; 2 wrong usage or configuration; 3 Cellblock
itself could not start, or its output be written.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from cellblock import __version__
from cellblock.base.errors import CellblockError, Fault
from cellblock.base.terminal_text import harmless, json_text
from cellblock.cli import auth, config, http, import_, observe, run, schemas
from cellblock.cli.log import logging_as_configured
from cellblock.cli.options import default_file
from cellblock.cli.parser import make_parser
from cellblock.cli.run import UsageError
from cellblock.cli.signals import Hangups, ended_by_signals
from cellblock.cli.streams import with_streams, write_data

if TYPE_CHECKING:
    from cellblock.catalog.model import Catalog
    from cellblock.catalog.outputs import OutputLookup
    from cellblock.cli.config_check import Checked
    from cellblock.config.settings import Settings
    from cellblock.daemon.broker import Broker
    from cellblock.frontend.http.server import HttpFrontend
    from cellblock.frontend.stdio.connect import Daemon

Command: TypeAlias = Callable[[argparse.Namespace], "Coroutine[Any, Any, int] | int"]
"""Reads what it is given, and does its work or says what is to run in a loop; either gives the exit code."""

Given = TypeVar("Given")

Working: TypeAlias = Callable[[argparse.Namespace, Given], Coroutine[Any, Any, int]]

EXIT_OK: Final = 0
EXIT_SCRIPT_ERROR: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNAVAILABLE: Final = 3

OWN_CONFIG: Final = ("import", "config", "demo")
"""Commands that say for themselves what no --config means; for others it is the user's own file, if it is there."""

COMPLETING: Final = "_ARGCOMPLETE"
"""Set by a shell that asks what an unfinished command line can become."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command. Returns the exit code."""
    if COMPLETING in os.environ:
        from cellblock.cli.completion import complete

        complete(make_parser())
    return with_streams(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    logging.basicConfig(
        level=os.environ.get("CELLBLOCK_LOG", "ERROR").upper(),
        stream=sys.stderr,
        format="%(asctime)s %(name)s %(levelname)s %(message)s",
    )
    parsed = make_parser().parse_args(arguments)
    if parsed.command not in OWN_CONFIG and getattr(parsed, "config", "") is None:
        default = default_file()
        parsed.config = str(default) if default.is_file() else None
    commands: dict[str, Command] = {
        "run": _run,
        "serve": _serve,
        "connect": _connect,
        "service": _service,
        "dashboard": _dashboard,
        "top": _top,
        "types": _types,
        "search": _search,
        "inspect": _inspect,
        "approve": _approve,
        "schemas": _schemas,
        "auth": _auth,
        "completion": _completion,
        "config": _config,
        "import": _import,
        "doctor": _doctor,
        "keygen": _keygen,
        "demo": _demo,
    }
    try:
        # Signals have their default effect until the loop runs: what is read here may be a pipe, and wait.
        work = commands[parsed.command](parsed)
        return work if isinstance(work, int) else asyncio.run(ended_by_signals(work))
    except UsageError as error:
        sys.stderr.write(harmless(f"cellblock: {error}\n"))
        return EXIT_USAGE
    except CellblockError as error:
        sys.stderr.write(harmless(f"cellblock: {error}\n"))
        return EXIT_USAGE if error.fault is Fault.CALLER else EXIT_UNAVAILABLE
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _given(read: Callable[[argparse.Namespace], Given]) -> Callable[[Working[Given]], Command]:
    """A command that is given what it reads of files and standard input, which is read before the loop runs."""

    def made(work: Working[Given]) -> Command:
        return lambda parsed: work(parsed, read(parsed))

    return made


def _settings(parsed: argparse.Namespace) -> Settings:
    # Not at the top: the models cost 0.1 s, which --help and a shell's completion need not wait for.
    from cellblock.config.settings import load_settings

    return load_settings(parsed.config).with_state_dir(parsed.state_dir)


def _with_state_dir(parsed: argparse.Namespace) -> Settings:
    """The settings, for commands that keep something in the state directory."""
    settings = _settings(parsed)
    _check_state_dir(settings)
    return settings


def _check_state_dir(settings: Settings) -> None:
    from cellblock.base.state_dir import check_state_dir

    warning = check_state_dir(settings.state_dir)
    if warning is not None:
        sys.stderr.write(harmless(f"cellblock: warning: {warning}\n"))


@_given(lambda parsed: (_with_state_dir(parsed), run.read(parsed)))
async def _run(parsed: argparse.Namespace, given: tuple[Settings, run.Asked]) -> int:
    return EXIT_OK if await run.run(parsed, *given) else EXIT_SCRIPT_ERROR


def _serve(parsed: argparse.Namespace) -> Coroutine[Any, Any, int]:
    hangups = Hangups()
    http.check_serve(parsed)

    def load() -> Settings:
        settings = _settings(parsed).with_profile(parsed.profile)
        return settings if parsed.http is None else settings.for_service()

    settings = load()
    _check_state_dir(settings)
    if parsed.http is None:
        return _serve_stdio(parsed, settings, load, hangups)
    return _serve_http(parsed, settings, http.front_of(parsed, settings), load, hangups)


async def _serve_http(
    parsed: argparse.Namespace,
    settings: Settings,
    front: HttpFrontend,
    load: Callable[[], Settings],
    hangups: Hangups,
) -> int:
    async with logging_as_configured(settings):
        await http.serve(parsed, settings, front, load, hangups)
    return EXIT_OK


async def _serve_stdio(
    parsed: argparse.Namespace, settings: Settings, load: Callable[[], Settings], hangups: Hangups
) -> int:
    from cellblock.cli.reload import following
    from cellblock.daemon.broker import Broker
    from cellblock.frontend.stdio.server import StdioFront

    broker = Broker(settings)
    async with logging_as_configured(settings), StdioFront(broker, version=__version__) as front:
        # What it takes to run scripts is imported and started while the client reads its greeting.
        await front.greeted()
        async with broker.begun(), following(broker, parsed, load, hangups), front.opened():
            await front.ended(unless=broker.host_started())
    return EXIT_OK


@_given(http.found_daemon)
async def _connect(_: argparse.Namespace, found: http.Found) -> int:
    await http.connect(found)
    return EXIT_OK


def _service(parsed: argparse.Namespace) -> int:
    write_data(http.service(parsed))
    return EXIT_OK


@_given(http.daemon_of)
async def _dashboard(parsed: argparse.Namespace, daemon: Daemon) -> int:
    await observe.dashboard(parsed, daemon)
    return EXIT_OK


@_given(http.daemon_of)
async def _top(parsed: argparse.Namespace, daemon: Daemon) -> int:
    await observe.top(parsed, daemon)
    return EXIT_OK


async def _catalog(settings: Settings) -> tuple[Catalog, Broker]:
    from cellblock.daemon.broker import Broker

    async with Broker(settings.without_workers()) as broker:
        await broker.settled()
        catalog = broker.catalog
    for server_id, reason in catalog.unavailable.items():
        sys.stderr.write(f"cellblock: server {server_id} is not connected: {reason}\n")
    return catalog, broker


@_given(_with_state_dir)
async def _types(parsed: argparse.Namespace, settings: Settings) -> int:
    from cellblock.catalog.lookup import as_json, show_types

    catalog, broker = await _catalog(settings)
    if parsed.json:
        names = parsed.servers or list(catalog.servers)
        found = {
            name: show_types(catalog, [name], broker.output_of, reading=not parsed.compiler) for name in names
        }
        write_data(as_json(found) + "\n")
        return EXIT_OK
    write_data(show_types(catalog, parsed.servers, broker.output_of, reading=not parsed.compiler))
    return EXIT_OK


@_given(_with_state_dir)
async def _search(parsed: argparse.Namespace, settings: Settings) -> int:
    from cellblock.base.terminal import Painter
    from cellblock.catalog.lookup import as_json, declare_found, find_tools, search_tools
    from cellblock.cli.show import search_text

    if parsed.limit < 1:
        raise UsageError("--limit must be 1 or more")
    if parsed.json and parsed.types:
        raise UsageError("give --json or --types")
    catalog, broker = await _catalog(settings)
    asked: dict[str, Any] = {"server": parsed.server, "limit": parsed.limit}
    if parsed.types:
        write_data(declare_found(find_tools(catalog, parsed.query, **asked), broker.output_of))
        return EXIT_OK
    results = search_tools(catalog, parsed.query, **asked, outputs=broker.output_of)
    if parsed.json:
        write_data(as_json(results) + "\n")
    else:
        sys.stdout.write(search_text(results, Painter(sys.stdout)) + "\n")
    return EXIT_OK


@_given(_with_state_dir)
async def _inspect(parsed: argparse.Namespace, settings: Settings) -> int:
    from cellblock.base.terminal import Painter
    from cellblock.catalog.lookup import as_json, inspect_tool
    from cellblock.cli.show import tool_text

    catalog, broker = await _catalog(settings)
    found = inspect_tool(catalog, parsed.tool, broker.output_of, broker.observed_of)
    if parsed.json or not sys.stdout.isatty():
        write_data(as_json(found) + "\n")
    else:
        sys.stdout.write(tool_text(found, Painter(sys.stdout)) + "\n")
    return EXIT_OK


@_given(_with_state_dir)
async def _approve(parsed: argparse.Namespace, settings: Settings) -> int:
    from cellblock.cli.approval import approve

    if parsed.tools and parsed.all:
        raise UsageError("name tools, or give --all")
    done = await approve(settings, parsed.server, parsed.tools, every=parsed.all, show_only=parsed.show)
    if parsed.json:
        report = {"server": parsed.server, "differing": done.differing, "approved": done.approved}
        write_data(json_text({**report, "text": done.text}) + "\n")
    else:
        sys.stdout.write(done.text + "\n")
    return EXIT_OK if done.approved or not done.differing else EXIT_SCRIPT_ERROR


@_given(_with_state_dir)
async def _schemas(parsed: argparse.Namespace, settings: Settings) -> int:
    async def known() -> tuple[Catalog, OutputLookup]:
        catalog, broker = await _catalog(settings)
        return catalog, broker.output_of

    text = await schemas.run(parsed, settings, known)
    if parsed.action == "export" or getattr(parsed, "json", False):
        write_data(text)
    else:
        sys.stdout.write(text)
    return EXIT_OK


@_given(_with_state_dir)
async def _auth(parsed: argparse.Namespace, settings: Settings) -> int:
    return await auth.run(parsed, settings)


def _completion(parsed: argparse.Namespace) -> int:
    from cellblock.cli.completion import script

    sys.stdout.write(script(parsed.shell))
    return EXIT_OK


def _config(parsed: argparse.Namespace) -> int:
    return EXIT_OK if config.check(parsed) else EXIT_SCRIPT_ERROR


def _import(parsed: argparse.Namespace) -> int:
    import_.run(parsed, default_file())
    return EXIT_OK


def _examined(parsed: argparse.Namespace) -> Checked | None:
    from cellblock.cli.config_check import check_config

    return None if parsed.config is None else check_config(parsed.config)


@_given(_examined)
async def _doctor(parsed: argparse.Namespace, checked: Checked | None) -> int:
    from cellblock.base.terminal import Painter
    from cellblock.catalog.lookup import as_json
    from cellblock.cli.doctor import examine
    from cellblock.config.settings import Settings
    from cellblock.daemon.broker import Broker
    from cellblock.frontend.http.address import Address

    settings, warnings = Settings(), list[str]()
    if checked is not None:
        if parsed.json and not checked.ok:
            problems = [f"{problem.text(checked.file)} {problem.hint}" for problem in checked.problems]
            write_data(as_json({"ok": False, "problems": problems}) + "\n")
        settings = checked.usable()
        warnings = [f"{problem.text(checked.file)} {problem.hint}" for problem in checked.problems]
    broker = Broker(settings.with_state_dir(parsed.state_dir).for_one_run())
    where, tls = Address.parse(parsed.http), (parsed.tls_cert, parsed.tls_key)
    report = await examine(broker, warnings=warnings, address=f"{where.host}:{where.port}", tls=tls)
    if parsed.json:
        write_data(as_json(report.as_json()) + "\n")
    else:
        sys.stdout.write(report.as_text(Painter(sys.stdout)) + "\n")
    return EXIT_OK if report.ok else EXIT_SCRIPT_ERROR


def _keygen(parsed: argparse.Namespace) -> int:
    from cellblock_worker.wire.keys import KeyFileError, make_key_file, read_key_file

    try:
        pair = read_key_file(parsed.file) if parsed.file.exists() else make_key_file(parsed.file)
    except KeyFileError as error:
        raise UsageError(str(error)) from None
    sys.stdout.write(f"{pair.public}\n")
    return EXIT_OK


async def _demo(parsed: argparse.Namespace) -> int:
    from cellblock.cli.demo.show import show

    return EXIT_OK if await show(parsed.state_dir) else EXIT_SCRIPT_ERROR
