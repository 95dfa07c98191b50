"""An authorization server and an MCP server that it protects, in one process on two loopback ports.

Made of the SDK's own authorization server parts (PKCE, redirect URIs, client authentication and registration are
checked by them) over a real store of clients, codes and tokens. Consent is asked on a page of its own with two links,
`allow` and `deny`. Writes `ISSUER_PORT MCP_PORT` as its first line on stdout.

Run as ``python oauth_server.py [--life SECONDS] [--transport http|sse] [--no-registration] [--wrong-issuer]
[--client ID:SECRET] [--metadata-ca FILE] [--ledger FILE] [--slow-token MS]``.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import html
import json
import secrets
import socket
import ssl
import sys
import time
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as types
import uvicorn
from mcp.server.auth.middleware.bearer_auth import BearerAuthBackend, RequireAuthMiddleware
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    RefreshToken,
    TokenError,
    construct_redirect_uri,
)
from mcp.server.auth.routes import (
    build_metadata,
    create_auth_routes,
    create_protected_resource_routes,
)
from mcp.server.auth.settings import ClientRegistrationOptions, RevocationOptions
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.sse import SseServerTransport
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

SCOPE = "notes"
REFRESH_SCOPE = "offline_access"


class Authority:
    """The SDK's `OAuthAuthorizationServerProvider`, in memory. Refresh tokens are good once: a second use of one ends
    the whole login, as RFC 9700 advises."""

    def __init__(self, parsed: argparse.Namespace, issuer: str, resource: str) -> None:
        self.life: float = parsed.life
        self.issuer = issuer
        self.resource = resource
        self.ledger: Path | None = parsed.ledger
        self.metadata_ca: Path | None = parsed.metadata_ca
        self.slow_token: float = parsed.slow_token / 1000
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.waiting: dict[str, tuple[OAuthClientInformationFull, AuthorizationParams]] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.access: dict[str, tuple[AccessToken, str]] = {}
        self.refresh: dict[str, tuple[RefreshToken, str]] = {}
        self.exact: dict[str, float] = {}
        self.used: dict[str, str] = {}
        self.ended: set[str] = set()
        if parsed.client:
            client_id, _, secret = parsed.client.partition(":")
            self.clients[client_id] = OAuthClientInformationFull(
                client_id=client_id,
                client_secret=secret,
                token_endpoint_auth_method="client_secret_basic",
                grant_types=["client_credentials"],
                scope=SCOPE,
            )

    def note(self, event: str, **more: Any) -> None:
        """Adds a line to the ledger."""
        if self.ledger is not None:
            with self.ledger.open("a", encoding="utf-8") as opened:
                opened.write(json.dumps({"event": event, **more}) + "\n")

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        if client_id.startswith("https://") and self.metadata_ca is not None:
            trust = ssl.create_default_context(cafile=self.metadata_ca)
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
        await asyncio.sleep(self.slow_token)
        return self.grant(client.client_id, scopes, refresh_token.resource, login)

    async def exchange_identity_assertion(
        self, client: OAuthClientInformationFull, params: Any
    ) -> OAuthToken:
        raise TokenError("unsupported_grant_type")

    async def load_access_token(self, token: str) -> AccessToken | None:
        found = self.access.get(token)
        if found is None or found[1] in self.ended:
            return None
        return found[0]

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
        kept = AccessToken(token=access, client_id=client_id, scopes=scopes, resource=resource, subject="ada")
        self.access[access] = kept, login
        self.exact[access] = time.time() + self.life
        if renewable:
            self.refresh[refresh] = (
                RefreshToken(token=refresh, client_id=client_id, scopes=scopes, resource=resource),
                login,
            )
        self.note("grant", access=access, refresh=refresh if renewable else None)
        return OAuthToken(
            access_token=access,
            expires_in=max(1, int(self.life)),
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
        )
        return RedirectResponse(construct_redirect_uri(back, code=code, state=params.state), 302)

    async def end(self, request: Request) -> Response:
        """For tests: ends every login, as an administrator would."""
        self.ended |= {login for _, login in self.access.values()}
        return Response(status_code=204)

    async def client_credentials(self, request: Request) -> Response | None:
        """The grant that the SDK's token endpoint does not have; None for other grants."""
        form = await request.form()
        if form.get("grant_type") != "client_credentials":
            return None
        scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
        client_id, _, secret = base64.b64decode(credentials).decode().partition(":")
        client = self.clients.get(client_id)
        if (
            scheme != "Basic"
            or client is None
            or not secrets.compare_digest(client.client_secret or "", secret)
        ):
            return JSONResponse({"error": "invalid_client", "error_description": f"not {secret}"}, 401)
        self.note("client credentials", resource=form.get("resource"), scope=form.get("scope"))
        scopes = str(form.get("scope") or SCOPE).split()
        token = self.grant(
            client_id, scopes, str(form.get("resource")), secrets.token_hex(8), renewable=False
        )
        return JSONResponse(token.model_dump(exclude_none=True))


def issuer_app(authority: Authority, parsed: argparse.Namespace) -> Starlette:
    """The authorization server."""
    registration = ClientRegistrationOptions(
        enabled=not parsed.no_registration,
        valid_scopes=[SCOPE, REFRESH_SCOPE],
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
    token = next(route for route in routes if route.path == "/token")
    standard = token.app

    async def token_endpoint(scope: Scope, receive: Receive, send: Send) -> None:
        messages: list[Any] = []

        async def again() -> Any:
            return messages.pop(0) if messages else await receive()

        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break

        async def whole() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        answer = await authority.client_credentials(Request(scope, whole))
        if answer is not None:
            await answer(scope, whole, send)
            return
        messages.append({"type": "http.request", "body": body, "more_body": False})
        await standard(scope, again, send)

    class TokenEndpoint:
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await token_endpoint(scope, receive, send)

    return Starlette(
        routes=[
            Route("/.well-known/oauth-authorization-server", describe),
            Route("/consent", authority.consent),
            Route("/decide", authority.decide),
            Route("/end", authority.end, methods=["POST"]),
            Route("/token", endpoint=TokenEndpoint(), methods=["POST"]),
            *(
                route
                for route in routes
                if route.path not in ("/token", "/.well-known/oauth-authorization-server")
            ),
        ]
    )


Context = ServerRequestContext[dict[str, Any]]


def protected_app(authority: Authority, parsed: argparse.Namespace) -> Starlette:
    """The MCP server: `whoami`, `slow`, and `confess`, whose error quotes the token that it was shown."""

    async def list_tools(context: Context, params: Any) -> types.ListToolsResult:
        names = ("whoami", "slow", "confess")
        return types.ListToolsResult(
            tools=[types.Tool(name=name, input_schema={"type": "object"}) for name in names]
        )

    async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        shown = str(context.request.headers.get("authorization")) if context.request is not None else ""
        authority.note("call", tool=params.name)
        if params.name == "confess":
            return types.CallToolResult(content=[types.TextContent(text=f"leak: {shown}")], is_error=True)
        if params.name == "slow":
            await asyncio.sleep(float((params.arguments or {}).get("ms", 100)) / 1000)
        return types.CallToolResult(content=[types.TextContent(text="ada")])

    server = Server("notes", version="1", on_list_tools=list_tools, on_call_tool=call_tool)
    metadata = AnyHttpUrl(authority.resource.replace("/mcp", "/.well-known/oauth-protected-resource/mcp"))
    routes = create_protected_resource_routes(
        AnyHttpUrl(authority.resource), [AnyHttpUrl(authority.issuer)], scopes_supported=[SCOPE]
    )

    def guarded(app: ASGIApp) -> ASGIApp:
        return AuthenticationMiddleware(
            RequireAuthMiddleware(app, [], metadata), backend=BearerAuthBackend(authority)
        )

    if parsed.transport == "http":
        app = server.streamable_http_app()
        inner = guarded(app)
        lifespan = app.router.lifespan_context
        return Starlette(routes=[*routes, Mount("/", app=inner)], lifespan=lambda _: lifespan(app))
    transport = SseServerTransport("/messages/")

    class Stream:
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            async with transport.connect_sse(scope, receive, send) as (read, write):
                await server.run(read, write, server.create_initialization_options())

    class Messages:
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await transport.handle_post_message(scope, receive, send)

    return Starlette(
        routes=[
            *routes,
            Route("/mcp", endpoint=guarded(Stream())),
            Mount("/messages/", app=guarded(Messages())),
        ]
    )


def listener() -> socket.socket:
    """A free loopback port that listens already."""
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    made.listen()
    return made


async def main() -> None:
    """Serves until told to stop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--life", type=float, default=600.0, help="of an access token, in seconds")
    parser.add_argument("--transport", choices=("http", "sse"), default="http")
    parser.add_argument("--no-registration", action="store_true")
    parser.add_argument("--wrong-issuer", action="store_true")
    parser.add_argument("--client", metavar="ID:SECRET", help="a client for the grant client_credentials")
    parser.add_argument("--metadata-ca", type=Path, metavar="FILE", help="take client id metadata documents")
    parser.add_argument("--ledger", type=Path, metavar="FILE", help="where events are written")
    parser.add_argument("--slow-token", type=float, default=0, metavar="MS", help="pause of each renewal")
    parsed = parser.parse_args()
    issuer_socket, mcp_socket = listener(), listener()
    ports = issuer_socket.getsockname()[1], mcp_socket.getsockname()[1]
    authority = Authority(parsed, f"http://127.0.0.1:{ports[0]}/", f"http://127.0.0.1:{ports[1]}/mcp")
    print(*ports, flush=True)
    await asyncio.gather(
        *(
            uvicorn.Server(uvicorn.Config(app, log_level="warning")).serve(sockets=[where])
            for app, where in (
                (issuer_app(authority, parsed), issuer_socket),
                (protected_app(authority, parsed), mcp_socket),
            )
        )
    )


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
