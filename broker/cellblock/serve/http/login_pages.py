"""Login_pages lead a person in a browser to the login of a server that wants everybody's own.

A link here holds no secret and names nobody. The login belongs to whoever proves to be somebody in that very browser:
at the identity provider, or with a token of Cellblock's. A cookie binds what comes back to the browser that has begun,
so nobody has others log in for him. A link alone begins nothing, and no redirect leads anywhere but to an authorization
server.

At the identity provider, the broker is a client of the issuer of `http.oauth` (OpenID Connect Core, the authorization
code flow with PKCE and a nonce); the two halves of that are those of a login to a server.
"""

from __future__ import annotations

import html
import logging
import re
import secrets
import time
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from mcp.server.auth.provider import TokenVerifier
from mcp.shared.auth import OAuthClientInformationFull
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cellblock.base.errors import CellblockError, ConfigError
from cellblock.base.loopback import is_loopback
from cellblock.base.settings.policy import PROVEN, person_of
from cellblock.base.settings.sections import OAuthSettings, secret_of
from cellblock.base.store import Store
from cellblock.base.visible import visible
from cellblock.serve.http.bodies import read_body
from cellblock.serve.http.caller import NO_ONE, JwtVerifier
from cellblock.serve.http.guards import SERVER_LOGINS
from cellblock.serve.http.pages import HEADERS, HTML
from cellblock.serve.http.refusal import header
from cellblock.serve.http.token import MAX_CHARS, SUBJECT
from cellblock.serve.service import RunService
from cellblock.tools.upstream.auth.asserted import identity_in, place_of
from cellblock.tools.upstream.auth.authority import TOKEN_SECONDS, exchange, metadata_of
from cellblock.tools.upstream.auth.errors import LoginError, LoginStoreError
from cellblock.tools.upstream.auth.flow import (
    BEGUN_SECONDS,
    BegunLogin,
    begin,
    failing,
    finish,
    leading,
    taken,
)
from cellblock.tools.upstream.auth.record import LoginRecord
from cellblock.tools.upstream.auth.redirect import code_in, page, values_in
from cellblock.tools.upstream.auth.store import LOCK_BOUND_SECONDS
from cellblock.tools.upstream.auth.target import LoginTarget, challenge_of, target_of
from cellblock.tools.upstream.server_logins import kept_logins

logger = logging.getLogger("cellblock.serve")

CALLBACK: Final = "callback"

THE_USER: Final = "The user of this machine"

REQUESTS_PER_SECOND: Final = 5.0
BURST: Final = 50
"""Bound the requests of strangers from one network: each may write something down, and have another server asked."""

MAX_BODY_BYTES: Final = 4 * MAX_CHARS
"""Bounds a form: three bytes may stand for one character of a token."""

BODY_SECONDS: Final = 10.0

COOKIE: Final = "cellblock_login"

_SECRET: Final = re.compile(r"[\w-]{43}", re.ASCII)

_HEADERS: Final = {
    **HEADERS,
    # Browsers ask `form-action` also about redirects of a form's answer: to an authorization server, and on from there.
    "content-security-policy": (
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'; "
        "form-action 'self' https: http://127.0.0.1:* http://localhost:*"
    ),
    # With `no-referrer`, a form's `Origin` would be `null`.
    "referrer-policy": "same-origin",
}

SCOPE: Final = "openid"

OFFLINE: Final = "offline_access"

BASIC: Final = "client_secret_basic"


class NoLoginHere(LoginError):
    """Tells that a page's address names no server that wants everybody's own login."""


class LoginPages:
    """Shows the pages of all servers.

    Args:
        service: Has what is between the halves of a login, and the settings.
        verifier: Knows tokens; None where none is asked for.
        identity: Asks an identity provider who somebody is; None: a token says so.
        origin: Where browsers reach this front-end; None: where a request says.
        secure: Whether browsers reach us over TLS.
    """

    def __init__(
        self,
        service: RunService,
        verifier: TokenVerifier | None,
        identity: Identity | None,
        origin: str | None,
        *,
        secure: bool,
    ) -> None:
        self._service, self._store = service, service.store
        self._verifier, self._identity = verifier, identity
        self._origin, self._secure = origin, secure

    def routes(self, guard: list[Middleware]) -> list[Route]:
        """Returns the paths, behind their guard."""
        path = f"{SERVER_LOGINS}{{server:path}}"
        return [Route(path, self._answer, methods=["GET", "POST"], middleware=guard)]

    async def _answer(self, request: Request) -> Response:
        server: str = request.path_params["server"]
        try:
            if server == CALLBACK and "state" in request.query_params and request.method != "POST":
                return await self._came_back(request)
            target = self._target(server)
            return await self._begun(request, target) if request.method == "POST" else self._form(server)
        except CellblockError as error:
            logger.info("a login has not succeeded: %s", error)
            match error:
                case NoLoginHere():
                    status = HTTPStatus.NOT_FOUND
                case ConfigError() | LoginStoreError():
                    status = HTTPStatus.SERVICE_UNAVAILABLE
                case _:
                    status = HTTPStatus.BAD_REQUEST
            return _page(f"{error.message} {error.hint}", status=status)

    async def _begun(self, request: Request, target: LoginTarget) -> Response:
        server, lasts = target.name, target.own.goes_by_identity
        if self._identity is not None:
            base, secret = self._base(request), self._secret(request)
            redirect_uri = f"{base}{SERVER_LOGINS}{CALLBACK}"
            url = await self._identity.begin(self._store, server, redirect_uri, secret, lasts=lasts)
            return self._redirect(url, secret, base)
        principal = await self._principal(request)
        if principal is None:
            return self._form(server, "This token is not known here.", HTTPStatus.FORBIDDEN)
        return await self._led(request, server, principal)

    async def _came_back(self, request: Request) -> Response:
        values = values_in(request.url.query)
        begun = await taken(self._store, values.get("state", ""), self._cookie(request), values.get("iss"))
        code = code_in(values)
        if begun.nonce is not None and self._identity is not None:
            identity = await self._identity.proven(begun, code)
            if self._target(begun.server).own.goes_by_identity:
                return await self._entered(begun.server, identity)
            return await self._led(request, begun.server, identity.person)
        person = begun.login.person
        _, less = await finish(self._target(begun.server, person), begun, code)
        logger.info("%s has logged in to %s", person or THE_USER, begun.server)
        return _page(f"{person or THE_USER} is logged in to {begun.server}.{less} You can close this page.")

    async def _entered(self, server: str, identity: LoginRecord) -> Response:
        """Keeps who somebody is, and tries whether that is enough for a server."""
        person = person_of(identity.person)
        target = self._target(server, person)
        place = place_of(self._store, identity.server_url, target.auth, person)
        async with place.locked(LOCK_BOUND_SECONDS):
            await place.save(identity)
        refused = await challenge_of(target, TOKEN_SECONDS)
        oauth = self._service.settings.cellblock.http.oauth
        login = kept_logins(target.auth, self._store, oauth)(server, target.config, person)
        if refused is not None and login is not None and await login.renewed(None, refused) is None:
            why, _ = login.trouble()
            raise LoginError(f"{person} has no access to {server}: {why}.", hint="Ask who runs it.")
        logger.info("%s has logged in to %s", person, server)
        return _page(f"{person} is logged in to {server}. You can close this page.")

    async def _led(self, request: Request, server: str, principal: str) -> Response:
        """Leads a browser to the login of a server, for a principal."""
        target = self._target(server, person_of(principal))
        base, secret = self._base(request), self._secret(request)
        refused = await challenge_of(target, TOKEN_SECONDS)
        if refused is None:
            return _page(f"{server} asks for no login.")
        before, redirect_uri = await target.before(), f"{base}{SERVER_LOGINS}{CALLBACK}"
        return self._redirect(await begin(target, refused, before, redirect_uri, secret), secret, base)

    def _form(self, server: str, wrong: str = "", status: int = HTTPStatus.OK) -> Response:
        field = ""
        if self._identity is not None:
            who = f"First you say who you are at {urlsplit(self._identity.settings.issuer).netloc}."
        elif self._verifier is None:
            who = "Everybody who uses this daemon uses this login."
        else:
            who = "First say who you are, by the token with which your client comes to Cellblock."
            field = "<label>Token <input name=token type=password autocomplete=off required></label>"
        text = (
            f"Log in to {server}. {who} Then its authorization server asks whether Cellblock may act for you."
        )
        form = f"<form method=post>{field}<button>Go on</button></form>"
        return _page(text, wrong, form=form, status=status)

    async def _principal(self, request: Request) -> str | None:
        """Returns who has the token of a form; None: nobody."""
        if self._verifier is None:
            return NO_ONE
        body = await read_body(request.scope, request.receive, MAX_BODY_BYTES, BODY_SECONDS)
        token = values_in(body.decode("latin-1")).get("token", "").strip()
        access = await self._verifier.verify_token(token) if token.isascii() else None
        return None if access is None else access.subject or SUBJECT

    def _target(self, server: str, person: str = "") -> LoginTarget:
        """Returns the server of a name that wants everybody's own login. Raises ConfigError: Nobody can log in now."""
        made = self._service.settings
        config, auth = made.servers.get(server), made.cellblock.auth
        own = auth.for_server(server)
        # With `--no-auth` nobody says who they are.
        is_open = own.grant != "client_credentials" and not (own.goes_by_identity and self._identity is None)
        if config is None or not config.is_personal or not is_open:
            raise NoLoginHere(
                "There is no login at this address.",
                hint="It ends with the name of a server that has a login for each user: check it, or ask whoever runs "
                "this Cellblock. The user of the machine logs in with `cellblock auth login`.",
            )
        return target_of(server, made.servers, auth, self._store, person)

    def _base(self, request: Request) -> str:
        """Returns the origin at which browsers reach this front-end."""
        if self._origin is not None:
            return self._origin
        # One that is allowed: a guard has looked.
        return origin_at((header(request.scope, b"host") or b"").decode("latin-1"), secure=self._secure)

    def _cookie(self, request: Request) -> str:
        """Returns the secret that a browser has; empty where it has none, or several."""
        name = _cookie_name(self._base(request))
        parts = (part.strip().partition("=") for part in request.headers.get("cookie", "").split(";"))
        found = [value for key, _, value in parts if key == name]
        return found[0] if len(found) == 1 and _SECRET.fullmatch(found[0]) else ""

    def _secret(self, request: Request) -> str:
        return self._cookie(request) or secrets.token_urlsafe(32)

    def _redirect(self, url: str, secret: str, base: str) -> Response:
        response = Response(None, HTTPStatus.SEE_OTHER, {**_HEADERS, "location": url})
        secure, seconds = base.startswith("https:"), int(BEGUN_SECONDS)
        # Lax: the authorization server's redirect comes from another site.
        response.set_cookie(_cookie_name(base), secret, seconds, secure=secure, httponly=True, samesite="lax")
        return response


def origin_at(host: str, *, secure: bool) -> str:
    """Returns the origin of a `Host`: to other machines nothing goes without TLS, which may be a proxy's."""
    is_here = is_loopback(urlsplit(f"//{host}").hostname)
    return f"{'https' if secure or not is_here else 'http'}://{host}"


def _cookie_name(base: str) -> str:
    return f"__Host-{COOKIE}" if base.startswith("https:") else COOKIE


def _page(*texts: str, form: str = "", status: int = HTTPStatus.OK) -> Response:
    told = "".join(f"<p>{html.escape(visible(text))}" for text in texts if text)
    return Response(page(told + form), status, {**_HEADERS, "content-type": HTML})


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
