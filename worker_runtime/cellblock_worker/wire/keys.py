"""CURVE key pairs (ZeroMQ RFC 26) have a file each, readable by its owner alone; public keys are 64 hexadecimal digits.

Hexadecimal, where ZeroMQ's own Z85 needs fewer characters: shells, unit files, JSON and TOML all leave it as it is.
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

FILE_CAP_BYTES: Final = 4096
"""A key file has about 200 bytes; a wrong path must not be read whole."""

_KEY: Final = re.compile(r"[0-9a-f]{64}")
_SECRET_LINE: Final = re.compile(r"^curve-secret-key ([0-9a-f]{64})$", re.MULTILINE)
_TEXT: Final = """\
# A Cellblock key pair: keep this file secret. Its public key is
# {public}
curve-secret-key {secret}
"""


class KeyFileError(ValueError):
    """A key or its file cannot be used; the text says which and why, and holds no part of a secret."""


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


def make_key_file(path: Path) -> KeyPair:
    """Makes a new pair and its file, mode 0600. Raises KeyFileError; a file that exists is left alone."""
    _, secret_z85 = zmq.curve_keypair()
    pair = _pair_of(z85.decode(secret_z85))
    try:
        with Folder.named(path.parent) as folder:
            text = _TEXT.format(public=pair.public, secret=pair.secret.hex())
            if not write_private(folder, path.name, text.encode(), replace=False):
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
    match = _SECRET_LINE.search(data.decode("ascii", "replace"))
    if match is None:
        raise _no_pair(path)
    return _pair_of(bytes.fromhex(match[1]))


def _no_pair(path: Path) -> KeyFileError:
    return KeyFileError(f"{path} holds no key pair: make one with `cellblock keygen`")


def _pair_of(secret: bytes) -> KeyPair:
    public = z85.decode(zmq.curve_public(z85.encode(secret)))
    return KeyPair(public.hex(), secret)
