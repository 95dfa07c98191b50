"""An authorization server's keys on a real HTTP server, and tokens signed with them."""

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from cellblock.base.settings.sections import OAuthSettings
from support.http_server import Answering, serving

ISSUER = "https://login.example"
AUDIENCE = "https://cellblock.example/mcp"


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
                jwk = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(issuer.key.public_key()))
                # Who does not wait for them any more has hung up.
                with contextlib.suppress(ConnectionError):
                    keys = {"keys": [{**jwk, "kid": "k1", "use": "sig", "alg": "ES256"}]}
                    self.answer(200, json.dumps(keys).encode())

        self._stack = contextlib.ExitStack()
        self.jwks_url = f"http://{self._stack.enter_context(serving(Keys))}/jwks"

    def settings(self, **more: Any) -> OAuthSettings:
        return OAuthSettings(issuer=ISSUER, audience=AUDIENCE, jwks_url=self.jwks_url, **more)

    def close(self) -> None:
        self.answers.set()
        self._stack.close()

    def token(self, *, kid: str = "k1", key: Any = None, algorithm: str = "ES256", **claims: Any) -> str:
        everything = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "exp": int(time.time()) + 600, **claims}
        payload = {name: value for name, value in everything.items() if value is not None}
        return jwt.encode(payload, key or self.key, algorithm=algorithm, headers={"kid": kid})


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    """One for a file of tests."""
    made = Issuer()
    yield made
    made.close()
