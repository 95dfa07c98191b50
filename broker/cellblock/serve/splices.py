"""Large JSON passes the SDK as tokens, which its bytes replace when a message is written."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final, NamedTuple

TOKEN_START: Final = "cellblock-raw-"
_TOKEN_CHARS: Final = len(TOKEN_START) + 32


class _Text(NamedTuple):
    text: bytes
    quote: int
    on_gone: Callable[[], None] | None


class Splices:
    """Puts texts in the place of tokens, in messages that are encoded already.

    A token is random, so that nobody can have a text put where it has no place.
    """

    def __init__(self) -> None:
        self._texts: dict[bytes, _Text] = {}

    def add(self, text: bytes, quote: bytes = b'"', on_gone: Callable[[], None] | None = None) -> str:
        """Returns a token that stands for a text in one message.

        Args:
            text: What is put in its place, and in that of the quotes around it.
            quote: A quote as it is in the encoded message: that of a JSON string, or an escaped one within one.
            on_gone: Called when it is written or dropped.
        """
        token = TOKEN_START + secrets.token_hex(16)
        self._texts[token.encode()] = _Text(text, len(quote), on_gone)
        return token

    def drop(self, token: str) -> None:
        """Makes the token invalid."""
        found = self._texts.pop(token.encode(), None)
        if found is not None and found.on_gone is not None:
            found.on_gone()

    def spliced(self, data: bytes) -> list[bytes]:
        """Returns the message in pieces, with the texts in place of their tokens."""
        if not self._texts:
            return [data]
        pieces: list[bytes] = []
        start = at = 0
        while (at := data.find(TOKEN_START.encode(), at)) >= 0:
            end = at + _TOKEN_CHARS
            found = self._texts.get(data[at:end])
            if found is not None:
                pieces += [data[start : at - found.quote], found.text]
                start = end + found.quote
                self.drop(data[at:end].decode())
            # What is no token may end where one begins.
            at = end if found is not None else at + len(TOKEN_START)
        pieces.append(data[start:])
        return pieces
