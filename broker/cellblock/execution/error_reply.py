"""Writes an error as the body of a reply: whatever it says, it reaches the script within the cap of a message.

What is in an error comes from scripts and servers: names as long as they like, results nested as deeply. A message over
the cap would cut the worker host off, and with it every other run.
"""

from __future__ import annotations

from typing import Final

from cellblock.base.errors import ScriptError, shorten
from cellblock.execution import payload

_FORM: Final = ("certainty", "code", "fault", "limit")
"""Matches details that are one of a few words."""

_LAST_MESSAGE_CHARS: Final = 300
_LAST_HINT_CHARS: Final = 100


def encode_error(error: ScriptError, most: int) -> bytes:
    """Gives the error as JSON of at most `most` bytes (4,096 or more): the whole of it, else without the tool's
    result, else its words alone, cut."""
    whole = error.as_json()
    for body in (whole, {name: value for name, value in whole.items() if name != "result"}):
        try:
            encoded = payload.encode(body)
        except payload.PayloadError:
            continue
        if len(encoded) <= most:
            return encoded
    short: dict[str, object] = {name: whole[name] for name in _FORM if name in whole}
    return payload.encode(
        {
            "errorClass": error.error_class,
            "message": shorten(error.message, _LAST_MESSAGE_CHARS),
            "hint": shorten(error.hint, _LAST_HINT_CHARS),
            **short,
        }
    )
