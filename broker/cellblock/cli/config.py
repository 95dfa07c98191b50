"""The command `cellblock config check`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from cellblock.base.errors import ConfigError
from cellblock.base.terminal_text import json_text
from cellblock.cli.options import Commands, add_actions, add_common, add_json, default_file
from cellblock.cli.streams import write_data

if TYPE_CHECKING:
    from cellblock.base.terminal import Painter
    from cellblock.cli.config_check import Checked


def add_parsers(commands: Commands) -> None:
    """Adds the command and its action."""
    config = commands.add_parser(
        "config",
        help="check a configuration file",
        description="What concerns configuration files.",
    )
    actions = add_actions(config)
    check = actions.add_parser(
        "check",
        help="list everything that is wrong with a file, with line and column",
        description="Lists everything that is wrong with a configuration file, as file:line:column, and what it "
        "configures. Shows no values, starts nothing, and loads no Python tools: those `doctor` tries.",
    )
    add_json(check)
    add_common(check)


def check(parsed: argparse.Namespace) -> bool:
    """Prints what was found. Returns whether the file can be used.

    Raises:
        ConfigError: No file is named, or it cannot be read.
    """
    from cellblock.base.terminal import Painter
    from cellblock.cli.config_check import check_config
    from cellblock.cli.overlay_faults import overlay_faults

    file = parsed.config or default_file()
    if parsed.config is None and not default_file().exists():
        raise ConfigError("No configuration file is named.", hint="Give --config FILE.")
    checked = check_config(file)
    if checked.settings is not None:
        checked.overlays = overlay_faults(checked.settings.with_state_dir(parsed.state_dir))
    if parsed.json:
        write_data(json_text(checked.as_json()) + "\n")
    else:
        sys.stdout.write(_as_text(checked, Painter(sys.stdout)))
    return checked.ok


def _as_text(checked: Checked, paint: Painter) -> str:
    lines: list[str] = []
    for problem in checked.problems:
        where = (
            f"{checked.file}:{problem.position.line}:{problem.position.column}"
            if problem.position
            else checked.file
        )
        kind = paint(problem.severity, "bold", "red" if problem.severity == "error" else "yellow")
        place = f"{problem.place}: " if problem.path else ""
        lines.append(f"{paint(where, 'bold')}: {kind}: {place}{problem.message}. {problem.hint}")
    for fault in checked.overlays:
        kind = paint(fault.severity, "bold", "red" if fault.severity == "error" else "yellow")
        lines.append(f"{paint(fault.where, 'bold')}: {kind}: {fault.said}")
    if checked.ok:
        names = ", ".join(f"{name} ({kind})" for name, kind in checked.servers.items()) or "none"
        lines.append(f"{checked.file}: {paint('fine', 'green')}. Servers: {names}")
    else:
        count = checked.errors
        lines.append(f"{checked.file}: {paint(f'{count} error' + 's' * (count > 1), 'red')}")
    return "\n".join(lines) + "\n"
