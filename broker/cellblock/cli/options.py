"""Options that several commands have, in the same words."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TypeAlias

import platformdirs

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # pyright: ignore[reportPrivateUsage]
"""What commands are added to."""


def default_file() -> Path:
    """Where `cellblock import` writes, and all other commands look, when no file is named."""
    return Path(platformdirs.user_config_dir("cellblock")) / "cellblock.json"


def add_common(parser: argparse.ArgumentParser) -> None:
    """Which configuration, and where state is kept."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="mcpServers JSON, or the same as TOML (default: cellblock.json in your settings folder, if it is there)",
    )
    add_state_dir(parser)


def add_state_dir(parser: argparse.ArgumentParser) -> None:
    """Where state is kept."""
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="where logs and stores live")


def add_json(parser: argparse.ArgumentParser, meaning: str = "print JSON") -> None:
    """Output for machines."""
    parser.add_argument("--json", action="store_true", help=meaning)


def add_server(parser: argparse.ArgumentParser) -> None:
    """One server of the configuration."""
    parser.add_argument("server", metavar="SERVER", help="its name in mcpServers")


def add_actions(parser: argparse.ArgumentParser) -> Commands:
    """Commands below a command, as `action`."""
    return parser.add_subparsers(dest="action", required=True, metavar="ACTION")
