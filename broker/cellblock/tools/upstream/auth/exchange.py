"""Exchanges with an authorization server: the SDK makes the requests, this sends them within bounds.

The SDK's own flow runs inside the request that was refused, with a lock held until the answer's headers are there:
calls of one server would wait for each other, and a call that is cancelled would lose a rotated token. So only its
parts are used, from tasks of their own.
"""

from __future__ import annotations

import asyncio
import json
from typing import Final
from urllib.parse import urlsplit

import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import ValidationError

from cellblock.base.json import is_object
from cellblock.base.loopback import is_loopback
from cellblock.tools.upstream.auth.errors import LoginEnded, LoginError
from cellblock.tools.upstream.auth.record import LoginRecord
from cellblock.tools.upstream.tls import tls_context

MAX_ANSWER_BYTES: Final = 256 * 1024
"""Bounds an answer of an authorization server."""

_KNOWN_ERRORS: Final = frozenset(
    {
        *("invalid_request", "invalid_client", "invalid_grant", "unauthorized_client", "access_denied"),
        *(
            "unsupported_grant_type",
            "invalid_scope",
            "invalid_target",
            "server_error",
            "temporarily_unavailable",
        ),
        *("invalid_redirect_uri", "invalid_client_metadata", "unsupported_response_type", "invalid_token"),
    }
)
"""Lists the errors that are quoted: a server's own words may quote a token."""

_OVER: Final = frozenset({"invalid_grant", "invalid_client", "unauthorized_client"})
"""Names errors of a renewal after which no renewal can succeed."""


class MemoryStorage:
    """Keeps, as the SDK's token storage, what one flow learns."""

    def __init__(self, client: OAuthClientInformationFull | None = None) -> None:
        self.client = client
        self.tokens: OAuthToken | None = None

    async def get_tokens(self) -> OAuthToken | None:
        """Gives no tokens: each flow starts anew."""
        return None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Takes the tokens that the authorization server granted."""
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Returns the client that is registered already, if any."""
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Takes the client as it was registered."""
        self.client = client_info


def http_client(bound: float) -> httpx2.AsyncClient:
    """Returns a client for exchanges; redirects are not followed."""
    return httpx2.AsyncClient(timeout=bound, verify=tls_context())


async def send(http: httpx2.AsyncClient, request: httpx2.Request, bound: float) -> httpx2.Response:
    """Sends a request, and returns the whole answer.

    Raises:
        LoginError: No answer within `bound` seconds, or one that is too large.
    """
    where = urlsplit(str(request.url)).netloc.rpartition("@")[2]
    try:
        async with asyncio.timeout(bound):
            response = await http.send(request, stream=True)
            try:
                # Decoded by hand, so that a small compressed answer cannot become a large one unseen.
                body = b""
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > MAX_ANSWER_BYTES:
                        raise LoginError(
                            f"The answer of {where} is too large.", hint="Check the authorization server."
                        )
            finally:
                await response.aclose()
    except TimeoutError:
        raise LoginError(
            f"The authorization server has not answered within {bound:g} s.", hint="Try again later."
        ) from None
    except httpx2.HTTPError as error:
        raise LoginError(
            f"{where} cannot be reached: {type(error).__name__}.", hint="Try again when it can be."
        ) from None
    headers = [
        (name, value)
        for name, value in response.headers.multi_items()
        if name.lower() not in ("content-encoding", "content-length", "transfer-encoding")
    ]
    return httpx2.Response(response.status_code, headers=headers, content=body, request=request)


async def drive(provider: OAuthClientProvider, refused: httpx2.Response, bound: float) -> None:
    """Runs the SDK's flow for a request that was refused, up to where the SDK would send it again.

    Args:
        provider: Has the tokens afterwards.
        refused: The answer to the request, with the challenge in `WWW-Authenticate`; its request is not sent.
        bound: For each exchange, in seconds; waiting for a person is up to the provider's handlers.

    Raises:
        OAuthFlowError: As the SDK says; its text may quote the server.
        LoginError: No answer.
    """
    flow = provider.async_auth_flow(refused.request)
    try:
        async with http_client(bound) as http:
            await anext(flow)
            response = refused
            while (outgoing := await flow.asend(response)) is not refused.request:
                response = await send(http, outgoing, bound)
    finally:
        await flow.aclose()


class CheckedProvider(OAuthClientProvider):
    """Refuses endpoints that would take codes and tokens over plain HTTP to another machine (OAuth 2.1, section
    1.5)."""

    async def _perform_authorization(self) -> httpx2.Request:
        metadata = self.context.oauth_metadata
        for url in (metadata.authorization_endpoint, metadata.token_endpoint) if metadata is not None else ():
            if not is_safe(str(url)):
                raise OAuthFlowError(
                    f"The authorization server's endpoint {url} is neither https nor on this machine"
                )
        return await super()._perform_authorization()


def is_safe(url: str) -> bool:
    """Says whether a URL is https, or on this machine."""
    parts = urlsplit(url)
    return parts.scheme == "https" or is_loopback(parts.hostname)


async def renew(record: LoginRecord, bound: float) -> LoginRecord:
    """Renews a login (RFC 6749, section 6).

    Raises:
        LoginEnded: It cannot be renewed, now or later.
        LoginError: The authorization server cannot be reached, or fails.
    """
    if record.tokens is None or not record.tokens.refresh_token:
        raise LoginEnded("the login has expired, and there is nothing to renew it with", hint="Log in again.")
    request = await _Kept(record).renewal()
    if not is_safe(str(request.url)):
        raise LoginEnded("the token endpoint is neither https nor on this machine", hint="Log in again.")
    async with http_client(bound) as http:
        response = await send(http, request, bound)
    if response.status_code != 200:
        error = error_code(response)
        if error in _OVER:
            ended = LoginEnded(
                f"the authorization server has ended the login ({error})", hint="Log in again."
            )
            ended.forgotten = error != "invalid_grant"
            raise ended
        what = f"HTTP {response.status_code}{f', {error}' if error else ''}"
        raise LoginError(f"the login could not be renewed ({what})", hint="It is tried again.")
    try:
        return record.with_tokens(OAuthToken.model_validate_json(response.content))
    except ValidationError:
        raise LoginError(
            "the authorization server's answer holds no token", hint="It is tried again."
        ) from None


async def revoke(record: LoginRecord, bound: float) -> bool:
    """Ends a login at the authorization server (RFC 7009); False when it has no place for that.

    Raises:
        LoginError: It cannot be reached, or refuses.
    """
    metadata = record.server_metadata
    if record.tokens is None or metadata is None or metadata.revocation_endpoint is None:
        return False
    if not is_safe(str(metadata.revocation_endpoint)):
        return False
    refresh_token = record.tokens.refresh_token
    data = {
        "token": refresh_token or record.tokens.access_token,
        "token_type_hint": "refresh_token" if refresh_token else "access_token",
        "client_id": record.client.client_id,
    }
    data, headers = _Kept(record).context.prepare_token_auth(data, {})
    url = str(metadata.revocation_endpoint)
    async with http_client(bound) as http:
        response = await send(http, httpx2.Request("POST", url, data=data, headers=headers), bound)
        if response.status_code == 400 and not record.client.client_secret:
            # Servers made with the SDK want the field of a client without a secret, too.
            data["client_secret"] = ""
            response = await send(http, httpx2.Request("POST", url, data=data, headers=headers), bound)
    if response.status_code != 200:
        raise LoginError(
            f"The authorization server refused with HTTP {response.status_code}.", hint="Revoke it there."
        )
    return True


def error_code(response: httpx2.Response) -> str | None:
    """Returns the `error` of an OAuth error answer, if it is one of the standard's."""
    try:
        body: object = json.loads(response.content)
    except (ValueError, RecursionError):
        return None
    error: object = body.get("error") if is_object(body) else None
    return error if isinstance(error, str) and error in _KNOWN_ERRORS else None


def known_error_in(text: str) -> str | None:
    """Returns a standard OAuth error that the SDK's text quotes."""
    return next((error for error in sorted(_KNOWN_ERRORS) if f'"{error}"' in text), None)


class _Kept(OAuthClientProvider):
    """Makes the SDK's requests for a kept login."""

    def __init__(self, record: LoginRecord) -> None:
        metadata = OAuthClientMetadata(redirect_uris=None)
        super().__init__(record.server_url, metadata, MemoryStorage(record.client))
        self.context.client_info = record.client
        self.context.current_tokens = record.tokens
        self.context.oauth_metadata = record.server_metadata
        self.context.protected_resource_metadata = record.resource_metadata
        self.context.protocol_version = "2025-06-18"  # of the token request: it names the resource (RFC 8707)

    async def renewal(self) -> httpx2.Request:
        return await self._refresh_token()
