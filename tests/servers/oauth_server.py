"""An authorization server and an MCP server that it protects, in one process on two loopback ports.

Made of the SDK's own authorization server parts (PKCE, redirect URIs, client authentication and registration are
checked by them) over a real store of clients, codes and tokens. Consent is asked on a page of its own with two links,
`allow` and `deny`. Writes `ISSUER_PORT MCP_PORT` as its first line on stdout.

Run as ``python oauth_server.py [--life SECONDS] [--transport http|sse] [--modern-only] [--no-registration]
[--wrong-issuer] [--client ID:SECRET] [--client-key FILE] [--client-scope SCOPES] [--metadata-ca FILE] [--ledger FILE]
[--slow-token MS]``; with ``--modern-only`` it speaks, over HTTP, no revision with sessions.

Or, behind an authorization server that is not ours: ``[--introspecting] [--ledger FILE]``. Then it asks that one whose
a token is (RFC 7662), writes its port as its first line, and reads the issuer from its stdin.
"""

import argparse
import asyncio
import base64
import html
import secrets
import ssl
import sys
import time
from pathlib import Path
from typing import Any

import httpx2
import jwt
import mcp_types as types
from mcp.server.auth.handlers.token import TokenHandler
from mcp.server.auth.middleware.bearer_auth import BearerAuthBackend, RequireAuthMiddleware
from mcp.server.auth.middleware.client_auth import ClientAuthenticator
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.routes import build_metadata, create_auth_routes, create_protected_resource_routes
from mcp.server.auth.settings import ClientRegistrationOptions, RevocationOptions
from mcp.server.lowlevel import Server
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

sys.path.insert(0, str(Path(__file__).parent))  # this file is run by itself, isolated

from sdk import Context, listed, listener, note, over_http, over_sse, said

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
        if parsed.client:
            client_id, _, secret = parsed.client.partition(":")
            self._know(client_id, "client_secret_basic", client_secret=secret)
        if parsed.client_key:
            self._know("signer", "private_key_jwt")

    def _know(self, client_id: str, method: Any, **more: Any) -> None:
        self.clients[client_id] = OAuthClientInformationFull(
            client_id=client_id,
            token_endpoint_auth_method=method,
            grant_types=["client_credentials"],
            scope=self.options.client_scope,
            **more,
        )

    def asserted(self, assertion: str) -> str | None:
        """Who has signed an assertion (RFC 7523, section 3); None when nobody that is known has."""
        try:
            claims = jwt.decode(
                assertion,
                self.options.client_key.read_text("ascii"),
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
        self.note("code", resource=authorization_code.resource)
        return self.grant(
            client.client_id,
            authorization_code.scopes,
            authorization_code.resource,
            login,
            authorization_code.subject,
        )

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
        return self.grant(client.client_id, scopes, refresh_token.resource, login, refresh_token.subject)

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
        self,
        client_id: str,
        scopes: list[str],
        resource: str | None,
        login: str,
        person: str | None = "ada",
        *,
        renewable: bool = True,
    ) -> OAuthToken:
        """New tokens of a person's login."""
        access, refresh = f"access-{secrets.token_urlsafe(24)}", f"refresh-{secrets.token_urlsafe(24)}"
        own = {"client_id": client_id, "scopes": scopes, "resource": resource, "subject": person}
        self.access[access] = AccessToken(token=access, **own), login
        self.exact[access] = time.time() + self.options.life
        if renewable:
            self.refresh[refresh] = RefreshToken(token=refresh, **own), login
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


def issuer_app(authority: Authority, parsed: argparse.Namespace) -> Starlette:
    """The authorization server."""
    registration = ClientRegistrationOptions(
        enabled=not parsed.no_registration,
        valid_scopes=[SCOPE, WRITE_SCOPE, REFRESH_SCOPE],
        default_scopes=[SCOPE, REFRESH_SCOPE],
    )
    issuer = AnyHttpUrl(authority.issuer)
    revocation = RevocationOptions(enabled=True)
    metadata = build_metadata(issuer, None, registration, revocation)
    metadata.client_id_metadata_document_supported = parsed.metadata_ca is not None
    metadata.token_endpoint_auth_methods_supported = ["none", "client_secret_basic", "client_secret_post"]
    if parsed.wrong_issuer:
        metadata.issuer = AnyHttpUrl("https://somebody-else.example/")

    async def describe(request: Request) -> Response:
        return JSONResponse(metadata.model_dump(mode="json", exclude_none=True))

    routes = create_auth_routes(
        authority,  # pyright: ignore[reportArgumentType]
        issuer,
        client_registration_options=registration,
        revocation_options=revocation,
    )
    standard = TokenHandler(authority, ClientAuthenticator(authority))  # pyright: ignore[reportArgumentType]

    async def token(request: Request) -> Response:
        return await authority.client_credentials(request) or await standard.handle(request)

    return Starlette(
        routes=[
            Route("/.well-known/oauth-authorization-server", describe),
            Route("/consent", authority.consent),
            Route("/decide", authority.decide),
            Route("/end", authority.end, methods=["POST"]),
            Route("/person", authority.sit_down, methods=["POST"]),
            Route("/token", token, methods=["POST"]),
            # Of those before, the first with a path is taken.
            *routes,
        ]
    )


def protected_app(authority: Any, parsed: argparse.Namespace) -> Starlette:
    """The MCP server: `whoami`, `slow`, `confess`, whose error quotes the token that it was shown, and `write`, which
    needs a scope of its own. Others than ada have a tool that is named after them, too."""

    def person_of(context: Context) -> str:
        user = context.request.scope["user"] if context.request is not None else None
        return user.access_token.subject if user is not None else "ada"

    async def list_tools(context: Context, params: Any) -> types.ListToolsResult:
        person = person_of(context)
        return listed("whoami", "slow", "confess", "write", *([f"only_{person}"] if person != "ada" else []))

    async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        person, given = person_of(context), params.arguments or {}
        authority.note("call", tool=params.name, person=person, said=given.get("said"))
        if params.name == "confess":
            return said(f"leak: {context.request.headers.get('authorization')}", is_error=True)
        if params.name == "slow":
            await asyncio.sleep(float(given.get("ms", 100)) / 1000)
        return said(person)

    server = Server("notes", version="1", on_list_tools=list_tools, on_call_tool=call_tool)
    metadata = AnyHttpUrl(authority.resource.replace("/mcp", "/.well-known/oauth-protected-resource/mcp"))
    routes = create_protected_resource_routes(
        AnyHttpUrl(authority.resource), [AnyHttpUrl(authority.issuer)], scopes_supported=[SCOPE]
    )

    def guarded(app: ASGIApp) -> ASGIApp:
        return AuthenticationMiddleware(
            RequireAuthMiddleware(scoped(app), [], metadata), backend=BearerAuthBackend(authority)
        )

    if parsed.transport == "http":
        app = server.streamable_http_app()
        inner = modern(guarded(app)) if parsed.modern_only else guarded(app)
        lifespan = app.router.lifespan_context
        return Starlette(routes=[*routes, Mount("/", app=inner)], lifespan=lambda _: lifespan(app))
    return Starlette(routes=[*routes, *over_sse(server, "/mcp", guarded)])


def scoped(app: ASGIApp) -> ASGIApp:
    """Refuses calls of `write` with a token that has not its scope (RFC 6750, section 3.1), as the scope is needed."""

    async def check(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await app(scope, receive, send)
            return
        body = await Request(scope, receive).body()
        is_writing = b'"tools/call"' in body and b'"write"' in body
        if is_writing and WRITE_SCOPE not in scope["auth"].scopes:
            challenge = f'Bearer error="insufficient_scope", scope="{WRITE_SCOPE}"'
            await Response(status_code=403, headers={"WWW-Authenticate": challenge})(scope, receive, send)
            return
        read = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def again() -> Any:
            return next(read, None) or await receive()

        await app(scope, again, send)

    return check


def modern(app: ASGIApp) -> ASGIApp:
    """Refuses revisions with sessions, before it looks at any token."""

    async def check(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            version = Request(scope).headers.get("mcp-protocol-version")
            if version not in MODERN_PROTOCOL_VERSIONS:
                error = {
                    "code": types.UNSUPPORTED_PROTOCOL_VERSION,
                    "message": "Unsupported protocol version",
                    "data": {"supported": [*MODERN_PROTOCOL_VERSIONS], "requested": version},
                }
                refusal = JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, 400)
                await refusal(scope, receive, send)
                return
        await app(scope, receive, send)

    return check


class Introspection:
    """What `protected_app` asks an authorization server, in the place of our own."""

    def __init__(self, issuer: str, resource: str, ledger: Path) -> None:
        self.issuer, self.resource, self.ledger = issuer, resource, ledger
        self._http = httpx2.AsyncClient(auth=("server", "s3cr3t"), trust_env=False, verify=False, timeout=30)

    def note(self, event: str, **more: Any) -> None:
        """Adds a line to the ledger."""
        note(self.ledger, event, **more)

    async def verify_token(self, token: str) -> AccessToken | None:
        """Whose the token is; None where it is of nobody, or for another server."""
        answer = await self._http.post(f"{self.issuer}/token/introspection", data={"token": token})
        found = answer.raise_for_status().json()
        if not found["active"] or found.get("aud") != self.resource:
            self.note("refused")
            return None
        scopes = found.get("scope", "").split()
        return AccessToken(token=token, client_id=found["client_id"], scopes=scopes, subject=found["sub"])


async def introspecting(ledger: Path) -> None:
    """Serves the MCP server alone, once it was told the issuer."""
    where, port = listener()
    print(port, flush=True)
    issuer = (await asyncio.to_thread(sys.stdin.readline)).strip()
    authority = Introspection(issuer, f"http://127.0.0.1:{port}/mcp", ledger)
    await over_http(protected_app(authority, argparse.Namespace(transport="http", modern_only=False)), where)


async def main() -> None:
    """Serves until told to stop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--life", type=float, default=600.0, help="of an access token, in seconds")
    parser.add_argument("--transport", choices=("http", "sse"), default="http")
    parser.add_argument("--client", metavar="ID:SECRET", help="a client for the grant client_credentials")
    parser.add_argument(
        "--client-key", type=Path, metavar="FILE", help="the public key of a client that signs"
    )
    parser.add_argument("--client-scope", metavar="SCOPES", default=SCOPE, help="what it may have")
    parser.add_argument("--metadata-ca", type=Path, metavar="FILE", help="take client id metadata documents")
    parser.add_argument("--ledger", type=Path, metavar="FILE", help="where events are written")
    parser.add_argument("--slow-token", type=float, default=0, metavar="MS", help="pause of each renewal")
    for flag in ("--modern-only", "--no-registration", "--wrong-issuer", "--introspecting"):
        parser.add_argument(flag, action="store_true")
    parsed = parser.parse_args()
    if parsed.introspecting:
        await introspecting(parsed.ledger)
        return
    (issuer_socket, issuer_port), (mcp_socket, mcp_port) = listener(), listener()
    authority = Authority(parsed, f"http://127.0.0.1:{issuer_port}/", f"http://127.0.0.1:{mcp_port}/mcp")
    print(issuer_port, mcp_port, flush=True)
    await asyncio.gather(
        over_http(issuer_app(authority, parsed), issuer_socket),
        over_http(protected_app(authority, parsed), mcp_socket),
    )


asyncio.run(main())
