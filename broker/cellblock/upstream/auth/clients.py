"""As which OAuth client Cellblock logs in: the one of the configuration, or the one that it registered last."""

from __future__ import annotations

from mcp.shared.auth import OAuthClientInformationFull

from cellblock.config.auth import ServerAuthSettings
from cellblock.upstream.auth.errors import LoginStoreError
from cellblock.upstream.auth.record import LoginRecord
from cellblock.upstream.auth.store import LoginStore


async def kept_record(store: LoginStore) -> LoginRecord | None:
    """The login before, if there is one that can be read."""
    try:
        return await store.load()
    except LoginStoreError:
        return None


def may_ask(client: OAuthClientInformationFull, scopes: list[str]) -> bool:
    """Whether a registration is for all of these scopes, or does not say."""
    return client.scope is None or set(scopes) <= set(client.scope.split())


def kept_client(own: ServerAuthSettings, record: LoginRecord | None) -> OAuthClientInformationFull | None:
    """The client to log in with, if it is known before: that of the configuration, else the one registered last."""
    if own.client_id is not None:
        secret = own.secret()
        return OAuthClientInformationFull(
            client_id=own.client_id,
            client_secret=secret,
            token_endpoint_auth_method=own.client_auth_method if secret else "none",
            issuer=own.issuer,
        )
    if record is None or own.client_metadata_url is not None:
        return None
    # A registration that was just refused is no use; one whose tokens were revoked is.
    return record.client if record.client.redirect_uris else None


def port_of(client: OAuthClientInformationFull) -> int | None:
    """Of the redirect that was registered."""
    return client.redirect_uris[0].port if client.redirect_uris else None
