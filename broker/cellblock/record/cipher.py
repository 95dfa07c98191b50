"""Cipher encrypts what the file of journals has of a run, each piece bound to its place."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, Final

from cellblock.base.state_keys import derived_key, key_id
from cellblock.record.rows import AnyPiece, Head, Kind, Piece, WrongPiece

FORMAT: Final = 1
"""Counts the ways in which pieces are encrypted; each piece is bound to its own."""

NONCE_BYTES: Final = 12

ADDED_BYTES: Final = NONCE_BYTES + 16
"""Counts what an encrypted piece has more than its body: the nonce, and the tag of AES-GCM."""


class Cipher:
    """Encrypts pieces with AES-256-GCM. Each run has a key of its own, derived from one that is kept: so a chance
    nonce comes twice for no run, whatever number of them there is.

    Args:
        keys: The key that is kept, and those that are accepted beside it; empty: nothing can be encrypted yet.

    Attributes:
        key_ids: Names the keys without telling them; those of new runs are encrypted with the first.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = {key_id(key): key for key in keys}
        self._last: tuple[str, str, Any] = ("", "", None)
        self.key_ids = tuple(self._keys)

    def encrypted(self, key: str, run: str, principal: str, number: int, piece: AnyPiece) -> bytes:
        """Returns a piece for its place: the run, whose it is, and its number in it. `key` is one of `key_ids`."""
        nonce = os.urandom(NONCE_BYTES)
        bound = _bound(run, principal, number, piece.kind)
        return nonce + self._of(key, run).encrypt(nonce, piece.body, bound)

    def decrypted(self, key: str, head: Head, number: int, kind: Kind, body: bytes) -> Piece:
        """Returns the piece that stands at a place. Raises WrongPiece: It was changed, or is another place's."""
        from cryptography.exceptions import InvalidTag

        bound = _bound(head.id, head.principal, number, kind)
        try:
            return Piece(kind, self._of(key, head.id).decrypt(body[:NONCE_BYTES], body[NONCE_BYTES:], bound))
        except (InvalidTag, ValueError, TypeError):
            raise WrongPiece(f"a piece of run {head.id} was changed after it was written") from None

    def _of(self, key: str, run: str) -> Any:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if self._last[:2] != (key, run):
            self._last = (key, run, AESGCM(derived_key(self._keys[key], "run", run, 32)))
        return self._last[2]


def _bound(run: str, principal: str, number: int, kind: str) -> bytes:
    """Returns what a piece is bound to: at any other place it cannot be read."""
    return json.dumps([FORMAT, run, principal, number, kind]).encode()
