"""An authorization server and an MCP server that it protects, in one process on two loopback ports.

Made of the SDK's own authorization server parts (PKCE, redirect URIs, client authentication and registration are
checked by them) over a real store of clients, codes and tokens. Consent is asked on a page of its own with two links,
`allow` and `deny`. Writes `ISSUER_PORT MCP_PORT` as its first line on stdout.

Run as ``python oauth_server.py [--life SECONDS] [--transport http|sse] [--modern-only] [--no-registration]
[--wrong-issuer] [--client ID:SECRET] [--client-key FILE] [--client-scope SCOPES] [--metadata-ca FILE] [--ledger FILE]
[--slow-token MS]``.
"""

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp.server.auth.handlers.token import TokenHandler
from mcp.server.auth.middleware.bearer_auth import BearerAuthBackend, RequireAuthMiddleware
from mcp.server.auth.middleware.client_auth import ClientAuthenticator
from mcp.server.auth.routes import (
    build_metadata,
    create_auth_routes,
    create_protected_resource_routes,
)
from mcp.server.auth.settings import ClientRegistrationOptions, RevocationOptions
from mcp.server.lowlevel import Server
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

sys.path.insert(0, str(Path(__file__).parent))  # this file is run by itself, isolated

from oauth_authority import REFRESH_SCOPE, SCOPE, WRITE_SCOPE, Authority
from sdk import Context, listed, listener, over_http, over_sse, said


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
            *(
                route
                for route in routes
                if route.path not in ("/token", "/.well-known/oauth-authorization-server")
            ),
        ]
    )


def protected_app(authority: Authority, parsed: argparse.Namespace) -> Starlette:
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


async def main() -> None:
    """Serves until told to stop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--life", type=float, default=600.0, help="of an access token, in seconds")
    parser.add_argument("--transport", choices=("http", "sse"), default="http")
    parser.add_argument("--modern-only", action="store_true", help="speak no revision with sessions (http)")
    parser.add_argument("--no-registration", action="store_true")
    parser.add_argument("--wrong-issuer", action="store_true")
    parser.add_argument("--client", metavar="ID:SECRET", help="a client for the grant client_credentials")
    parser.add_argument(
        "--client-key", type=Path, metavar="FILE", help="the public key of a client that signs"
    )
    parser.add_argument("--client-scope", metavar="SCOPES", default=SCOPE, help="what it may have")
    parser.add_argument("--metadata-ca", type=Path, metavar="FILE", help="take client id metadata documents")
    parser.add_argument("--ledger", type=Path, metavar="FILE", help="where events are written")
    parser.add_argument("--slow-token", type=float, default=0, metavar="MS", help="pause of each renewal")
    parsed = parser.parse_args()
    (issuer_socket, issuer_port), (mcp_socket, mcp_port) = listener(), listener()
    authority = Authority(parsed, f"http://127.0.0.1:{issuer_port}/", f"http://127.0.0.1:{mcp_port}/mcp")
    print(issuer_port, mcp_port, flush=True)
    await asyncio.gather(
        over_http(issuer_app(authority, parsed), issuer_socket),
        over_http(protected_app(authority, parsed), mcp_socket),
    )


if __name__ == "__main__":
    asyncio.run(main())
