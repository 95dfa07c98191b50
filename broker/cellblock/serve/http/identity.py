"""Identity says who sits at a browser: the broker is a client of the issuer of `http.oauth` (OpenID Connect Core, the
authorization code flow with PKCE and a nonce). Its two halves are those of a login to a server.
"""

from __future__ import annotations

import secrets
from typing import Final
from urllib.parse import urlsplit

import httpx2
from mcp.client.auth.utils import issuers_match
from mcp.shared.auth import OAuthClientInformationFull, OAuthMetadata
from pydantic import ValidationError

from cellblock.base.settings.policy import PROVEN
from cellblock.base.settings.sections import OAuthSettings, secret_of
from cellblock.base.store import Store
from cellblock.serve.http.oauth import JwtVerifier
from cellblock.tools.upstream.auth.errors import LoginError
from cellblock.tools.upstream.auth.exchange import (
    TOKEN_SECONDS,
    check_endpoints,
    exchange,
    http_client,
    is_safe,
    object_in,
    send,
    words_of,
)
from cellblock.tools.upstream.auth.flow import BEGUN_SECONDS, BegunLogin, leading
from cellblock.tools.upstream.auth.record import LoginRecord

SCOPE: Final = "openid"

BASIC: Final = "client_secret_basic"


class Identity:
    """Asks the issuer who somebody is.

    Args:
        settings: Which issuer, and as which client.
        verifier: Knows its keys.
    """

    def __init__(self, settings: OAuthSettings, verifier: JwtVerifier) -> None:
        self._settings, self._verifier = settings, verifier

    @property
    def host(self) -> str:
        """Names the issuer's host, for people."""
        return urlsplit(self._settings.issuer).netloc

    async def begin(self, store: Store, server: str, redirect_uri: str, bound_to: str) -> str:
        """Returns the URL at which somebody says who they are who wants to log in to a server.

        Raises:
            LoginError: The issuer cannot be asked.
        """
        nonce, issuer = secrets.token_urlsafe(32), self._settings.issuer
        client = OAuthClientInformationFull(client_id=self._settings.client_id or "", issuer=issuer)
        login = LoginRecord(server_url=issuer, client=client, server_metadata=await self._metadata())
        begun = BegunLogin(server=server, login=login, redirect_uri=redirect_uri, scope=SCOPE, nonce=nonce)
        return await leading(store, begun, bound_to, BEGUN_SECONDS, {"nonce": nonce})

    async def principal(self, begun: BegunLogin, code: str) -> str:
        """Returns who the issuer says that it is, for the code of a login that was taken out.

        Raises:
            LoginError: It says nothing, nothing to us, or nothing of this login.
            ConfigError: The client's secret cannot be read.
        """
        secret, metadata = secret_of(self._settings.client_secret), begun.login.server_metadata
        methods = (metadata and metadata.token_endpoint_auth_methods_supported) or [BASIC]
        method = (BASIC if BASIC in methods else "client_secret_post") if secret else "none"
        # The secret is not written down between the two halves.
        shown = {"client_secret": secret, "token_endpoint_auth_method": method}
        login = begun.login.model_copy(update={"client": begun.login.client.model_copy(update=shown)})
        response = await exchange(login, code, begun.verifier, begun.redirect_uri, names_resource=False)
        token: object = object_in(response.content).get("id_token")
        if response.status_code != 200 or not isinstance(token, str):
            raise LoginError(
                f"The identity provider does not say who you are: {words_of(response)}.", hint="Begin anew."
            )
        client_id = self._settings.client_id or ""
        claims = await self._verifier.claims(token, client_id)
        # To nobody else, and for this login (OpenID Connect Core, section 3.1.3.7).
        if (
            claims is None
            or claims["aud"] not in (client_id, [client_id])
            or claims.get("nonce") != begun.nonce
        ):
            raise LoginError(
                "The identity provider's ID token is not good for this login.", hint="Begin anew."
            )
        return PROVEN + str(claims["sub"])

    async def _metadata(self) -> OAuthMetadata:
        issuer = self._settings.issuer
        url = issuer.rstrip("/") + "/.well-known/openid-configuration"
        if not is_safe(url):
            raise LoginError(f"{issuer} is reached without TLS.", hint="Check http.oauth.issuer.")
        async with http_client(TOKEN_SECONDS) as http:
            response = await send(http, httpx2.Request("GET", url), TOKEN_SECONDS, issuer)
        try:
            metadata = OAuthMetadata.model_validate_json(response.content)
        except ValidationError:
            raise LoginError(
                f"{issuer} has no metadata of OpenID Connect.", hint="Check http.oauth.issuer."
            ) from None
        if not issuers_match(str(metadata.issuer), issuer):
            raise LoginError(
                f"The metadata of {issuer} is another issuer's.", hint="Check http.oauth.issuer."
            )
        await check_endpoints(metadata, issuer)
        return metadata
