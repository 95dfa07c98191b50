"""Authority finds the authorization server of a server that has refused a request, and gets a client there: with the
SDK's parts, and each request within the bounds of `send`."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

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
    ProtectedResourceMetadata,
)
from mcp.shared.auth_utils import check_resource_allowed, resource_url_from_server_url
from pydantic import AnyHttpUrl

from cellblock.base.settings.server import ServerAuthSettings
from cellblock.tools.upstream.auth.errors import Refused
from cellblock.tools.upstream.auth.exchange import (
    check_endpoints,
    error_code,
    is_safe,
    refusal,
    send,
    shown_line,
    words_of,
)
from cellblock.tools.upstream.auth.record import LoginRecord


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
