"""Exchanges with an authorization server: requests of the SDK's parts are sent within bounds, and answers are read.

The SDK's own flow runs inside the request that was refused, with a lock held until the answer's headers are there:
calls of one server would wait for each other, and a call that is cancelled would lose a rotated token. So only its
parts are used, from tasks of their own.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

import httpx2
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import BaseModel, ValidationError

from cellblock.base.json import is_array, is_object
from cellblock.base.loopback import is_loopback, is_nearer
from cellblock.base.redaction import REDACTED, safe_text
from cellblock.base.visible import visible
from cellblock.tools.upstream.auth.errors import LoginError, Refused
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


async def send(request: httpx2.Request, server: str) -> httpx2.Response:
    """Sends a request that a server's words have led to, and returns the whole answer; redirects are not followed.

    Raises:
        LoginError: No answer within `TOKEN_SECONDS`, or one that is too large; or it leads to a private address, or
            anywhere in the clear.
    """
    where = urlsplit(str(request.url)).netloc.rpartition("@")[2]
    if not is_safe(str(request.url)):
        raise LoginError(f"{shown_line(where)} is reached without TLS.", hint="Do not log in there.")
    # A client's own headers are not put into a finished request; GitHub answers with a form to who wants no JSON.
    for name, value in (*ACCEPTED.items(), ("accept", "application/json")):
        request.headers.setdefault(name, value)
    client = httpx2.AsyncClient(timeout=TOKEN_SECONDS, verify=tls_context())
    try:
        async with asyncio.timeout(TOKEN_SECONDS), client:
            await refuse_nearer(str(request.url), server)
            response = await client.send(request, stream=True)
            # Decoded by hand, so that a small compressed answer cannot become a large one unseen.
            body = b""
            async for chunk in unpacked(response):
                body += chunk
                if len(body) > MAX_ANSWER_BYTES:
                    raise LoginError(
                        f"The answer of {where} is too large.", hint="Check the authorization server."
                    )
    except TimeoutError:
        raise LoginError(
            f"The authorization server has not answered within {TOKEN_SECONDS:g} s.", hint="Try again later."
        ) from None
    except httpx2.HTTPError as error:
        raise LoginError(
            f"{where} cannot be reached{reason_of(error)}.", hint="Try again when it can be."
        ) from None
    return httpx2.Response(response.status_code, content=_mended(body), request=request)


_ANSWERS: Final[Mapping[str, type[BaseModel]]] = {
    "access_token": OAuthToken,
    "client_id": OAuthClientInformationFull,
    "issuer": OAuthMetadata,
    "resource": ProtectedResourceMetadata,
}
"""Maps a member to what an answer is that has it."""


def _mended(body: bytes) -> bytes:
    """Gives an answer as the standard has it: some servers send a fraction of seconds, or scopes as a list or with
    commas; what else is odd or null is left out alone."""
    answer = {name: value for name, value in object_in(body).items() if value is not None}
    model = next((model for name, model in _ANSWERS.items() if name in answer), None)
    if model is None:
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
    try:
        model.model_validate(answer)
    except ValidationError as error:
        # A token of another type is none of ours.
        odd = {str(one["loc"][0]) for one in error.errors() if one["loc"]} - {"access_token", "token_type"}
        answer = {name: value for name, value in answer.items() if name not in odd}
    return json.dumps(answer).encode()


def is_safe(url: str) -> bool:
    """Says whether a URL is https, or on this machine."""
    parts = urlsplit(url)
    return parts.scheme == "https" or is_loopback(parts.hostname)


async def ask(
    record: LoginRecord, form: dict[str, str], *, names_resource: bool = False, url: str | None = None
) -> httpx2.Response:
    """Sends a form to the token endpoint, or another, as the client of a login. Raises LoginError: No answer."""
    data = {**form, "client_id": record.client.client_id}
    if names_resource:
        # RFC 8707.
        data["resource"] = record.context.get_resource_url()
    data, headers = record.context.prepare_token_auth(data, {})
    return await send(
        httpx2.Request("POST", url or record.token_endpoint, data=data, headers=headers), record.server_url
    )


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
    is_granted = response.status_code < 400 and error_code(response) is None
    raise refusal(response, "its answer holds no token" if is_granted else words_of(response))


def refusal(response: httpx2.Response, said: str) -> Refused:
    """Makes of an answer what it comes to."""
    found = Refused(shown_line(said), hint="Check the server's login settings.")
    found.code = error_code(response)
    return found


async def revoke(record: LoginRecord) -> bool:
    """Ends a login at the authorization server (RFC 7009); False when it has no place for that.

    Raises:
        LoginError: It cannot be reached, or refuses.
    """
    endpoint = record.server_metadata and record.server_metadata.revocation_endpoint
    if record.tokens is None or endpoint is None:
        return False
    refresh_token = record.tokens.refresh_token
    form = {
        "token": refresh_token or record.tokens.access_token,
        "token_type_hint": "refresh_token" if refresh_token else "access_token",
    }
    response = await ask(record, form, url=str(endpoint))
    if response.status_code == 400 and not record.client.client_secret:
        # Servers made with the SDK want the field of a client without a secret, too.
        response = await ask(record, {**form, "client_secret": ""}, url=str(endpoint))
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
    """Returns the JSON object that a text is; an empty one where it is none."""
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
