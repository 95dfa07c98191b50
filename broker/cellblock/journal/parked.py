"""Parked is what there is to know of a run that waits for a person, beside its recording."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

SHOWN_BYTES: Final = 16 * 1024
"""Bounds what is kept of an input to be shown with its question; the recording has all of it."""

CANCELLED: Final = "CANCELLED"
EXPIRED: Final = "PARKED_EXPIRED"
LOST: Final = "CANNOT_GO_ON"
"""Name outcomes of runs that end without going on: somebody has cancelled it, nobody has answered, it cannot be
read."""

Answer = Literal["accepted", "declined", "cancelled"]
"""Names what a person says to a question, as the values of `policy.asking.Verdict`."""

Reply = dict[str, Any]
"""Holds a client's whole answer to what a server asks: a result of MCP, as JSON data."""

Given = Answer | Reply

QuestionKind = Literal["approval", "login", "elicitation", "sampling", "roots"]
"""Names what is asked: whether a call may be made, a login that it needs, or what a server asks during it."""

NTH: Final = 1_000_000_000
"""Separates the numbers of a call's questions: that of its approval is the call's own, so no two of a run are alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedQuestion:
    """Describes a call that waits for an answer.

    Args:
        call: The call's number.
        server: The server's id.
        tool: The tool's name in MCP.
        destructive: Whether it is known to destroy something.
        input: JSON, or the beginning of it: `SHOWN_BYTES` at most.
        bytes: How many bytes the whole input has.
        kind: What is asked.
        nth: Counts the call's questions after its approval, from 1; 0 for that.
        said: What the server says, or which login is needed; empty for an approval.
        request: What the server asks, the params of MCP as JSON; of a login, where it is looked for.
        round: With what the call goes on that asks in rounds, for `unpack_round`; empty where its session waits.
    """

    call: int
    server: str
    tool: str
    destructive: bool
    input: str
    bytes: int
    kind: QuestionKind = "approval"
    nth: int = 0
    said: str = ""
    request: str = ""
    round: str = ""

    @property
    def number(self) -> int:
        """Names the question in its run: its answer is for this number."""
        return self.nth * NTH + self.call

    @property
    def is_of_server(self) -> bool:
        """Says whether a server asks the question during its call, which a broker has: it is over when the call is."""
        return self.kind in ("elicitation", "sampling", "roots")


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
        allowed: Calls that the user has allowed and that were not made: they wait for a login.
        losses: What was said of each time that its process was lost before.
    """

    questions: tuple[ParkedQuestion, ...]
    working: tuple[WorkingCall, ...] = ()
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
        """Decodes the state of a parked run that `pack` has encoded; what a later release has added is left out."""
        found: Any = json.loads(data)
        questions = tuple(ParkedQuestion(**one) for one in found.pop("questions"))
        working = tuple(WorkingCall(**one) for one in found.pop("working", ()))
        lists = {name: tuple(found.pop(name, ())) for name in ("allowed", "losses")}
        known = {name: found[name] for name in ("asked", "waited_ms", "client") if name in found}
        return cls(questions=questions, working=working, **lists, **known)


@dataclass(frozen=True, slots=True)
class Round:
    """Holds what a server has answered that asks in rounds (MCP 2026-07-28): it keeps nothing of the call.

    Args:
        result: Its `InputRequiredResult`, as JSON data.
        answers: What was said to it, results of MCP by its own keys.
    """

    result: dict[str, Any]
    answers: dict[str, Given]


def pack_round(key: str, result: Mapping[str, Any]) -> str:
    """Encodes a round, for a question that has this key in it."""
    return json.dumps([key, result])


def unpack_round(text: str) -> tuple[str, dict[str, Any]]:
    """Decodes what `pack_round` has made: key and result."""
    key, result = json.loads(text)
    return key, result
