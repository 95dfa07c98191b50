"""Parked is what there is to know of a run that waits for a person, beside its recording."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, cast

from cellblock.base.json import is_object

SHOWN_BYTES: Final = 16 * 1024
"""Bounds what is kept of an input to be shown with its question; the recording has all of it."""

CANCELLED: Final = "CANCELLED"
EXPIRED: Final = "PARKED_EXPIRED"
LOST: Final = "CANNOT_GO_ON"
"""Name outcomes of runs that end without going on: somebody has cancelled it, nobody has answered, it cannot be
read."""

Answer = Literal["accepted", "declined", "cancelled"]
"""Names what a person says to a question, as the values of `policy.asking.Verdict`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedQuestion:
    """Describes a call that waits for an answer.

    Args:
        call: The call's number, which its answer is for.
        server: The server's id.
        tool: The tool's name in MCP.
        destructive: Whether it is known to destroy something.
        input: JSON, or the beginning of it: `SHOWN_BYTES` at most.
        bytes: How many bytes the whole input has.
    """

    call: int
    server: str
    tool: str
    destructive: bool
    input: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkingCall:
    """Names a call whose tool was at work when its run was parked: its number, the server's id, the tool's name."""

    call: int
    server: str
    tool: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """Describes a parked run.

    Args:
        questions: What is asked.
        working: Calls that the broker has gone on with.
        asked: How often the user was asked in the run so far.
        waited_ms: How long the run had waited for answers in its process, in milliseconds.
        client: Whose place in the queue it had.
    """

    questions: tuple[ParkedQuestion, ...]
    working: tuple[WorkingCall, ...] = ()
    asked: int = 0
    waited_ms: int = 0
    client: str = ""

    def pack(self) -> bytes:
        """Encodes it, for the store."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def unpack(cls, data: bytes) -> Parked:
        """Decodes what `pack` has made."""
        found: Any = json.loads(data)
        questions = tuple(ParkedQuestion(**one) for one in found.pop("questions"))
        working = tuple(WorkingCall(**one) for one in found.pop("working", ()))
        return cls(questions=questions, working=working, **found)

    def is_answered_by(self, answers: Iterable[int]) -> bool:
        """Says whether there is an answer to each question."""
        return {question.call for question in self.questions} <= set(answers)


def pack_answers(answers: Mapping[int, Answer]) -> bytes:
    """Encodes answers by the numbers of their calls, for the store."""
    return json.dumps(dict(answers)).encode()


def unpack_answers(data: bytes) -> dict[int, Answer]:
    """Decodes what `pack_answers` has made."""
    found: object = json.loads(data)
    return {int(call): cast("Answer", answer) for call, answer in found.items()} if is_object(found) else {}
