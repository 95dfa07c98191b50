"""Checks the tokens that Cellblock itself gives out: that of the token file, and named ones."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from mcp.server.auth.provider import AccessToken

from cellblock.config.policy import NAMED
from cellblock.frontend.http.token import SUBJECT
from cellblock.policy.named_tokens import NamedTokens


class OwnTokens:
    """Accepts the token of the token file and named ones; an `mcp.server.auth.provider.TokenVerifier`.

    Args:
        token: That of the file.
        on_named: Called when another one is shown.

    Attributes:
        named: The others; None: there are none.
    """

    def __init__(self, token: str, on_named: Callable[[], object] = lambda: None) -> None:
        self._token = token.encode()
        self.named: NamedTokens | None = None
        self._on_named = on_named

    async def verify_token(self, token: str) -> AccessToken | None:
        """Says who shows this token, or None. Takes the same time for every wrong token of the right length."""
        if secrets.compare_digest(token.encode("latin-1"), self._token):
            return AccessToken(token="", client_id=SUBJECT, scopes=[])
        name = self.named.name_of(token) if self.named is not None else None
        if name is None:
            return None
        self._on_named()
        return AccessToken(token="", client_id=NAMED + name, subject=NAMED + name, scopes=[])
