"""The MCP server of `oauth_server.py`, behind an authorization server that is not ours: it asks that one whose a token
is (RFC 7662). Writes its port as its first line on stdout, and reads the issuer from its stdin.

Run as ``python introspecting_server.py LEDGER``.
"""

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

import httpx2
from mcp.server.auth.provider import AccessToken

sys.path.insert(0, str(Path(__file__).parent))  # this file is run by itself, isolated

from oauth_server import protected_app
from sdk import listener, note, over_http


class Introspection:
    """What `protected_app` asks an authorization server, in the place of our own."""

    def __init__(self, issuer: str, resource: str, ledger: Path) -> None:
        self.issuer, self.resource, self.ledger = issuer, resource, ledger
        self._http = httpx2.AsyncClient(auth=("server", "s3cr3t"), trust_env=False, verify=False, timeout=30)

    def note(self, event: str, **more: Any) -> None:
        """Adds a line to the ledger."""
        note(self.ledger, event, **more)

    async def verify_token(self, token: str) -> AccessToken | None:
        """Whose the token is; None where it is of nobody, or for another server."""
        answer = await self._http.post(f"{self.issuer}/token/introspection", data={"token": token})
        found = answer.raise_for_status().json()
        if not found["active"] or found.get("aud") != self.resource:
            self.note("refused")
            return None
        scopes = found.get("scope", "").split()
        return AccessToken(token=token, client_id=found["client_id"], scopes=scopes, subject=found["sub"])


async def main() -> None:
    """Serves until told to stop."""
    where, port = listener()
    print(port, flush=True)
    issuer = (await asyncio.to_thread(sys.stdin.readline)).strip()
    authority: Any = Introspection(issuer, f"http://127.0.0.1:{port}/mcp", Path(sys.argv[1]))
    await over_http(protected_app(authority, argparse.Namespace(transport="http", modern_only=False)), where)


if __name__ == "__main__":
    asyncio.run(main())
