"""Looks at the certificate of `serve --http`: whether it can be used, and until when."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

from cellblock.base.errors import ConfigError


def check_certificate(cert: Path, key: Path) -> datetime.datetime:
    """Loads a certificate and its key, as the server will.

    Args:
        cert: PEM certificate chain, the server's own first.
        key: Its private key, PEM.

    Returns:
        When the server's own certificate ends, in UTC.

    Raises:
        ConfigError: They cannot be used, do not belong together, or no client accepts them today.
    """
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(cert, key, password=_no_password)
    except (OSError, ValueError) as error:
        if "KEY_VALUES_MISMATCH" in str(error):
            why, hint = (
                "they do not belong together",
                "Give the private key that the certificate was made for.",
            )
        else:
            why, hint = str(error), "Give a PEM certificate chain, and its private key without a password."
        raise ConfigError(
            f"The certificate {cert} with the key {key} cannot be used: {why}.", hint=hint
        ) from None
    begin, end = validity(cert.read_bytes())
    now = datetime.datetime.now(datetime.UTC)
    if end <= now:
        raise ConfigError(
            f"The certificate {cert} expired at {end:%Y-%m-%d %H:%M} UTC: clients refuse it.",
            hint="Renew it, and start again.",
        )
    if begin > now:
        raise ConfigError(
            f"The certificate {cert} is good from {begin:%Y-%m-%d %H:%M} UTC only: clients refuse it.",
            hint="Set this machine's clock, or take another certificate.",
        )
    return end


def validity(pem: bytes) -> tuple[datetime.datetime, datetime.datetime]:
    """Says from when to when the first certificate of a PEM text is good, in UTC. Raises ValueError when it is none."""
    # Half of what a short command takes to start; only where there is TLS.
    from cryptography import x509

    first = x509.load_pem_x509_certificate(pem)
    return first.not_valid_before_utc, first.not_valid_after_utc


def _no_password() -> str:
    raise ValueError("the key is encrypted, and nobody is there to give the password")
