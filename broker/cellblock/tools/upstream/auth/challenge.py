"""Finds out how a server refuses who shows no token: its challenge says where a login is to be had."""

from __future__ import annotations

import contextlib
from typing import Any, Final

import httpx2
from mcp.shared.inbound import MCP_METHOD_HEADER, MCP_PROTOCOL_VERSION_HEADER
from mcp_types import CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY, PROTOCOL_VERSION_META_KEY
from mcp_types.version import LATEST_MODERN_VERSION

from cellblock.base.settings.settings import ServerConfig
from cellblock.tools.upstream.auth.errors import LoginError
from cellblock.tools.upstream.auth.exchange import http_client, reason_of

PROBE_VERSION: Final = "2025-06-18"
"""Names the protocol revision of the request that asks for the challenge; from this one on tokens name their
resource."""

CLIENT_NAME: Final = "Cellblock"
"""Names this client to people who agree to the login."""

NO_SUCH_REVISION: Final = (400, 404)
"""Lists what a server answers that knows only revisions without sessions, and looks at that before the token."""

_CLIENT: Final = {"name": CLIENT_NAME, "version": "1"}

_OF_ONE_MESSAGE: Final = ("content-length", "content-type", "host")


async def challenge_of(name: str, config: ServerConfig, bound: float) -> httpx2.Response | None:
    """Sends a request without a token, and returns its refusal; None when the server does not refuse it.

    Args:
        name: The server's name, for errors.
        config: Its entry; it has a URL.
        bound: For each request, in seconds.

    Raises:
        LoginError: It cannot be reached, or answers something else.
    """
    greeting = request = _greeting(config)
    try:
        async with http_client(bound) as http:
            response = await _status_of(http, request)
            if response.status_code in NO_SUCH_REVISION and request.method == "POST":
                greeting = request = _discovery(config)
                response = await _status_of(http, request)
            elif response.status_code == 200 and request.method == "POST":
                # Some servers greet everybody, and refuse who wants to know their tools.
                request, response = await _second_question(http, request, response)
    except httpx2.HTTPError as error:
        raise LoginError(f"{name} cannot be reached{reason_of(error)}.", hint="Check its url.") from None
    if response.status_code == 401:
        return httpx2.Response(401, headers=response.headers, request=request)
    if response.status_code < 400 or request is not greeting or response.status_code == 405:
        return None
    raise LoginError(f"{name} answers with HTTP {response.status_code}.", hint="Check its url.")


def _headers(config: ServerConfig, version: str) -> dict[str, str]:
    return {
        **config.headers,
        MCP_PROTOCOL_VERSION_HEADER: version,
        "Accept": "application/json, text/event-stream",
    }


def _greeting(config: ServerConfig) -> httpx2.Request:
    headers = _headers(config, PROBE_VERSION)
    if config.type == "sse":
        return httpx2.Request("GET", str(config.url), headers=headers)
    params = {"protocolVersion": PROBE_VERSION, "capabilities": {}, "clientInfo": _CLIENT}
    return _post(config, headers, {"id": 1, "method": "initialize", "params": params})


def _discovery(config: ServerConfig) -> httpx2.Request:
    """Makes the greeting of revisions without sessions."""
    method = "server/discover"
    headers = {**_headers(config, LATEST_MODERN_VERSION), MCP_METHOD_HEADER: method}
    meta = {
        PROTOCOL_VERSION_META_KEY: LATEST_MODERN_VERSION,
        CLIENT_INFO_META_KEY: _CLIENT,
        CLIENT_CAPABILITIES_META_KEY: {},
    }
    return _post(config, headers, {"id": 1, "method": method, "params": {"_meta": meta}})


def _post(config: ServerConfig, headers: dict[str, str], message: dict[str, Any]) -> httpx2.Request:
    return httpx2.Request("POST", str(config.url), headers=headers, json={"jsonrpc": "2.0", **message})


async def _status_of(http: httpx2.AsyncClient, request: httpx2.Request) -> httpx2.Response:
    # An event stream that is not refused would never end: only its status and headers matter.
    response = await http.send(request, stream=True)
    await response.aclose()
    return response


async def _second_question(
    http: httpx2.AsyncClient, greeting: httpx2.Request, greeted: httpx2.Response
) -> tuple[httpx2.Request, httpx2.Response]:
    headers = {name: value for name, value in greeting.headers.items() if name.lower() not in _OF_ONE_MESSAGE}
    session = greeted.headers.get("mcp-session-id")
    if session is not None:
        headers["mcp-session-id"] = session
    body = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    request = httpx2.Request("POST", greeting.url, headers=headers, json=body)
    response = await _status_of(http, request)
    if session is not None:
        with contextlib.suppress(httpx2.HTTPError):
            await _status_of(http, httpx2.Request("DELETE", greeting.url, headers=headers))
    return request, response
