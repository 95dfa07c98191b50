"""The usual troubles are found, and each comes with what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellblock.cli import checkups
from cellblock.config.settings import ServerConfig


@pytest.mark.parametrize(
    ("entry", "word"),
    [
        ({"command": "npx", "env": {"PATH": "/nonexistent"}}, "Node.js"),
        ({"command": "uvx", "env": {"PATH": "/nonexistent"}}, "docs.astral.sh/uv"),
        ({"command": "no-such-program-9"}, "not on PATH. Install it, or write its whole path."),
        ({"command": "/no/such/file"}, "/no/such/file does not exist"),
        ({"command": "/etc"}, "no program that may be started"),
        ({"command": "./x", "cwd": "/no/such/folder"}, "/no/such/folder/x does not exist"),
    ],
)
def test_a_command_that_is_not_there(entry: dict[str, object], word: str) -> None:
    assert word in (checkups.missing_command(ServerConfig.model_validate(entry)) or "")


def test_commands_that_are_there() -> None:
    for entry in (
        {"command": "sh"},
        {"command": "/bin/sh"},
        {"command": "./sh", "cwd": "/bin"},
        {"url": "http://x"},
    ):
        assert checkups.missing_command(ServerConfig.model_validate(entry)) is None


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("the server refused the connection: HTTP 401", "credentials"),
        ("HTTP 404", "/mcp"),
        ("no tool list within upstream.connect_timeout_ms = 30000", "downloaded"),
        ("it did not answer `initialize` within upstream.connect_timeout_ms = 30000", "downloaded"),
        ("no tool list within upstream.list_timeout_ms = 20000", "raise upstream.list_timeout_ms"),
        ("All connection attempts failed", "URL"),
        ("the connection was closed by the server", "upstream-x.log"),
        ("something else", "by hand"),
    ],
)
def test_the_reason_says_what_to_do(reason: str, word: str, tmp_path: Path) -> None:
    config = ServerConfig(url="http://x/mcp")
    assert word in checkups.fix_of(config, reason, tmp_path / "upstream-x.log")
    gone = ServerConfig(command="sh", cwd=tmp_path / "gone")
    assert "is no folder" in checkups.fix_of(gone, reason, tmp_path)


def test_a_state_directory_that_cannot_be_used(tmp_path: Path) -> None:
    assert checkups.state_dir_trouble(tmp_path / "new" / "state") is None
    (tmp_path / "file").write_text("")
    assert "cannot be used" in (checkups.state_dir_trouble(tmp_path / "file" / "state") or "")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    assert "chmod 700" in (checkups.state_dir_trouble(shared) or "")


def test_a_missing_deno(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checkups.deno_trouble() is None

    def nowhere() -> str:
        raise FileNotFoundError("no deno here")

    monkeypatch.setattr(checkups, "deno_binary", nowhere)
    assert "--force-reinstall" in (checkups.deno_trouble() or "")


def test_a_disk_that_is_nearly_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checkups.low_disk(tmp_path) is None
    monkeypatch.setattr(checkups, "LOW_DISK_BYTES", 1 << 62)
    assert "Free space on it" in (checkups.low_disk(tmp_path) or "")


FAILED = "namespaces: /usr/bin/bwrap failed: bwrap: setting up uid map: Permission denied"


@pytest.mark.parametrize(
    ("setting", "value", "word"),
    [
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "AppArmor profile"),
        ("kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"),
        ("user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces="),
        ("user/max_user_namespaces", "15000", "Allow user namespaces to this user"),
    ],
)
def test_namespaces_that_are_forbidden(setting: str, value: str, word: str, tmp_path: Path) -> None:
    (tmp_path / setting).parent.mkdir()
    (tmp_path / setting).write_text(f"{value}\n", encoding="ascii")
    assert word in checkups.isolation_fix(FAILED, tmp_path, ())
    assert checkups.isolation_fix("namespaces and cgroup: switched off", tmp_path, ()) == ""


def test_namespaces_that_a_container_forbids(tmp_path: Path) -> None:
    assert "Docker" in checkups.isolation_fix(FAILED, tmp_path, (str(tmp_path),))
