"""Completion answers shells, by argcomplete, which asks this program what can stand where the cursor is."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Final

import argcomplete
from argcomplete.completers import SuppressCompleter
from argcomplete.shell_integration import shellcode

from cellblock.app.cli.arguments import default_file
from cellblock.app.cli.help import all_commands
from cellblock.app.cli.parser import from_1
from cellblock.app.config.formats import normal
from cellblock.base.json import is_object
from cellblock.base.settings.syntax import TOML_SUFFIX, SyntaxFault, parse

PROGRAM: Final = "cellblock"

SERVER_ARGUMENTS: Final = ("server", "servers", "require")
"""Names the arguments that take the name of a server of the configuration."""

MAX_CONFIG_BYTES: Final = 4 * 1024 * 1024
"""Bounds the file that is read while somebody waits for the tab key."""


def run(parsed: argparse.Namespace) -> None:
    sys.stdout.write(shellcode([PROGRAM], shell=parsed.shell))


def complete(parser: argparse.ArgumentParser) -> None:
    """Answers the shell and exits, where it is the shell that asks."""
    for _, command in all_commands(parser):
        for action in command._actions:  # pyright: ignore[reportPrivateUsage]
            if action.dest in SERVER_ARGUMENTS:
                action.completer = servers  # type: ignore[attr-defined]
            elif action.dest in ("query", "tool"):
                action.completer = SuppressCompleter()  # type: ignore[attr-defined]
            elif action.type in (int, from_1):
                # No file is a number.
                action.completer = lambda **_: []  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser)


def servers(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """Returns the servers of the configuration that the command line means; none when it cannot be read."""
    try:
        file = Path(getattr(parsed_args, "config", None) or default_file()).expanduser()
        if not file.is_file() or file.stat().st_size > MAX_CONFIG_BYTES:
            return []
        raw: object = parse(file.read_text(encoding="utf-8-sig"), toml=file.suffix.lower() == TOML_SUFFIX)
    except (OSError, UnicodeDecodeError, SyntaxFault):
        return []
    entries = normal(raw).entries() if is_object(raw) else {}
    return [name for name in entries if name.startswith(prefix) and name.isprintable()]
