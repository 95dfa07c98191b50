"""The commands of logins to upstream servers: `auth login`, `auth status` and `auth logout`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, Final

from cellblock.base.errors import ConfigError
from cellblock.base.terminal_text import json_text
from cellblock.cli.options import Commands, add_actions, add_common, add_json, add_server
from cellblock.cli.streams import write_data

if TYPE_CHECKING:
    from cellblock.config.settings import Settings

DEFAULT_TIMEOUT: Final = 300
"""Seconds for a person to log in."""

EXIT_NOT_LOGGED_IN: Final = 1


def add_parser(commands: Commands) -> None:
    """The command `auth`."""
    auth = commands.add_parser(
        "auth",
        help="log in to upstream servers with OAuth",
        description="Logs in to the HTTP servers of the configuration. A daemon that runs already sees it within a "
        "second; it never opens a browser by itself.",
    )
    actions = add_actions(auth)
    login = actions.add_parser(
        "login",
        help="log in to one server in a browser",
        description="Opens a browser, waits until you have logged in there, and keeps the login in the system's "
        "keyring, or else in a file that only you can read. Asks for the scopes that calls were refused for, too. "
        "Exit code 3 when nobody has logged in.",
    )
    add_server(login)
    login.add_argument("--no-browser", action="store_true", help="only print the URL")
    login.add_argument(
        "--timeout",
        type=int,
        default=DEFAULT_TIMEOUT,
        metavar="SECONDS",
        help=f"longest wait for the browser (default {DEFAULT_TIMEOUT})",
    )
    add_common(login)
    status = actions.add_parser(
        "status",
        help="say how the logins stand",
        description="Says how the logins stand, without asking any server. Exit code 1 when SERVER is named and there "
        "is no login that can be used.",
    )
    status.add_argument(
        "server", nargs="?", metavar="SERVER", help="all servers with a url when none is named"
    )
    add_json(status)
    add_common(status)
    logout = actions.add_parser(
        "logout",
        help="end a login",
        description="Ends a login, at the authorization server too where it can be ended there, and forgets it.",
    )
    add_server(logout)
    add_common(logout)


async def run(parsed: argparse.Namespace, settings: Settings) -> int:
    """Runs one of them. Returns the exit code.

    Raises:
        ConfigError: There is no such server, or OAuth is not for it.
        LoginError: It did not succeed.
    """
    # Imports the SDK's OAuth, which nothing else of the command line needs.
    from cellblock.upstream.auth import login

    if parsed.action == "status":
        return await _status(parsed, settings)
    place = login.place_of(settings, parsed.server)
    if parsed.action == "logout":
        sys.stdout.write(await login.log_out(place) + "\n")
        return 0
    if parsed.timeout < 1:
        raise ConfigError("--timeout must be 1 or more.", hint="Give seconds.")
    done = await login.log_in(place, browser=not parsed.no_browser, bound=parsed.timeout, say=_say)
    sys.stdout.write(done + "\n")
    return 0


async def _status(parsed: argparse.Namespace, settings: Settings) -> int:
    from cellblock.upstream.auth import login
    from cellblock.upstream.login import can_log_in

    if parsed.server is not None:
        names = [parsed.server]
    else:
        names = [name for name, config in settings.servers.items() if can_log_in(config)]
    found = [await login.status_of(login.place_of(settings, name)) for name in names]
    if parsed.json:
        write_data(json_text(found) + "\n")
    else:
        sys.stdout.write("".join(f"{_line(status)}\n" for status in found) or "No server has a url.\n")
    usable = all(status["state"] in ("logged in", "client credentials") for status in found)
    return 0 if usable or parsed.server is None else EXIT_NOT_LOGGED_IN


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
