"""Logins at authorization servers that take liberties with the standard, as public ones do, or lead to others'; and who
somebody is at an identity provider, which no authorization server hears but the one of the configuration."""

import asyncio
import json
import re
import time
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthMetadata, OAuthToken
from pydantic import AnyUrl

from cellblock.base.errors import ConfigError
from cellblock.base.loopback import is_nearer
from cellblock.base.redaction import Redactor
from cellblock.base.settings.server import AuthSettings, ServerAuthSettings, ServerConfig
from cellblock.base.store import LocalStore
from cellblock.tools.upstream.auth.asserted import EXCHANGE, IdentityGrant, KeptIdentity, place_of, subject_of
from cellblock.tools.upstream.auth.authority import authority_of, check_endpoints
from cellblock.tools.upstream.auth.errors import LoginEnded, LoginError
from cellblock.tools.upstream.auth.login import log_in, status_of
from cellblock.tools.upstream.auth.record import LoginRecord
from cellblock.tools.upstream.auth.target import LoginTarget, target_of
from support.entries import settings
from support.http_server import Answering, serving
from support.identity_provider import CLIENT_ID, CLIENT_SECRET, Provider, provider
from support.params import mostly
from support.waits import within

Change = Callable[[str, dict[str, Any]], tuple[int, dict[str, Any]]]


PLACES = {
    "authorization": "authorize",
    "token": "token",
    "registration": "register",
    "revocation": "revoke",
}
GRANTS = ["authorization_code", "refresh_token", EXCHANGE, "urn:ietf:params:oauth:grant-type:jwt-bearer"]
GREETING: dict[str, Any] = {
    "initialize": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "notes", "version": "1"},
    }
}
GREETS = {"server/discover": 404, "initialize": 200, "notifications/initialized": 202}


class Handler(Answering):
    """Answers as an authorization server, changed by its server's `change`, and as an MCP server that wants a token."""

    server: "Authority"  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Documents, and the consent, which is given at once."""
        self.server.sent.append((self.path, ""))
        target, base = urlsplit(self.path), self.server.base
        asked = parse_qs(target.query)
        if target.path == "/authorize":
            back = f"{asked['redirect_uri'][0]}?code=the-code&state={asked['state'][0]}{self.server.returned}"
            self.answer(302, Location=back)
        elif target.path.startswith("/.well-known/oauth-protected-resource"):
            self.say(
                "resource",
                {"resource": f"{base}/mcp", "authorization_servers": [base + self.server.issuer_path]},
            )
        elif target.path == self.server.metadata_at:
            endpoints = {f"{name}_endpoint": f"{base}/{path}" for name, path in PLACES.items()}
            self.say("metadata", {"issuer": base, "grant_types_supported": GRANTS, **endpoints})
        else:
            self.say("nothing", {}, 404)

    def do_POST(self) -> None:
        """Registration, tokens and their end, and the MCP server."""
        sent = self.body()
        self.server.sent.append((self.path, sent.decode()))
        if self.path == "/register":
            self.say("client", {**json.loads(sent), "client_id": "c"}, 201)
        elif self.path == "/token" and self.server.is_github and "json" not in self.headers.get("Accept", ""):
            self.answer(200, b"access_token=the-token")
        elif self.path == "/token":
            self.say("token", {"access_token": "the-token", "token_type": "Bearer", "expires_in": 60})
        elif self.path == "/revoke":
            self.answer(200)
        else:
            message = json.loads(sent)
            told = GREETING.get(message["method"], {"tools": []})
            status = self.server.greets.get(message["method"], 401)
            body = {"jsonrpc": "2.0", "id": message.get("id"), "result": told}
            self.say(self.of_session(message["method"]), body, status)

    def do_DELETE(self) -> None:
        """The end of a session."""
        self.say(self.of_session("DELETE"), {})

    def of_session(self, method: str) -> str:
        """What is asked of the MCP server, and in which session."""
        return f"{method} in {self.headers.get('Mcp-Session-Id')}"

    def say(self, what: str, body: dict[str, Any], status: int = 200) -> None:
        """Sends JSON, as the test has it; a `location` in it is where a redirect leads."""
        self.server.asked.append(what)
        changed, body = self.server.change(what, body)
        sent = json.dumps(body).replace("BASE", self.server.base).encode()
        leads = {"Location": body["location"]} if "location" in body else {}
        self.answer(changed or status, sent, Content_Type="application/json", Mcp_Session_Id="one", **leads)


class Authority(ThreadingHTTPServer):
    """Both servers on one port."""

    def __init__(self, change: Change) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.change = change
        self.asked: list[str] = []
        self.sent: list[tuple[str, str]] = []
        """The path and the body of each request."""
        self.base = f"http://127.0.0.1:{self.server_port}"
        self.returned = ""
        self.metadata_at = "/.well-known/oauth-authorization-server"
        self.issuer_path = ""
        self.is_github = False
        self.greets: dict[str, int] = {}
        """How the MCP server answers who has no token, where it does not refuse."""


def odd(what: str, status: int = 0, **members: Any) -> Change:
    """Changes members of one kind of answer; `BASE` in a text is the server's address."""

    def change(asked: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return (status, {**body, **members}) if asked == what else (0, body)

    return change


@contextmanager
def served(change: Change) -> Generator[Authority]:
    authority = Authority(change)
    with serving(authority):
        yield authority


async def logged_in(authority: Authority, folder: Path, **auth: Any) -> tuple[LoginTarget, str]:
    servers = {"notes": ServerConfig(url=f"{authority.base}/mcp")}
    place = target_of("notes", servers, AuthSettings(keyring="off", **auth), LocalStore(folder))
    visits: list[asyncio.Future[Any]] = []

    def say(text: str) -> None:
        (url,) = re.findall(r"http://\S+", text)
        loop = asyncio.get_running_loop()
        visits.append(loop.run_in_executor(None, lambda: urllib.request.urlopen(url, timeout=10).read()))

    said = await within(log_in(place, browser=None, bound=10, say=say))
    await asyncio.gather(*visits)
    return place, said


@pytest.mark.parametrize("returned", mostly(["&iss={issuer}"], ["", "&iss={issuer}"]))
@pytest.mark.parametrize(
    ("change", "slash"),
    [(odd("metadata", issuer="BASE/"), "/"), (odd("resource", authorization_servers=["BASE/"]), "")],
    ids=["metadata", "resource"],
)
async def test_an_issuer_may_differ_by_a_root_slash(
    tmp_path: Path, change: Change, slash: str, returned: str
) -> None:
    with served(change) as authority:
        authority.returned = returned.format(issuer=authority.base + slash)
        configured = {"servers": {"notes": {"issuer": f"{authority.base}/"}}}
        for folder, auth in (("a", {}), ("b", configured)):
            _, said = await logged_in(authority, tmp_path / folder, **auth)
            assert said.startswith("Logged in to notes")


@pytest.mark.parametrize(
    ("what", "members", "left", "scope"),
    [
        ("token", {"expires_in": 3599.9, "scope": ["read", "write"]}, 3599, "read write"),
        ("token", {"expires_in": "60.5", "scope": "read"}, 60, "read"),
        ("token", {"expires_in": None, "scope": []}, None, ""),
        ("token", {"expires_in": "soon", "scope": None}, None, None),
        ("token", {"expires_in": float("inf")}, None, None),
        ("token", {"expires_in": 60, "scope": 5, "refresh_token": 5, "token_type": None}, 60, None),
        ("resource", {"resource_documentation": "", "bearer_methods_supported": "header"}, 60, None),
        (
            "metadata",
            {"op_policy_uri": "", "scopes_supported": "read write", "response_types_supported": None},
            60,
            None,
        ),
        ("client", {"logo_uri": "", "contacts": "nobody"}, 60, None),
    ],
)
async def test_no_login_is_lost_for_one_member_and_other_forms_are_taken(
    tmp_path: Path, what: str, members: dict[str, Any], left: int | None, scope: str | None
) -> None:
    with served(odd(what, **members)) as authority:
        place, said = await logged_in(authority, tmp_path)
    assert said.startswith("Logged in to notes")
    status = await status_of(place)
    assert status["state"] == "logged in" and status["scope"] == scope
    assert status["expiresInSeconds"] in (left, (left or 0) - 1)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (odd("token", token_type="mac"), "holds no token"),
        (
            odd("token", 400, error="invalid_grant", error_description="Token was revoked."),
            "Token was revoked",
        ),
        (odd("token", 403, message="blocked by policy"), "blocked by policy"),
        (odd("token", 500), "HTTP 500"),
        (odd("token", 400, error="x", error_description="not the-code"), r"x: not \[redacted\]"),
        (odd("token", access_token=None, error="slow_down"), "slow_down"),
        (odd("token", access_token=5), "holds no token"),
        (odd("client", 400, error="invalid_redirect_uri", error_description="Use https"), "Use https"),
        (odd("client", 404), "does not register clients"),
        (odd("token", 400, error="a\x1b[2Jb"), r"a.\[2Jb"),
    ],
)
async def test_refusals_are_told_in_the_servers_words(tmp_path: Path, change: Change, told: str) -> None:
    with served(change) as authority, pytest.raises(LoginError, match=told) as caught:
        await logged_in(authority, tmp_path)
    said = caught.value.message
    assert said.startswith("The login to notes has failed: ")
    assert "Error" not in said and "the-token" not in said and "\x1b" not in said


@pytest.mark.parametrize("status", [401, 200, 400, 404])
async def test_a_list_of_tools_that_is_refused_is_a_challenge(tmp_path: Path, status: int) -> None:
    """And a login needs no documents: without them the server's own places are tried."""
    with served(odd("resource", 404)) as authority:
        authority.metadata_at = ""
        authority.greets = {**GREETS, "tools/list": status}
        _, said = await logged_in(authority, tmp_path)
    if status != 401:
        assert said == "notes asks for no login."
    else:
        assert said.startswith("Logged in to notes")
        of_session = [one for one in authority.asked if one.startswith(("initialize", "tools", "DELETE"))]
        assert of_session == ["initialize in None", "tools/list in one", "DELETE in one"]


async def test_a_server_that_is_not_there_is_told_without_the_name_of_a_class(tmp_path: Path) -> None:
    authority = Authority(odd("nothing"))
    authority.server_close()
    with pytest.raises(LoginError, match="notes cannot be reached") as caught:
        await logged_in(authority, tmp_path)
    assert "Error" not in caught.value.message
    nowhere = odd("metadata", token_endpoint="http://127.0.0.1:1/token")
    with served(nowhere) as other, pytest.raises(LoginError, match=r"127\.0\.0\.1:1 cannot be reached"):
        await logged_in(other, tmp_path)


@pytest.mark.parametrize(
    ("host", "server", "refused"),
    [
        ("127.0.0.1", "8.8.8.8", True),
        ("localhost", "10.0.0.1", True),
        ("0.0.0.0", "8.8.8.8", True),
        ("::ffff:127.0.0.1", "8.8.8.8", True),
        ("169.254.169.254", "8.8.8.8", True),
        ("100.64.0.1", "8.8.8.8", True),
        ("fd00::1", "2001:4860:4860::8888", True),
        ("192.168.0.1", "10.0.0.1", False),
        ("127.0.0.1", "localhost", False),
        ("10.0.0.1", "127.0.0.1", False),
        ("8.8.8.8", "10.0.0.1", False),
        ("name.invalid", "8.8.8.8", False),
    ],
)
async def test_private_addresses_only_where_the_server_is(host: str, server: str, refused: bool) -> None:
    assert await is_nearer(host, server) is refused


@pytest.mark.parametrize("place", ["resource", "authorization"])
async def test_a_public_server_has_nothing_of_this_machine_asked(place: str) -> None:
    with served(odd("nothing")) as authority:
        if place == "resource":
            where = f"{authority.base}/.well-known/oauth-protected-resource"
            refused = httpx2.Response(
                401, headers={"WWW-Authenticate": f'Bearer resource_metadata="{where}"'}
            )
            asks = OAuthClientMetadata(redirect_uris=[AnyUrl("http://127.0.0.1:1/")])
            with pytest.raises(LoginError, match=r"private address: 127\.0\.0\.1"):
                await within(authority_of("https://8.8.8.8/mcp", refused, asks, None, None, []))
        else:
            endpoints = {
                f"{name}_endpoint": f"{authority.base}/{name}" for name in ("authorization", "token")
            }
            metadata = OAuthMetadata.model_validate({"issuer": "https://8.8.8.8", **endpoints})
            with pytest.raises(LoginError, match="private address"):
                await within(check_endpoints(metadata, "https://8.8.8.8/mcp"))
    assert authority.asked == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        # Another issuer's name in metadata of its own: what it is told would be another's.
        *(
            (odd("metadata", issuer=issuer), "issuer mismatch")
            for issuer in ("https://login.wiki.example", "BASE/tenant", "BASE//")
        ),
        # A server that asks for another server's token.
        *(
            (odd("resource", resource=resource), "its metadata are of")
            for resource in ("https://wiki.example/mcp", "BASE/wiki", "BASE/mcp/wiki")
        ),
        # Where a browser should not go: metadata that name such a place are refused, or none at all.
        *(
            (odd("metadata", authorization_endpoint=endpoint), told)
            for endpoint, told in (
                ("http://login.example/authorize", "neither https nor on this machine"),
                ("ftp://login.example/authorize", "has no metadata"),
                ("javascript:alert(1)//", "has no metadata"),
                ("data:text/html,x", "has no metadata"),
            )
        ),
    ],
)
async def test_nobody_is_led_to_another_place(tmp_path: Path, change: Change, told: str) -> None:
    with served(change) as authority, pytest.raises(LoginError, match=told) as caught:
        await logged_in(authority, tmp_path)
    assert "Error" not in caught.value.message
    assert not {"client", "token"} & {*authority.asked}


OIDC = {
    "jwks_uri": "https://keys.example/certs",
    "userinfo_endpoint": "https://keys.example/userinfo",
    "subject_types_supported": ["pairwise", "public"],
    "id_token_signing_alg_values_supported": ["RS256"],
    "response_types_supported": ["code", "id_token", "code id_token", "none"],
    "scopes_supported": ["openid", "email", "profile", "offline_access"],
}
PROVIDERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "google": (
        "",
        "/.well-known/openid-configuration",
        {
            **OIDC,
            "device_authorization_endpoint": "https://oauth2.example/device/code",
            "code_challenge_methods_supported": ["plain", "S256"],
            "token_endpoint_auth_methods_supported": ["client_secret_post", "client_secret_basic"],
            "grant_types_supported": ["authorization_code", "urn:ietf:params:oauth:grant-type:jwt-bearer"],
        },
    ),
    "entra": (
        "/9188040d-6c67/v2.0",
        "/9188040d-6c67/v2.0/.well-known/openid-configuration",
        {
            **OIDC,
            # It has PKCE, and does not say so.
            "token_endpoint_auth_methods_supported": ["client_secret_post", "self_signed_tls_client_auth"],
            "request_uri_parameter_supported": False,
            "tenant_region_scope": None,
            "cloud_instance_name": "microsoftonline.com",
            "mtls_endpoint_aliases": {"token_endpoint": "https://mtlsauth.example/token"},
        },
    ),
    "auth0": (
        "/",
        "/.well-known/openid-configuration",
        {
            **OIDC,
            "registration_endpoint": "BASE/register",
            "code_challenge_methods_supported": ["S256", "plain"],
            "token_endpoint_auth_methods_supported": ["client_secret_basic", "private_key_jwt", "none"],
            "backchannel_logout_supported": True,
        },
    ),
    "keycloak": (
        "/realms/main",
        "/realms/main/.well-known/openid-configuration",
        {
            **OIDC,
            "registration_endpoint": "BASE/register",
            "code_challenge_methods_supported": ["plain", "S256"],
            "claims_supported": ["aud", "sub"],
            "tls_client_certificate_bound_access_tokens": True,
            "mtls_endpoint_aliases": {"token_endpoint": "https://keys.example/realms/main/token"},
        },
    ),
    "github": (
        "/login/oauth",
        "/.well-known/oauth-authorization-server/login/oauth",
        {
            "response_types_supported": ["code"],
            "grant_types_supported": ["authorization_code", "refresh_token"],
            "code_challenge_methods_supported": ["S256"],
            "service_documentation": "https://docs.github.com/apps",
        },
    ),
}
"""What is particular in documented metadata: the issuer's path, where it is found, and its members."""


@pytest.mark.parametrize("name", mostly(["keycloak", "github"], list(PROVIDERS)))
async def test_documented_metadata_of_providers_leads_to_a_login(tmp_path: Path, name: str) -> None:
    path, found_at, members = PROVIDERS[name]
    is_open = "registration_endpoint" in members

    def change(asked: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if asked == "token":
            return 0, {**body, "scope": "repo,gist"} if name == "github" else body
        if asked != "metadata":
            return 404 if asked == "client" and not is_open else 0, body
        endpoints = {key: body[key] for key in ("authorization_endpoint", "token_endpoint")}
        return 0, {"issuer": f"BASE{path}", **endpoints, **members}

    with served(change) as authority:
        authority.issuer_path, authority.metadata_at = path, found_at
        authority.is_github = name == "github"
        known = {"client_id": "mine", "scopes": ["repo"] if name == "github" else []}
        _, said = await logged_in(authority, tmp_path / "a", servers={"notes": known})
        assert said.startswith("Logged in to notes") and "Not granted" not in said
        if is_open:
            _, said = await logged_in(authority, tmp_path / "b")
            assert said.startswith("Logged in to notes")
        else:
            with pytest.raises(
                LoginError, match="does not register clients by itself; a client_id is needed"
            ):
                await logged_in(authority, tmp_path / "b")


# ---- who somebody is at the identity provider: renewed, nobody else's, and shown to the configured server alone ----


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


TRUSTED = {"issuer": "https://a.example", "audience": "https://b.example", "jwks_url": "https://a.example/k"}


@pytest.mark.parametrize(
    ("entry", "http"),
    [
        ({"login": "each"}, {}),
        ({"login": "each"}, {"oauth": TRUSTED}),
        ({}, {"oauth": {**TRUSTED, "client_id": "us"}}),
    ],
    ids=["no oauth", "no client", "no login"],
)
def test_who_a_person_is_must_be_known(tmp_path: Path, entry: dict[str, str], http: dict[str, Any]) -> None:
    own = {
        "grant": "identity_assertion",
        "client_id": "us",
        "client_secret": "s",
        "issuer": "https://login.example",
    }
    servers = {"wiki": {"url": "https://wiki.example/mcp", **entry}}
    with pytest.raises(ConfigError, match="identity_assertion needs to know who a person is"):
        settings(tmp_path, servers, auth={"servers": {"wiki": own}}, http=http)


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


def grant_of(who: KeptIdentity, mine: Authority, grant: str) -> IdentityGrant:
    url, client = "https://wiki.example/mcp", {"client_id": "us", "client_secret": "s3cr3t-at-wiki"}
    return IdentityGrant(
        "wiki",
        url,
        ServerAuthSettings.model_validate({"grant": grant, "issuer": mine.base, **client}),
        who,
        Redactor(ServerConfig(url=url)),
    )


Attack = Callable[[Authority, Authority], dict[str, str]]
"""Has an authorization server, or the resource's metadata, lead to another server; returns headers of the refusal."""


def leading(**metadata: str) -> Attack:
    def lead(mine: Authority, evil: Authority) -> dict[str, str]:
        mine.change = odd("metadata", **{name: f"{evil.base}{path}" for name, path in metadata.items()})
        return {}

    return lead


def redirecting(what: str, path: str) -> Attack:
    def lead(mine: Authority, evil: Authority) -> dict[str, str]:
        mine.change = odd(what, 307, location=f"{evil.base}{path}")
        return {}

    return lead


def challenging(mine: Authority, evil: Authority) -> dict[str, str]:
    evil.change = odd("resource", resource="https://wiki.example/mcp")
    where = f"{evil.base}/.well-known/oauth-protected-resource"
    return {"WWW-Authenticate": f'Bearer resource_metadata="{where}", scope="notes"'}


ATTACKS: dict[str, tuple[Attack, bool]] = {
    "metadata of another issuer": (leading(issuer=""), False),
    "another's token endpoint": (leading(token_endpoint="/token"), False),
    "another's issuer and token endpoint": (leading(issuer="", token_endpoint="/token"), False),
    "the metadata are elsewhere": (redirecting("metadata", "/.well-known/oauth-authorization-server"), False),
    "the token endpoint is elsewhere": (redirecting("token", "/token"), False),
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
    with provider() as known, served(odd("nothing")) as mine, served(odd("nothing")) as evil:
        asserting(known, monkeypatch)
        who = await identity(tmp_path, known)
        login = grant_of(who, mine, grant)
        assert await within(login.renewed(None, httpx2.Response(401, headers=attack(mine, evil)))) == (
            "the-token" if is_granted else None
        )
        assert is_granted or login.problem
        # A logout shows nobody else what was granted.
        await place_of(LocalStore(tmp_path), known.issuer, AuthSettings(keyring="off"), PERSON).delete()
        assert await login.mark() == ""
        await login.close(5)
        if is_granted and name != "another's revocation endpoint":
            assert [parse_qs(body)["token"] for path, body in mine.sent if path == "/revoke"] == [
                ["the-token"]
            ], mine.sent
        assert evil.sent == [], evil.sent
        shown_to_mine = [parse_qs(body) for path, body in mine.sent if path == "/token"]
        assert all("jag for" not in str(one) or f"jag for {mine.base}" in str(one) for one in shown_to_mine)


@pytest.mark.parametrize("offered", [None, [], ["authorization_code"]])
async def test_an_exchange_is_asked_for_where_it_is_offered(
    tmp_path: Path, offered: list[str] | None
) -> None:
    with provider() as known, served(odd("metadata", grant_types_supported=offered)) as mine:
        who = await identity(tmp_path, known)
        login = grant_of(who, mine, "token_exchange")
        assert await within(login.renewed(None, httpx2.Response(401))) is None
        assert f"{mine.base} does not offer token exchange" in str(login.problem)
        assert {path for path, _ in mine.sent} == {"/.well-known/oauth-authorization-server"}
