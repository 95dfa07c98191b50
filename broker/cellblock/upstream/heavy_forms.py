"""The words that `heavy` and the process apart have in common."""

from __future__ import annotations

from typing import Final

VALUE_KEY: Final = "cellblock/value"
"""In the `_meta` of a small result: where the value stands that belongs to it."""

TOO_LARGE_START: Final = "cellblock: the message "
"""Begins the error that a request fails with whose answer is too large to be read, or could not be."""

NO_PLACE: Final = "is larger than it may be for what was asked"
ASKS_TOO_MUCH: Final = "asks for input, and is too large to be passed on"
