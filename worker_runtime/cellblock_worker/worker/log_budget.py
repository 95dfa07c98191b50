"""Keeps `maxLogBytes`: what a run may log, counted in UTF-8 bytes of its messages."""

from __future__ import annotations

import re
from typing import Final

MAX_LOG_ENTRIES: Final = 10_000
"""Caps the entries of one run: empty messages cost no bytes but do cost memory."""

_HEADER: Final = re.compile(
    rb"\x83\xa1t\xa3log\xa5level(?:\xa5debug|\xa3log|\xa4warn|\xa5error)\xa2ms"
    rb"(?:[\x00-\x7f]|\xcc[\x80-\xff]|\xcd[\x01-\xff].|\xce(?!\x00\x00).{4}|\xcf\x00(?!\x00{3})[\x00-\x1f].{6})",
    re.DOTALL,
)
"""Fits the whole header of an entry in its canonical encoding: all that this fits are entries, and it fits all
entries."""


class LogBudget:
    """Counts log entries; the first that does not fit is cut, all after it are dropped.

    Args:
        max_bytes: The run's `maxLogBytes`.

    Attributes:
        dropped_bytes: Of messages, or of the rest of one, that were not kept.
        truncated: Whether all that comes is dropped.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self._left = max_bytes
        self._entries = 0
        self.dropped_bytes = 0
        self.truncated = False

    def drops(self, raw_header: bytes, body_bytes: int) -> bool:
        """Says whether a frame is an entry that `take` would drop: then it is dropped here, without being decoded.

        A worker cannot have another: what is not canonical is refused (`protocol.check_canonical`).
        """
        if not self.truncated or _HEADER.fullmatch(raw_header) is None:
            return False
        self.dropped_bytes += body_bytes
        return True

    def take(self, message: bytes) -> tuple[bytes | None, str | None]:
        """Accounts for one log message.

        Returns:
            The part of the message to keep (None: nothing), and, exactly once, the text of the closing
            `warn` entry that names the limit (Code Mode specification, section 3.3.1).
        """
        if self.truncated:
            self.dropped_bytes += len(message)
            return None, None
        self._entries += 1
        if len(message) <= self._left and self._entries <= MAX_LOG_ENTRIES:
            self._left -= len(message)
            return message, None
        self.truncated = True
        if self._entries > MAX_LOG_ENTRIES:
            self.dropped_bytes += len(message)
            return None, f"[logs truncated: over {MAX_LOG_ENTRIES} entries; later output is dropped]"
        # A cut inside a character leaves bytes that are no UTF-8; "ignore" drops that one character.
        kept = message[: self._left].decode("utf-8", "ignore").encode()
        self.dropped_bytes += len(message) - len(kept)
        note = f"[logs truncated: over maxLogBytes = {self._max} bytes; later output is dropped]"
        return kept or None, note
