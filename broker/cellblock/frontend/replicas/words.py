"""Words name brokers to clients and to one another: signed with a key that all replicas share, so that nobody else can
make one."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator, Sequence
from typing import Final

from cellblock.base.claims import Claim
from cellblock.frontend.mcp.request_state import text_of
from cellblock.upstream.single import LARGE_HEADER, Way

PURPOSE: Final = "replicas"
"""Names the purpose for which the signing key is derived."""

WAY_PATH: Final = "/replica/"
"""Begins the path at which a broker lends a server to others."""

WAY_HEADER: Final = b"x-cellblock-way"
"""Names the header with what shows a way: a tag, the asking broker, and the epoch."""

LARGE: Final = LARGE_HEADER.encode()

TAG_BYTES: Final = 16

MAX_BYTES: Final = 256
"""Bounds a word that is looked at; ours have about 70 characters."""


class Words:
    """Signs words, and reads those that a replica has signed.

    Args:
        keys: The key that all replicas share, and those that are accepted beside it.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = keys

    def session(self, session: bytes, broker: str) -> bytes:
        """Returns the id by which clients know a session of a broker."""
        data = b"%b.%b" % (session, broker.encode())
        return b"%b.%b" % (data, next(self._tags(b"session", data)))

    def read_session(self, word: bytes) -> tuple[bytes, str] | None:
        """Returns the session and the broker that an id names; None for one that is forged."""
        data, _, tag = word.rpartition(b".")
        if len(word) > MAX_BYTES or not self._is_right(tag, b"session", data):
            return None
        session, _, broker = data.rpartition(b".")
        return session, broker.decode()

    def mark(self, to: str, address: str) -> bytes:
        """Returns what marks a request of the client at an address that is passed on to a broker."""
        data = b"%b %b" % (to.encode(), address.encode())
        return b"%b %b" % (next(self._tags(b"mark", data)), address.encode())

    def read_mark(self, mark: bytes, to: str) -> str | None:
        """Returns the address in a mark; None for one that is forged, or meant for another broker."""
        tag, _, address = mark.partition(b" ")
        if len(mark) > MAX_BYTES or not self._is_right(tag, b"mark", b"%b %b" % (to.encode(), address)):
            return None
        return address.decode()

    def way(self, to: str, by: str, server: str, epoch: int) -> bytes:
        """Returns what shows a broker that another one may use a server which it has in an epoch."""
        return next(self._tags(b"way", _way(to, by, server, epoch)))

    def is_way(self, tag: bytes, to: str, by: str, server: str, epoch: int) -> bool:
        """Says whether a replica has made the tag of a way."""
        return self._is_right(tag, b"way", _way(to, by, server, epoch))

    def address(self, broker: str, url: str) -> str:
        """Returns what a broker writes down of where others reach it."""
        return f"{url} {next(self._tags(b'address', f'{broker} {url}'.encode())).decode()}"

    def read_address(self, broker: str, written: str) -> str | None:
        """Returns the URL that a broker has written down; None where somebody else has."""
        url, _, tag = written.rpartition(" ")
        return url if self._is_right(tag.encode(), b"address", f"{broker} {url}".encode()) else None

    def _is_right(self, tag: bytes, kind: bytes, data: bytes) -> bool:
        return any(hmac.compare_digest(tag, right) for right in self._tags(kind, data))

    def _tags(self, kind: bytes, data: bytes) -> Iterator[bytes]:
        """Yields the tag by each key, that of the one which signs first."""
        for key in self._keys:
            digest = hmac.digest(key, b"%b %b" % (kind, data), hashlib.sha256)
            yield text_of(digest[:TAG_BYTES]).encode()


def _way(to: str, by: str, server: str, epoch: int) -> bytes:
    return json.dumps([to, by, server, epoch]).encode()


def way_to(words: Words, own: str, name: str | None, server: str, claim: Claim) -> Way | None:
    """Returns the way to the broker of a claim to a server; None where that broker has not written where it is reached:
    who can only write to the database is sent no call.

    Args:
        words: Signs what is shown.
        own: This broker.
        name: What each broker's certificate is good for; None: the host of its URL.
        server: The server's name.
        claim: Whose it is.
    """
    url = words.read_address(claim.broker, claim.url)
    if url is None:
        return None
    tag = words.way(claim.broker, own, server, claim.epoch).decode()
    headers = {WAY_HEADER.decode(): f"{tag} {own} {claim.epoch}"}
    return Way(claim.broker, f"{url}{WAY_PATH}{server.encode().hex()}", headers, name)
