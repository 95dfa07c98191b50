"""Places are the folders in which programs keep their settings."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

CODES: Final = ("Code", "Code - Insiders", "VSCodium")
"""Names the folders of VS Code and of programs that are built from it."""


def dot_config() -> Path:
    """Returns `~/.config`, where programs for the terminal keep their settings on macOS, too."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")


def settings_folder() -> Path:
    """Returns the folder in which programs with windows keep their settings."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support"
    return dot_config()


def system_folder(linux: str, macos: str) -> Path:
    """Returns the folder in which an administrator keeps a program's settings."""
    if sys.platform == "darwin":
        return Path("/Library/Application Support") / macos
    return Path("/etc") / linux


def claude_folder() -> Path:
    return Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude")


def claude_state() -> Path:
    """Returns the file in which Claude Code keeps its servers, and what was said of projects."""
    return Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home()) / ".claude.json"


def shown_path(file: Path) -> str:
    try:
        return f"~/{file.relative_to(Path.home())}"
    except ValueError:
        return str(file)
