"""Named secrets: with a keyring of this process's own, as `keyring` lets anybody bring one, and with none."""

import io
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keyring
import pytest
from keyring.backends.fail import Keyring as NoKeyring

from cellblock.app.cli.main import main
from cellblock.app.config.load import load_settings
from cellblock.app.config.named_secrets import mark_of
from cellblock.base.settings.settings import ServerConfig
from support.ring import Ring


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STATE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "c.json"


Command = Callable[..., str]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """What a command says, which ends with `code`: on stdout where it succeeds, else on stderr."""

    def run(*words: str, given: bytes = b"", code: int = 0) -> str:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        capfd.readouterr()
        assert main(words) == code
        return capfd.readouterr()[code != 0]

    return run


def test_set_list_use_and_remove(
    ring: Ring, tmp_path: Path, capfd: pytest.CaptureFixture[str], said: Command, file: Path
) -> None:
    servers = {
        "a": {"command": "x", "env": {"K": "Bearer ${keyring:A.b-1} $${keyring:NOT}", "L": "${keyring:C}"}}
    }
    file.write_text(json.dumps({"mcpServers": servers}))
    assert "A.b-1 is kept in the keyring" in said("secret", "set", "A.b-1", given=b"hunter2-one\r\n")
    assert "has a new value" in said("secret", "set", "A.b-1", given=b"hunter2-two\n")
    assert ring.entries == {("cellblock", "secret:A.b-1"): "hunter2-two"}
    assert said("secret", "list", "--config", str(file)).splitlines() == [
        f"A.b-1  mcpServers.a.env.K in {file}",
        "C  not set: cellblock secret set C  mcpServers.a.env.L",
    ]
    settings = load_settings(file)
    assert settings.servers["a"].missing == "there is no secret C"
    assert "Run: cellblock secret set C." in settings.warnings[0]
    assert [mark.name for mark in settings.files] == ["A.b-1", "C"]
    said("secret", "set", "C", given=b"hunter2-c")
    server = load_settings(file).servers["a"]
    assert server.env == {"K": "Bearer hunter2-two ${keyring:NOT}", "L": "hunter2-c"}
    assert server.referenced == {"hunter2-two", "hunter2-c"}
    assert main(["secret", "remove", "C", "--config", str(file)]) == 0
    assert "still refers to C: mcpServers.a.env.L" in capfd.readouterr().err
    assert "Did you mean A.b-1?" in said("secret", "remove", "A.b", code=1)
    assert "hunter2" not in "".join(
        path.read_text() for path in (tmp_path / "state").rglob("*") if path.is_file()
    )


@pytest.mark.parametrize(
    ("name", "given", "why"),
    [
        ("A", b"", "is empty"),
        ("A", b"\n", "is empty"),
        ("A", b"a\0b", "NUL"),
        ("A", b"\xff", "no UTF-8"),
        ("A", b"x" * 70_000, "over 65536 bytes"),
        ("../A", b"x", "no name of a secret"),
    ],
)
def test_what_is_no_secret(ring: Ring, said: Command, name: str, given: bytes, why: str) -> None:
    assert why in said("secret", "set", name, given=given, code=2)
    assert ring.entries == {}


def test_what_could_be_an_option_is_no_name(ring: Ring, said: Command) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        said("secret", "set", "-A", given=b"x")
    assert ring.entries == {}


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


def test_without_a_keyring_secrets_are_in_encrypted_files(ring: Ring, said: Command, file: Path) -> None:
    def server(secret: str) -> ServerConfig:
        file.write_text(f'{{"mcpServers": {{"a": {{"command": "x", "args": ["${{keyring:{secret}}}"]}}}}}}')
        return load_settings(file).servers["a"]

    keyring.set_keyring(NoKeyring())
    assert server("A").missing == "there is no secret A"
    told = said("secret", "set", "A", given=b"hunter2-one")
    assert "A is kept in encrypted files: there is no keyring." in told
    assert server("A").args == ["hunter2-one"]
    kept = mark_of("A")
    assert kept.stat().st_mode & 0o777 == 0o600 and b"hunter2" not in kept.read_bytes()
    # What was put into the place of another secret is none.
    mark_of("B").write_bytes(kept.read_bytes())
    mark_of("B").chmod(0o600)
    assert "was changed after it was written" in (server("B").missing or "")
    said("secret", "remove", "A")
    assert not kept.exists()
    # With a keyring it moves there.
    said("secret", "set", "A", given=b"hunter2-two")
    keyring.set_keyring(ring)
    said("secret", "set", "A", given=b"hunter2-three")
    assert ring.entries["cellblock", "secret:A"] == "hunter2-three" and kept.read_bytes() == b""
    # A daemon without the desktop's keyring says so.
    keyring.set_keyring(NoKeyring())
    assert "there is no keyring on this machine" in (server("A").missing or "")


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
    ring: Ring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Command, file: Path
) -> None:
    write_clients(tmp_path)
    monkeypatch.chdir(tmp_path)
    ring.entries["cellblock", "secret:GH_TOKEN"] = "somebody's other"
    words = ("import", "--config", str(file), "--secrets", "keyring")
    plan = said(*words, "--dry-run")
    assert "Into the keyring" in plan and "GH_GH_TOKEN" in plan and "To be set" not in plan
    assert len(ring.entries) == 1 and not file.exists()
    out = said(*words, "--yes", "--json")
    assert json.loads(out)["keyring"] == ["GH_GH_TOKEN", "B_GH_TOKEN", "WEB_AUTHORIZATION"]
    assert "hunter2" not in plan + out + file.read_text()
    settings = load_settings(file)
    assert settings.warnings == () and settings.servers["gh"].env == {"GH_TOKEN": "hunter2-cursor"}
    assert settings.servers["web"].headers == {"Authorization": "Bearer hunter2-codex"}
    assert ring.entries["cellblock", "secret:GH_TOKEN"] == "somebody's other"
    # A secret goes where it was, whoever changes the entry; until the user agrees.
    text = file.read_text()
    for name, old, new in (
        ("web", "https://w.example", "https://w.example.evil"),
        ("gh", '"command": "gh"', '"command": "sh"'),
    ):
        file.write_text(text.replace(old, new))
        settings = load_settings(file)
        assert [one for one, server in settings.servers.items() if server.missing] == [name]
        assert "it was given for" in (settings.servers[name].missing or "")
        assert "hunter2" not in str(settings.servers[name].model_dump())
        assert "secret set" in settings.warnings[0]
    file.write_text(text.replace("https://w.example", "https://w.example/path"))
    assert load_settings(file).servers["web"].missing is None
    entry = ("web", "https://other.example", "--header", "Authorization: Bearer ${keyring:WEB_AUTHORIZATION}")
    said("add", *entry, "--replace", "--config", str(file))
    assert load_settings(file).servers["web"].headers == {"Authorization": "Bearer hunter2-codex"}
    file.write_text(text.replace("w.example", "third.example"))
    assert load_settings(file).servers["web"].missing
    said("secret", "set", "WEB_AUTHORIZATION", given=b"hunter2-codex")
    assert load_settings(file).servers["web"].missing is None
    file.write_text(text)
    # Again: all is there, under the names that it has.
    assert json.loads(said(*words, "--yes", "--json"))["written"] is False


def test_install_takes_servers_over_with_their_secrets_and_loses_none_of_a_name(
    ring: Ring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Command, file: Path
) -> None:
    files = write_clients(tmp_path)
    monkeypatch.chdir(tmp_path)
    words = ("install", "cursor", "codex", "--take-over", "--yes", "--config", str(file))
    out = said(*words, "--secrets", "keyring")
    assert "hunter2" not in out + file.read_text()
    assert sum(name.startswith("secret:") for _, name in ring.entries) == 3
    gh = load_settings(file).servers["gh"]
    assert (gh.command, gh.env) == ("gh", {"GH_TOKEN": "hunter2-cursor"})
    assert [*json.loads(files["cursor"].read_text())["mcpServers"]] == ["cellblock"]
    # The other one of this name stays where it was.
    assert "gh: stays: Cursor has another server of this name" in out
    codex = files["codex"].read_text()
    assert codex.startswith("# mine") and "[mcp_servers.gh]" in codex and "w.example" not in codex
