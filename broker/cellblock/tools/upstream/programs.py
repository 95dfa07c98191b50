"""Programs says why the program of a server's entry cannot be started, and how to get it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cellblock.base.settings.settings import ServerConfig

TO_INSTALL: Final[Mapping[str, str]] = {
    **dict.fromkeys(("npx", "npm"), "Install Node.js, which brings it: https://nodejs.org"),
    "node": "Install Node.js: https://nodejs.org",
    **dict.fromkeys(("bunx", "bun"), "Install Bun: https://bun.sh"),
    "uvx": "Install uv, which brings it: https://docs.astral.sh/uv",
    "uv": "Install uv: https://docs.astral.sh/uv",
    "docker": "Install Docker, and start it: https://docs.docker.com/engine/install",
    "python": "Name the interpreter that you have, such as python3.",
    "deno": "Install Deno: https://deno.com",
}
"""Says how to get the programs that entries of MCP servers start with."""


def missing_command(config: ServerConfig) -> str | None:
    """Returns why the program of an entry cannot be started, and what to do; None when it is there."""
    command = config.command
    if command is None:
        return None
    if config.cwd is not None and not config.cwd.is_dir():
        return f"Its cwd {config.cwd} is no folder. Correct cwd in its entry."
    if "/" in command:
        path = Path(config.cwd or ".") / command
        if os.access(path, os.X_OK) and not path.is_dir():
            return None
        why = "is no program that may be started" if path.exists() else "does not exist"
        return f"{path} {why}. Correct command in its entry."
    if shutil.which(command, path=config.env.get("PATH") or os.environ.get("PATH")) is not None:
        return None
    if " " in command.strip():
        return f"There is no program {command}. Its arguments go into args, one by one."
    install = TO_INSTALL.get(command, "Install it, or write its whole path.")
    return f"{command} is not on PATH. {install}"
