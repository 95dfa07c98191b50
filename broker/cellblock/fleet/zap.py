"""Decides which public keys may connect: ZeroMQ's authentication protocol (RFC 27, ZAP 1.0).

Own rather than `zmq.auth`, whose asyncio authenticator ends for good at the first malformed request, and does not say
whom it refused; both ends of this socket are in one process.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import zmq

from cellblock_worker.wire.keys import ZAP_DOMAIN
from cellblock_worker.wire.loop_socket import LoopSocket

logger = logging.getLogger("cellblock.transport")

ENDPOINT = "inproc://zeromq.zap.01"
VERSION = b"1.0"
REQUEST_CAP_BYTES = 4096
SHOWN_CHARS = 100


class KeyGuard:
    """Owns the socket that libzmq asks; answers for every CURVE socket of the context. Bound at construction.

    Args:
        context: A context for nothing but the sockets that this guards.
        allowed: Names by public key, 64 hexadecimal digits.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], allowed: Mapping[str, str]) -> None:
        self._allowed = dict(allowed)
        self._socket = LoopSocket(
            context.socket(zmq.REP), max_message_bytes=REQUEST_CAP_BYTES, on_message=self._on_request
        )
        self._socket.bind(ENDPOINT)

    def close(self) -> None:
        """Closes the socket; from now on nobody is let in."""
        self._socket.close()

    def _on_request(self, parts: list[bytes]) -> None:
        name = self._decide(parts)
        request_id = parts[1] if len(parts) > 1 else b""
        verdict = (b"400", b"refused", b"") if name is None else (b"200", b"", name.encode())
        self._socket.send((VERSION, request_id, *verdict, b""))

    def _decide(self, parts: list[bytes]) -> str | None:
        if len(parts) != 7 or parts[0] != VERSION:
            logger.error("refused a connection: ZeroMQ asked in an unknown way")
            return None
        _, _, domain, address, _, mechanism, key = parts
        who = address.decode("utf-8", "replace")[:SHOWN_CHARS]
        if domain != ZAP_DOMAIN or mechanism != b"CURVE":
            logger.error("refused a connection from %s: it did not use CURVE", who)
            return None
        name = self._allowed.get(key.hex())
        if name is None:
            logger.error(
                "refused a worker host from %s: its key %s is not in cellblock.hosts.allowed_keys",
                who,
                key.hex(),
            )
            return None
        logger.info("let in worker host %s from %s", name, who)
        return name
