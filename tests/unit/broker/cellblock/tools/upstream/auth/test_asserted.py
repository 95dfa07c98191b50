"""Who somebody is at the identity provider: renewed, nobody else's, and shown to no authorization server but the one of
the configuration."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import httpx2
import pytest
from mcp.shared.auth import OAuthClientInformationFull, OAuthMetadata, OAuthToken

from cellblock.base.errors import ConfigError
from cellblock.base.redaction import Redactor
from cellblock.base.settings.server import AuthSettings, ServerAuthSettings, ServerConfig
from cellblock.base.store import LocalStore
from cellblock.tools.upstream.auth.asserted import EXCHANGE, IdentityGrant, KeptIdentity, place_of, subject_of
from cellblock.tools.upstream.auth.errors import LoginEnded
from cellblock.tools.upstream.auth.record import LoginRecord
from support.entries import settings
from support.http_server import Answering, serving
from support.identity_provider import CLIENT_ID, CLIENT_SECRET, Provider, provider
from support.waits import within

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
    over = OAuthToken(access_token="over", refresh_token=refresh_token, expires_in=0)
    place = place_of(LocalStore(folder), known.issuer, AuthSettings(keyring="off"), PERSON)
    await place.save(record.with_tokens(over))
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


class Site:
    """A server whose answers a test makes, and all that it was sent."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.sent: list[tuple[str, str]] = []
        self.metadata: dict[str, Any] = {}
        self.leads_to = ""
        """Where requests for tokens, and for metadata, are sent on to."""

    def answer(self, path: str) -> tuple[int, dict[str, Any], dict[str, str]]:
        if self.leads_to and path.startswith(self.leads_to.partition(" ")[0]):
            return 307, {}, {"Location": self.leads_to.partition(" ")[2] + path}
        if path == "/token":
            return 200, {"access_token": "granted", "token_type": "Bearer", "expires_in": 600}, {}
        if path.startswith("/.well-known/"):
            described = {
                "issuer": self.address,
                "authorization_endpoint": f"{self.address}/authorize",
                "token_endpoint": f"{self.address}/token",
                "revocation_endpoint": f"{self.address}/revoke",
                "response_types_supported": ["code"],
                "grant_types_supported": [EXCHANGE, "urn:ietf:params:oauth:grant-type:jwt-bearer"],
            }
            return 200, {**described, **self.metadata}, {}
        return 200, {}, {}


@contextlib.contextmanager
def site() -> Generator[Site]:
    class Handler(Answering):
        def do_GET(self) -> None:
            made.sent.append((self.path, self.body().decode()))
            status, said, headers = made.answer(self.path)
            self.answer(status, json.dumps(said).encode(), Content_Type="application/json", **headers)

        do_POST = do_GET

    with serving(Handler) as address:
        made = Site(f"http://{address}")
        yield made


def asserting(known: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has an identity provider make assertions."""
    granted = known.granted

    def answered(form: dict[str, str], authorization: str) -> tuple[int, dict[str, Any]]:
        if form["grant_type"] != EXCHANGE:
            return granted(form, authorization)
        return 200, {
            "access_token": f"jag for {form['audience']}",
            "issued_token_type": form["requested_token_type"],
        }

    monkeypatch.setattr(known, "granted", answered)


def grant_of(who: KeptIdentity, mine: Site, grant: str) -> IdentityGrant:
    url, client = "https://wiki.example/mcp", {"client_id": "us", "client_secret": "s3cr3t-at-wiki"}
    return IdentityGrant(
        "wiki",
        url,
        ServerAuthSettings.model_validate({"grant": grant, "issuer": mine.address, **client}),
        who,
        Redactor(ServerConfig(url=url)),
    )


Attack = Callable[[Site, Site], dict[str, str]]
"""Has an authorization server, or the resource's metadata, lead to another server; returns headers of the refusal."""


def leading(**metadata: str) -> Attack:
    def lead(mine: Site, evil: Site) -> dict[str, str]:
        mine.metadata = {name: f"{evil.address}{path}" for name, path in metadata.items()}
        return {}

    return lead


def redirecting(path: str) -> Attack:
    def lead(mine: Site, evil: Site) -> dict[str, str]:
        mine.leads_to = f"{path} {evil.address}"
        return {}

    return lead


def challenging(mine: Site, evil: Site) -> dict[str, str]:
    evil.metadata = {"resource": "https://wiki.example/mcp", "authorization_servers": [evil.address]}
    where = f"{evil.address}/.well-known/oauth-protected-resource"
    return {"WWW-Authenticate": f'Bearer resource_metadata="{where}", scope="notes"'}


ATTACKS: dict[str, tuple[Attack, bool]] = {
    "metadata of another issuer": (leading(issuer=""), False),
    "another's token endpoint": (leading(token_endpoint="/token"), False),
    "another's issuer and token endpoint": (leading(issuer="", token_endpoint="/token"), False),
    "the metadata are elsewhere": (redirecting("/.well-known/"), False),
    "the token endpoint is elsewhere": (redirecting("/token"), False),
    "another's revocation endpoint": (leading(revocation_endpoint="/revoke"), True),
    "the resource names another authorization server": (challenging, True),
}


@pytest.mark.parametrize("grant", ["identity_assertion", "token_exchange"])
@pytest.mark.parametrize("name", ATTACKS)
async def test_who_somebody_is_reaches_no_authorization_server_but_the_configured_one(
    name: str, grant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mix-up of a server, its metadata or its authorization server with another's."""
    attack, is_granted = ATTACKS[name]
    with provider() as known, site() as mine, site() as evil:
        asserting(known, monkeypatch)
        who = await identity(tmp_path, known)
        login = grant_of(who, mine, grant)
        assert await within(login.renewed(None, httpx2.Response(401, headers=attack(mine, evil)))) == (
            "granted" if is_granted else None
        )
        assert is_granted or login.problem
        # A logout shows nobody else what was granted.
        await place_of(LocalStore(tmp_path), known.issuer, AuthSettings(keyring="off"), PERSON).delete()
        assert await login.mark() == ""
        await login.close(5)
        if is_granted and name != "another's revocation endpoint":
            assert [parse_qs(body)["token"] for path, body in mine.sent if path == "/revoke"] == [
                ["granted"]
            ], mine.sent
        assert evil.sent == [], evil.sent
        shown_to_mine = [parse_qs(body) for path, body in mine.sent if path == "/token"]
        assert all(
            "jag for" not in str(one) or f"jag for {mine.address}" in str(one) for one in shown_to_mine
        )


@pytest.mark.parametrize("offered", [None, [], ["authorization_code"]])
async def test_an_exchange_is_asked_for_where_it_is_offered(
    tmp_path: Path, offered: list[str] | None
) -> None:
    with provider() as known, site() as mine:
        who = await identity(tmp_path, known)
        mine.metadata = {"grant_types_supported": offered}
        login = grant_of(who, mine, "token_exchange")
        assert await within(login.renewed(None, httpx2.Response(401))) is None
        assert f"{mine.address} does not offer token exchange" in str(login.problem)
        assert {path for path, _ in mine.sent} == {"/.well-known/oauth-authorization-server"}
