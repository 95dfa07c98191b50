"""A caller is who has sent a request, as its token proves it, and nothing that it says of itself.

Tokens of an authorization server are checked by its published keys: this is a resource server's side of OAuth (MCP
specification, authorization). Nothing here issues tokens, and no token is passed on to an upstream server.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from dataclasses import dataclass
from typing import Any, Final, cast
from urllib.parse import urlsplit

import jwt
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken, TokenVerifier
from starlette.types import Scope

from cellblock.base.settings.policy import PROVEN
from cellblock.base.settings.sections import OAuthSettings
from cellblock.base.tasks import at_most
from cellblock.serve.http.refusal import NO_TOKEN, Refused, header
from cellblock.serve.http.token import SUBJECT
from cellblock.tools.upstream.auth.authority import origin_of

NO_ONE: Final = "anybody"
"""Names the principal where no token is asked for."""

_KEY: Final = "cellblock.caller"

logger = logging.getLogger("cellblock.serve")

ALGORITHMS: Final = ("RS256", "PS256", "ES256", "ES384", "EdDSA")
"""Names signatures by a key pair. With a shared secret, or none, everybody who knows the public key could make
tokens."""

CLOCK_LEEWAY_SECONDS: Final = 30
"""Bounds the difference between the issuer's clock and ours."""

FETCH_SECONDS: Final = 5.0
"""Bounds the time for fetching the issuer's keys; only tokens with a key that is not known wait for them."""

KEYS_FOR_SECONDS: Final = 300
"""Sets the time between two fetches of the issuer's keys: for so long a key that it has withdrawn may still be good."""

REFETCH_SECONDS: Final = 10.0
"""Sets the least time between two fetches for keys that are not known: tokens with made-up key ids must not become a
flood."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Names who has sent a request.

    Attributes:
        principal: For whom it is (`cellblock.policy.clients`).
        program: Which program of the principal's.
        client: Whose rate and memory it counts for.
        holder: Whose connection it came on.
        has_session: Whether the client is an MCP session.
    """

    principal: str
    program: str
    client: str
    holder: str
    has_session: bool = False

    @classmethod
    def of(cls, scope: Scope) -> Caller | None:
        """Returns the caller that a middleware in front has found; None: a stranger."""
        return cast("Caller | None", scope.get(_KEY))

    @classmethod
    def known(cls, scope: Scope) -> Caller:
        """Returns the caller, behind a middleware that finds one or refuses."""
        return cast("Caller", scope[_KEY])

    def put(self, scope: Scope) -> None:
        """Names the caller to what is behind."""
        scope[_KEY] = self


def caller_with(access: AccessToken | None, scope: Scope, *, behind_balancer: bool = False) -> Caller:
    """Returns the caller with a token, or without where none is asked for. Addresses are the balancer's where there is
    one: then whichever broker it comes to knows it by its token."""
    address = scope["client"][0] if scope.get("client") else ""
    if access is None:
        return Caller(NO_ONE, "", f"http {NO_ONE} {address}", f"{NO_ONE} {network_of(address)}")
    if access.subject is None:
        # One token for everybody: then addresses are who there is.
        return Caller(
            SUBJECT,
            access.client_id,
            f"http {access.client_id} {address}",
            f"{SUBJECT} {network_of(address)}",
        )
    client = f"http {access.subject}" if behind_balancer else f"http {access.subject} {address}"
    return Caller(access.subject, access.client_id, client, access.subject)


def network_of(address: str) -> str:
    """Says who is taken for one stranger: an address, and of IPv6, where a host may have 2**64 of them, a network."""
    if ":" not in address:
        return address
    try:
        return str(ipaddress.ip_network((address.partition("%")[0], 64), strict=False))
    except ValueError:
        return address


class Authenticator:
    """Knows callers by their tokens.

    Args:
        verifier: None where no token is asked for.
        challenge: Says where tokens are to be had.
        behind_balancer: As for `caller_with`.
    """

    def __init__(
        self, verifier: TokenVerifier | None, challenge: str = "Bearer", *, behind_balancer: bool = False
    ) -> None:
        self.verifier: Final = verifier
        self._challenge, self._behind_balancer = challenge, behind_balancer

    async def authenticate(self, scope: Scope) -> Caller:
        """Finds the caller, for the SDK as well. Raises Refused: It has shown no token that is good."""
        access = None if self.verifier is None else await self._shown(self.verifier, scope)
        if access is not None:
            scope["user"] = AuthenticatedUser(access)
        caller = caller_with(access, scope, behind_balancer=self._behind_balancer)
        caller.put(scope)
        return caller

    async def _shown(self, verifier: TokenVerifier, scope: Scope) -> AccessToken:
        kind, _, token = (header(scope, b"authorization") or b"").partition(b" ")
        if kind.lower() == b"bearer" and token:
            access = await verifier.verify_token(token.strip().decode("latin-1"))
            if access is not None:
                return access
        raise Refused(401, {"www-authenticate": self._challenge}, NO_TOKEN)


class Keys:
    """Fetches an issuer's public keys, and keeps them by their ids. A key that is known is there at once, whoever asks
    for others meanwhile.

    Args:
        settings: Where they are.
    """

    def __init__(self, settings: OAuthSettings) -> None:
        self._issuer = settings.issuer
        self._keys: dict[str, jwt.PyJWK] = {}
        self._tried_at = float("-inf")
        self._fetch: asyncio.Task[None] | None = None
        self._client = jwt.PyJWKClient(settings.jwks_url, cache_jwk_set=False, timeout=FETCH_SECONDS)

    async def keep_fresh(self) -> None:
        """Fetches the issuer's keys now, and again and again until it is cancelled."""
        while True:
            await self._fetched()
            await asyncio.sleep(KEYS_FOR_SECONDS)

    async def key(self, key_id: object) -> jwt.PyJWK | None:
        """Finds a key by its id; None: the issuer has none with this id, as far as is known."""
        if not isinstance(key_id, str):
            return None
        if key_id not in self._keys:
            now = asyncio.get_running_loop().time()
            if self._fetch is None and now - self._tried_at <= REFETCH_SECONDS:
                return None
            async with at_most(FETCH_SECONDS):
                await self._fetched()
        return self._keys.get(key_id)

    async def _fetched(self) -> None:
        """Waits for one fetch, which all who wait share; it goes on when one of them gives up."""
        if self._fetch is None:
            self._tried_at = asyncio.get_running_loop().time()
            self._fetch = asyncio.create_task(self._fetch_once())
        await asyncio.shield(self._fetch)

    async def _fetch_once(self) -> None:
        try:
            keys = await asyncio.to_thread(self._client.get_signing_keys)
        except Exception as error:  # noqa: BLE001 - whatever the issuer sends, the keys that are known stay
            logger.warning("the keys of %s cannot be read: %s", self._issuer, error)
        else:
            self._keys = {key.key_id: key for key in keys if key.key_id}
        finally:
            self._fetch = None


class JwtVerifier:
    """The verifier of signed JWT access tokens (RFC 9068) is an `mcp.server.auth.provider.TokenVerifier`."""

    def __init__(self, settings: OAuthSettings) -> None:
        self._settings = settings
        self.keys: Final = Keys(settings)

    async def claims(self, token: str, audience: str) -> dict[str, Any] | None:
        """Returns what the issuer says to an audience, or None where it is not the issuer, or not to this one."""
        try:
            key = await self.keys.key(jwt.get_unverified_header(token).get("kid"))
            if key is None:
                return None
            claims = jwt.decode(
                token,
                key,
                algorithms=list(ALGORITHMS),
                issuer=self._settings.issuer,
                audience=audience,
                leeway=CLOCK_LEEWAY_SECONDS,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
            # Nobody's logins are kept under no name, or one that cannot be written.
            return claims if str(claims["sub"]).encode() else None
        except (jwt.PyJWTError, ValueError) as error:
            logger.info("a token is refused: %s", type(error).__name__)
            return None

    async def verify_token(self, token: str) -> AccessToken | None:
        """Says who the token is for, or None when it is not good for us."""
        claims = await self.claims(token, self._settings.audience)
        if claims is None:
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
            subject=PROVEN + str(claims["sub"]),
            claims={"iss": claims["iss"]},
        )


def metadata_path(resource: str) -> str:
    """Says where a resource's metadata is (RFC 9728, section 3.1): between the host and the resource's own path."""
    return "/.well-known/oauth-protected-resource" + urlsplit(resource).path.rstrip("/")


def challenge_of(settings: OAuthSettings | None) -> str:
    """Says how a client is to authenticate, and where it learns who gives it a token (section 5.1)."""
    if settings is None:
        return "Bearer"
    return f'Bearer resource_metadata="{origin_of(settings.audience)}{metadata_path(settings.audience)}"'


def resource_metadata(settings: OAuthSettings) -> dict[str, Any]:
    """Says what a client needs to get a token (RFC 9728, section 2)."""
    return {
        "resource": settings.audience,
        "authorization_servers": [settings.issuer],
        "bearer_methods_supported": ["header"],
        **({"scopes_supported": settings.scopes} if settings.scopes else {}),
    }
