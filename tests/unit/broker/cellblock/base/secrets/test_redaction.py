"""Which values of a configuration are secrets, and that nothing else is touched."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from cellblock.app.config.load import parse_settings
from cellblock.base.secrets.redaction import REDACTED, BareUrls, Redactor
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
