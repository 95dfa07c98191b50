"""State_keys seal what brokers share, with the key that they share; while they change it, two are accepted.

What is sealed cannot be read without the key, nor changed, nor put in the place of something else.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, Final

from cellblock.base.database import StoreError

FORMAT: Final = 1
"""Counts the ways in which keys are derived and things sealed."""

NONCE_BYTES: Final = 12
ID_BYTES: Final = 8


class WrongSeal(StoreError):
    """Tells that sealed bytes were changed, are another place's, or were sealed with a key that is not known here."""


class StateKeys:
    """Seals, and opens what was sealed.

    Args:
        keys: The one that seals, and those that open, too.

    Attributes:
        ids: Names the keys, without telling them.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        self.keys: Final = tuple(keys)
        self.ids: Final = tuple(key_id(key) for key in keys)

    def sealed(self, place: Sequence[str], body: bytes) -> bytes:
        """Returns bytes for a place, which is named by any texts."""
        nonce = os.urandom(NONCE_BYTES)
        sealed = _cipher(self.keys[0], place).encrypt(nonce, body, _bound(place))
        return bytes.fromhex(self.ids[0]) + nonce + sealed

    def opened(self, place: Sequence[str], sealed: bytes) -> bytes:
        """Returns the bytes that were sealed for a place. Raises WrongSeal."""
        from cryptography.exceptions import InvalidTag

        named, nonce = sealed[:ID_BYTES].hex(), sealed[ID_BYTES : ID_BYTES + NONCE_BYTES]
        if named not in self.ids:
            raise WrongSeal("it was written with another key than those in use")
        key = self.keys[self.ids.index(named)]
        try:
            return _cipher(key, place).decrypt(nonce, sealed[ID_BYTES + NONCE_BYTES :], _bound(place))
        except (InvalidTag, ValueError):
            raise WrongSeal("it was changed after it was written") from None

    def is_newest(self, sealed: bytes) -> bool:
        return sealed[:ID_BYTES].hex() == self.ids[0]


def key_id(key: bytes) -> str:
    """Returns what names a key without telling it."""
    return derived_key(key, "key id", "", ID_BYTES).hex()


def derived_key(key: bytes, purpose: str, name: str, size: int) -> bytes:
    """Derives a key for one purpose from the one that is kept."""
    # Not at the top: nobody who keeps no runs is to wait for its import, 30 ms.
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    info = json.dumps(["cellblock journal", FORMAT, purpose, name]).encode()
    return HKDF(SHA256(), size, None, info).derive(key)


def _cipher(key: bytes, place: Sequence[str]) -> Any:
    """Returns the cipher of one place: with a key of its own, a chance nonce comes twice for none."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(derived_key(key, "sealed", json.dumps(place), 32))


def _bound(place: Sequence[str]) -> bytes:
    return json.dumps([FORMAT, *place]).encode()
