"""Parked is what there is to know of a run that waits for a person, beside its recording."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

from cellblock.base.questions import ParkedQuestion

CANCELLED: Final = "CANCELLED"
EXPIRED: Final = "PARKED_EXPIRED"
LOST: Final = "CANNOT_GO_ON"
"""Name outcomes of runs that end without going on: somebody has cancelled it, nobody has answered, it cannot be
read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """Describes a parked run.

    Args:
        questions: What is asked.
        asked: How often the user was asked in the run so far.
        waited_ms: How long the run had waited for answers in its process, in milliseconds.
        client: Whose place in the queue it had.
        allowed: Calls that the user has allowed and that were not made: they wait for another answer.
        losses: What was said of each time that its process was lost before.
    """

    questions: tuple[ParkedQuestion, ...]
    allowed: tuple[int, ...] = ()
    asked: int = 0
    waited_ms: int = 0
    client: str = ""
    losses: tuple[str, ...] = ()

    def pack(self) -> bytes:
        """Encodes what a parked run waits for, for the store."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def unpack(cls, data: bytes) -> Parked:
        """Decodes what `pack` has made, also that of 0.1.0, which has listed tools at work, too; what a later release
        has added is left out."""
        found: Any = json.loads(data)
        questions = tuple(ParkedQuestion(**one) for one in found.pop("questions"))
        lists = {name: tuple(found.pop(name, ())) for name in ("allowed", "losses")}
        known = {name: found[name] for name in ("asked", "waited_ms", "client") if name in found}
        return cls(questions=questions, **lists, **known)
