"""Import_ runs the command `import`: what it found and would do, a question, and what it did."""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any, Final

from cellblock.app.cli.config_file import OwnFile
from cellblock.app.cli.help import EXIT_OK
from cellblock.app.cli.importing.entries import Search, find_servers
from cellblock.app.cli.importing.plan import Place, Plan, add_servers, make_plan
from cellblock.app.cli.parser import CLIENTS
from cellblock.app.cli.streams import write_json
from cellblock.app.config.client_places import shown_path
from cellblock.base.errors import ConfigError
from cellblock.base.keyrings import NamedSecrets
from cellblock.base.settings.problems import dotted
from cellblock.base.terminal import Painter

_SIGNS: Final = {
    "added": ("+", "green"),
    "present": ("=", "dim"),
    "conflict": ("!", "yellow"),
    "itself": ("-", "dim"),
    "unusable": ("!", "yellow"),
}


def run(parsed: argparse.Namespace) -> int:
    """Finds the servers, shows what would be done, asks, and writes the file.

    Raises:
        ConfigError: The file cannot be used, or nobody is there to be asked.
    """
    target = OwnFile(parsed.config)
    project = (parsed.project or Path.cwd()).expanduser().resolve()
    search = find_servers(project, parsed.clients or CLIENTS)
    for file in (search.files.keys() | search.unreadable.keys()) & {target.path}:
        raise ConfigError(f"{file} is a client's own file.", hint="Give --config with another one.")
    planned = partial(
        make_plan, search.servers, target.servers, kept=NamedSecrets().get, ignored=target.ignored
    )
    plan = planned(secrets="file" if parsed.copy_secrets else parsed.secrets or "environment")
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
            if not agreed(f"Write {len(plan.added)} servers to {target.path}?"):
                sys.stdout.write("Nothing was written.\n")
                return EXIT_OK
            if plan.secrets and not parsed.copy_secrets and parsed.secrets is None:
                plan = planned(secrets=place_for(plan.secrets))
        copy, written = add_servers(target, plan), True
    if parsed.json:
        report = {"written": written, "backup": None if copy is None else str(copy)}
        write_json({**_as_json(search, plan, target.path), **report})
    elif written:
        sys.stdout.write(_what_next(plan, target.path, copy, paint))
    return EXIT_OK


def agreed(question: str) -> bool:
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def place_for(secrets: int) -> Place:
    """Asks where secrets are to go, where no option says so."""
    keyring = NamedSecrets().place
    if keyring is not None and agreed(f"Put the {secrets} secrets into the system's keyring ({keyring})?"):
        return "keyring"
    copying = f"Copy the {secrets} secrets into the file, too? Otherwise set the variables above."
    return "file" if agreed(copying) else "environment"


def _as_text(search: Search, plan: Plan, target: Path, paint: Painter) -> str:
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
        restrictions = step.found.conversion.restrictions if step.fate == "added" else ()
        lines += [f"      restricted as there: {told}" for told in restrictions]
        if step.fate == "added" and (left := step.found.conversion.left):
            lines.append(f"      {paint('not carried over', 'yellow')}: {', '.join(map(str, left))}")
    if plan.values:
        lines += [
            "",
            paint("Into the keyring", "bold"),
            *(f"  {paint(name, 'cyan')}" for name in plan.values),
        ]
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
            "Until the variables above are set, their servers are not started; `cellblock config check` says which."
        )
    lines.append(f"Next: cellblock doctor --config {target}")
    return "\n".join(lines) + "\n"


def _as_json(search: Search, plan: Plan, target: Path) -> dict[str, Any]:
    return {
        "config": str(target),
        "files": {str(file): count for file, count in search.files.items()},
        "unreadable": {str(file): why for file, why in search.unreadable.items()},
        "servers": [step.as_json() for step in plan.steps],
        "variables": list(plan.needed),
        "keyring": list(plan.values),
    }
