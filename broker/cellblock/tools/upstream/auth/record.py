"""Holds what is kept of one login: tokens, the client they belong to, and where they are renewed and revoked."""

from __future__ import annotations

import time
from typing import Any, Final, Literal, cast
from urllib.parse import urljoin

from mcp.client.auth.oauth2 import OAuthContext
from mcp.client.auth.utils import union_scopes
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import BaseModel, ConfigDict, Field

MARGIN_SECONDS: Final = 30.0
MARGIN_SHARE: Final = 0.1
"""Sets how long before its end a token is renewed: so many seconds, or this share of its life if that is shorter."""


MAX_WANTED_CHARS: Final = 2_000
"""Bounds the scopes that a server is remembered to want."""


class LoginRecord(BaseModel):
    """Holds one login. Times are seconds since the epoch."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: Literal[1] = 1
    server_url: str
    """Says to whom the access token may be sent; a record is never used for another URL."""

    client: OAuthClientInformationFull = Field(repr=False)
    tokens: OAuthToken | None = Field(default=None, repr=False)
    """Holds the tokens: none when the login has ended; the client's registration is kept for the next one."""

    wanted_scope: str | None = None
    """Names what the next login asks for, since the server has refused something for want of it; with what was
    granted."""

    server: str = ""
    """Names the server in `mcpServers`; nothing where an earlier release has written it."""

    person: str = ""
    """Says whose it is, as `person_of` has it."""

    since: float = 0.0
    """Says when a person has logged in; 0 where an earlier release has not written it."""

    renewed: float = 0.0
    """Says when its tokens came."""

    expires_at: float | None = None
    resource_metadata: ProtectedResourceMetadata | None = None
    server_metadata: OAuthMetadata | None = None

    def of(self, server: str, person: str) -> LoginRecord:
        """Returns the same login, with whose it is; names that are no Unicode stand as they can be written."""
        names = {"server": server, "person": person}
        return self.model_copy(
            update={key: name.encode("utf-8", "backslashreplace").decode() for key, name in names.items()}
        )

    def with_tokens(self, tokens: OAuthToken | None) -> LoginRecord:
        """Returns the same login with other tokens, as they came just now (RFC 6749, sections 5.1 and 6)."""
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
        now = time.time()
        expires_at = None if tokens.expires_in is None else now + tokens.expires_in
        return self.model_copy(update={"tokens": tokens, "expires_at": expires_at, "renewed": now})

    def wanting(self, scope: str) -> LoginRecord:
        """Returns the same login, of which the server wants these scopes, too."""
        granted = self.tokens.scope if self.tokens is not None else None
        wanted = union_scopes(union_scopes(granted, self.wanted_scope), scope) or ""
        if len(wanted) > MAX_WANTED_CHARS:
            # A server that names others each time: what it has named last.
            wanted = union_scopes(granted, scope)
        return self.model_copy(update={"wanted_scope": wanted})

    def is_stale(self) -> bool:
        """Says whether the access token is at its end, or will be in a moment."""
        if self.tokens is None or self.expires_at is None or self.tokens.expires_in is None:
            return False
        return time.time() >= self.expires_at - min(MARGIN_SECONDS, self.tokens.expires_in * MARGIN_SHARE)

    @property
    def context(self) -> OAuthContext:
        """Gives what the SDK makes requests of; it stores nothing."""
        return OAuthContext(
            self.server_url,
            OAuthClientMetadata(redirect_uris=None),
            cast("Any", None),
            None,
            None,
            client_info=self.client,
            protected_resource_metadata=self.resource_metadata,
        )

    @property
    def token_endpoint(self) -> str:
        """Returns where tokens come from."""
        metadata = self.server_metadata
        return urljoin(self.server_url, "/token") if metadata is None else str(metadata.token_endpoint)

    @property
    def issuer(self) -> str | None:
        """Returns the authorization server."""
        metadata = self.server_metadata
        return self.client.issuer if metadata is None else str(metadata.issuer)

    def secrets(self) -> list[str]:
        """Returns each text of the login that nobody may see."""
        tokens = (self.tokens.access_token, self.tokens.refresh_token) if self.tokens is not None else ()
        return [one for one in (*tokens, self.client.client_secret) if one]
