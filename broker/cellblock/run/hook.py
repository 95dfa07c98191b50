"""The hook by which a run is recorded: what it tells whoever records it, and what it asks of them.

A run knows no storage. It tells a `RunJournal` what its script asks and sees, and is answered from there in a replay; a
`KeptRun` writes it down on its way. `cellblock.record` implements both.
"""

from __future__ import annotations

import asyncio
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import Any, Final, Literal, Protocol

from cellblock.base.errors import Certainty
from cellblock.base.questions import Given, ParkedQuestion
from cellblock.base.settings.policy import Grant
from cellblock.run.events import CallFacts, Watcher
from cellblock.run.policy.asking import EarlierQuestions
from cellblock.run.response import Diagnostic, RunResponse, error_diagnostic
from cellblock.tools.catalog.model import Catalog

CANCELLED: Final = "CANCELLED"
EXPIRED: Final = "PARKED_EXPIRED"
LOST: Final = "CANNOT_GO_ON"
NOT_PARKED: Final = "RUN_NOT_PARKED"
"""Name outcomes of runs that end without going on: somebody has cancelled it, nobody has answered, it cannot be read,
it could not be written down."""


@dataclass(eq=False, slots=True)
class OpenQuestion:
    """Describes a question of a server that waits in its session for an answer."""

    asked: ParkedQuestion
    answer: asyncio.Future[Given | None]
    """Holds the answer when it is there; None where the call is over."""

    def answered(self, given: Given | None) -> None:
        """Takes the answer; the first one counts."""
        if not self.answer.done():
            self.answer.set_result(given)


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
        config: The configuration file of the broker that has parked it; empty where it had none.
    """

    questions: tuple[ParkedQuestion, ...]
    allowed: tuple[int, ...] = ()
    asked: int = 0
    waited_ms: int = 0
    client: str = ""
    losses: tuple[str, ...] = ()
    config: str = ""

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
        known = {name: found[name] for name in ("asked", "waited_ms", "client", "config") if name in found}
        return cls(questions=questions, **lists, **known)


REFUSED_FOR_NOW: Final = frozenset(("OVERLOADED", "WORKER_UNAVAILABLE"))
"""Names diagnostics of a run that was not started, and may be later."""

STOPPED: Final = "stopped"
"""Names the end of a run whose worker the broker has killed for what its script did, such as a call too many."""

DIGEST_BYTES: Final = 16

RequestKind = Literal["call", "query"]
"""Names what a script may ask for: a tool call, or a discovery request."""


@dataclass(slots=True, kw_only=True)
class RecordedCall:
    """Describes one request of a script, and its answer.

    Args:
        id: As the sandbox gives them: calls and queries share the numbers 1, 2, 3 …
        kind: A tool call, or a discovery request.
        server: The server's id; empty for a query.
        tool: The tool's name in MCP; a query's operation.
        input: JSON as the worker sent it; empty where there was no argument.
        digest: Of the input, in hex; empty until somebody asks for `input_digest`.
        ok: Whether the answer is a value; None while there is none.
        answer: JSON as the worker was sent it.
        duration_ms: How long it took; this and the next two are as in the trace.
        error: One of a few fixed phrases.
        certainty: What is certain about a call without an answer.
        inner: How many calls a kept script that was called has made.
        label: As of `CallFacts`.
    """

    id: int
    kind: RequestKind
    server: str
    tool: str
    input: bytes = b""
    digest: str = field(default="", compare=False)
    ok: bool | None = None
    answer: bytes = b""
    duration_ms: int = 0
    error: str | None = None
    certainty: Certainty = Certainty.NOT_STARTED
    inner: int = 0
    label: str = ""

    @property
    def name(self) -> str:
        """Names the tool or the request that was asked for, for messages."""
        return f"{self.server}.{self.tool}" if self.kind == "call" else self.tool

    @property
    def input_digest(self) -> str:
        """Returns the digest of the input, in hex. Of a large one it takes milliseconds, so the loop leaves it to the
        journals' thread."""
        self.digest = self.digest or digest_of(self.input)
        return self.digest


Facts = CallFacts | RecordedCall
"""Describes a call while it is under way or when it is recorded."""


def digest_of(data: bytes) -> str:
    """Gives the digest of an input, in hex."""
    return blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


class Past(Protocol):
    """Describes the recorded run that a run goes on from or replays.

    Attributes:
        body: What its worker was sent.
        conventions: Whether the script might give its result otherwise than by assigning it.
        used_ms: Wall time that it had used.
        label: Of what its author had read, packed; empty where flows were off.
        calls: Its requests.
    """

    body: bytes
    conventions: bool
    used_ms: int
    label: str
    calls: list[RecordedCall]


def diverged(what: str, place: str | None = None) -> Diagnostic:
    """Says that a replay cannot go on, as it is another run than the recorded one; `what` is half a sentence."""
    return error_diagnostic(
        "REPLAY_DIVERGED",
        f"The replay is not the recorded run: {what}.",
        "Replay the recording with the script and the release that it was made with, or record the run again.",
        place,
    )


class RunJournal(Protocol):
    """Notes what the script of one run asks and sees, and answers what is recorded already.

    Attributes:
        offline: Whether the run is a replay that calls no tool.
        replaying: Whether the script has asked for nothing yet that is not recorded, nor said that it has seen all.
        lost: Why there is no recording of this run any more, half a sentence; None while there is.
        may_repeat: Says of a recorded call that may have run, and has no answer, whether it may be made again.
    """

    offline: bool
    replaying: bool
    lost: str | None
    may_repeat: Callable[[RecordedCall], bool]

    @property
    def past(self) -> Past | None:
        """What is replayed; None in a new run."""
        ...

    @property
    def script_name(self) -> str:
        """What places in a recorded script are told by; empty where that is not known, and for another one."""
        ...

    @property
    def plan_body(self) -> bytes | None:
        """The body of the plan that the worker is sent, where an earlier worker was sent the same."""
        ...

    @property
    def is_live(self) -> bool:
        """Says whether calls of another script than the recorded one may be made: modules of a recording, which may be
        a stranger's, do not run then."""
        ...

    def catalog(self, newest: Catalog) -> Catalog:
        """Gives the run's catalog: the newest, or the recorded one where no tool can be called."""
        ...

    def begin(
        self,
        *,
        made_by: str,
        deno: str,
        request: dict[str, Any],
        script_name: str,
        body: bytes,
        conventions: bool,
        limits: dict[str, int],
        message_bytes: int,
        catalog: Catalog,
        principal: str,
        grants: Sequence[Grant],
        label: str,
    ) -> bytes:
        """Notes what a run is made of; gives what its worker is to be sent instead of `body`."""
        ...

    def note(self, events: str) -> tuple[int, int] | None:
        """Takes events that have come with a message (see `is_events`); gives the place that stands at their end in
        a replay. Raises ValueError: they are none."""
        ...

    def logged(self) -> bool:
        """Takes note of a console entry; gives whether it has not come before."""
        ...

    def ask(
        self, call_id: int, kind: RequestKind, server: str, tool: str, body: bytes, place: str | None
    ) -> RecordedCall | Diagnostic | None:
        """Takes a request of the script, which stands at this place in it. Gives the recorded request; why the run must
        stop; or None: it is to be made."""
        ...

    def begun(self, call_id: int, facts: Facts) -> None:
        """Takes the facts of a call that is being made, in which further ones appear."""

    def answered(self, call_id: int, ok: bool, body: bytes) -> None:
        """Takes the answer of a request; another one for the same request counts."""

    def live(self) -> Diagnostic | None:
        """Hears that the script has seen all events of the recording. Gives why the run must stop then."""
        ...

    def end(self, reason: str, response: Callable[[], dict[str, Any]]) -> None:
        """Hears how the run has ended. `response` gives its response when it is asked for, as JSON data but for a large
        result."""


class KeptRun(Watcher, ABC):
    """Watches one run that may be written down.

    Attributes:
        run_id: Names the run, also over its parks; empty for a new run until it has begun.
        principal: Whom it is for.
        client: Whose place in the queue it has.
        parks: Whether the run is parked where it waits for a person who cannot be asked now.
        is_durable: Whether the run is written down as it goes: it goes on when its worker or host is lost.
        turn: Counts how often the run was parked.
        earlier: What became of its questions before it was parked.
        earlier_cpu_ms: CPU time that its script has used before, as far as that is known; its replays do not count.
        used_ms: Wall time that it has used before, in its latest process here.
        resumed: Counts how often it has gone on in another process.
        adopted: Counts how often its broker was lost.
        losses: What its response says of each time that its process was lost, and its broker was not.
        is_left: Whether its end here is none: another process goes on with it.
        refusal: Why it could not be written down, where others can.
    """

    run_id: str = ""
    principal: str
    client: str = ""
    parks: bool = False
    is_durable: bool = False
    turn: int = 0
    earlier: EarlierQuestions | None = None
    earlier_cpu_ms: int = 0
    used_ms: int = 0
    resumed: int = 0
    adopted: int = 0
    losses: tuple[str, ...] = ()
    is_left: bool = False
    refusal: str = ""

    @property
    @abstractmethod
    def journal(self) -> RunJournal:
        """Records the run."""

    @abstractmethod
    async def before_call(self, call_id: int) -> None:
        """Waits until the journal says that a call is made, where whoever goes on with the run must know; bounded.

        Raises:
            ToolCallError: That is not certain, so the call is not made.
        """

    @abstractmethod
    async def named(self, response: RunResponse) -> RunResponse:
        """Gives the response, with the id of the run where it is certain that it is kept. Called when all watchers have
        been told of the end; bounded."""

    @abstractmethod
    async def sends(self, call_id: int) -> None:
        """Waits until the journal says that a call, which asks in rounds, goes on with its answers, as
        `before_call`."""

    @abstractmethod
    def park(
        self,
        parked: Parked,
        used_ms: int,
        calls: Sequence[asyncio.Task[None]],
        asked: Sequence[OpenQuestion],
    ) -> Awaitable[bool]:
        """Writes the run down to go on later, and gives what says whether that is certain; bounded. Where it is not,
        nobody goes on with the run.

        Args:
            parked: What it waits for.
            used_ms: Wall time that it has used.
            calls: The tasks of calls whose servers wait in their sessions: the run goes on when they have ended.
            asked: What those ask.
        """

    @abstractmethod
    def take_back(self, outcome: str) -> None:
        """Ends a run that was parked a moment ago: its client has gone."""

    @abstractmethod
    def came(self, call_id: int, call: CallFacts, ok: bool, body: bytes) -> None:
        """Takes the answer of a call that goes on for a parked run, before its task ends."""

    @abstractmethod
    def asks(self, question: OpenQuestion) -> None:
        """Takes a question of the server of such a call."""

    @abstractmethod
    def asks_no_more(self, question: OpenQuestion) -> None:
        """Hears that such a question needs no answer any more."""

    @abstractmethod
    def goes_on(self) -> None:
        """Hears that the run goes on from its journal, here, with another one: its process was lost."""

    @abstractmethod
    def parked(self) -> None:
        """Hears that the process of a run that is parked has ended; what it has used is known now."""


class RunKeeper(Protocol):
    """Writes runs down; `record.kept.Keeper` does."""

    def opened(
        self, principal: str, *, client: str, may_park: bool, durable: bool, may_leave: bool = False
    ) -> KeptRun | None:
        """Gives what watches a new run of a client; None where it is not to be written down.

        Args:
            principal: Whom the run is for.
            client: Whose place in the queue it has.
            may_park: Whether it may wait for a person.
            durable: Whether its request wants it to survive the loss of its process.
            may_leave: Whether its client may leave it.
        """
        ...


# ---- what the script of a journaled run has seen, as the text that its sandbox writes ------------------
#
# Each event is a letter and a whole number: `a3` the answer to request 3, `t2` timer 2, `i1` the end of the first
# `import(…)`, `i0` that of the script's own, `e1` its end; `c5*3` are three readings of the clock 5 ms after the one
# before (`*1` is left out). In a replay `@4:7` says where in the text that was sent the call stands that the events
# come with.

_EVENTS: Final = re.compile(r"(?>(?:[atie]\d{1,10}|c\d{1,16}(?:\*\d{1,10})?)*)", re.ASCII)
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
