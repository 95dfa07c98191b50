"""The sections of logins and of single servers' bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cellblock.app.config.load import parse_settings
from cellblock.base.errors import ConfigError
from cellblock.base.settings.auth import ServerAuthSettings
from cellblock.base.settings.settings import Settings

SERVERS = {"wiki": {"url": "https://wiki.example/mcp"}, "files": {"command": "files"}}
CLIENT = {"client_id": "c", "issuer": "https://login.example"}


def parsed(**cellblock: Any) -> Settings:
    return parse_settings({"mcpServers": SERVERS, "cellblock": cellblock})


@pytest.mark.parametrize(
    ("own", "told"),
    [
        ({"client_secret": "s", "client_secret_env": "S", **CLIENT}, "give one of"),
        ({"client_secret": "s", "client_auth_method": "private_key_jwt", **CLIENT}, "needs the grant"),
        ({"client_secret": "s", "client_id": "c"}, "needs `client_id`, and `issuer`"),
        ({"grant": "client_credentials", **CLIENT}, "a client secret"),
        ({"client_id": "c", "client_metadata_url": "https://x.example/c.json"}, "exclude each other"),
        ({"client_metadata_url": "http://x.example/c.json"}, "client_metadata_url"),
        ({"redirect_port": 80}, "redirect_port"),
        ({"scopes": ["two words"]}, "scopes"),
        ({"scopes": ['quo"te']}, "scopes"),
        ({"isuer": "https://login.example"}, "isuer"),
    ],
)
def test_what_cannot_be_used_is_told_without_the_secret(own: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(auth={"servers": {"wiki": {**own, "client_secret": own.get("client_secret")}}})
    assert told in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        parsed(auth={"servers": {"wiki": {"client_secret": {"canary": "canary-5512"}}}})
    assert "canary-5512" not in str(caught.value)


def test_servers_that_do_not_exist_or_have_no_url() -> None:
    for name in ("nowhere", "files"):
        with pytest.raises(ConfigError, match=r"cellblock\.auth\.servers\."):
            parsed(auth={"servers": {name: {}}})
    with pytest.raises(ConfigError, match=r"cellblock\.upstream\.servers\.nowhere"):
        parsed(upstream={"servers": {"nowhere": {}}})


def test_where_a_secret_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ServerAuthSettings().secret() is None
    shown = ServerAuthSettings(client_secret="canary-1", **CLIENT)  # type: ignore[arg-type]
    assert shown.secret() == "canary-1"
    assert "canary-1" not in repr(shown)
    monkeypatch.setenv("WIKI_SECRET", "two")
    named = ServerAuthSettings(client_secret_env="WIKI_SECRET", **CLIENT)  # type: ignore[arg-type]
    assert named.secret() == "two"
    monkeypatch.delenv("WIKI_SECRET")
    with pytest.raises(ConfigError, match="WIKI_SECRET is not set"):
        named.secret()
    file = tmp_path / "secret"
    filed = ServerAuthSettings(client_secret_file=file, **CLIENT)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="cannot be read"):
        filed.secret()
    file.write_text("three\n")
    assert filed.secret() == "three"


def test_bounds_of_one_server_stand_in_for_those_of_all() -> None:
    upstream = parsed(
        upstream={"call_timeout_ms": 7, "servers": {"wiki": {"call_timeout_ms": 9}}}
    ).cellblock.upstream
    assert (upstream.call_timeout_ms, upstream.for_server("wiki").call_timeout_ms) == (7, 9)
    assert upstream.for_server("files") is upstream
