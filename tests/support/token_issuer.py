"""An authorization server's keys on a real HTTP server, and tokens signed with them."""

import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from cellblock.base.settings.sections import OAuthSettings

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

        class Keys(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.fetches += 1
                issuer.answers.wait(30)
                jwk = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(issuer.key.public_key()))
                body = json.dumps({"keys": [{**jwk, "kid": "k1", "use": "sig", "alg": "ES256"}]}).encode()
                # Who does not wait for them any more has hung up.
                with contextlib.suppress(ConnectionError):
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Keys)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def settings(self, **more: Any) -> OAuthSettings:
        return OAuthSettings(issuer=ISSUER, audience=AUDIENCE, jwks_url=self.jwks_url, **more)

    @property
    def jwks_url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/jwks"

    def close(self) -> None:
        self.answers.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def token(self, *, kid: str = "k1", key: Any = None, algorithm: str = "ES256", **claims: Any) -> str:
        everything = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "exp": int(time.time()) + 600, **claims}
        payload = {name: value for name, value in everything.items() if value is not None}
        return jwt.encode(payload, key or self.key, algorithm=algorithm, headers={"kid": kid})
