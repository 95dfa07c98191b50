"""The systemd unit and the launchd plist."""

import json
import os
import plistlib
import shutil
import subprocess
from configparser import ConfigParser
from pathlib import Path

import pytest

from cellblock.app.cli.importing.known import own_command
from cellblock.app.cli.main import main
from cellblock.app.cli.service import launchd_plist, systemd_unit

CONFIG = '/home/a b/100% "x"/$HOME.json'
WORDS = [
    *own_command(),
    "serve",
    "--http",
    "[::1]:7433",
    "--config",
    CONFIG,
    "--state-dir",
    "/home/a b/state",
]
PATH = '/usr/bin:/home/a b/50%/"x"/$y\\z'
COMMAND = (WORDS, 30, PATH)


def test_the_unit_starts_the_daemon_in_a_cgroup_of_its_own() -> None:
    parser = ConfigParser(interpolation=None, strict=False, comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(systemd_unit(*COMMAND))
    service = parser["Service"]
    assert {key: service[key] for key in ("Delegate", "KillMode", "Environment")} == {
        "Delegate": "yes",
        "KillMode": "mixed",
        "Environment": r'"PATH=/usr/bin:/home/a b/50%%/\"x\"/$y\\z"',
    }
    assert int(service["TimeoutStopSec"]) > 30 and service["EnvironmentFile"].startswith("-%h/")
    start = service["ExecStart"]
    assert Path(start.split(" ")[0]).is_file()
    assert " serve --http [::1]:7433 " in start and r'"/home/a b/100%% \"x\"/$$HOME.json"' in start


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd on this machine")
def test_systemd_understands_it(tmp_path: Path) -> None:
    assert verified(systemd_unit(*COMMAND), tmp_path) == ""
    # It is looked at: what is wrong would be said.
    wrong = systemd_unit(*COMMAND).replace("OOMPolicy=", "OOMPolcy=").replace("KillMode=mixed", "KillMode=x")
    said = verified(wrong, tmp_path)
    assert "OOMPolcy" in said and "kill mode" in said


def verified(text: str, folder: Path) -> str:
    """What systemd says of a unit; nothing when it is right."""
    unit = folder / "cellblock.service"
    unit.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", "--man=no", str(unit)],
        # Without a runtime directory of the user it looks at nothing.
        env={**os.environ, "XDG_RUNTIME_DIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stdout + done.stderr


LAUNCHD_KEYS: dict[str, type] = {
    "Label": str,
    "ProgramArguments": list,
    "EnvironmentVariables": dict,
    "RunAtLoad": bool,
    "KeepAlive": dict,
    "ThrottleInterval": int,
    "ExitTimeOut": int,
    "ProcessType": str,
    "Umask": int,
    "StandardOutPath": str,
    "StandardErrorPath": str,
}
"""Of launchd.plist(5), with their types: those that are used. launchd passes over a key that it does not know."""


def test_launchd_knows_every_key() -> None:
    agent = plistlib.loads(launchd_plist(*COMMAND).encode())
    assert {key: type(value) for key, value in agent.items()} == LAUNCHD_KEYS
    assert (
        agent.items()
        >= {
            "ProgramArguments": WORDS,
            "EnvironmentVariables": {"PATH": PATH},
            "KeepAlive": {"SuccessfulExit": False},
            "Umask": 0o077,
            # Not in a folder that only the first start would make.
            "StandardOutPath": str(Path.home() / "Library/Logs/cellblock.log"),
        }.items()
    )
    assert agent["ProcessType"] in ("Background", "Standard", "Adaptive", "Interactive")
    assert agent["ExitTimeOut"] > 30
    assert "bootstrap" in launchd_plist(*COMMAND)


def test_without_a_configuration_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["service", "--systemd", "--http", "127.0.0.1:1", "--state-dir", "/s"]) == 0
    [start] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("ExecStart=")]
    assert start.endswith(" serve --http 127.0.0.1:1 --state-dir /s")


def test_what_the_service_will_lack_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its variables are those of its own file, and not of the shell that prints the unit."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OF_THE_SHELL", "hunter2")
    header = {
        "A": "${env:OF_THE_SHELL}",
        "B": "${env:IN_THE_FILE} ${HOME}",
        "C": "${file:none}",
        "D": "${D:-x}",
    }
    section = {"log": {"file": "${env:NOWHERE}/x"}}
    config = tmp_path / "c.json"
    config.write_text(
        json.dumps({"mcpServers": {"w": {"url": "https://w", "headers": header}}, "cellblock": section})
    )
    own = tmp_path / ".config" / "cellblock" / "environment"
    own.parent.mkdir(parents=True)
    own.write_text("# mine\nIN_THE_FILE=hunter3\n")

    def said(*words: str) -> list[str]:
        state = ("--state-dir", str(tmp_path / "s"))
        assert main(["service", "--config", str(config), *state, *words]) == 0
        printed = capsys.readouterr()
        assert "hunter" not in printed.out + printed.err
        return printed.err.splitlines()

    a, c, log = said("--systemd")
    parts = (
        "mcpServers.w.headers.A: ${env:OF_THE_SHELL}: the environment variable OF_THE_SHELL is not set.",
        "Set OF_THE_SHELL in ~/.config/cellblock/environment, or",
        "Until then the server w is not started.",
    )
    assert all(part in a for part in parts)
    assert "mcpServers.w.headers.C" in c and "cellblock.log.file: ${env:NOWHERE}" in log
    assert ["headers.B" in line for line in said("--launchd")] == [False, True, False, False]
    own.write_text("IN_THE_FILE=hunter3\nOF_THE_SHELL=hunter2\nNOWHERE=/x\n")
    (tmp_path / "none").write_text("hunter4")
    assert said("--systemd") == []
