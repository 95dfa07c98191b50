"""CURVE (ZeroMQ RFC 26) needs key pairs, each in a file of its owner alone, and sockets that are set to use them.

An `ipc` endpoint is used as it is, since its folder is its owner's alone, a `tcp` one only with CURVE. Public keys are
64 hexadecimal digits: shells, unit files, JSON and TOML all leave those as they are, where ZeroMQ's own Z85 needs fewer
characters.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import zmq
from zmq.utils import z85

from cellblock_worker.base.folders import Folder
from cellblock_worker.base.private_files import NotAFile, OpenToOthers, TooLarge, read_named, write_private
from cellblock_worker.wire.endpoints import EndpointError, check_tcp

ZAP_DOMAIN: Final = b"cellblock-hosts"

HANDSHAKE_BOUND_MS: Final = 5_000
"""Bounds the time from connecting to the end of the CURVE handshake (three packets each way); who takes longer is cut
off."""

RECONNECT_FIRST_MS: Final = 200
RECONNECT_MAX_MS: Final = 5_000
CONNECT_BOUND_MS: Final = 5_000

Socket = zmq.Socket[bytes]

FILE_CAP_BYTES: Final = 4096
"""Bounds what is read of a key file, which has about 200 bytes: a wrong path must not be read whole."""

_KEY: Final = re.compile(r"[0-9a-f]{64}")
_SECRET_LINE: Final = re.compile(r"^curve-secret-key ([0-9a-f]{64})$", re.MULTILINE)


class KeyFileError(ValueError):
    """Tells that a key or its file cannot be used; the text says which and why, and holds no part of a secret."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A key pair is one side's; `public` may be shown."""

    public: str
    secret: bytes = field(repr=False)

    @property
    def public_bytes(self) -> bytes:
        """Returns the public key as ZeroMQ takes it."""
        return bytes.fromhex(self.public)


def parse_public_key(text: str) -> bytes:
    """Returns the 32 bytes of a public key. Raises KeyFileError."""
    if _KEY.fullmatch(text) is None:
        raise KeyFileError("a public key is 64 digits 0-9 a-f, as `cellblock keygen FILE` prints it")
    return bytes.fromhex(text)


def make_pair() -> KeyPair:
    """Makes a new pair, which is nowhere but in memory."""
    _, secret_z85 = zmq.curve_keypair()
    return pair_of(z85.decode(secret_z85))


def make_key_file(path: Path) -> KeyPair:
    """Makes a new pair and its file, mode 0600. Raises KeyFileError; a file that exists is left alone."""
    pair = make_pair()
    try:
        with Folder.named(path.parent) as folder:
            text = f"# A Cellblock key pair: keep this file secret. Its public key is\n# {pair.public}\n".encode()
            if not write_private(folder, path.name, text + line_of(pair), replace=False):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    except OSError as error:
        raise KeyFileError(f"the key file {path} cannot be made: {error.strerror}") from None
    return pair


def read_key_file(path: Path) -> KeyPair:
    """Reads a pair, from a file that nobody but this user (or root) can have read or written.

    Raises:
        KeyFileError: It cannot be read, is no key file, or is open to others.
    """
    try:
        data, found = read_named(path, FILE_CAP_BYTES)
    except NotAFile:
        raise KeyFileError(f"the key file {path} is no regular file") from None
    except OpenToOthers as error:
        raise KeyFileError(
            f"the key file {path} is open to others (mode {error.mode:04o}): chmod 600 {path}"
        ) from None
    except TooLarge:
        raise _no_pair(path) from None
    except OSError as error:
        raise KeyFileError(f"the key file {path} cannot be read: {error.strerror}") from None
    if found.st_uid not in (os.geteuid(), 0):
        raise KeyFileError(f"the key file {path} belongs to another user")
    pair = _read(data)
    if pair is None:
        raise _no_pair(path)
    return pair


def line_of(pair: KeyPair) -> bytes:
    """Returns the line by which a file, or a pipe, gives a pair."""
    return f"curve-secret-key {pair.secret.hex()}\n".encode()


def read_line(line: bytes) -> KeyPair:
    """Reads a pair that came by a pipe. Raises KeyFileError."""
    pair = _read(line)
    if pair is None:
        raise KeyFileError("what came on stdin is no key pair")
    return pair


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
    _set(
        socket,
        endpoint,
        (zmq.CURVE_SERVERKEY, keys.server),
        (zmq.CURVE_PUBLICKEY, keys.own.public_bytes),
        (zmq.CURVE_SECRETKEY, keys.own.secret),
        (zmq.RECONNECT_IVL, RECONNECT_FIRST_MS),
        (zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS),
        (zmq.CONNECT_TIMEOUT, CONNECT_BOUND_MS),
    )


def prepare_listener(socket: Socket, endpoint: str, own: KeyPair) -> None:
    """Sets what a socket needs before it binds. Raises EndpointError."""
    check_tcp(endpoint)
    _set(
        socket,
        endpoint,
        (zmq.CURVE_SERVER, 1),
        (zmq.CURVE_SECRETKEY, own.secret),
        (zmq.ZAP_DOMAIN, ZAP_DOMAIN),
        # Without it, a missing or failing authenticator would let in whoever knows the broker's public key.
        (zmq.ZAP_ENFORCE_DOMAIN, 1),
    )


def _set(socket: Socket, endpoint: str, *options: tuple[int, int | bytes]) -> None:
    more = ((zmq.HANDSHAKE_IVL, HANDSHAKE_BOUND_MS), (zmq.IPV6, int("[" in endpoint)))
    for option, value in (*options, *more):
        socket.setsockopt(option, value)


def _no_pair(path: Path) -> KeyFileError:
    return KeyFileError(f"{path} holds no key pair: make one with `cellblock keygen`")


def _read(data: bytes) -> KeyPair | None:
    match = _SECRET_LINE.search(data.decode("ascii", "replace"))
    return None if match is None else pair_of(bytes.fromhex(match[1]))


def pair_of(secret: bytes) -> KeyPair:
    """Returns the pair of a secret key: any 32 bytes are one."""
    public = z85.decode(zmq.curve_public(z85.encode(secret)))
    return KeyPair(public.hex(), secret)
