"""Rows are what the file of journals has of a run: its row, its pieces, and what a parked one waits for; and whose it
is, by a name at which others see whether that broker lives."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol, cast, get_args

import msgpack

from cellblock.base.database import StoreError
from cellblock.base.errors import Certainty
from cellblock.base.json import is_object
from cellblock.base.own_folders import OwnFolder, is_living
from cellblock.base.questions import Given, ParkedQuestion, QuestionId
from cellblock.base.raw_json import RawJson
from cellblock.base.state_dir import RUN
from cellblock.base.state_keys import derived_key, key_id
from cellblock.record.recording import RecordedCall, Recording, UnreadableRecording
from cellblock.run.hook import Facts, Parked
from cellblock.tools.catalog.model import SCRIPTS
from cellblock.tools.catalog.modules import DISCOVERY_SPECIFIER, IMPORT_SPECIFIER, SERVERS_PREFIX

Kind = Literal["facts", "recording", "result", "call", "parked", "asked", "sent", "answers", "cancel"]
"""Names what a piece is: `facts` is JSON for people, `recording` replays, `result` is a large one's JSON, `call` is one
call as it was known when the piece was written, `parked` is what a parked run waits for, `asked` what a server has
asked since, `sent` which call has gone on with its answers, `answers` what was said to it, `cancel` that the broker
that has it is to end it."""

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

WAITING: Final[tuple[Kind, ...]] = ("parked", "asked", "sent", "answers")
"""Names the pieces that say what a parked run waits for."""

RunState = Literal["running", "parked", "ended"]
"""Says in which state a run is that is written down. One that is `running` has an owner, and is taken from one that
has died; a `parked` one waits for a person. Each becomes the other or `ended`."""


class Piece(NamedTuple):
    """Holds one piece of a run's journal, not encrypted."""

    kind: Kind
    body: bytes

    @property
    def size(self) -> int:
        """Returns the bytes of its body."""
        return len(self.body)


class LatePiece(NamedTuple):
    """Stands for a large piece until it is written: it is made then, so that one after the other is in memory."""

    kind: Kind
    size: int
    make: Callable[[], bytes]

    @property
    def body(self) -> bytes:
        """Makes the body of the piece, each time anew."""
        return self.make()


AnyPiece = Piece | LatePiece


@dataclass(frozen=True, slots=True)
class Head:
    """Tells of one run what a list of runs shows. Times are Unix time in seconds; `ended` and `outcome` are None until
    the end is written, and stay so when the broker is lost."""

    id: str
    principal: str
    began: float
    ended: float | None = None
    outcome: str | None = None
    calls: int = 0
    bytes: int = 0
    """Says how many bytes the run's pieces take on disk."""

    state: RunState = "ended"
    turn: int = 0
    """Counts the rounds in which the run was parked."""

    expires: float | None = None
    """Says until when a parked run waits."""

    is_answered: bool = False
    """Says whether there is an answer to all that a parked run waits for."""

    cpu_ms: int = 0
    """Says how much CPU time the script had used when the run was parked."""

    resumed: int = 0
    """Counts how often the run has gone on in another process."""

    changed: float | None = None
    """Says when the run's row was last written; None before the first time."""

    owner: str | None = None
    """Names the broker that has the run; of a parked one, the broker that has calls whose servers wait for answers."""

    adopted: int = 0
    """Counts how often the run's broker was lost."""

    key: str = ""
    """Names the key that its pieces were written with; empty before the first time."""


class OneRunFailed(StoreError):
    """Tells that one run cannot be written or read; the others can."""


class WrongPiece(OneRunFailed):
    """Tells that a piece was changed, is another run's, or was written with another key."""


class Foreign(WrongPiece):
    """Tells that a run was written with another key than the one in use or by a newer release, or needs a server that
    is not here; whoever has that can go on with it."""


class TakenAway(OneRunFailed):
    """Tells that a run is another broker's by now, which took this one for dead; nothing more of it may be done
    here."""


class TooLarge(OneRunFailed):
    """Tells that a run is larger than all that may be kept."""


def answers_piece(answers: Mapping[QuestionId, Given]) -> Piece:
    """Returns the piece of answers, by their questions."""
    return Piece("answers", json.dumps({str(question): one for question, one in answers.items()}).encode())


def asked_piece(question: ParkedQuestion) -> Piece:
    """Returns the piece of a question that came when its run was parked."""
    return Piece("asked", json.dumps(asdict(question)).encode())


def sent_piece(call_id: int) -> Piece:
    """Returns the piece which says that a call goes on with the answers to its questions."""
    return Piece("sent", str(call_id).encode())


def waiting_in(pieces: Sequence[Piece]) -> tuple[Parked, dict[QuestionId, Given]]:
    """Returns what a parked run waits for, and the answers that were given. Raises WrongPiece: The run is not parked,
    or cannot be read by this release."""
    bodies = [piece.body for piece in pieces if piece.kind == "parked"]
    if not bodies:
        raise WrongPiece("the run waits for nobody")
    answers: dict[QuestionId, Given] = {}
    try:
        for piece in pieces:
            if piece.kind == "answers":
                given: object = json.loads(piece.body)
                if is_object(given):
                    answers |= {QuestionId.parse(name): one for name, one in given.items()}
        parked = Parked.unpack(bodies[-1])
        questions = list(parked.questions)
        for piece in pieces:
            if piece.kind == "asked":
                questions.append(ParkedQuestion(**json.loads(piece.body)))
            elif piece.kind == "sent":
                # What it has asked before was answered to the server, which may have done what it was to do.
                call = int(piece.body)
                questions = [replace(one, round="") if one.call == call else one for one in questions]
        return replace(parked, questions=tuple(questions)), answers
    except (TypeError, KeyError, ValueError) as error:
        # It is as it was written: its seal is whole.
        raise Foreign(f"another release has written down what the run waits for ({error})") from error


def open_questions(head: Head, parked: Parked, known: Collection[QuestionId]) -> tuple[ParkedQuestion, ...]:
    """Returns the questions that are not known to be answered: what a server asks is over where no broker has its
    call, unless it asks in rounds."""
    return tuple(
        question
        for question in parked.questions
        if question.id not in known and not (question.holds_call and head.owner is None)
    )


def parked_questions(head: Head, pieces: Sequence[Piece]) -> tuple[ParkedQuestion, ...]:
    """Returns what a parked run still waits for. Raises WrongPiece: The run is not parked."""
    return open_questions(head, *waiting_in(pieces))


FORMAT: Final = 1
"""Counts the ways in which pieces are encrypted; each piece is bound to its own."""

NONCE_BYTES: Final = 12

ADDED_BYTES: Final = NONCE_BYTES + 16
"""Counts what an encrypted piece has more than its body: the nonce, and the tag of AES-GCM."""


class Cipher:
    """Encrypts pieces with AES-256-GCM. Each run has a key of its own, derived from one that is kept: so a chance
    nonce comes twice for no run, whatever number of them there is.

    Args:
        keys: The key that is kept, and those that are accepted beside it.

    Attributes:
        key_ids: Names the keys without telling them; those of new runs are encrypted with the first.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = {key_id(key): key for key in keys}
        self._last: tuple[str, str, Any] = ("", "", None)
        self.key_ids = tuple(self._keys)

    def encrypted(self, key: str, run: str, principal: str, number: int, piece: AnyPiece) -> bytes:
        """Returns a piece for its place: the run, whose it is, and its number in it. `key` is one of `key_ids`."""
        nonce = os.urandom(NONCE_BYTES)
        bound = _bound(run, principal, number, piece.kind)
        return nonce + self._of(key, run).encrypt(nonce, piece.body, bound)

    def decrypted(self, head: Head, number: int, kind: Kind, body: bytes) -> Piece:
        """Returns the piece that stands at a place. Raises WrongPiece: It was changed, or is another place's."""
        from cryptography.exceptions import InvalidTag

        bound = _bound(head.id, head.principal, number, kind)
        try:
            cipher = self._of(head.key, head.id)
            return Piece(kind, cipher.decrypt(body[:NONCE_BYTES], body[NONCE_BYTES:], bound))
        except (InvalidTag, ValueError, TypeError):
            raise WrongPiece(f"a piece of run {head.id} was changed after it was written") from None

    def _of(self, key: str, run: str) -> Any:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if self._last[:2] != (key, run):
            self._last = (key, run, AESGCM(derived_key(self._keys[key], "run", run, 32)))
        return self._last[2]


def _bound(run: str, principal: str, number: int, kind: str) -> bytes:
    """Returns what a piece is bound to: at any other place it cannot be read."""
    return json.dumps([FORMAT, run, principal, number, kind]).encode()


LARGE_BYTES: Final = 64 * 1024
"""Sets from which size on an input or an answer has a piece of its own in a recording that is written whole."""


def whole(recording: Recording) -> list[AnyPiece]:
    """Returns the pieces of a recording: each large input and answer has one of its own, and so has a large result,
    which is not decoded."""
    rest, large = recording, list[AnyPiece]()
    response = recording.response
    if response is not None and isinstance(result := response["result"], RawJson):
        rest = replace(rest, response=response | {"result": None})
        large.append(Piece("result", result.raw))
    calls: list[RecordedCall] = []
    for call in recording.calls:
        fields = {
            name: body for name in ("input", "answer") if len(body := getattr(call, name)) > LARGE_BYTES
        }
        large += [_late(call.id, name, body) for name, body in fields.items()]
        calls.append(replace(call, digest=call.input_digest, **dict.fromkeys(fields, b"")))
    return [Piece("recording", replace(rest, calls=calls).pack()), *large]


def request_piece(call: RecordedCall, events: str) -> Piece:
    """Returns the piece of a call that a script asks for; it is not made yet."""
    step = {"kind": call.kind, "server": call.server, "tool": call.tool, "input": call.input}
    return _step(call.id, events, **step, digest=call.input_digest, certainty=Certainty.NOT_STARTED.value)


def events_piece(events: str) -> Piece:
    """Returns the piece of events that came with no call."""
    return _step(0, events)


def sending_piece(call_id: int) -> Piece:
    """Returns the piece that says that a call is being made."""
    return _step(call_id, "", certainty=Certainty.MAY_HAVE_RUN.value)


def answer_piece(call: RecordedCall, events: str) -> Piece:
    """Returns the piece of a call that has its answer."""
    return _step(call.id, events, ok=call.ok, answer=call.answer, **_known(call))


def late_answer_piece(call_id: int, facts: Facts, body: bytes, *, ok: bool) -> Piece:
    """Returns the piece of a call whose answer came when its run was parked."""
    return _step(call_id, "", ok=ok, answer=body, **_known(facts))


def recording_in(pieces: Sequence[AnyPiece], *, decoded: bool = False) -> Recording | None:
    """Returns the recording in a run's pieces, as far as it was written; None where there is none. Of a run that holds
    32 MiB this takes 20 ms.

    Args:
        pieces: What was written of the run.
        decoded: Whether a large result is decoded, which holds the interpreter; else it stays a `RawJson`.

    Raises:
        UnreadableRecording: Another release has made it.
    """
    found = next((piece for piece in pieces if piece.kind == "recording"), None)
    if found is None:
        return None
    recording = Recording.unpack(found.body)
    result = next((piece.body for piece in pieces if piece.kind == "result"), None)
    if result is not None and recording.response is not None:
        recording.response["result"] = RawJson(result).decoded() if decoded else RawJson(result)
    steps = [_read(piece.body) for piece in pieces if piece.kind == "call"]
    if not steps:
        return recording
    calls = {call.id: call for call in recording.calls}
    grown: dict[int, dict[str, Any]] = {}
    for step in steps:
        grown.setdefault(step["id"], {}).update(step["fields"])
    try:
        for call_id, fields in grown.items():
            if "certainty" in fields:
                fields["certainty"] = Certainty(fields["certainty"])
            if call_id in calls:
                calls[call_id] = replace(calls[call_id], **fields)
            elif "tool" in fields:
                # One whose first step was not written, for want of room, tells nothing.
                calls[call_id] = RecordedCall(id=call_id, **fields)
    except (TypeError, ValueError) as error:
        raise UnreadableRecording("The recording is damaged.", hint="Delete the run.") from error
    events = "".join([recording.events, *(step["events"] for step in steps)])
    return replace(recording, calls=[call for _, call in sorted(calls.items())], events=events)


def needed_in(
    read: tuple[Head, list[Piece]] | None, parked: Parked | None
) -> tuple[set[tuple[str, str]], dict[str, str]]:
    """Lists what a run needs to go on, as far as that is known: servers that its script imports, an empty tool for
    each, and tools of calls that were to be made. A script that computes its imports may do without any. Lists beside
    it the servers that it may reach, each with the fingerprint of its command or URL, which 0.1.0 did not write.

    Args:
        read: The run with the piece of its recording.
        parked: What it waits for; None where it was not parked.
    """
    needed: set[tuple[str, str]] = set()
    if parked is not None:
        needed = {(one.server, one.tool) for one in parked.questions}
    recording = None
    with contextlib.suppress(UnreadableRecording):
        # Whoever takes it is told.
        recording = None if read is None else recording_in(read[1])
    modules: dict[str, str] = {} if recording is None else json.loads(recording.body)["modules"]
    named = {name.removeprefix(SERVERS_PREFIX) for name in modules if name.startswith(SERVERS_PREFIX)}
    if IMPORT_SPECIFIER not in modules:
        needed |= {(server, "") for server in named}
    servers: dict[str, dict[str, Any]] = {} if recording is None else recording.catalog.get("servers", {})
    # A kept script may call any server, and by discovery any resource can be read.
    reaches_all = not {SCRIPTS, DISCOVERY_SPECIFIER}.isdisjoint(modules) or any(
        servers[one]["config_name"] == SCRIPTS for one in named if one in servers
    )
    reached = {one: servers[one].get("origin", "") for one in servers if reaches_all or one in named}
    return needed, reached


class RunOwner(Protocol):
    """Names a broker, and sees whether others live; `Owner` and `Presence` do."""

    @property
    def name(self) -> str:
        """Returns the name of this broker. Raises OSError: There can be none."""
        ...

    def is_own(self, name: str) -> bool:
        """Says whether a name is this broker's."""
        ...

    def lives(self, name: str) -> bool:
        """Says whether the broker of a name runs; blocks. Raises StoreError."""
        ...

    def on_change(self, kind: str, listener: Callable[[], object]) -> None:
        """Has `listener` called, in any thread, when another process announces that it has written something of a
        kind; processes that share files look at their versions."""

    def close(self) -> None:
        """Gives the broker's name up: runs that go on are anybody's then."""


class Owner(RunOwner):
    """Holds a lock in the state directory from when it is needed first. Owns it.

    Args:
        state_dir: The state directory.
    """

    def __init__(self, state_dir: Path) -> None:
        self._parent = state_dir / RUN
        self._folder: OwnFolder | None = None

    @property
    def name(self) -> str:
        """Returns the name of this broker. Raises OSError: The lock cannot be made."""
        if self._folder is None:
            self._folder = OwnFolder(self._parent, {})
        return self._folder.path.name

    def is_own(self, name: str) -> bool:
        """Says whether a name is this broker's."""
        return self._folder is not None and self._folder.path.name == name

    def lives(self, name: str) -> bool:
        """Says whether the broker of a name runs; one that cannot be looked at does."""
        try:
            return self.is_own(name) or is_living(self._parent, name)
        except OSError:
            return True

    def close(self) -> None:
        """Gives the lock up: runs that go on are anybody's then."""
        if self._folder is not None:
            self._folder.close()
            self._folder = None


# ---- inside ------------------------------------------------------------------------------------------


def _known(facts: Facts) -> dict[str, Any]:
    known = {"error": facts.error, "certainty": facts.certainty.value, "duration_ms": facts.duration_ms}
    known |= {"inner": facts.inner} if facts.inner else {}
    return {**known, "label": facts.label} if facts.label else known


def _step(call_id: int, events: str, **fields: Any) -> Piece:
    step = {"id": call_id, "events": events, "fields": fields}
    return Piece("call", cast("bytes", msgpack.packb(step)))  # pyright: ignore[reportUnknownMemberType]


def _late(call_id: int, name: str, body: bytes) -> LatePiece:
    """Returns the piece of one large field of a call."""
    # The step of a body without bytes has one byte for its kind, and one for its length, which is four then.
    size = len(_step(call_id, "", **{name: b""}).body) + len(body) + 3
    return LatePiece("call", size, lambda: _step(call_id, "", **{name: body}).body)


def _read(body: bytes) -> dict[str, Any]:
    found = cast("object", msgpack.unpackb(body))  # pyright: ignore[reportUnknownMemberType]
    if not is_object(found):
        raise UnreadableRecording("The recording is damaged.", hint="Delete the run.")
    return found
