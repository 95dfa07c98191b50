"""Asserted gets the tokens of a server from who somebody is, without a login of their own there.

An identity is a login like others, at the identity provider (`http.oauth.issuer`): its token is the ID token that was
issued to Cellblock. From it comes what the server's authorization server takes: an assertion that the identity provider
makes for that one (ID-JAG, presented by RFC 7523), or the ID token itself, for an exchange there (RFC 8693). What
clients show to Cellblock is neither kept nor sent.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Final

import httpx2
import jwt
from mcp.shared.auth import JWT_BEARER_GRANT_TYPE, OAuthClientInformationFull, OAuthToken
from mcp.shared.auth_utils import resource_url_from_server_url

from cellblock.base.redaction import Redactor
from cellblock.base.settings.policy import PROVEN
from cellblock.base.settings.server import AuthSettings, ServerAuthSettings
from cellblock.base.store import Store
from cellblock.base.tasks import TaskSet, at_most
from cellblock.tools.upstream.auth.authority import ask, metadata_of, object_in, origin_of, revoke, words_of
from cellblock.tools.upstream.auth.errors import LoginEnded, LoginError, Refused
from cellblock.tools.upstream.auth.record import LoginRecord
from cellblock.tools.upstream.auth.sources import KeptLogin, OwnCredentials
from cellblock.tools.upstream.auth.store import LoginStore

logger = logging.getLogger("cellblock.tools.upstream.auth")

EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"

_TYPES: Final = "urn:ietf:params:oauth:token-type:"
ID_TOKEN: Final = f"{_TYPES}id_token"


def place_of(store: Store, issuer: str, auth: AuthSettings, person: str) -> LoginStore:
    """Says where is kept who a person is."""
    return LoginStore(store, issuer, issuer, auth, person=person, patient=True)


class KeptIdentity(KeptLogin):
    """Is a person's login at the identity provider, renewed while that gives new ID tokens."""

    names_resource = False

    async def current(self) -> tuple[str, LoginRecord]:
        """Returns an ID token that is good for now, with the login. Raises LoginEnded."""
        token = await self.token()
        if token is None or self._record is None:
            why = self.problem or "the login at the identity provider has ended"
            raise LoginEnded(why, hint="Log in again.")
        return token, self._record

    def _granted(self, response: httpx2.Response, record: LoginRecord) -> OAuthToken:
        tokens = identity_in(response)
        # OpenID Connect Core, section 12.2: of nobody else than before.
        if subject_of(tokens.access_token) != record.person:
            raise LoginEnded("the identity provider has named somebody else", hint="Log in again.")
        return tokens


class IdentityGrant(OwnCredentials):
    """Gives tokens that are granted for who a person is; kept in memory only.

    Args:
        server: The server's name.
        url: Its URL.
        client: Its section of the configuration.
        identity: The person's.
        redactor: As for `Login`; the identity's, too.
    """

    is_given = True

    def __init__(
        self,
        server: str,
        url: str,
        client: ServerAuthSettings,
        identity: KeptIdentity,
        redactor: Redactor,
    ) -> None:
        super().__init__(server, url, client, redactor)
        self.page, self.hint = identity.page, identity.hint
        self._identity, self._mark = identity, ""
        self._ending = TaskSet()

    def stamp(self) -> object:
        """Changes when somebody logs in, in any process; None while nobody has."""
        return self._identity.stamp()

    async def mark(self) -> str:
        """Returns what names the identity, over all renewals; empty where there is none. With its end, what was granted
        for it is revoked."""
        mark = await self._identity.mark()
        if mark != self._mark:
            granted, self._mark, self._record = self._record, mark, None
            if granted is not None:
                self._ending.start(self._end(granted), name=f"tokens of {self._server}")
        return mark

    async def token(self) -> str | None:
        """Returns the access token, renewed before its end; none of an identity that is over."""
        await self.mark()
        return await super().token()

    async def close(self, bound: float) -> None:
        """Lets what is under way end, at most `bound` seconds."""
        await super().close(bound)
        async with at_most(bound):
            await self._ending.ended()

    async def _end(self, granted: LoginRecord) -> None:
        endpoint = granted.server_metadata and granted.server_metadata.revocation_endpoint
        if endpoint is None or origin_of(str(endpoint)) != origin_of(granted.server_url):
            # Nobody but the authorization server of the configuration is shown a token, or the secret.
            return
        try:
            revoked = await revoke(granted)
            logger.info("upstream %s: a token was %s", self._server, "revoked" if revoked else "forgotten")
        except LoginError as error:
            logger.warning("upstream %s: a token could not be revoked: %s", self._server, error)

    async def renewed(self, used: str | None, refused: httpx2.Response) -> str | None:
        """Returns another token than the one that was refused."""
        if await self.mark():
            return await super().renewed(used, refused)
        self.problem = self._identity.problem
        return None

    async def _asked(
        self, refused: httpx2.Response, client: OAuthClientInformationFull, secret: str, scopes: list[str]
    ) -> tuple[LoginRecord, httpx2.Response]:
        """Asks the authorization server of the configuration: the server itself names none."""
        issuer, is_exchange = self._client.issuer or "", self._client.grant == "token_exchange"
        metadata = await metadata_of(issuer, issuer)
        if metadata is None or origin_of(str(metadata.token_endpoint)) != origin_of(issuer):
            raise Refused(f"{issuer} has no metadata, or its token endpoint is elsewhere", hint=self.hint)
        # What is not said is not offered (RFC 8414, section 2).
        if is_exchange and EXCHANGE not in (metadata.grant_types_supported or ()):
            said = f"{issuer} does not offer token exchange (in grant_types_supported of its metadata)"
            raise LoginError(said, hint="Use the grant identity_assertion, or ask who runs it.")
        record = LoginRecord(server_url=issuer, client=client, server_metadata=metadata)
        form = {"resource": resource_url_from_server_url(self._url)}
        if scopes:
            form["scope"] = " ".join(scopes)
        id_token, identity = await self._identity.current()
        if is_exchange:
            form |= {"grant_type": EXCHANGE, "subject_token": id_token, "subject_token_type": ID_TOKEN}
        else:
            presented = await _assertion(identity, {**form, "subject_token": id_token, "audience": issuer})
            form |= {"grant_type": JWT_BEARER_GRANT_TYPE, "assertion": presented}
        return record, await ask(record, form)


async def _assertion(identity: LoginRecord, asked: dict[str, str]) -> str:
    """Has the identity provider assert to an authorization server who somebody is. Raises LoginError."""
    form = {
        "grant_type": EXCHANGE,
        "requested_token_type": f"{_TYPES}id-jag",
        "subject_token_type": ID_TOKEN,
        **asked,
    }
    response = await ask(identity, form)
    said = object_in(response.content)
    assertion: object = said.get("access_token")
    if response.status_code != 200 or said.get("issued_token_type") != form["requested_token_type"]:
        raise Refused(f"by the identity provider: {words_of(response)}", hint="Ask who runs it.")
    if not isinstance(assertion, str):
        raise Refused("the identity provider has made no assertion", hint="Ask who runs it.")
    return assertion


def identity_in(response: httpx2.Response) -> OAuthToken:
    """Returns the ID token of an answer, as the token of a login. Raises LoginError: There is none."""
    said = object_in(response.content)
    token, refresh_token = said.get("id_token"), said.get("refresh_token")
    if response.status_code != 200 or not isinstance(token, str):
        raise Refused(f"no ID token: {words_of(response)}", hint="Begin anew.")
    try:
        # It comes from the provider itself, by TLS (OpenID Connect Core, section 3.1.3.7).
        left = int(_claims(token)["exp"] - time.time())
    except (jwt.PyJWTError, KeyError, TypeError, ValueError, OverflowError):
        raise Refused("its ID token cannot be read", hint="Begin anew.") from None
    refresh_token = refresh_token if isinstance(refresh_token, str) else None
    return OAuthToken(access_token=token, refresh_token=refresh_token, expires_in=max(0, left))


def subject_of(id_token: str) -> str:
    """Names the principal that an ID token is of."""
    return PROVEN + str(_claims(id_token).get("sub", ""))


def _claims(token: str) -> dict[str, Any]:
    return jwt.decode(token, options={"verify_signature": False})
