"""Says which endpoints may be used and how: `ipc` as it is (its folder is its owner's alone), `tcp` only with CURVE
keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import zmq

from cellblock_worker.wire.endpoints import EndpointError, check_tcp
from cellblock_worker.wire.keys import KeyPair

ZAP_DOMAIN: Final = b"cellblock-hosts"

HANDSHAKE_BOUND_MS: Final = 5_000
"""Bounds the time from connecting to the end of the CURVE handshake (three packets each way); who takes longer is cut
off."""

RECONNECT_FIRST_MS: Final = 200
RECONNECT_MAX_MS: Final = 5_000
CONNECT_BOUND_MS: Final = 5_000

Socket = zmq.Socket[bytes]


@dataclass(frozen=True, slots=True)
class DialKeys:
    """Holds what a host needs to reach a broker: its own pair, and the broker's public key."""

    own: KeyPair
    server: bytes


def prepare_dialler(socket: Socket, endpoint: str, keys: DialKeys | None) -> None:
    """Sets what a socket needs before it connects.

    Raises:
        EndpointError: A network endpoint without keys, or keys for one that is none.
    """
    if keys is None:
        if not endpoint.startswith(("ipc://", "inproc://")):
            raise EndpointError(f"{endpoint} is used only with keys: give --key and --server-key")
        return
    check_tcp(endpoint)
    socket.setsockopt(zmq.CURVE_SERVERKEY, keys.server)
    socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.own.public_bytes)
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.own.secret)
    socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_FIRST_MS)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
    socket.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_BOUND_MS)
    _bound(socket, endpoint)


def prepare_listener(socket: Socket, endpoint: str, own: KeyPair) -> None:
    """Sets what a socket needs before it binds. Raises EndpointError."""
    check_tcp(endpoint)
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, own.secret)
    socket.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
    # Without it, a missing or failing authenticator would let in whoever knows the broker's public key.
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    _bound(socket, endpoint)


def _bound(socket: Socket, endpoint: str) -> None:
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_BOUND_MS)
    if "[" in endpoint:
        socket.setsockopt(zmq.IPV6, 1)
