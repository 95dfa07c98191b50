"""A caller is who has sent a request, as its token proves it, and nothing that it says of itself."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final, cast

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken, TokenVerifier
from starlette.types import Scope

from cellblock.serve.http.refusal import NO_TOKEN, Refused, header
from cellblock.serve.http.token import SUBJECT

NO_ONE: Final = "anybody"
"""Names the principal where no token is asked for."""

_KEY: Final = "cellblock.caller"


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
