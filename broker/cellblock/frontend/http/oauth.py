"""A resource server's side of OAuth (MCP specification, authorization): tokens of an authorization server are checked
by its published keys. Nothing here issues tokens, and no token is passed on to an upstream server.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final
from urllib.parse import urlsplit

import jwt
from mcp.server.auth.provider import AccessToken

from cellblock.config_http import OAuthSettings

logger = logging.getLogger("cellblock.frontend")

ALGORITHMS: Final = ("RS256", "PS256", "ES256", "ES384", "EdDSA")
"""Signatures by a key pair. With a shared secret, or none, everybody who knows the public key could make tokens."""

CLOCK_LEEWAY_SECONDS: Final = 30
"""Between the issuer's clock and ours."""

FETCH_SECONDS: Final = 5.0
"""For the issuer's keys; a request waits for them."""

KEYS_FOR_SECONDS: Final = 300
"""How long the issuer's keys are used before they are asked for again."""

REFETCH_SECONDS: Final = 10.0
"""Between two fetches for keys that are not known: tokens with made-up key ids must not become a flood."""


class JwtVerifier:
    """An `mcp.server.auth.provider.TokenVerifier` for signed JWT access tokens (RFC 9068)."""

    def __init__(self, settings: OAuthSettings) -> None:
        self._settings = settings
        self._keys: dict[str, jwt.PyJWK] = {}
        self._fetched_at = float("-inf")
        self._tried_at = float("-inf")
        self._fetching = asyncio.Lock()
        self._client = jwt.PyJWKClient(settings.jwks_url, cache_jwk_set=False, timeout=FETCH_SECONDS)

    async def verify_token(self, token: str) -> AccessToken | None:
        """Who the token is for, or None when it is not good for us."""
        try:
            key = await self._key_of(jwt.get_unverified_header(token).get("kid"))
            if key is None:
                return None
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=list(ALGORITHMS),
                issuer=self._settings.issuer,
                audience=self._settings.audience,
                leeway=CLOCK_LEEWAY_SECONDS,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except (jwt.PyJWTError, ValueError) as error:
            logger.info("a token is refused: %s", type(error).__name__)
            return None
        scope: object = claims.get("scope", "")
        scopes = scope.split() if isinstance(scope, str) else []
        if not set(self._settings.scopes) <= set(scopes):
            return None
        client = claims.get("client_id") or claims.get("azp") or claims["sub"]
        return AccessToken(
            token="",
            client_id=str(client),
            scopes=scopes,
            expires_at=int(claims["exp"]),
            subject=str(claims["sub"]),
            claims={"iss": claims["iss"]},
        )

    async def _key_of(self, key_id: object) -> jwt.PyJWK | None:
        if not isinstance(key_id, str):
            return None
        loop = asyncio.get_running_loop()
        async with self._fetching:
            now = loop.time()
            stale = now - self._fetched_at > KEYS_FOR_SECONDS or key_id not in self._keys
            if stale and now - self._tried_at > REFETCH_SECONDS:
                self._tried_at = now
                try:
                    keys = await asyncio.to_thread(self._client.get_signing_keys)
                except (jwt.PyJWTError, OSError, ValueError) as error:
                    logger.warning("the keys of %s cannot be read: %s", self._settings.issuer, error)
                else:
                    self._keys = {key.key_id: key for key in keys if key.key_id}
                    self._fetched_at = now
        return self._keys.get(key_id)


def metadata_path(resource: str) -> str:
    """Where a resource's metadata is (RFC 9728, section 3.1): between the host and the resource's own path."""
    return "/.well-known/oauth-protected-resource" + urlsplit(resource).path.rstrip("/")


def metadata_url(resource: str) -> str:
    """The URL of the same, for the challenge (section 5.1)."""
    parts = urlsplit(resource)
    return f"{parts.scheme}://{parts.netloc}{metadata_path(resource)}"


def resource_metadata(settings: OAuthSettings) -> dict[str, Any]:
    """What a client needs to get a token (RFC 9728, section 2)."""
    return {
        "resource": settings.audience,
        "authorization_servers": [settings.issuer],
        "bearer_methods_supported": ["header"],
        **({"scopes_supported": settings.scopes} if settings.scopes else {}),
    }
