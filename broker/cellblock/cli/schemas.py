"""`cellblock schemas init|export|diff|clear`: overlay files, and what was observed. No tool is ever called for it."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cellblock.base.errors import ConfigError
from cellblock.base.terminal_text import json_text
from cellblock.cli.options import Commands, add_actions, add_common, add_json

if TYPE_CHECKING:
    from cellblock.catalog.model import Catalog
    from cellblock.catalog.outputs import OutputLookup
    from cellblock.config.settings import Settings
    from cellblock.learning.store import Store

Catalogs = Callable[[], Awaitable["tuple[Catalog, OutputLookup]"]]


def add_parser(commands: Commands) -> None:
    """Adds the command and its four actions."""
    parser = commands.add_parser(
        "schemas",
        help="what tools return: overlay files, and what was observed",
        description="Works with what is known of the results of tools. No tool is called.",
    )
    actions = add_actions(parser)
    init = actions.add_parser(
        "init",
        description="Writes a commented overlay file for one server, to say in it what its tools return.",
        help="write a commented overlay file to fill in",
    )
    init.add_argument("server", metavar="SERVER", help="its id, or its name in the configuration")
    init.add_argument("--force", action="store_true", help="write over an existing file")
    export = actions.add_parser(
        "export",
        description="Prints what is known of outputs, declared, given or observed, as JSON.",
        help="print what is known of outputs as JSON",
    )
    export.add_argument("server", nargs="?", metavar="SERVER", help="all servers when none is named")
    diff = actions.add_parser(
        "diff",
        description="Prints how the results of a tool have changed since they were first observed.",
        help="print how what a tool returns has changed",
    )
    diff.add_argument("server", metavar="SERVER", help="the server's name in the configuration")
    diff.add_argument("tool", metavar="TOOL", help="the tool's name in MCP")
    clear = actions.add_parser(
        "clear",
        description="Forgets what was observed: of one tool, of one server, or everything.",
        help="forget what was observed",
    )
    clear.add_argument("server", nargs="?", metavar="SERVER", help="everything when none is named")
    clear.add_argument("tool", nargs="?", metavar="TOOL", help="the tool's name in MCP")
    for action in (diff, clear):
        add_json(action)
    for action in (init, export, diff, clear):
        add_common(action)


async def run(parsed: argparse.Namespace, settings: Settings, catalogs: Catalogs) -> str:
    """Does one action and gives what it prints.

    Raises:
        ConfigError: A name, a file or the store cannot be used.
    """
    if parsed.action == "init":
        return _init(parsed, settings, *await catalogs())
    if parsed.action == "export":
        return _export(parsed.server, *await catalogs())
    return _diff(parsed, settings) if parsed.action == "diff" else _clear(parsed, settings)


def _init(parsed: argparse.Namespace, settings: Settings, catalog: Catalog, outputs: OutputLookup) -> str:
    from cellblock.catalog.lookup import find_server
    from cellblock.learning.overlay import ToolNotes, new_overlay, overlay_file
    from cellblock_worker.base.folders import Folder, InTheWay

    server = find_server(catalog, parsed.server)
    file = overlay_file(settings.overlay_dir, server.config_name)
    notes: list[ToolNotes] = []
    for tool in server.tools:
        known = outputs(server, tool)
        schema = None if known is None else known.document if known.document is not None else known.schema
        note = "Nothing is known of its output." if known is None else known.note
        notes.append(ToolNotes(tool.tool_name, tool.description, tool.input_schema, schema, note))
    text = new_overlay(server.config_name, notes)
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if parsed.force else os.O_EXCL)
        with Folder.named(file.parent) as folder:
            descriptor = folder.open(file.name, flags)
        with os.fdopen(descriptor, "w", encoding="utf-8") as written:
            written.write(text)
    except InTheWay as error:
        raise ConfigError(f"{error}.", hint="Move it away.") from None
    except FileExistsError:
        raise ConfigError(
            f"{file} is there already.", hint="Edit it, or use --force to write over it."
        ) from None
    except OSError as error:
        raise ConfigError(f"Cannot write {file}: {error}.", hint="Use another --state-dir.") from None
    return f"{file}\n"


def _export(name: str | None, catalog: Catalog, outputs: OutputLookup) -> str:
    from cellblock.catalog.lookup import find_server

    servers = list(catalog.servers.values()) if name is None else [find_server(catalog, name)]
    exported: dict[str, dict[str, Any]] = {}
    for server in servers:
        tools = exported[server.server_id] = {}
        for tool in server.tools:
            known = outputs(server, tool)
            if known is not None:
                tools[tool.tool_name] = {**known.as_json(), "schema": known.as_schema()}
    return json_text(exported) + "\n"


def _open(settings: Settings) -> Store:
    from cellblock.base.state_dir import prepare_state_dir
    from cellblock.learning.store import FILE_NAME, Store, StoreError

    path: Path = settings.state_dir / FILE_NAME
    if not path.is_file():
        raise ConfigError(f"Nothing was observed yet: there is no {path}.", hint="Check --state-dir.")
    prepare_state_dir(settings.state_dir)
    try:
        return Store(path)
    except StoreError as error:
        raise ConfigError(f"The store cannot be used: {error}.", hint="Check --state-dir.") from None


def _diff(parsed: argparse.Namespace, settings: Settings) -> str:
    from cellblock.cli.overlay_faults import overlay_faults
    from cellblock.learning.store import StoreError

    store = _open(settings)
    try:
        older = store.versions(parsed.server, parsed.tool)
        newest = [
            seen
            for key, seen in store.load().items()
            if (key.server, key.tool) == (parsed.server, parsed.tool)
        ]
    except StoreError as error:
        raise ConfigError(f"The store cannot be read: {error}.", hint="Try again.") from None
    finally:
        store.close()
    faults = [
        fault
        for fault in overlay_faults(settings)
        if fault.server == parsed.server and fault.tool in (parsed.tool, None)
    ]
    if not newest and not faults:
        raise ConfigError(
            f"Nothing was observed of {parsed.server}.{parsed.tool}.", hint="Use its name in MCP."
        )
    latest = [(newest[0].version, 0.0, max(newest, key=lambda seen: seen.last_seen))] if newest else []
    steps = [*older, *latest]
    lines: list[str] = []
    changes: list[dict[str, Any]] = []
    for (version, until, before), (_, _, after) in pairwise(steps):
        at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(until))
        sentences = before.changes_to(after)
        lines.append(f"{at}, after version {version}:")
        lines += [f"  {sentence}" for sentence in sentences]
        changes.append({"after": version, "at": at, "changes": list(sentences)})
    if parsed.json:
        return json_text([*changes, *(fault.as_json() for fault in faults)]) + "\n"
    told = [f"{fault.where}: {fault.severity}: {fault.said}" for fault in faults]
    return "\n".join([*(lines or ["It has not changed."]), *told]) + "\n"


def _clear(parsed: argparse.Namespace, settings: Settings) -> str:
    from cellblock.learning.store import StoreError

    store = _open(settings)
    try:
        count = store.clear(parsed.server, parsed.tool)
    except StoreError as error:
        raise ConfigError(f"Nothing was forgotten: {error}.", hint="Try again.") from None
    finally:
        store.close()
    if parsed.json:
        return json.dumps({"forgot": count}) + "\n"
    return f"forgot {count} tool{'' if count == 1 else 's'}\n"
