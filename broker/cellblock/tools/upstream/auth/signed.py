"""Signed is how a client shows that it has a private key: a JWT that it signs (RFC 7523, section 2.2)."""

from __future__ import annotations

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from mcp.client.auth.extensions.client_credentials import SignedJWTParameters

from cellblock.tools.upstream.auth.errors import LoginError


async def assertion(client_id: str, key: str, issuer: str, hint: str) -> str:
    """Returns the assertion of a client with a private key (PEM) for an issuer. Raises LoginError: It cannot sign."""
    signing = SignedJWTParameters(
        issuer=client_id, subject=client_id, signing_key=key, signing_algorithm=_algorithm_of(key, hint)
    )
    return await signing.create_assertion_provider()(issuer)


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
