"""Identity says who sits at a browser: the broker is a client of the issuer of `http.oauth` (OpenID Connect Core, the
authorization code flow with PKCE and a nonce). Its two halves are those of a login to a server.
"""

from __future__ import annotations

import secrets
import time
from typing import Final

from mcp.shared.auth import OAuthClientInformationFull

from cellblock.base.settings.policy import PROVEN
from cellblock.base.settings.sections import OAuthSettings, secret_of
from cellblock.base.store import Store
from cellblock.serve.http.oauth import JwtVerifier
from cellblock.tools.upstream.auth.asserted import identity_in
from cellblock.tools.upstream.auth.authority import metadata_of
from cellblock.tools.upstream.auth.errors import LoginError
from cellblock.tools.upstream.auth.exchange import exchange
from cellblock.tools.upstream.auth.flow import BEGUN_SECONDS, BegunLogin, failing, leading
from cellblock.tools.upstream.auth.record import LoginRecord

SCOPE: Final = "openid"

OFFLINE: Final = "offline_access"

BASIC: Final = "client_secret_basic"


class Identity:
    """Asks the issuer who somebody is.

    Args:
        settings: Which issuer, and as which client.
        verifier: Knows its keys.
    """

    def __init__(self, settings: OAuthSettings, verifier: JwtVerifier) -> None:
        self.settings, self._verifier = settings, verifier

    async def begin(self, store: Store, server: str, redirect_uri: str, bound_to: str, *, lasts: bool) -> str:
        """Returns the URL at which somebody says who they are who wants to log in to a server; what comes of it is
        renewed where it `lasts`.

        Raises:
            LoginError: The issuer cannot be asked.
        """
        nonce, issuer = secrets.token_urlsafe(32), self.settings.issuer
        client = OAuthClientInformationFull(client_id=self.settings.client_id or "", issuer=issuer)
        with failing(issuer):
            metadata = await metadata_of(issuer, issuer)
        login = LoginRecord(server_url=issuer, client=client, server_metadata=metadata)
        lasting = lasts and OFFLINE in ((metadata and metadata.scopes_supported) or ())
        scope, asked = (f"{SCOPE} {OFFLINE}", {"prompt": "consent"}) if lasting else (SCOPE, {})
        begun = BegunLogin(server=server, login=login, redirect_uri=redirect_uri, scope=scope, nonce=nonce)
        return await leading(store, begun, bound_to, BEGUN_SECONDS, {"nonce": nonce, **asked})

    async def proven(self, begun: BegunLogin, code: str) -> LoginRecord:
        """Returns the login of whoever the issuer says that it is, for the code of one that was taken out; its person
        is the principal.

        Raises:
            LoginError: It says nothing, nothing to us, or nothing of this login.
            ConfigError: The client's secret cannot be read.
        """
        secret, metadata = secret_of(self.settings.client_secret), begun.login.server_metadata
        methods = (metadata and metadata.token_endpoint_auth_methods_supported) or [BASIC]
        method = (BASIC if BASIC in methods else "client_secret_post") if secret else "none"
        # The secret is not written down between the two halves.
        shown = {"client_secret": secret, "token_endpoint_auth_method": method}
        login = begun.login.model_copy(update={"client": begun.login.client.model_copy(update=shown)})
        with failing(self.settings.issuer):
            tokens = identity_in(
                await exchange(login, code, begun.verifier, begun.redirect_uri, names_resource=False)
            )
        client_id = self.settings.client_id or ""
        claims = await self._verifier.claims(tokens.access_token, client_id)
        # To nobody else, and for this login (OpenID Connect Core, section 3.1.3.7).
        if (
            claims is None
            or claims["aud"] not in (client_id, [client_id])
            or claims.get("nonce") != begun.nonce
        ):
            raise LoginError(
                "The identity provider's ID token is not good for this login.", hint="Begin anew."
            )
        known = {"person": PROVEN + str(claims["sub"]), "since": time.time()}
        return login.model_copy(update=known).with_tokens(tokens)
