"""Request_state signs the word with which a client comes back for its run: bound to a principal, good until a time.

It names the run, so that any broker that shares the key can take the answer. That it is good once is the run's own to
keep: each word has a round of its own.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

from cellblock.base.database import StoreError

logger = logging.getLogger("cellblock.serve")

PURPOSE: Final = "request state"
"""Names the purpose for which the signing key is derived."""

VERSION: Final = "v1"
TAG_BYTES: Final = 32
MAX_CHARS: Final = 512
"""Bounds a word that is looked at; ours have about 200 characters."""


class RequestStates:
    """Signs words, and reads those that it has signed.

    Args:
        keys: Gives the key that all brokers of a state directory share, and those that are accepted beside it. Raises
            StoreError where there is none: then words are signed with a key of this process, and good here alone.
        clock: Gives Unix time in seconds.
    """

    def __init__(
        self,
        keys: Callable[[], Awaitable[Sequence[bytes]]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._give_keys = keys
        self._clock = clock
        self._keys: Sequence[bytes] = ()

    async def signed(self, run_id: str, principal: str, number: int, seconds: float) -> str:
        """Returns the signed word of a round, as the `requestState` that the client brings back.

        Args:
            run_id: The run.
            principal: Whose it is.
            number: The round's.
            seconds: For how long it is good.
        """
        payload = [run_id, number, digest_of(principal), int(self._clock() + seconds) + 1]
        data = json.dumps(payload, separators=(",", ":")).encode()
        return f"{VERSION}.{text_of(data)}.{text_of(next(await self._tags(data)))}"

    async def read(self, word: str, principal: str) -> tuple[str, int] | None:
        """Returns the run and the round that a word names; None for one that is forged, another principal's or too
        old."""
        version, _, rest = word.partition(".")
        body, _, tag = rest.partition(".")
        if len(word) > MAX_CHARS or version != VERSION:
            return None
        try:
            data, given = _bytes(body), _bytes(tag)
        except (ValueError, binascii.Error):
            return None
        if not any(hmac.compare_digest(given, right) for right in await self._tags(data)):
            return None
        # Earlier releases signed their broker's name, too.
        run_id, number, whose, until, *_ = json.loads(data)
        if not hmac.compare_digest(whose, digest_of(principal)) or self._clock() > until:
            return None
        return run_id, number

    async def _tags(self, data: bytes) -> Iterator[bytes]:
        """Gives the tag by each key, that of the one which signs first."""
        if not self._keys:
            try:
                self._keys = await self._give_keys()
            except StoreError as error:
                logger.info("words for clients that come back are good in this process alone: %s", error)
                self._keys = (secrets.token_bytes(TAG_BYTES),)
        return (hmac.digest(key, data, hashlib.sha256) for key in self._keys)


def digest_of(principal: str) -> str:
    """Returns what stands for a principal in a word that leaves the broker."""
    return hashlib.blake2b(principal.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def text_of(data: bytes) -> str:
    """Returns bytes as a text for URLs, without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _bytes(text: str) -> bytes:
    # One text for one word: what another decoder would let pass is refused.
    data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if text_of(data) != text:
        raise ValueError
    return data
