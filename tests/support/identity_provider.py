"""Keys of an authorization server with tokens signed by them, and a whole identity provider: OpenID Connect on a real
HTTP server, for one client. Whoever comes is `sub`, at once.
"""

import base64
import contextlib
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from cellblock.base.settings.sections import OAuthSettings
from support.http_server import Answering, serving

ISSUER = "https://login.example"
AUDIENCE = "https://cellblock.example/mcp"


def key_set(key: Any) -> bytes:
    """The public half of a key, as it is fetched."""
    jwk: dict[str, Any] = ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return json.dumps({"keys": [{**jwk, "kid": "k1", "use": "sig", "alg": "ES256"}]}).encode()


def signed(claims: dict[str, Any], key: Any, algorithm: str, headers: dict[str, Any]) -> str:
    """A token with those of the claims that are not None."""
    told = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(told, key, algorithm, headers=headers)


class Issuer:
    """A key pair, and its public half on the web."""

    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.fetches = 0
        self.answers = threading.Event()
        """While it is cleared, the keys are asked for and do not come."""
        self.answers.set()
        issuer = self

        class Keys(Answering):
            def do_GET(self) -> None:
                issuer.fetches += 1
                issuer.answers.wait(30)
                # Who does not wait for them any more has hung up.
                with contextlib.suppress(ConnectionError):
                    self.answer(200, key_set(issuer.key))

        self._stack = contextlib.ExitStack()
        self.jwks_url = f"http://{self._stack.enter_context(serving(Keys))}/jwks"

    def settings(self, **more: Any) -> OAuthSettings:
        return OAuthSettings(issuer=ISSUER, audience=AUDIENCE, jwks_url=self.jwks_url, **more)

    def close(self) -> None:
        self.answers.set()
        self._stack.close()

    def token(self, *, kid: str = "k1", key: Any = None, algorithm: str = "ES256", **claims: Any) -> str:
        told = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "exp": int(time.time()) + 600}
        return signed({**told, **claims}, key or self.key, algorithm, {"kid": kid})


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    """One for a file of tests."""
    made = Issuer()
    yield made
    made.close()


CLIENT_ID = "the-broker"
CLIENT_SECRET = "s3cr3t-of-the-broker"


@dataclass
class Provider:
    """What it knows, and how a test has it misbehave."""

    port: int = 0
    sub: str = "ada"
    claims: dict[str, Any] = field(default_factory=dict[str, Any])
    """Replace those of an ID token; None leaves one out."""

    headers: dict[str, Any] = field(default_factory=dict[str, Any])
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    iss: str | None = None
    """The `iss` of its redirects."""

    by_post: bool = False
    renews: bool = True
    """Whether a refresh token gives an ID token."""

    key: Any = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    signs_with: Any = None
    """Another key, or an algorithm's secret."""

    codes: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    asked: list[str] = field(default_factory=list[str])

    @property
    def issuer(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def oauth(self, audience: str) -> dict[str, Any]:
        """The section `http.oauth`."""
        return {
            "issuer": self.issuer,
            "audience": audience,
            "jwks_url": f"{self.issuer}/jwks",
            "client_id": CLIENT_ID,
            "client_secret": CLIENT_SECRET,
        }

    def described(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/jwks",
            "token_endpoint_auth_methods_supported": [f"client_secret_{'post' if self.by_post else 'basic'}"],
            **self.metadata,
        }

    def redirect(self, asked: dict[str, str]) -> str:
        """Says at once who has come."""
        assert asked["client_id"] == CLIENT_ID and asked["code_challenge_method"] == "S256"
        assert "openid" in asked["scope"].split() and "resource" not in asked
        code = secrets.token_urlsafe(16)
        self.codes[code] = asked
        iss = {} if self.iss is None else {"iss": self.iss}
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state'], **iss})}"

    def granted(self, form: dict[str, str], authorization: str) -> tuple[int, dict[str, Any]]:
        """The answer to a code."""
        if self.by_post:
            shown = form.get("client_id"), form.get("client_secret")
        else:
            pair = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
            shown = unquote(pair[0]), unquote(pair[2])
        if shown == (CLIENT_ID, CLIENT_SECRET) and form["grant_type"] == "refresh_token":
            renewed = {"id_token": self.id_token("")} if self.renews else {}
            return 200, {"access_token": "not for us", "token_type": "Bearer", **renewed}
        asked = self.codes.pop(form["code"], None)
        if shown != (CLIENT_ID, CLIENT_SECRET) or asked is None:
            return 400, {"error": "invalid_grant" if asked is None else "invalid_client"}
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        if base64.urlsafe_b64encode(digest).decode().rstrip("=") != asked["code_challenge"]:
            return 400, {"error": "invalid_grant", "error_description": "verifier"}
        return 200, {
            "access_token": "not for us",
            "token_type": "Bearer",
            "id_token": self.id_token(asked["nonce"]),
        }

    def id_token(self, nonce: str) -> str:
        told = {
            "iss": self.issuer,
            "aud": CLIENT_ID,
            "sub": self.sub,
            "nonce": nonce,
            "exp": int(time.time()) + 600,
        }
        headers = {"kid": "k1", **self.headers}
        algorithm = headers.get("alg", "ES256")
        key: Any = None if algorithm == "none" else self.signs_with or self.key
        return signed({**told, **self.claims}, key, algorithm, headers)


@contextlib.contextmanager
def provider() -> Generator[Provider]:
    """Serves on a free port of the loopback."""
    known = Provider()

    class Handler(Answering):
        def do_GET(self) -> None:
            target = urlsplit(self.path)
            known.asked.append(target.path)
            if target.path == "/authorize":
                asked = {name: values[0] for name, values in parse_qs(target.query).items()}
                self.answer(302, Location=known.redirect(asked))
            elif target.path == "/.well-known/openid-configuration":
                self.say(200, known.described())
            elif target.path == "/jwks":
                self.answer(200, key_set(known.key), Content_Type="application/json")
            else:
                self.say(404, {})

        def do_POST(self) -> None:
            known.asked.append(self.path)
            form = {name: values[0] for name, values in parse_qs(self.body().decode()).items()}
            self.say(*known.granted(form, self.headers.get("Authorization", "")))

        def say(self, status: int, body: dict[str, Any]) -> None:
            self.answer(status, json.dumps(body).encode(), Content_Type="application/json")

    with serving(Handler) as address:
        known.port = int(address.rpartition(":")[2])
        yield known
