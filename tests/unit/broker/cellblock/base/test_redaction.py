"""Secrets do not leave: in text that is told, in logs and in errors."""

import logging
from typing import Any

import pytest

from cellblock.app.config.load import parse_settings
from cellblock.base.redaction import (
    FEW_FORMS,
    MAX_CHARS,
    REDACTED,
    BareUrls,
    Redactor,
    SecretForms,
    describe_exception,
    redacted,
    safe_text,
    safe_traceback,
)
from cellblock.base.settings.settings import ServerConfig


@pytest.mark.parametrize(
    ("config", "text", "wanted"),
    [
        ({"command": "x", "env": {"API_KEY": "s3cret-1"}}, "bad s3cret-1!", f"bad {REDACTED}!"),
        ({"command": "x", "env": {"ROOT": "/data/files"}}, "no /data/files/a", "no /data/files/a"),
        ({"command": "x", "env": {"API_KEY": "abc"}}, "abc", "abc"),
        ({"command": "x", "args": ["--token", "s3cret-2", "name"]}, "s3cret-2 name", f"{REDACTED} name"),
        ({"command": "x", "args": ["--api-key=s3cret-3"]}, "s3cret-3", REDACTED),
        ({"command": "x", "env": {"DB": "pg://app:s3cret@h/d"}}, "s3cret at h", f"{REDACTED} at h"),
        ({"url": "http://h/", "headers": {"Authorization": "Bearer s3cret"}}, "s3cret", REDACTED),
        (
            {"url": "http://h/", "headers": {"Accept": "application/json"}},
            "application/json",
            "application/json",
        ),
        ({"url": "http://h/?k=s3%2Fcret"}, "s3/cret s3%2Fcret", f"{REDACTED} {REDACTED}"),
        ({"command": "x"}, "anything", "anything"),
    ],
)
def test_secrets_go_and_the_rest_stays(config: dict[str, object], text: str, wanted: str) -> None:
    redactor = Redactor(ServerConfig.model_validate(config))
    assert redactor.text(text) == wanted
    assert redactor.tree({"a": [text, 1, None]}) == {"a": [wanted, 1, None]}


SECRET = "s3cr3t-Value_99"


@pytest.mark.parametrize(
    "args",
    [
        ["-e", f"GITHUB_TOKEN={SECRET}"],
        ["-e", f"GITHUB_PAT={SECRET}"],
        ["--env", f"API_KEY={SECRET}"],
        [f"--env=API_KEY={SECRET}"],
        [f"-eAPI_KEY={SECRET}"],
        ["--header", f"Authorization: Bearer {SECRET}"],
        ["--header", f"X-Api-Key:{SECRET}"],
        [f"--header=X-Api-Key:{SECRET}"],
        ["-H", f"X-Api-Key: {SECRET}"],
        [f"X-Api-Key: {SECRET}"],
        [f"--env=HEADERS=X-Api-Key: {SECRET}"],
        ["--headers", f'{{"Authorization": "Bearer {SECRET}", "Accept": "a"}}'],
        [f'--config={{"a": [{{"apiKey": "{SECRET}"}}]}}'],
        [f"Server=db;Password={SECRET};Timeout=30"],
        [f"--dsn=Server=db;User Id=ada;Password={SECRET}"],
        [f"host=db user=ada password='{SECRET}' port=5432"],
        ["mcp-remote", f"https://h/sse?api_key={SECRET}"],
        [f"--url=https://h/sse?k={SECRET}&v=1"],
        [f"https://ada:{SECRET}@h/sse"],
        [f"postgres://ada:{SECRET}@h/db?sslmode=require"],
        ["-u", "root", "-p", SECRET],
        ["--user", f"root:{SECRET}"],
        ["--password", SECRET],
        ["--webhook", SECRET],
        ["--connection-string", SECRET],
    ],
    ids=str,
)
def test_arguments_may_say_a_secret_in_many_ways(args: list[str]) -> None:
    redactor = Redactor(ServerConfig(command="x", args=args))
    assert redactor.text(f"401 for {SECRET}!") == f"401 for {REDACTED}!"
    harmless = "ada at db:5432, root, sslmode=require, timeout 30"
    assert redactor.text(harmless) == harmless


@pytest.mark.parametrize(
    "env",
    [
        {"GITHUB_PAT": SECRET},
        {"SENTRY_DSN": SECRET},
        {"SLACK_WEBHOOK": SECRET},
        {"AZURE_CONNECTION_STRING": SECRET},
        {"githubPat": SECRET},
        {"MCP_HEADERS": f'{{"Authorization": "Bearer {SECRET}"}}'},
        {"DATABASE": f"Server=db;Pwd={SECRET}"},
        {"SOME_KEY": "/wJalrXUtnFEMI7MDENG/bPxRfiCYEXAMPLEKEY"},
    ],
    ids=str,
)
def test_variables_may_say_a_secret_in_many_ways(env: dict[str, str]) -> None:
    said = env.get("SOME_KEY", SECRET)
    assert Redactor(ServerConfig(command="x", env=env)).text(f"no {said}") == f"no {REDACTED}"


@pytest.mark.parametrize(
    "token", ["ghp_0123456789abcdef", "sk-0123456789abcdef", "ZGY3NWE5MDkx0Mzg4NDk5YTlk"]
)
def test_a_token_without_a_name_is_known_by_its_looks(token: str) -> None:
    config = ServerConfig(command="x", args=[f"https://h/mcp/s/{token}/mcp"])
    assert Redactor(config).text(f"404 at /mcp/s/{token}/mcp") == f"404 at /mcp/s/{REDACTED}/mcp"


@pytest.mark.parametrize(
    "config",
    [
        {"env": {"USE_AUTH": "true", "KEY_FILE": "/home/ada/.ssh/id_ed25519", "PWD": "/home/ada/work"}},
        {"env": {"AUTH_MODE": "disabled", "MAX_TOKENS": "200000", "COMPAT": "strict-mode"}},
        {"env": {"GIT_AUTHOR_NAME": "Ada Lovelace", "PATH": "/usr/local/bin:/usr/bin"}},
        {"args": ["run", "-p", "8080:8080", "-v", "/home/ada/keys:/data", "acme/auth-server:latest"]},
        {"args": ["auth-server:latest", "risk-assessment-server", "npm-check-updates-v2"]},
        {"args": ["-p", "@acme/the-package", "the-package"]},
        {"args": ["--private-key", "/home/ada/key.pem", "--auth", "--verbose"]},
        {"args": ["acme/it@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"]},
        {"args": ["--from", "git+https://h.example/a/b@0123456789abcdef0123456789abcdef01234567"]},
        {"args": ["git+https://h.example/a/b?ref=0123456789abcdef0123456789abcdef01234567"]},
        {"args": ["--image=acme/it@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789ab"]},
        {"args": ["https://h.example/projects/01234567-89ab-cdef-0123-456789abcdef/mcp?v=12&debug=true"]},
    ],
    ids=str,
)
def test_harmless_values_stay(config: dict[str, Any]) -> None:
    text = "; ".join([*config.get("env", {}).values(), *config.get("args", ())])
    assert Redactor(ServerConfig(command="x", **config)).text(text) == text


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        ("GET http://u:p@h:1/a?k=v done", "GET http://h:1/a done"),
        ("GET https://h/a/b", "GET https://h/a/b"),
        ("mail a@b is no URL", "mail a@b is no URL"),
    ],
)
def test_urls_in_log_records_lose_user_and_query(message: str, wanted: str) -> None:
    record = logging.LogRecord("n", logging.INFO, "f", 1, "%s", (message,), None)
    assert BareUrls().filter(record)
    assert record.getMessage() == wanted


def test_what_a_reference_stood_for_is_a_secret_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERE", "a-plain-looking-value")
    entry = {"command": "x", "args": ["--to", "at=${env:WHERE}"], "env": {"PLACE": "${WHERE}"}}
    config = parse_settings({"mcpServers": {"a": entry}}).servers["a"]
    assert config.args == ["--to", "at=a-plain-looking-value"]
    assert Redactor(config).text("no a-plain-looking-value here") == "no [redacted] here"


@pytest.mark.parametrize(
    "text",
    [
        f"could not connect to postgres://admin:{SECRET}@db.example/main",
        f"https://{SECRET}@host/path failed",
        f"Authorization: Bearer {SECRET}",
        f"headers={{'Authorization': 'Basic {SECRET}'}}",
        f"login failed: password={SECRET} user=ada",
        f'{{"api_key": "{SECRET}", "other": 1}}',
        f"{{'client_secret': '{SECRET}'}}",
        f"MY_ACCESS_TOKEN={SECRET}",
        f"the password: {SECRET}",
        f"?access_token={SECRET}&x=1",
        f"sk-{SECRET}{SECRET}",
        f"ghp_{SECRET.replace('-', 'x')}{SECRET.replace('-', 'x')}",
        # A long word before the sign is no hiding place.
        *(f"{word}={SECRET}" for word in ("secret-" * 40, "my-" * 40 + "secret", "secret" + "_x" * 30)),
    ],
)
def test_credentials_are_left_out(text: str) -> None:
    made = safe_text(text)
    assert SECRET not in made and "[redacted]" in made


def test_secrets_of_the_environment_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRM_API_KEY", "plain-word-of-mine")
    assert safe_text("no entry plain-word-of-mine here") == "no entry [redacted] here"


@pytest.mark.parametrize(
    "text",
    [
        "hours must not be negative",
        "no such key: 'name'",
        "the token ended unexpectedly at line 3",
        "https://example.com/a?b=c is not known",
        "expected a < b, got 3",
        "tokens used: 12",
        "unexpected token: INDENT",
        "línea uno\nline two\ttabbed",
    ],
)
def test_ordinary_texts_stay(text: str) -> None:
    assert safe_text(text) == text


def test_texts_are_cut_and_hold_no_control_characters() -> None:
    assert safe_text("a\x1b[31mb\x00c\u202ed") == "a\ufffd[31mb\ufffdc\ufffdd"
    assert len(safe_text("x" * 1_000_000)) == MAX_CHARS + 1


def test_no_half_of_a_secret_stays_where_a_long_text_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRM_API_KEY", "first-part-" + "z" * 60)
    for room in [*range(7_900, 8_080, 9), *range(19_900, 20_080, 9)]:
        # What stands before is redacted to a few characters, so that the end comes within what is shown.
        text = "password=" + "x" * (room - 10) + " first-part-" + "z" * 60 + " " + "y" * 30_000
        assert "first-part" not in safe_text(text)
    assert safe_text("ab " * 10_000) == ("ab " * 1_000)[:MAX_CHARS] + "…"


def test_exceptions_whose_text_cannot_be_had() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    described = [describe_exception(error) for error in (Mute(), ValueError(), KeyError("x"))]
    assert described == ["Mute", "ValueError", "KeyError: 'x'"]


def test_a_traceback_for_the_log_has_places_and_no_credential() -> None:
    try:
        raise ValueError(f"password={SECRET}")
    except ValueError as error:
        made = safe_traceback(error, describe_exception(error))
    assert "test_redaction.py" in made and SECRET not in made


def test_secrets_are_found_alike_whether_there_are_few_or_many() -> None:
    few, many = SecretForms(), SecretForms(2 * FEW_FORMS)
    many.add([f"other-secret-{number}" for number in range(4 * FEW_FORMS)])
    for forms in (few, many):
        forms.add(["abcdef", "abcdef-and-more"], "notes")
        assert (
            redacted("no abcdef-and-more, xabcdefx: abcde", [forms]) == f"no {REDACTED}, x{REDACTED}x: abcde"
        )
        assert redacted("abcdef-and-more", [forms], "notes") == "abcdef-and-more"
    assert redacted("other-secret-255 other-secret-0", [many]) == f"{REDACTED} other-secret-0"
