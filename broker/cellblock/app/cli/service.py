"""Service runs the command `service`: it prints a systemd user unit or a launchd agent that runs the daemon."""

from __future__ import annotations

import argparse
import contextlib
import os
import plistlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from cellblock.app.cli.connect import state_dir_of
from cellblock.app.cli.importing.known import own_command
from cellblock.app.cli.streams import warn, write_data
from cellblock.app.config.formats import value_at
from cellblock.app.config.load import parse_source, read_settings, read_source
from cellblock.app.config.references import WHERE_STARTED, variables_of
from cellblock.base.secret_values import ORDINARY
from cellblock.base.settings.problems import SECTION_KEY
from cellblock.base.settings.sections import HttpSettings
from cellblock.serve.http.address import Address

STOP_MARGIN_SECONDS: Final = 20
"""Bounds what follows the draining, until workers and upstream servers are gone; it takes 1 s."""

LABEL: Final = "cellblock"

DRAIN: Final = (SECTION_KEY, "http", "drain_ms")

ENVIRONMENT_FILE: Final = "%h/.config/cellblock/environment"
"""Names what the unit reads when it is there; `%h` is the home folder."""


def service(parsed: argparse.Namespace) -> None:
    """Prints the unit or the agent that the options ask for.

    Raises:
        ConfigError: The address, or the `state_dir` of the configuration, cannot be used.
    """
    Address.parse(parsed.http)
    launchd = parsed.launchd or (sys.platform == "darwin" and not parsed.systemd)
    drain_ms: Any = None
    if parsed.config is not None:
        source = read_source(parsed.config)
        raw = parse_source(source)
        settings, problems, _ = read_settings(raw, source, _environment(launchd=launchd))
        for problem in problems:
            text = f"{problem.text(source.name)} {problem.hint}"
            warn(text if launchd else text.replace(WHERE_STARTED, f"in {_in_home(Path('~'))}"))
        # Of a file that lacks something yet, too.
        drain_ms = value_at(raw if settings is None else settings.model_dump(), DRAIN)
    words = [
        *(*own_command(), "serve", "--http", parsed.http),
        *(["--config", str(Path(parsed.config).expanduser().absolute())] if parsed.config else []),
        *("--state-dir", str(state_dir_of(parsed))),
    ]
    drain_seconds = (drain_ms if isinstance(drain_ms, int) else HttpSettings().drain_ms) // 1000
    # Where programs such as npx and uvx are looked for: a service manager's own PATH has few folders.
    path = os.environ.get("PATH", os.defpath)
    write_data((launchd_plist if launchd else systemd_unit)(words, drain_seconds, path))


def _environment(*, launchd: bool) -> dict[str, str]:
    """Returns the variables that the service is going to have, as far as they are known: none of this shell's own."""
    variables = {name: os.environ[name] for name in ORDINARY if name in os.environ}
    if not launchd:
        with contextlib.suppress(OSError, ValueError):
            variables |= variables_of(_in_home(Path.home()).read_text(encoding="utf-8"))
    return variables


def _in_home(home: Path) -> Path:
    return home / ENVIRONMENT_FILE.removeprefix("%h/")


def systemd_unit(words: Sequence[str], drain_seconds: int, path: str) -> str:
    """Returns a unit for `~/.config/systemd/user/cellblock.service`."""
    return f"""\
# Put this into ~/.config/systemd/user/cellblock.service, then:
#   systemctl --user daemon-reload && systemctl --user enable --now cellblock
# To have it run without a login: loginctl enable-linger
[Unit]
Description=Cellblock: runs agents' scripts against MCP servers
Documentation=man:systemd.service(5)
StartLimitIntervalSec=60
StartLimitBurst=5

[Service]
Type=exec
ExecStart={" ".join(map(_systemd_word, words))}
# Where upstream servers' programs are looked for, as in the shell that printed this.
Environment={_quoted("PATH=" + path.replace("%", "%%"))}
# Variables that the configuration refers to as ${{env:NAME}}, one NAME=value a line. Keep it to yourself: chmod 600.
EnvironmentFile=-{ENVIRONMENT_FILE}
# It notices a changed configuration by itself, too.
ExecReload=kill -HUP $MAINPID
Restart=on-failure
RestartSec=2

# SIGTERM to the daemon alone: it drains, and ends its workers and upstream servers itself. What is left is killed.
KillMode=mixed
TimeoutStopSec={drain_seconds + STOP_MARGIN_SECONDS}

# The daemon keeps the memory and the number of processes of its workers in cgroups below its own.
Delegate=yes
LimitNOFILE=65536
OOMPolicy=continue

# Upstream servers are children of this service and need their files and the network, and workers are shut in by
# bubblewrap, which needs user namespaces and an unmasked /proc. So neither RestrictNamespaces nor ProtectProc,
# ProtectKernelTunables and the like can be here; what can be is.
UMask=0077
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
KeyringMode=private

[Install]
WantedBy=default.target
"""


def launchd_plist(words: Sequence[str], drain_seconds: int, path: str) -> str:
    """Returns an agent for `~/Library/LaunchAgents/cellblock.plist`."""
    # launchd makes no folders, and this one every user has.
    log = str(Path.home() / "Library" / "Logs" / "cellblock.log")
    settings = {
        "Label": LABEL,
        "ProgramArguments": [*words],
        "EnvironmentVariables": {"PATH": path},
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": 10,
        "ExitTimeOut": drain_seconds + STOP_MARGIN_SECONDS,
        "ProcessType": "Interactive",
        "Umask": 0o077,
        "StandardOutPath": log,
        "StandardErrorPath": log,
    }
    note = (
        "<!-- Put this into ~/Library/LaunchAgents/cellblock.plist, then: "
        "launchctl bootstrap gui/$UID ~/Library/LaunchAgents/cellblock.plist -->\n"
    )
    return plistlib.dumps(settings, sort_keys=False).decode().replace("<plist", f"{note}<plist", 1)


def _systemd_word(word: str) -> str:
    """Quotes a word of ExecStart where it must be; `%` and `$` stand for themselves, as `$` does in Environment=."""
    word = word.replace("%", "%%").replace("$", "$$")
    if word and all(character.isalnum() or character in "/._-:=@%$[]+," for character in word):
        return word
    return _quoted(word)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
