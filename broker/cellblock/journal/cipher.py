"""Cipher encrypts what the file of journals has of a run, each piece bound to its place."""

from __future__ import annotations

import json
import os
from typing import Any, Final

from cellblock.journal.rows import Head, Kind, Piece, WrongPiece

FORMAT: Final = 1
"""Counts the ways in which pieces are encrypted; each piece is bound to its own."""

NONCE_BYTES: Final = 12


class Cipher:
    """Encrypts pieces with AES-256-GCM. Each run has a key of its own, derived from the one that is kept: so a chance
    nonce comes twice for no run, whatever number of them there is.

    Args:
        key: The key that is kept; empty: nothing can be encrypted yet.

    Attributes:
        key_id: Names the key without telling it; empty where there is none.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._last: tuple[str, Any] = ("", None)
        self.key_id = self._derived("key id", "", 8).hex() if key else ""

    def encrypted(self, run: str, principal: str, number: int, piece: Piece) -> bytes:
        """Returns a piece for its place: the run, whose it is, and its number in it."""
        nonce = os.urandom(NONCE_BYTES)
        bound = _bound(run, principal, number, piece.kind)
        return nonce + self._of(run).encrypt(nonce, piece.body, bound)

    def decrypted(self, head: Head, number: int, kind: Kind, body: bytes) -> Piece:
        """Returns the piece that stands at a place. Raises WrongPiece: It was changed, or is another place's."""
        from cryptography.exceptions import InvalidTag

        bound = _bound(head.id, head.principal, number, kind)
        try:
            return Piece(kind, self._of(head.id).decrypt(body[:NONCE_BYTES], body[NONCE_BYTES:], bound))
        except (InvalidTag, ValueError, TypeError):
            raise WrongPiece(f"a piece of run {head.id} was changed after it was written") from None

    def _of(self, run: str) -> Any:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if self._last[0] != run:
            self._last = (run, AESGCM(self._derived("run", run, 32)))
        return self._last[1]

    def _derived(self, purpose: str, name: str, size: int) -> bytes:
        return derived_key(self._key, purpose, name, size)


def derived_key(key: bytes, purpose: str, name: str, size: int) -> bytes:
    """Derives a key for one purpose from the one that is kept."""
    # Not at the top: nobody who keeps no runs is to wait for its import, 30 ms.
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    info = json.dumps(["cellblock journal", FORMAT, purpose, name]).encode()
    return HKDF(SHA256(), size, None, info).derive(key)


def _bound(run: str, principal: str, number: int, kind: str) -> bytes:
    """Returns what a piece is bound to: at any other place it cannot be read."""
    return json.dumps([FORMAT, run, principal, number, kind]).encode()
