"""What is kept of one login: tokens, the client they belong to, and where they are renewed and revoked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final, Literal

from mcp.shared.auth import OAuthClientInformationFull, OAuthMetadata, OAuthToken, ProtectedResourceMetadata
from pydantic import BaseModel, ConfigDict, Field

MARGIN_SECONDS: Final = 30.0
MARGIN_SHARE: Final = 0.1
"""A token is renewed so long before its end, or this share of its life if that is shorter."""


class LoginRecord(BaseModel):
    """One login. Times are seconds since the epoch."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: Literal[1] = 1
    server_url: str
    """Whom the access token may be sent to; a record is never used for another URL."""

    client: OAuthClientInformationFull = Field(repr=False)
    tokens: OAuthToken | None = Field(default=None, repr=False)
    """None when the login has ended; the client's registration is kept for the next one."""

    expires_at: float | None = None
    resource_metadata: ProtectedResourceMetadata | None = None
    server_metadata: OAuthMetadata | None = None

    def with_tokens(self, tokens: OAuthToken | None) -> LoginRecord:
        """The same login with other tokens, as they came just now (RFC 6749, sections 5.1 and 6)."""
        if tokens is None:
            return self.model_copy(update={"tokens": None, "expires_at": None})
        if self.tokens is not None:
            # What a renewal leaves out is as before.
            tokens = tokens.model_copy(
                update={
                    "scope": tokens.scope if tokens.scope is not None else self.tokens.scope,
                    "refresh_token": tokens.refresh_token or self.tokens.refresh_token,
                }
            )
        expires_at = None if tokens.expires_in is None else time.time() + tokens.expires_in
        return self.model_copy(update={"tokens": tokens, "expires_at": expires_at})

    def is_stale(self) -> bool:
        """Whether the access token is at its end, or will be in a moment."""
        if self.tokens is None or self.expires_at is None or self.tokens.expires_in is None:
            return False
        return time.time() >= self.expires_at - min(MARGIN_SECONDS, self.tokens.expires_in * MARGIN_SHARE)

    @property
    def issuer(self) -> str | None:
        """The authorization server."""
        if self.server_metadata is not None:
            return str(self.server_metadata.issuer)
        return self.client.issuer

    def secrets(self) -> Iterator[str]:
        """Everything in it that nobody may see."""
        if self.tokens is not None:
            yield self.tokens.access_token
            if self.tokens.refresh_token:
                yield self.tokens.refresh_token
        if self.client.client_secret:
            yield self.client.client_secret
