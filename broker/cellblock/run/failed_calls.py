"""What the hint of a failed call may say: never to repeat what may have been done."""

from __future__ import annotations

import re
from typing import Final

from cellblock.base.errors import Certainty, ToolCallError
from cellblock.run.policy.grants import effect_of
from cellblock.tools.catalog.model import ToolEntry

LOOK_FIRST: Final = "Look whether the call took effect before you repeat it."
REPEAT: Final = "Nothing was changed, as the tool only reads: call it again, or ask for less."
UNCHANGED: Final = "Nothing was changed, as the tool only reads."

MAX_SEARCHED_CHARS: Final = 2_000
"""Bounds the part of a message where it would say that the outcome is open."""

_OPEN: Final = re.compile(
    r"\btime[ds]?[ -]?out\b|\bdeadline exceeded|\b(?:may|might|could)(?: \w+)? have\b|\bdid not answer\b"
    r"|\bno response\b|\bconnection (?:was )?(?:reset|lost|closed|aborted)|\bbad gateway|\bgateway time|\b50[234]\b"
    r"|\b(?:unconfirmed|not (?:yet )?confirmed|unknown (?:whether|state|status|outcome|result))\b"
    r"|\b(?:still|already) (?:running|processing|pending)\b|\bin progress\b|\bpartial(?:ly)?\b",
    re.IGNORECASE,
)
"""Matches what tools say when they do not know themselves whether they did something, or how much of it."""


def fit_hint(error: ToolCallError, tool: ToolEntry) -> None:
    """Has the hint of a call that was made say what is safe: to correct a call means to repeat it."""
    if error.certainty is Certainty.NOT_STARTED:
        return
    reads = effect_of(tool) == "read"
    if _OPEN.search(error.message[:MAX_SEARCHED_CHARS]):
        error.hint = REPEAT if reads else LOOK_FIRST
    elif reads and error.certainty is Certainty.COMPLETED:
        error.hint = f"{error.hint} {UNCHANGED}"
