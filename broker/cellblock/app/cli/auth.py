"""Auth runs the commands of logins to upstream servers: `auth login`, `auth status` and `auth logout`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from cellblock.app.cli.help import EXIT_NO, EXIT_OK
from cellblock.app.cli.loading import reading, store_to_read, with_state_dir
from cellblock.app.cli.streams import write_json
from cellblock.base.errors import ConfigError
from cellblock.base.settings.settings import Settings
from cellblock.tools.upstream.auth.login import Place, log_in, log_out, place_of, status_of
from cellblock.tools.upstream.server_logins import can_log_in


@reading(with_state_dir)
async def login(parsed: argparse.Namespace, settings: Settings) -> int:
    """Waits until somebody has logged in to one server in a browser.

    Raises:
        ConfigError: There is no such server, or OAuth is not for it.
        LoginError: Nobody has logged in.
    """
    place = _place(settings, parsed.server)
    if parsed.timeout < 1:
        raise ConfigError("--timeout must be 1 or more.", hint="Give seconds.")
    done = await log_in(place, browser=not parsed.no_browser, bound=parsed.timeout, say=_say)
    sys.stdout.write(done + "\n")
    return EXIT_OK


@reading(with_state_dir)
async def logout(parsed: argparse.Namespace, settings: Settings) -> int:
    """Ends and forgets one login. Raises ConfigError as `login`."""
    sys.stdout.write(await log_out(_place(settings, parsed.server)) + "\n")
    return EXIT_OK


@reading(with_state_dir)
async def status(parsed: argparse.Namespace, settings: Settings) -> int:
    """Prints how the logins stand. Raises ConfigError as `login`."""
    if parsed.server is not None:
        names = [parsed.server]
    else:
        # Of one that lacks something the URL may not be known; the warning says what.
        names = [
            name for name, config in settings.servers.items() if can_log_in(config) and config.missing is None
        ]
    found = [await status_of(_place(settings, name)) for name in names]
    if parsed.json:
        write_json(found)
    else:
        sys.stdout.write(
            "".join(f"{_line(one)}\n" for one in found) or "No server that is started has a url.\n"
        )
    usable = all(one["state"] in ("logged in", "client credentials") for one in found)
    return EXIT_OK if usable or parsed.server is None else EXIT_NO


def _place(settings: Settings, server: str) -> Place:
    return place_of(server, settings.servers, settings.cellblock.auth, store_to_read(settings))


def _line(status: dict[str, Any]) -> str:
    parts = [f"{status['server']}: {'no login' if status['state'] == 'none' else status['state']}"]
    if status.get("issuer"):
        parts.append(f"at {status['issuer']}")
    if status.get("scope"):
        parts.append(f"for {status['scope']}")
    if status["state"] == "logged in":
        left = status["expiresInSeconds"]
        renewed = "is renewed by itself" if status["renewable"] else "cannot be renewed"
        if left is None:
            parts.append("without an end")
        elif left <= 0:
            parts.append("its token has expired and is renewed when it is needed")
        else:
            parts.append(f"its token ends in {left} s and {renewed}")
        parts.append(f"kept in the {status['kept']}")
    if status.get("wantedScope"):
        parts.append(f"the server has asked for {status['wantedScope']}")
    parts += [status[key].rstrip(".") for key in ("problem", "hint") if status.get(key)]
    return "; ".join(parts)


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
