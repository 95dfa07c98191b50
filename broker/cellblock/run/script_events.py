"""Events are what the script of a journaled run has seen, as the text that its sandbox writes.

Each is a letter and a whole number: `a3` the answer to request 3, `t2` timer 2, `i1` the end of the first `import(…)`,
`i0` that of the script's own, `e1` its end; `c5*3` are three readings of the clock 5 ms after the one before (`*1` is
left out). In a replay `@4:7` says where in the text that was sent the call stands that the events come with.
"""

from __future__ import annotations

import re
from typing import Final

_EVENTS: Final = re.compile(r"(?:[atie]\d{1,10}|c\d{1,16}(?:\*\d{1,10})?)*+", re.ASCII)
_PLACE: Final = re.compile(r"@(\d{1,9}):(\d{1,9})\Z")
_SEEN: Final = re.compile(r"[atie]")


def is_events(text: str) -> bool:
    """Says whether a text is a row of events."""
    return _EVENTS.fullmatch(text) is not None


def has_order(text: str) -> bool:
    """Says whether there is more in events than readings of the clock."""
    return _SEEN.search(text) is not None


def without_place(text: str) -> tuple[str, tuple[int, int] | None]:
    """Takes the place of a call, line and column, from the end of the events that it came with."""
    found = _PLACE.search(text)
    return (text, None) if found is None else (text[: found.start()], (int(found[1]), int(found[2])))


def pieces(text: str) -> list[str]:
    """Cuts events into one text each."""
    return re.findall(r"[a-z][^a-z]*", text)
