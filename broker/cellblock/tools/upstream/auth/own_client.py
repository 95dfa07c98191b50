"""Own_client is the SDK's provider for a client that logs in by itself: with its secret, or with a JWT that it signs
(RFC 7523)."""

from __future__ import annotations

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)

from cellblock.base.settings.auth import ServerAuthSettings
from cellblock.tools.upstream.auth.errors import LoginError
from cellblock.tools.upstream.auth.exchange import CheckedProvider, MemoryStorage


class _WithSecret(CheckedProvider, ClientCredentialsOAuthProvider):
    pass


class _WithKey(CheckedProvider, PrivateKeyJWTOAuthProvider):
    pass


def own_provider(
    url: str, storage: MemoryStorage, client: ServerAuthSettings, secret: str, hint: str
) -> CheckedProvider:
    """Makes the provider of a server's own client.

    Args:
        url: The server's.
        storage: Gets the tokens.
        client: Its section of the configuration.
        secret: The client's secret, or its private key (PEM).
        hint: What to do about a key that cannot be used.

    Raises:
        LoginError: The section names no client. With a key that cannot sign, the provider's flow raises it.
    """
    if client.client_id is None or client.issuer is None:
        raise LoginError("the configuration holds no client credentials", hint=hint)
    if client.client_auth_method != "private_key_jwt":
        method = client.client_auth_method
        return _WithSecret(url, storage, client.client_id, secret, method, issuer=client.issuer)
    signed = SignedJWTParameters(
        issuer=client.client_id,
        subject=client.client_id,
        signing_key=secret,
        signing_algorithm=_algorithm_of(secret, hint),
    )
    assertion = signed.create_assertion_provider()
    return _WithKey(url, storage, client.client_id, assertion, issuer=client.issuer)


def _algorithm_of(key: str, hint: str) -> str:
    """Returns what a private key signs with (RFC 7518, section 3.1; RFC 8037). Raises LoginError: It cannot sign."""
    try:
        match load_pem_private_key(key.encode(), None):
            case RSAPrivateKey():
                return "RS256"
            case EllipticCurvePrivateKey(curve=curve):
                return {256: "ES256", 384: "ES384", 521: "ES512"}[curve.key_size]
            case Ed25519PrivateKey():
                return "EdDSA"
            case _:
                raise ValueError
    except (ValueError, TypeError, KeyError, UnsupportedAlgorithm):
        # Without the library's words, which may quote the key.
        raise LoginError("the client's private key cannot sign", hint=hint) from None
