"""Checkups_daemon looks, for `cellblock doctor`, at where a daemon is, or is to be: address, certificate, token."""

from __future__ import annotations

import contextlib
import datetime
import errno
import http.client
import ssl
from pathlib import Path
from typing import Final

from cellblock.base.errors import ConfigError
from cellblock.frontend.http.certificate import check_certificate, validity
from cellblock.frontend.http.token import FILE_NAME, read_token

PROBE_SECONDS: Final = 2.0
"""Bounds the time in which a daemon on this machine says that it lives."""

NOBODY: Final = (errno.ECONNREFUSED, errno.EADDRNOTAVAIL, errno.ENETUNREACH, errno.EHOSTUNREACH)
"""Names the errors of connecting where nothing listens."""

RENEW_DAYS: Final = 14
"""Counts the days before its end in which a certificate should be renewed."""


def daemon_state(address: str) -> tuple[str, str | None]:
    """Returns what is at the daemon's address, and a warning when that is another program, or of its certificate.

    Args:
        address: `HOST:PORT` on this machine.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    plain = _probe(http.client.HTTPConnection(host, int(port), timeout=PROBE_SECONDS))
    if plain is None:
        return f"none at {address}", None
    if plain:
        return f"one serves at {address}, {plain}", None
    # Only asked whether it lives: nothing is sent, and nothing that comes is believed.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    over_tls = _probe(http.client.HTTPSConnection(host, int(port), timeout=PROBE_SECONDS, context=context))
    if over_tls:
        return f"one serves at {address} over TLS, {over_tls}", _served_certificate(host, int(port), address)
    return (
        f"none: another program has {address}",
        f"{address} is taken by another program. Serve at another port: cellblock serve --http 127.0.0.1:PORT.",
    )


def _probe(connection: http.client.HTTPConnection) -> str | None:
    """Says whether a daemon is ready; empty when it is none, None when nothing listens."""
    with contextlib.closing(connection):
        try:
            connection.request("GET", "/livez")
            answer = connection.getresponse()
            lives = answer.status == 200
            answer.read(64)
            connection.request("GET", "/readyz")
            ready = connection.getresponse().status == 200
        except (OSError, http.client.HTTPException) as error:
            return None if getattr(error, "errno", None) in NOBODY else ""
    if not lives:
        return ""
    return "ready" if ready else "not ready to run scripts"


def _served_certificate(host: str, port: int, address: str) -> str | None:
    try:
        pem = ssl.get_server_certificate((host, port), timeout=PROBE_SECONDS)
        _, end = validity(pem.encode())
    except (OSError, ValueError):
        return None
    return _renewal(end, f"The certificate of the daemon at {address}", "and restart the daemon")


def certificate_state(cert: Path | None, key: Path | None) -> tuple[str | None, str | None]:
    """Returns what keeps a daemon from serving with a certificate, and a warning about one that ends soon.

    Args:
        cert: As given by `--tls-cert`.
        key: As given by `--tls-key`.
    """
    if cert is None and key is None:
        return None, None
    if cert is None or key is None:
        return "--tls-cert and --tls-key belong together. Give both.", None
    try:
        end = check_certificate(cert, key)
    except ConfigError as error:
        return str(error), None
    return None, _renewal(end, f"The certificate {cert}", "before that")


def _renewal(end: datetime.datetime, what: str, how: str) -> str | None:
    left = end - datetime.datetime.now(datetime.UTC)
    if left > datetime.timedelta(days=RENEW_DAYS):
        return None
    ends = "expired" if left <= datetime.timedelta() else "expires"
    return f"{what} {ends} at {end:%Y-%m-%d %H:%M} UTC. Renew it, {how}."


def token_trouble(state_dir: Path) -> str | None:
    """Returns what is wrong with the token file, and what to do; None when there is none or all is well."""
    file = state_dir / FILE_NAME
    try:
        if file.exists():
            read_token(file)
    except ConfigError as error:
        return str(error)
    return None
