"""The usual troubles are found, and each comes with what to do."""

import datetime
from pathlib import Path

import pytest

from cellblock.app.cli import doctor
from cellblock.app.config.load import parse_settings
from cellblock.base.redaction import Redactor
from cellblock.base.settings.settings import ServerConfig
from cellblock.tools.upstream.programs import environment_of, missing_command, missing_variable
from support.certificates import certificate


@pytest.mark.parametrize(
    ("entry", "word"),
    [
        ({"command": "npx", "env": {"PATH": "/nonexistent"}}, "Node.js"),
        ({"command": "uvx", "env": {"PATH": "/nonexistent"}}, "docs.astral.sh/uv"),
        ({"command": "no-such-program-9"}, "not on PATH. Install it, or write its whole path."),
        ({"command": "/no/such/file"}, "/no/such/file does not exist"),
        ({"command": "/etc"}, "no program that may be started"),
        ({"command": "./x", "cwd": "/no/such/folder"}, "Its cwd /no/such/folder is no folder"),
    ],
)
def test_a_command_that_is_not_there(entry: dict[str, object], word: str) -> None:
    assert word in (missing_command(ServerConfig.model_validate(entry)) or "")


@pytest.mark.parametrize(
    "entry",
    [{"command": "sh"}, {"command": "/bin/sh"}, {"command": "./sh", "cwd": "/bin"}, {"url": "http://x"}],
    ids=str,
)
def test_commands_that_are_there(entry: dict[str, object]) -> None:
    assert missing_command(ServerConfig.model_validate(entry)) is None


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Error: unable to get local issuer certificate", "NODE_EXTRA_CA_CERTS and SSL_CERT_FILE"),
        ("npm error code SELF_SIGNED_CERT_IN_CHAIN", "trusts other certificates"),
        ("ssl.SSLCertVerificationError: CERTIFICATE_VERIFY_FAILED", "trusts other certificates"),
        ("x509: certificate signed by unknown authority", "trusts other certificates"),
        ("Error: getaddrinfo ENOTFOUND api.example.com", "HTTPS_PROXY and HTTP_PROXY are not set"),
        ("[Errno -3] Temporary failure in name resolution", "your network's proxy"),
        ("dial tcp: lookup api.example.com: no such host", "finds no names"),
    ],
)
def test_what_last_words_say_is_missing(said: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "HTTPS_PROXY", "HTTP_PROXY")
    for name in names:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    server = ServerConfig(command="sh")
    assert told in doctor.fix_of(server, f"it ended by itself; it said: {said}", Path("/none"))
    with_one = str(
        missing_variable(ServerConfig(command="sh", env={"SSL_CERT_FILE": "x", "https_proxy": "y"}), said)
    )
    assert "SSL_CERT_FILE" not in with_one and "HTTPS_PROXY" not in with_one
    all_set = ServerConfig(command="sh", env=dict.fromkeys(names, "x"))
    assert "set: check their values" in str(missing_variable(all_set, said))
    assert missing_variable(server, "Error: no API key") is None


def test_what_a_program_is_started_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_ONE", "1")
    monkeypatch.setenv("CANARY_TWO", "2")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy")

    def given(**entry: object) -> dict[str, str]:
        environment = environment_of(ServerConfig.model_validate({"command": "sh", **entry}))
        return {name: value for name, value in environment.items() if name.startswith(("CANARY", "HTTPS"))}

    assert given() == {"HTTPS_PROXY": "http://proxy"}
    assert given(inheritEnv=["CANARY_ONE", "CANARY_NONE"]) == given() | {"CANARY_ONE": "1"}
    assert given(inheritEnv=True) == given() | {"CANARY_ONE": "1", "CANARY_TWO": "2"}
    assert given(inheritEnv=True, env={"CANARY_TWO": "own"})["CANARY_TWO"] == "own"
    for wrong in (["A=b"], [""], "CANARY_ONE", ["a\0"]):
        with pytest.raises(ValueError, match="inheritEnv"):
            given(inheritEnv=wrong)
    lacking = ServerConfig.model_validate({"command": "sh", "inheritEnv": ["CANARY_ONE", "CANARY_NONE"]})
    assert "inheritEnv names CANARY_NONE:" in doctor.fix_of(lacking, "it ended by itself", Path("/none"))


def test_what_is_inherited_is_a_secret_like_what_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "canary-77123")
    redactor = Redactor(ServerConfig.model_validate({"command": "sh", "inheritEnv": True}))
    assert redactor.text("refused canary-77123") == "refused [redacted]"


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("the server refused the connection: HTTP 401", "credentials"),
        ("HTTP 404", "/mcp"),
        ("no tool list within upstream.connect_timeout_ms = 30000", "downloaded"),
        ("it did not answer `initialize` within upstream.connect_timeout_ms = 30000", "downloaded"),
        ("no tool list within 20 s", "why it lists no tools"),
        ("nobody listens at its address", "URL"),
        ("the connection was closed by the server", "upstream-x.log"),
        ("something else", "its URL"),
        ("it is text/html: `<html>`", "a web page answers there"),
    ],
)
def test_the_reason_says_what_to_do(reason: str, word: str, tmp_path: Path) -> None:
    config = ServerConfig(url="http://x/mcp")
    assert word in doctor.fix_of(config, reason, tmp_path / "upstream-x.log")
    started = ServerConfig(command="sh")
    assert "by hand" in doctor.fix_of(started, "Connection refused", tmp_path / "none")
    wants = "the server refused the connection: HTTP 401; run: cellblock auth login x"
    assert doctor.with_fix(config, wants, tmp_path) == wants
    gone = ServerConfig(command="sh", cwd=tmp_path / "gone")
    assert "is no folder" in doctor.fix_of(gone, reason, tmp_path)


def test_a_state_directory_that_cannot_be_used(tmp_path: Path) -> None:
    assert doctor.state_dir_trouble(tmp_path / "new" / "state") is None
    (tmp_path / "file").write_text("")
    assert "cannot be used" in (doctor.state_dir_trouble(tmp_path / "file" / "state") or "")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    assert "chmod 700" in (doctor.state_dir_trouble(shared) or "")


def test_a_missing_deno(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.deno_trouble() is None

    def nowhere() -> str:
        raise FileNotFoundError("no deno here")

    monkeypatch.setattr(doctor, "deno_binary", nowhere)
    assert "--force-reinstall" in (doctor.deno_trouble() or "")


def test_a_disk_that_is_nearly_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.low_disk(tmp_path) is None
    monkeypatch.setattr(doctor, "LOW_DISK_BYTES", 1 << 62)
    assert "Free space on it" in (doctor.low_disk(tmp_path) or "")


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
    assert word in doctor.isolation_fix(FAILED, tmp_path, ())
    assert doctor.isolation_fix("namespaces and cgroup: switched off", tmp_path, ()) == ""


def test_namespaces_that_a_container_forbids(tmp_path: Path) -> None:
    assert "Docker" in doctor.isolation_fix(FAILED, tmp_path, (str(tmp_path),))


def test_a_token_that_others_may_read(tmp_path: Path) -> None:
    settings = parse_settings({"cellblock": {"state_dir": str(tmp_path)}})
    assert doctor.token_trouble(settings.state_dir) is None
    token = tmp_path / "token"
    token.write_text("x" * 43)
    token.chmod(0o644)
    assert "chmod 600" in (doctor.token_trouble(settings.state_dir) or "")


def test_certificates(tmp_path: Path) -> None:
    for name in ("good", "soon", "old", "new"):
        (tmp_path / name).mkdir()
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    good = certificate(tmp_path / "good", end=now + 60 * day)
    soon = certificate(tmp_path / "soon", end=now + day)
    old = certificate(tmp_path / "old", begin=now - 2 * day, end=now - day)
    new = certificate(tmp_path / "new", begin=now + day, end=now + 2 * day)
    assert doctor.certificate_state(None, None) == doctor.certificate_state(*good) == (None, None)
    for cert, key, said in (
        (good[0], None, "belong together"),
        (good[0], soon[1], "was made for"),
        (*old, "expired at"),
        (*new, "clock"),
        (tmp_path / "gone", good[1], "cannot be used"),
    ):
        assert said in (doctor.certificate_state(cert, key)[0] or "")
    trouble, warning = doctor.certificate_state(*soon)
    assert trouble is None and "Renew it, before that" in (warning or "")
    assert "and restart the daemon" in (doctor.served_certificate(old[0]) or "")
    assert doctor.served_certificate(good[0]) is None
