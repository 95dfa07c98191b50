"""The command `cellblock import`: what it found and would do, a question, and what it did."""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cellblock.base.errors import ConfigError
from cellblock.base.terminal_text import json_text
from cellblock.cli.options import Commands, add_json
from cellblock.cli.streams import write_data

if TYPE_CHECKING:
    from cellblock.base.terminal import Painter
    from cellblock.cli.importing.clients import Search
    from cellblock.cli.importing.plan import Plan

CLIENTS: Final = ("claude-code", "claude-desktop", "cursor", "vscode", "windsurf")

_SIGNS: Final = {
    "added": ("+", "green"),
    "present": ("=", "dim"),
    "conflict": ("!", "yellow"),
    "itself": ("-", "dim"),
    "unusable": ("!", "yellow"),
}


def add_parser(commands: Commands) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "import",
        help="take over the servers of other MCP clients on this machine",
        description="Finds the MCP servers of Claude Code, Claude Desktop, Cursor, VS Code and Windsurf, shows what "
        "it would do, and asks. Secrets are not copied unless you say so: references to environment variables stand "
        "in their place.",
    )
    parser.add_argument(
        "--from",
        dest="clients",
        action="append",
        choices=CLIENTS,
        metavar="CLIENT",
        help=f"one of {', '.join(CLIENTS)} (repeatable; default: all)",
    )
    parser.add_argument(
        "--project",
        type=Path,
        metavar="DIR",
        help="the folder whose .mcp.json, .cursor and .vscode are looked at (default: the current one)",
    )
    parser.add_argument("--dry-run", action="store_true", help="show what would be done, and do nothing")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--copy-secrets", action="store_true", help="write secrets into the file as they are")
    add_json(parser, "print JSON, and do not ask")
    parser.add_argument(
        "--config", metavar="FILE", help="where to write (default: cellblock.json in your settings folder)"
    )


def run(parsed: argparse.Namespace, default: Path) -> None:
    """Does it.

    Raises:
        ConfigError: The file cannot be used, or nobody is there to be asked.
    """
    from cellblock.base.terminal import Painter
    from cellblock.cli.importing.clients import Places, find_servers
    from cellblock.cli.importing.plan import make_plan
    from cellblock.cli.importing.write import Target

    target = Target(Path(parsed.config) if parsed.config else default)
    project = (parsed.project or Path.cwd()).expanduser().resolve()
    search = find_servers(Places(Path.home(), project), parsed.clients or [*CLIENTS])
    for file in (search.files.keys() | search.unreadable.keys()) & {target.path}:
        raise ConfigError(f"{file} is a client's own file.", hint="Give --config with another one.")
    planned = partial(make_plan, search.servers, target.servers, ignored=target.ignored)
    plan = planned(copy_secrets=parsed.copy_secrets)
    paint = Painter(sys.stdout)
    if not parsed.json:
        sys.stdout.write(_as_text(search, plan, target.path, paint))
    copy: Path | None = None
    written = False
    asks = sys.stdin.isatty() and sys.stdout.isatty() and not parsed.json
    if plan.added and not parsed.dry_run:
        if not parsed.yes:
            if not asks:
                raise ConfigError(
                    "Nothing was written: nobody is there to be asked.", hint="Add --yes, or --dry-run."
                )
            if not _agreed(f"Write {len(plan.added)} servers to {target.path}?"):
                sys.stdout.write("Nothing was written.\n")
                return
            if plan.secrets and _agreed(_question(plan)):
                plan = planned(copy_secrets=True)
        copy, written = target.add(plan.added), True
    if parsed.json:
        write_data(_as_json(search, plan, target.path, written, copy))
    elif written:
        sys.stdout.write(_what_next(plan, target.path, copy, paint))


def _question(plan: Plan) -> str:
    return f"Copy the {plan.secrets} secrets into the file, too? Otherwise set the variables above."


def _agreed(question: str) -> bool:
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def _as_text(search: Search, plan: Plan, target: Path, paint: Painter) -> str:
    from cellblock.cli.importing.plan import shown_path
    from cellblock.config.file.problems import dotted

    lines = [paint("Found", "bold")]
    for file, count in search.files.items():
        lines.append(f"  {shown_path(file)}: {count} server{'' if count == 1 else 's'}")
    for file, why in search.unreadable.items():
        lines.append(f"  {shown_path(file)}: {paint('not read', 'yellow')}: {why}")
    if not search.files and not search.unreadable:
        lines.append("  no file of any client")
    if plan.steps:
        lines += ["", paint(f"Into {target}", "bold")]
    for step in plan.steps:
        sign, style = _SIGNS[step.fate]
        name = dotted([step.found.name])
        why = f"; {step.why}" if step.why else ""
        lines.append(f"  {paint(f'{sign} {name}', style)}  {dotted([step.reached])}, from {step.source}{why}")
    if plan.needed:
        lines += ["", paint("To be set in the environment of Cellblock", "bold")]
        for name, step in plan.needed.items():
            is_set = " (is set here)" if name in os.environ else ""
            where = f"{step.source}, {dotted(step.found.path)}"
            lines.append(f"  {paint(name, 'cyan')}{is_set}  its value is in {where}")
    if not plan.added:
        lines += ["", "Nothing to import."]
    return "\n".join(lines) + "\n"


def _what_next(plan: Plan, target: Path, copy: Path | None, paint: Painter) -> str:
    lines = ["", f"{paint('Written', 'green')}: {target}"]
    if copy is not None:
        lines.append(f"The old file is {copy}")
    if plan.needed:
        lines.append(
            "Until the variables above are set, the file is refused; `cellblock config check` says which."
        )
    lines.append(f"Next: cellblock doctor --config {target}")
    return "\n".join(lines) + "\n"


def _as_json(search: Search, plan: Plan, target: Path, written: bool, copy: Path | None) -> str:
    report = {
        "config": str(target),
        "files": {str(file): count for file, count in search.files.items()},
        "unreadable": {str(file): why for file, why in search.unreadable.items()},
        "servers": [step.as_json() for step in plan.steps],
        "variables": list(plan.needed),
        "written": written,
        "backup": None if copy is None else str(copy),
    }
    return json_text(report) + "\n"
