"""`config check`, `doctor`, and what commands about a daemon read: problems with their exact places and with what to
do, and no secrets."""

import datetime
import json
import subprocess
from pathlib import Path
from unittest.mock import Mock

import pytest

from cellblock.app.cli import doctor
from cellblock.app.cli.config_check import Checked, check_config
from cellblock.app.config.load import state_dir_in
from cellblock.base.errors import ConfigError
from cellblock.base.redaction import Redactor
from cellblock.base.settings.settings import ServerConfig, Settings
from cellblock.tools.upstream.programs import environment_of, missing_command, missing_variable
from support.cellblock_zygote import forked_cellblock
from support.certificates import certificate

BROKEN = """{
  "mcpServers": {
    "a": {"comand": "x", "command": "npx", "args": ["${env:NOT_SET_ANYWHERE}"]},
    "b": {"url": 5, "alwaysAllow": []},
    "b": {"url": "http://x", "envFile": "x", "headers": {"A": "hunter2-secret"}}
  },
  "cellblock": {"pol": {}, "pool": {"warm": -1}, "isolation": "perhaps",
    "limits": {"timeout_ms": [3, -1]}}
}"""

SAID_OF_BROKEN = """\
FILE:3:11: error: mcpServers.a.comand: unknown key. Did you mean command? Rename it, or take it out.
FILE:3:53: warning: mcpServers.a.args.0: ${env:NOT_SET_ANYWHERE}: the environment variable NOT_SET_ANYWHERE is not set.\
 Set NOT_SET_ANYWHERE where Cellblock is started, or write ${NOT_SET_ANYWHERE:-default}. Until then the server a is not\
 started.
FILE:5:5: warning: mcpServers.b: this key is there twice, and the last one counts. Take one of them out.
FILE:5:41: warning: mcpServers.b.envFile: FOLDER/x cannot be read: No such file or directory. Make the file, or name \
another. Until then the server b is not started.
FILE:7:17: error: cellblock.pol: unknown key. Did you mean pool?
FILE:7:45: error: cellblock.pool.warm: a whole number (0 to 1,024) is needed. Correct cellblock.pool.warm in the \
configuration.
FILE:7:63: error: cellblock.isolation: "required", "auto" or "off" is needed. Correct cellblock.isolation in the \
configuration.
FILE:8:34: error: cellblock.limits.timeout_ms.1: a whole number (at least 0) is needed. Correct \
cellblock.limits.timeout_ms.1 in the configuration.
FILE: 5 errors
"""

POLICY = """{"mcpServers": {"My Files": {"command": "x"}}, "cellblock": {"policy": {
  "default": {"tools": ["my-files.*", "nope.*", "local.x", "*.y"], "budgets": {"my-file.a": 3}},
  "clients": {"cli": {"approve": ["nope.a"], "arguments": {"my-files.b": {"type": 5}}}}}}}"""

BROKEN_TOML = """
[mcpServers.a]
command = "npx"
args = ["x", "${env:NOT_SET_ANYWHERE}"]
[cellblock.pool]
warm = -1
caps = 1
[cellblock.limits]
timeout_ms = { default = 3, maximum = -1 }
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "c.json"


def checked_of(file: Path, text: str) -> Checked:
    file.write_text(text)
    return check_config(file)


def command(file: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [forked_cellblock(), *words, "--config", file], capture_output=True, text=True, timeout=60, input=""
    )


@pytest.mark.parametrize(
    ("name", "text", "problems"),
    [
        (
            "c.json",
            BROKEN,
            [
                ("error", (3, 11), "mcpServers.a.comand"),
                ("warning", (3, 53), "mcpServers.a.args.0"),
                ("warning", (5, 5), "mcpServers.b"),
                ("warning", (5, 41), "mcpServers.b.envFile"),
                ("error", (7, 17), "cellblock.pol"),
                ("error", (7, 45), "cellblock.pool.warm"),
                ("error", (7, 63), "cellblock.isolation"),
                ("error", (8, 34), "cellblock.limits.timeout_ms.1"),
            ],
        ),
        (
            "c.toml",
            BROKEN_TOML,
            [
                ("warning", (4, 8), "mcpServers.a.args.1"),
                ("error", (6, 8), "cellblock.pool.warm"),
                ("error", (7, 1), "cellblock.pool.caps"),
                ("error", (9, 14), "cellblock.limits.timeout_ms.maximum"),
            ],
        ),
        (
            "c.json",
            POLICY,
            [
                ("error", (2, 39), "cellblock.policy.default.tools.1"),
                ("error", (2, 80), "cellblock.policy.default.budgets.my-file.a"),
                ("error", (3, 35), "cellblock.policy.clients.cli.approve.0"),
                ("error", (3, 74), "cellblock.policy.clients.cli.arguments.my-files.b"),
            ],
        ),
        (
            "c.json",
            """{"mcpServers": {"a": {"command": 5}}, "cellblock": {"pool": {"warm": -1},
  "pins": {"b": "warn"},
  "policy": {"default": {"tools": ["nope.*", "a.*"]}}}}""",
            [
                ("error", (1, 34), "mcpServers.a.command"),
                ("error", (1, 70), "cellblock.pool.warm"),
                ("error", (2, 12), "cellblock.pins.b"),
                ("error", (3, 36), "cellblock.policy.default.tools.0"),
            ],
        ),
        ("c.json", '{"mcpServers": {\n  "a" {}}}', [("error", (2, 7), "")]),
        ("c.json", "{}", [("warning", (1, 1), "")]),
        # A server with the name of the Python tools.
        (
            "c.json",
            '{"servers": {"Local": {"command": "x"}}, "cellblock": {"tools": ["no_such_module"]}}',
            [("error", (1, 14), "servers.Local")],
        ),
        ("c.json", '{"servers": {"local": {"command": "x"}}}', []),
        # What is disabled may refer to what is not there.
        ("c.json", '{"mcpServers": {"a": {"url": "${env:NOT_SET_ANYWHERE}", "disabled": true}}}', []),
    ],
    ids=[
        *("json", "toml", "policy", "a policy beside others"),
        *("syntax", "empty", "a tools' server", "alone", "disabled"),
    ],
)
def test_all_problems_of_a_file_with_their_places(
    tmp_path: Path, name: str, text: str, problems: list[tuple[str, tuple[int, int], str]]
) -> None:
    found = checked_of(tmp_path / name, text).problems
    assert [(problem.severity, problem.position, problem.place) for problem in found] == problems


def test_a_sound_file_shows_its_servers_and_no_value(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "tok-from-env")
    entries = {
        "a": {"command": "x", "env": {"T": "${SOME_TOKEN}"}},
        "b": {"url": "https://u:pw-in-url@x/", "type": "sse"},
        "c": {"url": "https://x/", "disabled": True},
    }
    checked = checked_of(file, json.dumps({"mcpServers": entries}))
    assert not checked.errors and checked.problems == []
    assert checked.servers == {"a": "stdio", "b": "sse", "c": "disabled"}
    shown = json.dumps(checked.as_json())
    assert "tok-from-env" not in shown and "pw-in-url" not in shown


def test_a_file_that_is_not_there(file: Path) -> None:
    with pytest.raises(ConfigError, match="Cannot read"):
        check_config(file)


def test_the_command_prints_places_and_no_secrets(file: Path) -> None:
    file.write_text(BROKEN)
    done = command(file, "config", "check")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.replace(f"{file}", "FILE").replace(f"{file.parent}", "FOLDER") == SAID_OF_BROKEN
    machine = command(file, "config", "check", "--json")
    report = json.loads(machine.stdout)
    assert machine.returncode == 1 and report["ok"] is False and len(report["problems"]) == 8
    # Every other command says the same errors, all of them, and where they are.
    other = command(file, "types")
    assert (other.returncode, other.stdout) == (2, "")
    assert f"{file}:8:34: cellblock.limits.timeout_ms.1" in other.stderr


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://x/mcp", "http:// or https://"),
        ("http://", "http:// or https://"),
        ("localhost:8000/mcp", "http:// or https://"),
        ("", "http:// or https://"),
        ("http://x:99999/", "this is no URL"),
        ("http://[::1/mcp", "this is no URL"),
    ],
)
def test_a_url_that_cannot_be_reached_is_an_error_at_its_place(file: Path, url: str, said: str) -> None:
    whole = f"{url}?key=hunter2-secret" if url else ""
    (problem,) = checked_of(file, f'{{"mcpServers": {{"a": {{"url": "{whole}"}}}}}}').problems
    assert (problem.severity, problem.place, problem.position) == ("error", "mcpServers.a.url", (1, 30))
    assert said in problem.message and "hunter2" not in problem.message + problem.hint


def test_what_no_program_can_be_given_is_refused_and_not_quoted(file: Path) -> None:
    entries = {
        "a": {"command": ""},
        "b": {"command": "x\0y", "args": ["-v", "hunter2\0"], "env": {"T": "hunter2\0"}, "cwd": "/\0"},
        "c": {"command": "x", "env": {"A=B": "hunter2"}},
    }
    checked = checked_of(file, json.dumps({"mcpServers": entries}))
    assert [problem.place for problem in checked.problems] == [
        "mcpServers.a.command",
        "mcpServers.b.command",
        "mcpServers.b.args.1",
        "mcpServers.b.env.T",
        "mcpServers.b.cwd",
        "mcpServers.c.env",
    ]
    said = [problem.message for problem in checked.problems]
    assert "empty" in said[0] and "=" in said[5] and all("NUL" in one for one in said[1:])
    assert "hunter2" not in str(checked.as_json())


def test_a_policy_that_no_broker_starts_with(file: Path) -> None:
    checked = checked_of(file, POLICY)
    assert "'nope.*' names no server" in checked.problems[0].message
    assert checked.problems[1].hint == "Did you mean my-files?"
    with pytest.raises(ConfigError, match="4 problems"):
        checked.usable()


@pytest.mark.parametrize(
    "wrong", ['{"default": {"tools": ["${env:TOOLS}"]}}', '{"default": {"tols": ["nope.*"]}}']
)
def test_what_a_wrong_policy_refers_to_is_not_judged(file: Path, wrong: str) -> None:
    """What a reference of it stands for is not known beside errors elsewhere, and a policy with errors has those
    alone."""
    text = '{"mcpServers": {"a": {"command": 5}}, "cellblock": {"policy": ' + wrong + "}}"
    assert not any("names no server" in problem.message for problem in checked_of(file, text).problems)


def test_a_terminal_does_nothing_that_a_servers_name_says(file: Path) -> None:
    file.write_text('{"mcpServers": {"a\\u001b[2Jb": {"command": "x"}, "c\\nd": {"command": "x"}}}')
    done = command(file, "config", "check")
    assert done.stdout == f'{file}: fine. Servers: "a\\u001b[2Jb" (stdio), "c\\nd" (stdio)\n'


def test_a_state_dir_is_read_whatever_else_is_wrong(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATE_HERE", str(tmp_path / "state"))
    section = {"state_dir": "${env:STATE_HERE}", "pol": {}, "pool": {"warm": "${env:NOT_SET_ANYWHERE}"}}
    secret = {"url": "https://w/mcp", "headers": {"A": "Bearer ${env:NOT_SET_ANYWHERE}"}}
    file.write_text(json.dumps({"mcpServers": {"a": {"comand": "x"}, "w": secret}, "cellblock": section}))
    assert state_dir_in(file) == tmp_path / "state"
    file.write_text('{"cellblock": {"state_dir": null}}')
    assert state_dir_in(file) == Settings().state_dir


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"cellblock": {"state_dir": "${env:NOT_SET_ANYWHERE}"}}', r"c\.json:1:\d+: cellblock\.state_dir"),
        ('{"cellblock": {"state_dir": 5}}', r"c\.json:1:\d+: cellblock\.state_dir"),
        ('{"cellblock": {', r"c\.json:1:16: not valid JSON"),
        (None, r"c\.json"),
    ],
    ids=["a variable that is not set", "no text", "no JSON", "no file"],
)
def test_a_state_dir_that_is_not_known_is_an_error(file: Path, text: str | None, said: str) -> None:
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        state_dir_in(file)


@pytest.mark.parametrize(
    ("entry", "word"),
    [
        ({"command": "npx", "env": {"PATH": "/nonexistent"}}, "Node.js"),
        ({"command": "uvx", "env": {"PATH": "/nonexistent"}}, "docs.astral.sh/uv"),
        ({"command": "no-such-program-9"}, "not on PATH. Install it, or write its whole path."),
        ({"command": "/no/such/file"}, "/no/such/file does not exist"),
        ({"command": "/etc"}, "no program that may be started"),
        ({"command": "./x", "cwd": "/no/such/folder"}, "Its cwd /no/such/folder is no folder"),
        ({"command": "sh"}, "None"),
        ({"command": "/bin/sh"}, "None"),
        ({"command": "./sh", "cwd": "/bin"}, "None"),
        ({"url": "http://x"}, "None"),
    ],
)
def test_a_command_that_is_not_there(entry: dict[str, object], word: str) -> None:
    assert word in str(missing_command(ServerConfig.model_validate(entry)))


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
    assert missing_variable(server, "FileNotFoundError: [Errno 2] No such file or directory: 'a'") is None


def test_what_a_program_is_started_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_ONE", "1")
    monkeypatch.setenv("CANARY_TWO", "2")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy")

    def given(**entry: object) -> dict[str, str]:
        environment = environment_of(ServerConfig.model_validate({"command": "sh", **entry}))
        return {name: value for name, value in environment.items() if name.startswith(("CANARY", "HTTPS"))}

    both = {"CANARY_ONE": "1", "CANARY_TWO": "2"}
    for entry, inherited in (
        ({}, dict[str, str]()),
        ({"inheritEnv": ["CANARY_ONE", "CANARY_NONE"]}, {"CANARY_ONE": "1"}),
        ({"inheritEnv": True}, both),
        ({"inheritEnv": True, "env": {"CANARY_TWO": "own"}}, both | {"CANARY_TWO": "own"}),
    ):
        assert given(**entry) == {"HTTPS_PROXY": "http://proxy"} | inherited
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
    assert "by hand" in doctor.fix_of(ServerConfig(command="sh"), "Connection refused", tmp_path / "none")
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
    monkeypatch.setattr(doctor, "deno_binary", Mock(side_effect=FileNotFoundError("no deno here")))
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
    assert doctor.token_trouble(tmp_path) is None
    token = tmp_path / "token"
    token.write_text("x" * 43)
    token.chmod(0o644)
    assert "chmod 600" in (doctor.token_trouble(tmp_path) or "")


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
