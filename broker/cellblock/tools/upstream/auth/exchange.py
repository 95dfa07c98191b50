"""Exchanges with an authorization server: the SDK makes the requests, this sends them within bounds.

The SDK's own flow runs inside the request that was refused, with a lock held until the answer's headers are there:
calls of one server would wait for each other, and a call that is cancelled would lose a rotated token. So only its
parts are used, from tasks of their own.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final, Protocol
from urllib.parse import parse_qs, unquote, urlsplit

import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError, OAuthRegistrationError, OAuthTokenError
from mcp.client.auth.oauth2 import OAuthContext
from mcp.client.auth.utils import issuers_match
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthMetadata, OAuthToken
from pydantic import ValidationError

from cellblock.base.json import is_array, is_object
from cellblock.base.loopback import is_loopback, is_nearer
from cellblock.base.redaction import REDACTED, safe_text
from cellblock.base.visible import visible
from cellblock.tools.upstream.auth.errors import LoginEnded, LoginError, Refused
from cellblock.tools.upstream.auth.record import LoginRecord
from cellblock.tools.upstream.http_requests import ACCEPTED, tls_context, unpacked

TOKEN_SECONDS: Final = 30.0
"""Bounds an exchange with an authorization server."""

MAX_ANSWER_BYTES: Final = 256 * 1024
"""Bounds an answer of an authorization server."""

MAX_TOLD_CHARS: Final = 300
"""Bounds the words of an authorization server that are told."""

_SENT_SECRETS: Final = (
    "assertion client_secret client_assertion code code_verifier refresh_token subject_token token"
)
"""Names the fields of a request that an answer to it must not be quoted with."""

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
    return httpx2.AsyncClient(headers=ACCEPTED, timeout=bound, verify=tls_context())


async def refuse_nearer(url: str, server: str) -> None:
    """Raises LoginError: A server has named an address that only this machine, or its network, can reach."""
    host = urlsplit(url).hostname or ""
    if await is_nearer(host, urlsplit(server).hostname or ""):
        raise LoginError(
            f"The server leads to a private address: {shown_line(host)}.", hint="Do not log in there."
        )


async def check_endpoints(metadata: OAuthMetadata, server: str) -> None:
    """Raises LoginError: A browser or a code would be sent in the clear, or to a nearer address than the server's."""
    for url in map(str, (metadata.authorization_endpoint, metadata.token_endpoint)):
        if not is_safe(url):
            raise Refused(
                f"The authorization server's endpoint {shown_line(url)} is neither https nor on this machine",
                hint="Do not log in there.",
            )
        await refuse_nearer(url, server)


async def send(
    http: httpx2.AsyncClient, request: httpx2.Request, bound: float, server: str
) -> httpx2.Response:
    """Sends a request that a server's words have led to, and returns the whole answer.

    Raises:
        LoginError: No answer within `bound` seconds, or one that is too large; or it leads to a private address.
    """
    where = urlsplit(str(request.url)).netloc.rpartition("@")[2]
    # A client's own headers are not put into a finished request; GitHub answers with a form to who wants no JSON.
    for name, value in (*ACCEPTED.items(), ("accept", "application/json")):
        request.headers.setdefault(name, value)
    try:
        async with asyncio.timeout(bound):
            await refuse_nearer(str(request.url), server)
            response = await http.send(request, stream=True)
            try:
                # Decoded by hand, so that a small compressed answer cannot become a large one unseen.
                body = b""
                async for chunk in unpacked(response):
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
            f"{where} cannot be reached{reason_of(error)}.", hint="Try again when it can be."
        ) from None
    headers = [
        (name, value)
        for name, value in response.headers.multi_items()
        if name.lower() not in ("content-encoding", "content-length", "transfer-encoding")
    ]
    return httpx2.Response(response.status_code, headers=headers, content=_mended(body), request=request)


def _mended(body: bytes) -> bytes:
    """Gives an answer with a token as the standard has it: some servers send a fraction of seconds, or scopes as a list
    or with commas."""
    answer = object_in(body)
    if "access_token" not in answer:
        return body
    try:
        answer["expires_in"] = int(float(answer["expires_in"]))
    except (KeyError, TypeError, ValueError, OverflowError):
        answer["expires_in"] = None
    scope = answer.get("scope")
    if is_array(scope):
        answer["scope"] = " ".join(map(str, scope))
    elif isinstance(scope, str) and " " not in scope:
        answer["scope"] = scope.replace(",", " ")
    return json.dumps(answer).encode()


class Driven(Protocol):
    """Is a provider of the SDK's whose flow `drive` runs."""

    @property
    def led_by(self) -> str:
        """Gives the URL of whoever names the places that it asks."""
        ...

    def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]: ...

    def begun(self) -> LoginRecord:
        """Gives the login that comes of its flow, without tokens."""
        ...

    def heard(self, answer: httpx2.Response) -> None:
        """Hears each answer before the flow goes on. Raises LoginError: It is not to."""

    def respell(self, answer: httpx2.Response) -> bool:
        """Says whether to try again, after an answer that the SDK refuses."""
        return False


class CheckedProvider(OAuthClientProvider, Driven):
    """Refuses endpoints that would take codes and tokens over plain HTTP to another machine (OAuth 2.1, section
    1.5), and takes an issuer with or without the slash that ends a root URL."""

    spelled: str | None = None
    """Holds the issuer as its own metadata spells it, where the protected resource's metadata has it otherwise."""

    @property
    def led_by(self) -> str:
        """Gives the server's URL."""
        return self.context.server_url

    def begun(self) -> LoginRecord:
        context = self.context
        assert context.client_info is not None
        return LoginRecord(
            server_url=context.server_url,
            client=context.client_info,
            resource_metadata=context.protected_resource_metadata,
            server_metadata=context.oauth_metadata,
        )

    def respell(self, answer: httpx2.Response) -> bool:
        """Notes how metadata spells its issuer; False where that is no reason to try again."""
        issuer = object_in(answer.content).get("issuer")
        advertised = self.context.auth_server_url
        if self.spelled is not None or not isinstance(issuer, str) or advertised is None:
            return False
        self.spelled = issuer
        return issuer != advertised and issuers_match(issuer, advertised)

    def _select_authorization_server(self, advertised: list[str]) -> str:
        return self.spelled or super()._select_authorization_server(advertised)

    async def _perform_authorization(self) -> httpx2.Request:
        if self.context.oauth_metadata is not None:
            await check_endpoints(self.context.oauth_metadata, self.context.server_url)
        return await super()._perform_authorization()


async def drive(provider: Driven, refused: httpx2.Response, bound: float) -> None:
    """Runs the SDK's flow for a request that was refused, up to where the SDK would send it again.

    Args:
        provider: Has the tokens afterwards.
        refused: The answer to the request, with the challenge in `WWW-Authenticate`; its request is not sent.
        bound: For each exchange, in seconds.

    Raises:
        Refused: As the server says, or the SDK.
        LoginError: No answer.
    """
    response = refused
    flow = provider.async_auth_flow(refused.request)
    try:
        async with http_client(bound) as http:
            await anext(flow)
            while (outgoing := await flow.asend(response)) is not refused.request:
                response = await send(http, outgoing, bound, provider.led_by)
                provider.heard(response)
    except OAuthFlowError as error:
        if not provider.respell(response):
            raise _refused(error, response) from None
    else:
        return
    finally:
        await flow.aclose()
    await drive(provider, refused, bound)


def _refused(error: OAuthFlowError, response: httpx2.Response) -> Refused:
    said = str(error)
    if isinstance(error, OAuthRegistrationError):
        said = "it does not register clients by itself; a client_id is needed"
        if error_code(response) is not None:
            said = f"{said} ({words_of(response)})"
    elif isinstance(error, OAuthTokenError):
        is_granted = response.status_code < 400 and error_code(response) is None
        said = "its answer holds no token" if is_granted else words_of(response)
    found = Refused(shown_line(said), hint="Check the server's login settings.")
    found.code = error_code(response)
    return found


def is_safe(url: str) -> bool:
    """Says whether a URL is https, or on this machine."""
    parts = urlsplit(url)
    return parts.scheme == "https" or is_loopback(parts.hostname)


async def ask(
    record: LoginRecord,
    form: dict[str, str],
    bound: float = TOKEN_SECONDS,
    *,
    names_resource: bool = False,
    url: str | None = None,
) -> httpx2.Response:
    """Sends a form to the token endpoint, or another, as the client of a login. Raises LoginError: No answer."""
    context = OAuthContext(
        record.server_url, OAuthClientMetadata(redirect_uris=None), MemoryStorage(), None, None
    )
    context.client_info, context.protected_resource_metadata = record.client, record.resource_metadata
    data = {**form, "client_id": record.client.client_id}
    if names_resource:
        # RFC 8707.
        data["resource"] = context.get_resource_url()
    data, headers = context.prepare_token_auth(data, {})
    request = httpx2.Request("POST", url or record.token_endpoint, data=data, headers=headers)
    async with http_client(bound) as http:
        return await send(http, request, bound, record.server_url)


async def exchange(
    record: LoginRecord, code: str, verifier: str, redirect_uri: str, *, names_resource: bool = True
) -> httpx2.Response:
    """Sends a code for tokens (RFC 6749, section 4.1.3), to whom the record says. Raises LoginError: No answer."""
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": redirect_uri,
        "code_verifier": verifier,
    }
    return await ask(record, form, names_resource=names_resource)


def tokens_in(response: httpx2.Response) -> OAuthToken:
    """Returns the tokens that an answer holds. Raises Refused."""
    with contextlib.suppress(ValidationError):
        if response.status_code in (200, 201):
            return OAuthToken.model_validate_json(response.content)
    raise _refused(OAuthTokenError(), response)


async def renew(
    record: LoginRecord,
    bound: float,
    said: Callable[[httpx2.Response], OAuthToken] = tokens_in,
    *,
    names_resource: bool = True,
) -> LoginRecord:
    """Renews a login (RFC 6749, section 6), by the tokens that the answer has `said`.

    Raises:
        LoginEnded: It cannot be renewed, now or later.
        LoginError: The authorization server cannot be reached, or fails.
    """
    if record.tokens is None or not record.tokens.refresh_token:
        raise LoginEnded("the login has expired, and there is nothing to renew it with", hint="Log in again.")
    if not is_safe(record.token_endpoint):
        raise LoginEnded("the token endpoint is neither https nor on this machine", hint="Log in again.")
    form = {"grant_type": "refresh_token", "refresh_token": record.tokens.refresh_token}
    response = await ask(record, form, bound, names_resource=names_resource)
    code = error_code(response)
    if code in _OVER:
        ended = LoginEnded(
            f"the authorization server has ended the login ({words_of(response)})", hint="Log in again."
        )
        ended.forgotten = code != "invalid_grant"
        raise ended
    try:
        return record.with_tokens(said(response))
    except Refused as error:
        raise LoginError(
            f"the login could not be renewed ({error.message})", hint="It is tried again."
        ) from None


async def revoke(record: LoginRecord, bound: float) -> bool:
    """Ends a login at the authorization server (RFC 7009); False when it has no place for that.

    Raises:
        LoginError: It cannot be reached, or refuses.
    """
    endpoint = record.server_metadata and record.server_metadata.revocation_endpoint
    if record.tokens is None or endpoint is None or not is_safe(url := str(endpoint)):
        return False
    refresh_token = record.tokens.refresh_token
    form = {
        "token": refresh_token or record.tokens.access_token,
        "token_type_hint": "refresh_token" if refresh_token else "access_token",
    }
    response = await ask(record, form, bound, url=url)
    if response.status_code == 400 and not record.client.client_secret:
        # Servers made with the SDK want the field of a client without a secret, too.
        response = await ask(record, {**form, "client_secret": ""}, bound, url=url)
    if response.status_code != 200:
        raise LoginError(f"The authorization server refused: {words_of(response)}.", hint="Revoke it there.")
    return True


def error_code(response: httpx2.Response) -> str | None:
    """Returns the `error` of an OAuth error answer."""
    error: object = object_in(response.content).get("error")
    return error if isinstance(error, str) and error else None


def words_of(response: httpx2.Response) -> str:
    """Returns what an error answer says, short, and without the secrets that were sent to it."""
    answer = object_in(response.content)
    parts = [answer.get("error"), answer.get("error_description") or answer.get("message")]
    said = ": ".join(part for part in parts if isinstance(part, str) and part)
    for secret in _secrets_in(response.request):
        said = said.replace(secret, REDACTED)
    return shown_line(safe_text(said)) or f"HTTP {response.status_code}"


def reason_of(error: BaseException) -> str:
    """Returns why a server cannot be reached, for the end of a sentence; empty where that is not known."""
    said = shown_line(str(error))
    return f": {said}" if said else ""


def shown_line(text: str) -> str:
    """Makes a line of a server's words that is fit for a terminal: short, and nothing in it that is invisible."""
    line = visible(text[:MAX_TOLD_CHARS], instead=" ")
    return line.strip().rstrip(".")


def object_in(body: bytes) -> dict[str, Any]:
    try:
        found: object = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if is_object(found) else {}


def _secrets_in(request: httpx2.Request) -> list[str]:
    form = parse_qs(request.content.decode("latin-1"))
    found = [value for name in _SENT_SECRETS.split() for value in form.get(name, ())]
    scheme, _, credentials = request.headers.get("Authorization", "").partition(" ")
    if scheme == "Basic":
        found.append(unquote(base64.b64decode(credentials).decode("latin-1").partition(":")[2]))
    return [secret for secret in found if secret]
