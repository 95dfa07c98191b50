"""Named secrets: with a keyring of this process's own, as `keyring` lets anybody bring one, and with none."""

import io
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import keyring
import pytest
from keyring.backends.fail import Keyring as NoKeyring

from cellblock.app.cli.main import main
from cellblock.app.config.load import load_settings
from cellblock.app.config.named_secrets import mark_of
from support.ring import Ring


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STATE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "c.json"


def command(monkeypatch: pytest.MonkeyPatch, *words: str, given: bytes = b"") -> int:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
    return main(words)


def test_set_list_use_and_remove(
    ring: Ring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], file: Path
) -> None:
    servers = {
        "a": {"command": "x", "env": {"K": "Bearer ${keyring:A.b-1} $${keyring:NOT}", "L": "${keyring:C}"}}
    }
    file.write_text(json.dumps({"mcpServers": servers}))
    assert command(monkeypatch, "secret", "set", "A.b-1", given=b"hunter2-one\r\n") == 0
    assert "A.b-1 is kept in the keyring" in capfd.readouterr().out
    assert command(monkeypatch, "secret", "set", "A.b-1", given=b"hunter2-two\n") == 0
    assert "has a new value" in capfd.readouterr().out
    assert ring.entries == {("cellblock", "secret:A.b-1"): "hunter2-two"}
    assert command(monkeypatch, "secret", "list", "--config", str(file)) == 0
    assert capfd.readouterr().out.splitlines() == [
        f"A.b-1  mcpServers.a.env.K in {file}",
        "C  not set: cellblock secret set C  mcpServers.a.env.L",
    ]
    settings = load_settings(file)
    assert settings.servers["a"].missing == "there is no secret C"
    assert "Run: cellblock secret set C." in settings.warnings[0]
    assert [mark.name for mark in settings.files] == ["A.b-1", "C"]
    command(monkeypatch, "secret", "set", "C", given=b"hunter2-c")
    settings = load_settings(file)
    assert settings.servers["a"].env == {"K": "Bearer hunter2-two ${keyring:NOT}", "L": "hunter2-c"}
    assert settings.servers["a"].referenced == {"hunter2-two", "hunter2-c"}
    capfd.readouterr()
    assert command(monkeypatch, "secret", "remove", "C", "--config", str(file)) == 0
    assert "still refers to C: mcpServers.a.env.L" in capfd.readouterr().err
    assert command(monkeypatch, "secret", "remove", "A.b") == 1
    assert "Did you mean A.b-1?" in capfd.readouterr().err
    assert "hunter2" not in "".join(
        path.read_text() for path in (tmp_path / "state").rglob("*") if path.is_file()
    )


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("A", b"", "is empty"),
        ("A", b"\n", "is empty"),
        ("A", b"a\0b", "NUL"),
        ("A", b"\xff", "no UTF-8"),
        ("A", b"x" * 70_000, "over 65536 bytes"),
        ("../A", b"x", "no name of a secret"),
        ("-A", b"x", ""),
    ],
)
def test_what_is_no_secret(
    ring: Ring,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    name: str,
    given: bytes,
    said: str,
) -> None:
    try:
        code = command(monkeypatch, "secret", "set", name, given=given)
    except SystemExit as ended:
        code = int(ended.code or 0)
    assert (code, ring.entries) == (2, {})
    assert said in capfd.readouterr().err


def test_a_keyring_that_hangs_is_asked_once_and_holds_nothing_but_its_servers(
    ring: Ring, monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    monkeypatch.setattr("cellblock.base.keyrings.KEYRING_SECONDS", 0.05)
    ring.waits = threading.Event()
    servers: dict[str, Any] = {
        **{f"s{n}": {"command": "x", "args": ["${keyring:A}", "${keyring:B}"]} for n in range(20)},
        "other": {"command": "y"},
    }
    file.write_text(json.dumps({"mcpServers": servers}))
    settings = load_settings(file)
    assert ring.asked == 1 and len(settings.warnings) == 40
    assert settings.servers["s7"].missing == "the keyring has not answered within 0.05 s"
    assert settings.servers["other"].missing is None


def test_without_a_keyring_secrets_are_in_encrypted_files(
    ring: Ring, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], file: Path
) -> None:
    keyring.set_keyring(NoKeyring())
    file.write_text('{"mcpServers": {"a": {"command": "x", "args": ["${keyring:A}"]}}}')
    assert load_settings(file).servers["a"].missing == "there is no secret A"
    assert command(monkeypatch, "secret", "set", "A", given=b"hunter2-one") == 0
    assert "A is kept in encrypted files: there is no keyring." in capfd.readouterr().out
    assert load_settings(file).servers["a"].args == ["hunter2-one"]
    kept = mark_of("A")
    assert kept.stat().st_mode & 0o777 == 0o600 and b"hunter2" not in kept.read_bytes()
    # What was put into the place of another secret is none.
    mark_of("B").write_bytes(kept.read_bytes())
    mark_of("B").chmod(0o600)
    file.write_text('{"mcpServers": {"a": {"command": "x", "args": ["${keyring:B}"]}}}')
    assert "was changed after it was written" in (load_settings(file).servers["a"].missing or "")
    assert command(monkeypatch, "secret", "remove", "A") == 0 and not kept.exists()
    # With a keyring it moves there.
    command(monkeypatch, "secret", "set", "A", given=b"hunter2-two")
    keyring.set_keyring(ring)
    command(monkeypatch, "secret", "set", "A", given=b"hunter2-three")
    assert ring.entries["cellblock", "secret:A"] == "hunter2-three" and kept.read_bytes() == b""
    # A daemon without the desktop's keyring says so.
    file.write_text('{"mcpServers": {"a": {"command": "x", "args": ["${keyring:A}"]}}}')
    keyring.set_keyring(NoKeyring())
    assert "there is no keyring on this machine" in (load_settings(file).servers["a"].missing or "")


def test_no_keyring_is_looked_for_where_no_reference_names_one(file: Path) -> None:
    file.write_text('{"mcpServers": {"a": {"command": "x", "args": ["${HOME}", "$${keyring:A}"]}}}')
    code = (
        "import sys; from cellblock.app.config.load import load_settings; load_settings(sys.argv[1]);"
        "from cellblock.app import broker; print([one for one in sys.modules if 'keyring' in one])"
    )
    done = subprocess.run([sys.executable, "-c", code, file], capture_output=True, text=True, timeout=120)
    assert done.stdout == "[]\n", done.stderr


def write_clients(home: Path) -> dict[str, Path]:
    """Two clients with a server of one name each, and secrets of one name."""
    files = {"cursor": home / ".cursor/mcp.json", "codex": home / ".codex/config.toml"}
    for file in files.values():
        file.parent.mkdir()
    entries = {
        "gh": {"command": "gh", "env": {"GH_TOKEN": "hunter2-cursor"}},
        "b": {"command": "b", "env": {"GH_TOKEN": "hunter2-b"}},
    }
    files["cursor"].write_text(json.dumps({"mcpServers": entries}))
    files["codex"].write_text(
        '# mine\n[mcp_servers.gh]\ncommand = "other"\n[mcp_servers.web]\nurl = "https://w.example"\n'
        'http_headers = { Authorization = "Bearer hunter2-codex" }\n'
    )
    return files


def test_an_import_moves_secrets_into_the_keyring_and_overwrites_none(
    ring: Ring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], file: Path
) -> None:
    write_clients(tmp_path)
    monkeypatch.chdir(tmp_path)
    ring.entries["cellblock", "secret:GH_TOKEN"] = "somebody's other"
    words = ("import", "--config", str(file), "--secrets", "keyring")
    assert command(monkeypatch, *words, "--dry-run") == 0
    said = capfd.readouterr().out
    assert "Into the keyring" in said and "GH_GH_TOKEN" in said and "To be set" not in said
    assert len(ring.entries) == 1 and not file.exists()
    assert command(monkeypatch, *words, "--yes", "--json") == 0
    out = capfd.readouterr().out
    assert json.loads(out)["keyring"] == ["GH_GH_TOKEN", "B_GH_TOKEN", "WEB_AUTHORIZATION"]
    assert "hunter2" not in said + out + file.read_text()
    settings = load_settings(file)
    assert settings.warnings == () and settings.servers["gh"].env == {"GH_TOKEN": "hunter2-cursor"}
    assert settings.servers["web"].headers == {"Authorization": "Bearer hunter2-codex"}
    assert ring.entries["cellblock", "secret:GH_TOKEN"] == "somebody's other"
    # A secret goes where it was, whoever changes the entry; until the user agrees.
    text = file.read_text()
    for old, new in (("https://w.example", "https://w.example.evil"), ('"command": "gh"', '"command": "sh"')):
        file.write_text(text.replace(old, new))
        settings = load_settings(file)
        refused = [
            name for name, one in settings.servers.items() if "it was given for" in (one.missing or "")
        ]
        assert refused == (["web"] if "evil" in new else ["gh"])
        assert (
            "hunter2" not in str(settings.servers[refused[0]].model_dump())
            and "secret set" in settings.warnings[0]
        )
    file.write_text(text.replace("https://w.example", "https://w.example/path"))
    assert load_settings(file).servers["web"].missing is None
    entry = ("web", "https://other.example", "--header", "Authorization: Bearer ${keyring:WEB_AUTHORIZATION}")
    assert command(monkeypatch, "add", *entry, "--replace", "--config", str(file)) == 0
    assert load_settings(file).servers["web"].headers == {"Authorization": "Bearer hunter2-codex"}
    file.write_text(text.replace("w.example", "third.example"))
    assert load_settings(file).servers["web"].missing
    assert command(monkeypatch, "secret", "set", "WEB_AUTHORIZATION", given=b"hunter2-codex") == 0
    assert load_settings(file).servers["web"].missing is None
    file.write_text(text)
    capfd.readouterr()
    # Again: all is there, under the names that it has.
    assert command(monkeypatch, *words, "--yes", "--json") == 0
    assert json.loads(capfd.readouterr().out)["written"] is False


def test_install_takes_servers_over_with_their_secrets_and_loses_none_of_a_name(
    ring: Ring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], file: Path
) -> None:
    files = write_clients(tmp_path)
    monkeypatch.chdir(tmp_path)
    words = ("install", "cursor", "codex", "--take-over", "--yes", "--config", str(file))
    assert command(monkeypatch, *words, "--secrets", "keyring") == 0
    out = capfd.readouterr().out
    assert "hunter2" not in out + file.read_text()
    assert sum(name.startswith("secret:") for _, name in ring.entries) == 3
    settings = load_settings(file)
    assert settings.servers["gh"].command == "gh" and settings.servers["gh"].env == {
        "GH_TOKEN": "hunter2-cursor"
    }
    assert [*json.loads(files["cursor"].read_text())["mcpServers"]] == ["cellblock"]
    # The other one of this name stays where it was.
    assert "gh: stays: Cursor has another server of this name" in out
    codex = files["codex"].read_text()
    assert codex.startswith("# mine") and "[mcp_servers.gh]" in codex and "w.example" not in codex
