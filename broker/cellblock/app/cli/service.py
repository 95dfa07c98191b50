"""Service runs the command `service`: it prints a systemd user unit or a launchd agent that runs the daemon."""

from __future__ import annotations

import argparse
import contextlib
import os
import plistlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cellblock.app.cli.config_needed import SERVICE, load_needed
from cellblock.app.cli.help import EXIT_OK
from cellblock.app.cli.importing.known import own_command
from cellblock.app.cli.loading import warn
from cellblock.app.cli.streams import write_data
from cellblock.app.config.references import WHERE_STARTED, variables_of
from cellblock.base.secret_values import ORDINARY
from cellblock.serve.http.address import Address

STOP_MARGIN_SECONDS: Final = 20
"""Bounds what follows the draining, until workers and upstream servers are gone; it takes 1 s."""

LABEL: Final = "cellblock"

ENVIRONMENT_FILE: Final = "%h/.config/cellblock/environment"
"""Names what the unit reads when it is there; `%h` is the home folder."""


@dataclass(frozen=True)
class ServiceCommand:
    """A service command is what the service runs.

    Args:
        http: `HOST:PORT`.
        config: The configuration file, absolute.
        state_dir: The state directory, absolute.
        drain_seconds: The bound of draining.
        path: PATH, where programs such as npx and uvx are looked for; a service manager's own PATH has few folders.
    """

    http: str
    config: Path | None
    state_dir: Path
    drain_seconds: int
    path: str

    @property
    def arguments(self) -> list[str]:
        config = ["--config", str(self.config)] if self.config else []
        return [*own_command(), "serve", "--http", self.http, *config, "--state-dir", str(self.state_dir)]


def service(parsed: argparse.Namespace) -> int:
    """Prints the unit or the agent that the options ask for.

    Raises:
        ConfigError: The address, or the `state_dir` of the configuration, cannot be used.
    """
    Address.parse(parsed.http)
    launchd = parsed.launchd or (sys.platform == "darwin" and not parsed.systemd)
    settings, warnings = load_needed(
        parsed.config, further=SERVICE, state_dir=parsed.state_dir, environment=_environment(launchd=launchd)
    )
    if not launchd:
        warnings = [one.replace(WHERE_STARTED, f"in {_in_home(Path('~'))}") for one in warnings]
    warn(*warnings)
    command = ServiceCommand(
        http=parsed.http,
        config=Path(parsed.config).expanduser().absolute() if parsed.config else None,
        state_dir=settings.state_dir.absolute(),
        drain_seconds=settings.cellblock.http.drain_ms // 1000,
        path=os.environ.get("PATH", os.defpath),
    )
    write_data(launchd_plist(command) if launchd else systemd_unit(command))
    return EXIT_OK


def _environment(*, launchd: bool) -> dict[str, str]:
    """Returns the variables that the service is going to have, as far as they are known: none of this shell's own."""
    variables = {name: os.environ[name] for name in ORDINARY if name in os.environ}
    if not launchd:
        with contextlib.suppress(OSError, ValueError):
            variables |= variables_of(_in_home(Path.home()).read_text(encoding="utf-8"))
    return variables


def _in_home(home: Path) -> Path:
    return home / ENVIRONMENT_FILE.removeprefix("%h/")


def systemd_unit(command: ServiceCommand) -> str:
    """Returns a unit for `~/.config/systemd/user/cellblock.service`."""
    start = " ".join(_systemd_word(word) for word in command.arguments)
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
ExecStart={start}
# Where upstream servers' programs are looked for, as in the shell that printed this.
Environment={_systemd_assignment("PATH", command.path)}
# Variables that the configuration refers to as ${{env:NAME}}, one NAME=value a line. Keep it to yourself: chmod 600.
EnvironmentFile=-{ENVIRONMENT_FILE}
# It notices a changed configuration by itself, too.
ExecReload=kill -HUP $MAINPID
Restart=on-failure
RestartSec=2

# SIGTERM to the daemon alone: it drains, and ends its workers and upstream servers itself. What is left is killed.
KillMode=mixed
TimeoutStopSec={command.drain_seconds + STOP_MARGIN_SECONDS}

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


def launchd_plist(command: ServiceCommand) -> str:
    """Returns an agent for `~/Library/LaunchAgents/cellblock.plist`."""
    # launchd makes no folders, and this one every user has.
    log = str(Path.home() / "Library" / "Logs" / "cellblock.log")
    settings = {
        "Label": LABEL,
        "ProgramArguments": command.arguments,
        "EnvironmentVariables": {"PATH": command.path},
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": 10,
        "ExitTimeOut": command.drain_seconds + STOP_MARGIN_SECONDS,
        "ProcessType": "Interactive",
        "Umask": 0o077,
        "StandardOutPath": log,
        "StandardErrorPath": log,
    }
    text = plistlib.dumps(settings, sort_keys=False).decode()
    note = (
        "<!-- Put this into ~/Library/LaunchAgents/cellblock.plist, then: "
        "launchctl bootstrap gui/$UID ~/Library/LaunchAgents/cellblock.plist -->\n"
    )
    head, _, rest = text.partition("<plist")
    return f"{head}{note}<plist{rest}"


def _systemd_assignment(name: str, value: str) -> str:
    """Quotes a word of Environment=, where `$` stands for itself already."""
    return _quoted(f"{name}={value}".replace("%", "%%"))


def _systemd_word(word: str) -> str:
    """Quotes a word of ExecStart where it must be; `%` and `$` stand for themselves."""
    word = word.replace("%", "%%").replace("$", "$$")
    if word and all(character.isalnum() or character in "/._-:=@%$[]+," for character in word):
        return word
    return _quoted(word)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
