"""Logins at authorization servers that take liberties with the standard, as public ones do."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from mcp.shared.auth import OAuthClientMetadata, OAuthMetadata
from pydantic import AnyUrl

from cellblock.base.loopback import is_nearer
from cellblock.base.settings.server import AuthSettings
from cellblock.base.settings.settings import ServerConfig
from cellblock.base.store import LocalStore
from cellblock.tools.upstream.auth.authority import authority_of
from cellblock.tools.upstream.auth.errors import LoginError
from cellblock.tools.upstream.auth.exchange import check_endpoints
from cellblock.tools.upstream.auth.login import log_in, status_of
from cellblock.tools.upstream.auth.target import LoginTarget, target_of
from support.http_server import Answering, serving
from support.params import mostly
from support.waits import within

Change = Callable[[str, dict[str, Any]], tuple[int, dict[str, Any]]]


class Handler(Answering):
    """Answers as an authorization server, changed by its server's `change`, and as an MCP server that wants a token."""

    server: Authority  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Documents, and the consent, which is given at once."""
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
            places = {"authorization": "authorize", "token": "token", "registration": "register"}
            endpoints = {f"{name}_endpoint": f"{base}/{path}" for name, path in places.items()}
            self.say("metadata", {"issuer": base, **endpoints})
        else:
            self.say("nothing", {}, 404)

    def do_POST(self) -> None:
        """Registration, tokens, and the MCP server."""
        sent = self.body()
        if self.path == "/register":
            self.say("client", {**json.loads(sent), "client_id": "c"}, 201)
        elif self.path == "/token" and self.server.is_github and "json" not in self.headers.get("Accept", ""):
            self.answer(200, b"access_token=the-token")
        elif self.path == "/token":
            self.say("token", {"access_token": "the-token", "token_type": "Bearer", "expires_in": 60})
        else:
            self.say("mcp", {}, 401)

    def say(self, what: str, body: dict[str, Any], status: int = 200) -> None:
        """Sends JSON, as the test has it."""
        self.server.asked.append(what)
        changed, body = self.server.change(what, body)
        sent = json.dumps(body).replace("BASE", self.server.base).encode()
        self.answer(changed or status, sent, Content_Type="application/json")


class Authority(ThreadingHTTPServer):
    """Both servers on one port."""

    def __init__(self, change: Change, returned: str = "") -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.change = change
        self.asked: list[str] = []
        self.base = f"http://127.0.0.1:{self.server_port}"
        self.returned = returned
        self.metadata_at = "/.well-known/oauth-authorization-server"
        self.issuer_path = ""
        self.is_github = False


def odd(what: str, status: int = 0, **members: Any) -> Change:
    """Changes members of one kind of answer; `BASE` in a text is the server's address."""

    def change(asked: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return (status, {**body, **members}) if asked == what else (0, body)

    return change


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
    authority = Authority(change)
    authority.returned = returned.format(issuer=authority.base + slash)
    configured = {"servers": {"notes": {"issuer": f"{authority.base}/"}}}
    with serving(authority):
        for folder, auth in (("a", {}), ("b", configured)):
            _, said = await logged_in(authority, tmp_path / folder, **auth)
            assert said.startswith("Logged in to notes")


@pytest.mark.parametrize(
    ("members", "left", "scope"),
    [
        ({"expires_in": 3599.9, "scope": ["read", "write"]}, 3599, "read write"),
        ({"expires_in": "60.5", "scope": "read"}, 60, "read"),
        ({"expires_in": None, "scope": []}, None, ""),
        ({"expires_in": "soon", "scope": None}, None, None),
        ({"expires_in": float("inf")}, None, None),
        ({"expires_in": 60, "scope": 5, "refresh_token": 5, "token_type": None}, 60, None),
    ],
)
async def test_lives_and_scopes_in_other_forms_are_taken(
    tmp_path: Path, members: dict[str, Any], left: int | None, scope: str | None
) -> None:
    authority = Authority(odd("token", **members))
    with serving(authority):
        place, _ = await logged_in(authority, tmp_path)
    status = await status_of(place)
    assert status["state"] == "logged in" and status["scope"] == scope
    assert status["expiresInSeconds"] in (left, (left or 0) - 1)


@pytest.mark.parametrize(
    ("what", "members"),
    [
        ("resource", {"resource_documentation": "", "bearer_methods_supported": "header"}),
        (
            "metadata",
            {"op_policy_uri": "", "scopes_supported": "read write", "response_types_supported": None},
        ),
        ("client", {"logo_uri": "", "contacts": "nobody"}),
    ],
)
async def test_no_login_is_lost_for_one_member(tmp_path: Path, what: str, members: dict[str, Any]) -> None:
    authority = Authority(odd(what, **members))
    with serving(authority):
        place, said = await logged_in(authority, tmp_path)
    assert said.startswith("Logged in to notes")
    assert (await status_of(place))["state"] == "logged in"


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
    authority = Authority(change)
    with serving(authority), pytest.raises(LoginError, match=told) as caught:
        await logged_in(authority, tmp_path)
    said = caught.value.message
    assert said.startswith("The login to notes has failed: ")
    assert "Error" not in said and "the-token" not in said and "\x1b" not in said


async def test_a_server_that_is_not_there_is_told_without_the_name_of_a_class(tmp_path: Path) -> None:
    authority = Authority(odd("nothing"))
    authority.server_close()
    with pytest.raises(LoginError, match="notes cannot be reached") as caught:
        await logged_in(authority, tmp_path)
    assert "Error" not in caught.value.message


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
    authority = Authority(odd("nothing"))
    with serving(authority):
        if place == "resource":
            where = f'Bearer resource_metadata="{authority.base}/.well-known/oauth-protected-resource"'
            refused = httpx2.Response(401, headers={"WWW-Authenticate": where})
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
    authority = Authority(change)
    with serving(authority), pytest.raises(LoginError, match=told) as caught:
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

    authority = Authority(change)
    authority.issuer_path, authority.metadata_at = path, found_at
    authority.is_github = name == "github"
    with serving(authority):
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
