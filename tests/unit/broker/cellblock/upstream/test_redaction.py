"""Which values of a configuration are secrets, and that nothing else is touched."""

from __future__ import annotations

import logging

import pytest

from cellblock.config import ServerConfig, parse_settings
from cellblock.upstream.redaction import REDACTED, BareUrls, Redactor


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
