"""Authority is all that is said to an authorization server: where it is, the client that it gets, and the forms that it
takes. The SDK's parts make the requests and read the answers, and each is sent within the bounds of `send`.

The SDK's own flow runs inside the request that was refused, with a lock held until the answer's headers are there:
calls of one server would wait for each other, and a call that is cancelled would lose a rotated token. So only its
parts are used, from tasks of their own.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

import httpx2
from mcp.client.auth import OAuthRegistrationError
from mcp.client.auth.oauth2 import check_registration_usable
from mcp.client.auth.utils import (
    build_oauth_authorization_server_metadata_discovery_urls,
    build_protected_resource_metadata_discovery_urls,
    create_client_registration_request,
    create_oauth_metadata_request,
    credentials_match_issuer,
    extract_resource_metadata_from_www_auth,
    extract_scope_from_www_auth,
    get_client_metadata_scopes,
    handle_auth_metadata_response,
    handle_protected_resource_response,
    handle_registration_response,
    issuers_match,
    union_scopes,
)
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from mcp.shared.auth_utils import check_resource_allowed, resource_url_from_server_url
from pydantic import AnyHttpUrl, BaseModel, ValidationError

from cellblock.base.json import is_array, is_object
from cellblock.base.loopback import is_loopback, is_nearer
from cellblock.base.redaction import REDACTED, safe_text
from cellblock.base.settings.server import ServerAuthSettings
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


# ---- where it is, and the client ------------------------------------------------------------------


def client_of(own: ServerAuthSettings, secret: str | None) -> OAuthClientInformationFull:
    """Returns the client of the configuration. A key signs, and is shown to nobody."""
    method = own.client_auth_method if secret else "none"
    return OAuthClientInformationFull(
        client_id=own.client_id or "",
        client_secret=None if method == "private_key_jwt" else secret,
        token_endpoint_auth_method=method,
        issuer=own.issuer,
    )


async def authority_of(
    url: str,
    refused: httpx2.Response,
    asks: OAuthClientMetadata,
    client: OAuthClientInformationFull | None,
    issuer: str | None,
    scopes: Sequence[str],
) -> tuple[LoginRecord, str | None]:
    """Returns a login to a server without tokens yet, and the scopes to ask for.

    Args:
        url: The server's.
        refused: Its refusal, with the challenge in `WWW-Authenticate`.
        asks: What is registered where no client is known.
        client: The client that is known.
        issuer: The authorization server of the configuration; None: any.
        scopes: Asked for beside those of the challenge.

    Raises:
        LoginError: There is none, it is another one, or it would not be safe.
    """
    resource = await _resource_of(url, refused)
    advertised = [str(one) for one in resource.authorization_servers] if resource is not None else []
    wanted = [one for one in advertised if issuer is not None and issuers_match(one, issuer)]
    named = next(iter(wanted or advertised), None)
    metadata = await metadata_of(named, url)
    if issuer is not None and (metadata is None or not issuers_match(str(metadata.issuer), issuer)):
        raise Refused(
            f"the server leads to another authorization server than {issuer}",
            hint="Correct its issuer in cellblock.auth.servers, or do not log in.",
        )
    asked = union_scopes(extract_scope_from_www_auth(refused), " ".join(scopes)) or None
    scope = get_client_metadata_scopes(asked, resource, metadata, asks.grant_types)
    if client is None or not credentials_match_issuer(client, named or origin_of(url), None):
        client = await _registered(asks.model_copy(update={"scope": scope}), metadata, url)
    login = LoginRecord(server_url=url, client=client, resource_metadata=resource, server_metadata=metadata)
    return login, scope


async def metadata_of(issuer: str | None, led_by: str) -> OAuthMetadata | None:
    """Returns the metadata of an issuer, or of the server itself (protocol of 2025-03-26), None where that has none.

    Raises:
        LoginError: The issuer has none, they are another issuer's, or lead where it would not be safe.
    """
    expected = issuer or origin_of(led_by)
    for place in build_oauth_authorization_server_metadata_discovery_urls(issuer, led_by):
        answer = await send(create_oauth_metadata_request(place), led_by)
        goes_on, metadata = await handle_auth_metadata_response(answer)
        if not goes_on:
            break
        if metadata is not None:
            if not issuers_match(str(metadata.issuer), expected):
                raise Refused(
                    f"issuer mismatch: the metadata of {shown_line(expected)} are another issuer's",
                    hint="Check the issuer.",
                )
            await check_endpoints(metadata, led_by)
            return metadata
    if issuer is not None:
        raise Refused(f"{shown_line(issuer)} has no metadata", hint="Check the issuer.")
    return None


async def _resource_of(url: str, refused: httpx2.Response) -> ProtectedResourceMetadata | None:
    failed = False
    named = extract_resource_metadata_from_www_auth(refused)
    # Behind a proxy, servers may name their own place without TLS.
    for place in filter(is_safe, build_protected_resource_metadata_discovery_urls(named, url)):
        answer = await send(create_oauth_metadata_request(place), url)
        if (found := await handle_protected_resource_response(answer)) is not None:
            own, said = resource_url_from_server_url(url), str(found.resource)
            if not check_resource_allowed(requested_resource=own, configured_resource=said):
                raise Refused(f"its metadata are of {shown_line(said)}", hint="Do not log in there.")
            return found
        failed |= answer.status_code == 429 or answer.status_code >= 500
    if failed:
        # It says nothing about whether there is any.
        raise Refused("its metadata cannot be had", hint="Try again later.")
    return None


async def _registered(
    asks: OAuthClientMetadata, metadata: OAuthMetadata | None, url: str
) -> OAuthClientInformationFull:
    base = origin_of(url)
    answer = await send(create_client_registration_request(metadata, asks, base), url)
    try:
        client = await handle_registration_response(answer)
        check_registration_usable(client)
    except OAuthRegistrationError:
        why = f" ({words_of(answer)})" if error_code(answer) is not None else ""
        said = f"it does not register clients by itself; a client_id is needed (auth.servers.NAME.client_id){why}"
        raise refusal(answer, said) from None
    # Bound to whom it was registered with (SEP-2352).
    if metadata is not None and (
        metadata.registration_endpoint is not None or issuers_match(str(metadata.issuer), base)
    ):
        client.issuer = str(metadata.issuer)
    return client


def origin_of(url: str) -> str:
    """Returns the origin of a URL, as browsers write it."""
    parts = urlsplit(url)
    return str(AnyHttpUrl(f"{parts.scheme}://{parts.netloc}")).rstrip("/")


# ---- requests and answers -------------------------------------------------------------------------


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
