"""Says where the front-end listens, and whether that is safe with what protects it."""

from __future__ import annotations

import datetime
import errno
import hashlib
import ipaddress
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cellblock.base.errors import CellblockError, ConfigError

MCP_PATH: Final = "/mcp"

CONFIG_HEADER: Final = "x-cellblock-config"
"""Names the header by which a daemon says to whoever has its token which configuration it serves, as a mark."""

MAX_PORT: Final = 65535

LOOPBACK_NAMES: Final = ("127.0.0.1", "localhost", "[::1]")


def config_mark(config: str | None) -> str:
    """Returns what stands for a configuration file, or for none."""
    path = "" if config is None else str(Path(config).expanduser().resolve())
    return hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:16]


@dataclass(frozen=True)
class Address:
    """Holds an IP address and a port (0: any free one)."""

    ip: ipaddress.IPv4Address | ipaddress.IPv6Address
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Reads `HOST:PORT`, where HOST is an IP address (IPv6 in brackets) or `localhost`.

        Raises:
            ConfigError: It is something else.
        """
        host, _, port = text.rpartition(":")
        try:
            if not port.isascii() or not port.isdigit():
                raise ValueError
            if ":" in host and not (host.startswith("[") and host.endswith("]")):
                raise ValueError
            ip = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host.strip("[]"))
        except ValueError:
            raise ConfigError(
                f"--http {text}: this is no HOST:PORT with an IP address or localhost.",
                hint="Give for example --http 127.0.0.1:7433.",
            ) from None
        if len(port) > 5 or int(port) > MAX_PORT:
            raise ConfigError(
                f"--http {text}: there is no port {port[:10]}.",
                hint=f"Give one up to {MAX_PORT}; 0 is any free one.",
            )
        return cls(ip, int(port))

    @property
    def host(self) -> str:
        """Gives the IP address as it stands in a URL."""
        return f"[{self.ip}]" if self.ip.version == 6 else str(self.ip)

    def check_safe(self, *, authenticated: bool, encrypted: bool, named: bool) -> None:
        """Refuses to be reachable from other machines without protection.

        Args:
            authenticated: Whether a token is asked for.
            encrypted: Whether there is a TLS certificate.
            named: Whether the configuration says which `Host` headers are right.

        Raises:
            ConfigError: The address is not this machine's loopback, and something is missing.
        """
        if self.ip.is_loopback:
            return
        where = f"--http {self.host}:{self.port} is open to other machines"
        if not authenticated:
            raise ConfigError(
                f"{where}, and --no-auth is for the loopback only.",
                hint="Leave --no-auth out, or use 127.0.0.1.",
            )
        if not encrypted:
            raise ConfigError(
                f"{where} and would send tokens in the clear.",
                hint="Give --tls-cert and --tls-key, or use 127.0.0.1 behind a proxy that has TLS.",
            )
        if self.ip.is_unspecified and not named:
            raise ConfigError(
                f"{where} under names that are not known, so every Host header would be wrong.",
                hint="List the names in cellblock.http.allowed_hosts.",
            )

    def bind(self) -> socket.socket:
        """Returns a bound socket that does not listen yet.

        Raises:
            ConfigError: The address is not of this machine.
            CellblockError: It is taken, or not for this user.
        """
        family = socket.AF_INET6 if self.ip.version == 6 else socket.AF_INET
        # asyncio sets TCP_NODELAY only where the protocol is named; without it, an answer waits 40 ms for an ACK.
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            bound.bind((str(self.ip), self.port))
        except OSError as error:
            bound.close()
            kind = ConfigError if error.errno == errno.EADDRNOTAVAIL else CellblockError
            raise kind(
                f"Cannot listen on {self.host}:{self.port}: {error.strerror or error}.",
                hint="Is another daemon running there? Use it with `cellblock connect`, or take another port.",
            ) from None
        return bound

    def hosts(self, port: int) -> list[str]:
        """Returns the `Host` headers of requests that were meant for this address, on the port that it got."""
        names = [self.host, *(LOOPBACK_NAMES if self.ip.is_loopback else ())]
        # Clients leave out the port that their scheme stands for.
        bare = names if port in (80, 443) else []
        return list(dict.fromkeys([*(f"{name}:{port}" for name in names), *bare]))


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
