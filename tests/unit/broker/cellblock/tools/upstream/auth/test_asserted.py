"""Who somebody is at the identity provider: renewed, and nobody else's."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from mcp.shared.auth import OAuthClientInformationFull, OAuthMetadata, OAuthToken

from cellblock.base.errors import ConfigError
from cellblock.base.redaction import Redactor
from cellblock.base.settings.auth import AuthSettings
from cellblock.base.settings.server import ServerConfig
from cellblock.base.store import LocalStore
from cellblock.tools.upstream.auth.asserted import KeptIdentity, place_of, subject_of
from cellblock.tools.upstream.auth.errors import LoginEnded
from cellblock.tools.upstream.auth.record import LoginRecord
from support.entries import settings
from support.identity_provider import CLIENT_ID, CLIENT_SECRET, Provider, provider

PERSON = "oauth:ada"


async def identity(folder: Path, known: Provider, refresh_token: str | None = "r") -> KeptIdentity:
    """One whose ID token is over."""
    client = OAuthClientInformationFull(
        client_id=CLIENT_ID,
        client_secret=CLIENT_SECRET,
        token_endpoint_auth_method="client_secret_basic",
    )
    metadata = OAuthMetadata.model_validate({"response_types_supported": ["code"], **known.described()})
    record = LoginRecord(
        server_url=known.issuer, person=PERSON, client=client, server_metadata=metadata, since=1.0
    )
    tokens = OAuthToken(access_token="over", refresh_token=refresh_token, expires_in=0)
    place = place_of(LocalStore(folder), known.issuer, AuthSettings(keyring="off"), PERSON)
    await place.save(record.with_tokens(tokens))
    return KeptIdentity("wiki", place, Redactor(ServerConfig(url="https://wiki.example/mcp")), None)


async def test_an_id_token_is_renewed_and_kept(tmp_path: Path) -> None:
    with provider() as known:
        mine = await identity(tmp_path, known)
        token, record = await mine.current()
        assert subject_of(token) == PERSON and record.tokens is not None
        assert record.tokens.refresh_token == "r" and record.since == 1.0
        assert record.expires_at is not None and 590 < record.expires_at - time.time() < 601
        assert (await mine.current())[0] == token and known.asked.count("/token") == 1
        # Written down as nothing else is: with whoever reads the store it goes on.
        other = place_of(LocalStore(tmp_path), known.issuer, AuthSettings(keyring="off"), PERSON)
        assert await other.load() == record


@pytest.mark.parametrize(
    ("changes", "refresh_token", "why"),
    [
        ({"sub": "eve"}, "r", "the identity provider has named somebody else"),
        ({"renews": False}, "r", "the login could not be renewed (no ID token"),
        ({"claims": {"exp": None}}, "r", "its ID token cannot be read"),
        ({}, None, "there is nothing to renew it with"),
    ],
)
async def test_what_is_no_identity_of_the_same_person_is_taken_for_none(
    tmp_path: Path, changes: dict[str, Any], refresh_token: str | None, why: str
) -> None:
    with provider() as known:
        mine = await identity(tmp_path, known, refresh_token)
        for name, value in changes.items():
            setattr(known, name, value)
        with pytest.raises(LoginEnded) as error:
            await mine.current()
        assert why in error.value.message


@pytest.mark.parametrize("lacks", ["oauth", "client", "login"])
def test_who_a_person_is_must_be_known(tmp_path: Path, lacks: str) -> None:
    oauth = {
        "issuer": "https://a.example",
        "audience": "https://b.example",
        "jwks_url": "https://a.example/k",
    }
    oauth |= {} if lacks == "client" else {"client_id": "us"}
    entry = {"url": "https://wiki.example/mcp"} | ({} if lacks == "login" else {"login": "each"})
    own = {
        "grant": "identity_assertion",
        "client_id": "us",
        "client_secret": "s",
        "issuer": "https://login.example",
    }
    with pytest.raises(ConfigError, match="identity_assertion needs to know who a person is"):
        settings(
            tmp_path,
            {"wiki": entry},
            auth={"servers": {"wiki": own}},
            http={} if lacks == "oauth" else {"oauth": oauth},
        )
