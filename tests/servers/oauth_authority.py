"""The authorization server's clients, codes and tokens, in memory, and its pages; see `oauth_server.py`."""

import argparse
import asyncio
import base64
import html
import secrets
import ssl
import time
from typing import Any

import httpx2
import jwt
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from sdk import note
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

SCOPE = "notes"
WRITE_SCOPE = "notes:write"
"""Of the tool `write`; nobody is asked for it at first."""

REFRESH_SCOPE = "offline_access"


class Authority:
    """The SDK's `OAuthAuthorizationServerProvider`, in memory. Refresh tokens are good once: a second use of one ends
    the whole login, as RFC 9700 advises."""

    def __init__(self, parsed: argparse.Namespace, issuer: str, resource: str) -> None:
        self.options = parsed
        self.issuer, self.resource = issuer, resource
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.waiting: dict[str, tuple[OAuthClientInformationFull, AuthorizationParams]] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.access: dict[str, tuple[AccessToken, str]] = {}
        self.refresh: dict[str, tuple[RefreshToken, str]] = {}
        self.exact: dict[str, float] = {}
        self.used: dict[str, str] = {}
        self.ended: set[str] = set()
        self.person = "ada"
        self.whose: dict[str, str] = {}
        self.client_key = ""
        if parsed.client:
            client_id, _, secret = parsed.client.partition(":")
            self.clients[client_id] = OAuthClientInformationFull(
                client_id=client_id,
                client_secret=secret,
                token_endpoint_auth_method="client_secret_basic",
                grant_types=["client_credentials"],
                scope=parsed.client_scope,
            )

        if parsed.client_key:
            self.clients["signer"] = OAuthClientInformationFull(
                client_id="signer",
                token_endpoint_auth_method="private_key_jwt",
                grant_types=["client_credentials"],
                scope=parsed.client_scope,
            )
            self.client_key = parsed.client_key.read_text("ascii")

    def asserted(self, assertion: str) -> str | None:
        """Who has signed an assertion (RFC 7523, section 3); None when nobody that is known has."""
        try:
            claims = jwt.decode(
                assertion,
                self.client_key,
                algorithms=["RS256", "ES256", "EdDSA"],
                audience=self.issuer,
                issuer="signer",
                options={"require": ["exp", "iat", "iss", "sub", "aud", "jti"]},
            )
        except jwt.PyJWTError as error:
            self.note("assertion refused", why=type(error).__name__)
            return None
        self.note("assertion", algorithm=jwt.get_unverified_header(assertion)["alg"])
        return str(claims["sub"])

    def note(self, event: str, **more: Any) -> None:
        """Adds a line to the ledger."""
        note(self.options.ledger, event, **more)

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        if client_id.startswith("https://") and self.options.metadata_ca is not None:
            trust = ssl.create_default_context(cafile=self.options.metadata_ca)
            async with httpx2.AsyncClient(verify=trust, trust_env=False) as http:
                document = (await http.get(client_id)).json()
            assert document["client_id"] == client_id
            self.note("client metadata")
            return OAuthClientInformationFull.model_validate(
                {"scope": f"{SCOPE} {REFRESH_SCOPE}", **document}
            )
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.note("register", redirects=[str(uri) for uri in client_info.redirect_uris or ()])
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        ticket = secrets.token_urlsafe(16)
        self.waiting[ticket] = client, params
        self.note("authorize", resource=params.resource, scopes=params.scopes, client=client.client_id)
        return f"{self.issuer}consent?ticket={ticket}"

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self.codes[authorization_code.code]
        login = secrets.token_hex(8)
        self.whose[login] = authorization_code.subject or "ada"
        self.note("code", resource=authorization_code.resource)
        return self.grant(client.client_id, authorization_code.scopes, authorization_code.resource, login)

    async def load_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: str
    ) -> RefreshToken | None:
        if refresh_token in self.used:
            self.note("refresh reused")
            self.ended.add(self.used[refresh_token])
            return None
        found = self.refresh.get(refresh_token)
        return found[0] if found is not None and found[1] not in self.ended else None

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        _, login = self.refresh.pop(refresh_token.token)
        self.used[refresh_token.token] = login
        self.note("refresh", resource=refresh_token.resource)
        # The token is used up by now: whoever hangs up has lost it.
        await asyncio.sleep(self.options.slow_token / 1000)
        return self.grant(client.client_id, scopes, refresh_token.resource, login)

    async def load_access_token(self, token: str) -> AccessToken | None:
        found = self.access.get(token)
        return None if found is None or found[1] in self.ended else found[0]

    async def verify_token(self, token: str) -> AccessToken | None:
        """For the protected server: what was granted for it, and is not over."""
        found = await self.load_access_token(token)
        if found is None or found.resource != self.resource or time.time() >= self.exact[token]:
            return None
        return found

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        known = self.access.get(token.token) or self.refresh.get(token.token)
        self.note("revoke")
        if known is not None:
            self.ended.add(known[1])

    def grant(
        self, client_id: str, scopes: list[str], resource: str | None, login: str, *, renewable: bool = True
    ) -> OAuthToken:
        """New tokens of a login."""
        access, refresh = f"access-{secrets.token_urlsafe(24)}", f"refresh-{secrets.token_urlsafe(24)}"
        shared: dict[str, Any] = {"client_id": client_id, "scopes": scopes, "resource": resource}
        self.access[access] = AccessToken(token=access, subject=self.whose.get(login, "ada"), **shared), login
        self.exact[access] = time.time() + self.options.life
        if renewable:
            self.refresh[refresh] = RefreshToken(token=refresh, **shared), login
        self.note("grant", access=access, refresh=refresh if renewable else None)
        return OAuthToken(
            access_token=access,
            expires_in=max(1, int(self.options.life)),
            scope=" ".join(scopes),
            refresh_token=refresh if renewable else None,
        )

    # ---- pages of its own ----------------------------------------------------------------------------

    async def consent(self, request: Request) -> Response:
        """What a person sees."""
        ticket = html.escape(request.query_params["ticket"])
        return HTMLResponse(
            f'<h1>Log in</h1><a id="allow" href="/decide?ticket={ticket}&yes=1">allow</a>'
            f'<a id="deny" href="/decide?ticket={ticket}">deny</a>'
        )

    async def decide(self, request: Request) -> Response:
        """Back to the client, with a code or an error."""
        client, params = self.waiting.pop(request.query_params["ticket"])
        back = str(params.redirect_uri)
        if "yes" not in request.query_params:
            return RedirectResponse(
                construct_redirect_uri(back, error="access_denied", state=params.state), 302
            )
        code = secrets.token_urlsafe(32)
        self.codes[code] = AuthorizationCode(
            code=code,
            scopes=params.scopes or [SCOPE],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
            subject=self.person,
        )
        return RedirectResponse(construct_redirect_uri(back, code=code, state=params.state), 302)

    async def sit_down(self, request: Request) -> Response:
        """For tests: says who is before the browser from now on."""
        self.person = (await request.body()).decode()
        return Response(status_code=204)

    async def end(self, request: Request) -> Response:
        """For tests: ends every login, as an administrator would."""
        self.ended |= {login for _, login in self.access.values()}
        return Response(status_code=204)

    async def client_credentials(self, request: Request) -> Response | None:
        """The grant that the SDK's token endpoint does not have; None for other grants."""
        form = await request.form()
        if form.get("grant_type") != "client_credentials":
            return None
        if "client_assertion" in form:
            client_id, secret = self.asserted(str(form["client_assertion"])), ""
            known = client_id is not None
        else:
            scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
            client_id, _, secret = base64.b64decode(credentials).decode().partition(":")
            wanted = self.clients[client_id].client_secret or "" if client_id in self.clients else ""
            known = scheme == "Basic" and wanted != "" and secrets.compare_digest(wanted, secret)
        if not known or client_id is None:
            return JSONResponse({"error": "invalid_client", "error_description": f"not {secret}"}, 401)
        self.note("client credentials", resource=form.get("resource"), scope=form.get("scope"))
        scopes = str(form.get("scope") or SCOPE).split()
        if not set(scopes) <= set((self.clients[client_id].scope or "").split()):
            return JSONResponse({"error": "invalid_scope", "error_description": f"not {secret}"}, 400)
        token = self.grant(
            client_id, scopes, str(form.get("resource")), secrets.token_hex(8), renewable=False
        )
        return JSONResponse(token.model_dump(exclude_none=True))
