"""The usual troubles, each with its fix: what `cellblock doctor` looks at beside starting everything."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cellblock.config import ServerConfig, Settings
from cellblock_worker.confinement import deno_binary

PROBE_SECONDS: Final = 2.0
"""For a daemon on this machine to say that it lives."""

TO_INSTALL: Final[Mapping[str, str]] = {
    "npx": "Install Node.js, which brings it: https://nodejs.org",
    "npm": "Install Node.js, which brings it: https://nodejs.org",
    "node": "Install Node.js: https://nodejs.org",
    "bunx": "Install Bun: https://bun.sh",
    "bun": "Install Bun: https://bun.sh",
    "uvx": "Install uv, which brings it: https://docs.astral.sh/uv",
    "uv": "Install uv: https://docs.astral.sh/uv",
    "docker": "Install Docker, and start it: https://docs.docker.com/engine/install",
    "python": "Name the interpreter that you have, such as python3.",
    "deno": "Install Deno: https://deno.com",
}
"""How to get the programs that entries of MCP servers start with."""

DENO_FIX: Final = "Install Cellblock anew (pip install --force-reinstall cellblock): it brings Deno along."

_BY_REASON: Final = (
    (r"closed by the server|Connection closed", "It ended by itself; what it said is in {log}."),
    (r"HTTP 40[13]", "Correct its credentials: the headers of its entry."),
    (r"HTTP 404", "Check its URL: many servers answer at /mcp, older ones at /sse with type sse."),
    (
        r"no tool list within",
        "Start it by hand once, so that it is downloaded; or raise upstream.connect_timeout_ms.",
    ),
    (
        r"connect|resolve|refused|unreachable|name or service|attempts failed",
        "Check that it runs, and its URL.",
    ),
)


def missing_command(config: ServerConfig) -> str | None:
    """What to do about a command that is not there, or None when it is."""
    command = config.command
    if command is None:
        return None
    if "/" in command:
        path = Path(config.cwd or ".") / command
        if os.access(path, os.X_OK) and not path.is_dir():
            return None
        why = "is no program that may be started" if path.exists() else "does not exist"
        return f"{path} {why}. Correct command in its entry."
    if shutil.which(command, path=config.env.get("PATH") or os.environ.get("PATH")) is not None:
        return None
    install = TO_INSTALL.get(command, "Install it, or write its whole path.")
    return f"{command} is not on PATH. {install}"


def fix_of(config: ServerConfig | None, reason: str, log: Path) -> str:
    """What to do about a server that is not connected.

    Args:
        config: Its entry.
        reason: Why it is not connected, as it is known.
        log: Where its stderr goes.
    """
    if config is not None:
        if config.cwd is not None and not config.cwd.is_dir():
            return f"Its cwd {config.cwd} is no folder. Correct cwd in its entry."
        missing = missing_command(config)
        if missing is not None:
            return missing
    for pattern, fix in _BY_REASON:
        if re.search(pattern, reason, re.I):
            return fix.format(log=log)
    return f"Start it by hand to see why{f'; what it said is in {log}' if log.exists() else ''}."


def state_dir_trouble(state_dir: Path) -> str | None:
    """Why nothing can be kept in the state directory, and what to do; None when it can."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=state_dir) as file:
            file.write(b"x")
    except OSError as error:
        return (
            f"The state directory {state_dir} cannot be written: {error.strerror}. "
            "Make it yours (chown, chmod 700), free space on its disk, or use another --state-dir."
        )
    mode = state_dir.stat().st_mode & 0o077
    if mode & 0o022:
        return f"Other users may write the state directory {state_dir}. Close it: chmod 700 {state_dir}."
    return None


def deno_trouble() -> str | None:
    """What is wrong with the Deno that runs scripts, and what to do; None when it is there."""
    try:
        binary = deno_binary()
    except OSError as error:
        return f"Deno is missing: {error}. {DENO_FIX}"
    return None if os.access(binary, os.X_OK) else f"Deno cannot be started: {binary}. {DENO_FIX}"


def daemon_state(address: str) -> tuple[str, str | None]:
    """What is at the daemon's usual address, and a warning when that is something else.

    Args:
        address: `HOST:PORT` on this machine.
    """
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=PROBE_SECONDS)
    with contextlib.closing(connection):
        try:
            connection.request("GET", "/livez")
            answer = connection.getresponse()
            lives = answer.status == 200
            connection.request("GET", "/readyz")
            ready = connection.getresponse().status == 200
        except ConnectionRefusedError:
            return f"none at {address}", None
        except (OSError, http.client.HTTPException):
            lives = ready = False
    if lives:
        return f"one serves at {address}, {'ready' if ready else 'not ready to run scripts'}", None
    return (
        f"none: another program has {address}",
        f"{address} is taken by another program. Serve at another port: cellblock serve --http 127.0.0.1:PORT.",
    )


def token_trouble(settings: Settings) -> str | None:
    """What is wrong with the token file, and what to do; None when there is none or all is well."""
    from cellblock.errors import ConfigError
    from cellblock.frontend.http.token import FILE_NAME, read_token

    file = settings.state_dir / FILE_NAME
    if not file.exists():
        return None
    try:
        read_token(file)
    except ConfigError as error:
        return str(error)
    return None
