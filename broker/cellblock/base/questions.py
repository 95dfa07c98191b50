"""Questions are what a run waits for: whether a call may be made, a login that it needs, what its server asks."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

SHOWN_BYTES: Final = 16 * 1024
"""Bounds what is kept of an input to be shown with its question; the recording has all of it."""

Answer = Literal["accepted", "always", "declined", "cancelled"]
"""Names what a person says to a question, as the values of `policy.asking.Verdict`. `always` is `accepted`, and has the
rule of a question about a flow written."""

Reply = dict[str, Any]
"""Holds a client's whole answer to what a server asks: a result of MCP, as JSON data."""

Given = Answer | Reply

QuestionKind = Literal["approval", "login", "elicitation", "sampling", "roots"]

_NAME: Final = re.compile(r"([0-9]{1,16})(?:\.([0-9]{1,9}))?")

_PACKED: Final = 1_000_000_000
"""Separates the two numbers where 0.1.0 has written them as one."""


@dataclass(frozen=True, slots=True, order=True)
class QuestionId:
    """Names a question within its run.

    Args:
        call: The number of the call that it is about.
        nth: Which of the call's questions it is, from 1; 0: whether the call may be made.
    """

    call: int
    nth: int = 0

    def __str__(self) -> str:
        return f"{self.call}.{self.nth}" if self.nth else str(self.call)

    @classmethod
    def parse(cls, text: str) -> QuestionId:
        """Reads what `str` has made, also by 0.1.0. Raises ValueError."""
        found = _NAME.fullmatch(text)
        if found is None:
            raise ValueError(f"{text[:40]!r} names no question")
        call, nth = int(found[1]), found[2]
        return cls(call % _PACKED, call // _PACKED) if nth is None else cls(call, int(nth))


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedQuestion:
    """Describes a question that a run waits for.

    Args:
        call: The number of the call that it is about.
        server: The server's id.
        tool: The tool's name in MCP.
        destructive: Whether it is known to destroy something.
        input: JSON, or the beginning of it: `SHOWN_BYTES` at most.
        bytes: How many bytes the whole input has.
        kind: What is asked.
        nth: As in `QuestionId`.
        said: What the server says, or which login is needed; of an approval, what it would carry where, else empty.
        request: What the server asks, the params of MCP as JSON; of a login, where it is looked for; of an approval,
            what a flow shows (`policy.asking.FlowQuestion`), else empty.
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
    def id(self) -> QuestionId:
        """Names the question in its run: its answer is for this."""
        return QuestionId(self.call, self.nth)

    @property
    def number(self) -> QuestionId:
        """Names the question as `id` does, for programs that know it by this name."""
        return self.id

    @property
    def is_of_server(self) -> bool:
        """Says whether a server asks the question during its call."""
        return self.kind in ("elicitation", "sampling", "roots")

    @property
    def holds_call(self) -> bool:
        """Says whether its server waits for the answer in a session, which one broker has; the question is over when
        the call is."""
        return self.is_of_server and not self.round


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
