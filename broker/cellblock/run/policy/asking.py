"""Asking says what the user is asked about a call, and whom a run is for."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from cellblock.base.admission import DEFAULT_CLIENT
from cellblock.base.questions import ParkedQuestion, QuestionId, Round
from cellblock.run.events import Watcher
from cellblock.tools.upstream.requester import Requester


class Verdict(Enum):
    """Says what came of a question."""

    ACCEPTED = "accepted"
    ALWAYS = "always"
    """Says yes to this, and to all that the question's rule allows."""

    DECLINED = "declined"
    CANCELLED = "cancelled"
    """Says that the question was dismissed without a choice."""

    CANNOT_ASK = "cannot ask"
    """Says that the client has no way to ask its user."""

    LATER = "later"
    """Says that the user will answer later: a run that can be parked waits for it, for others it is as `CANNOT_ASK`."""


@dataclass(frozen=True, slots=True)
class LoginQuestion:
    """Asks the user for the login that a call needs.

    Args:
        said: What the server says, and how the user logs in.
        server: The server's name in the configuration.
        mark: Names the login that there is.
        page: The URL at which the user logs in, if there is a page for that.
    """

    said: str
    server: str
    mark: str
    page: str | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """Asks the user about one tool call.

    `tool_name` is the upstream's own text and `arguments` are the script's: both untrusted. `timeout` is in seconds.
    `call_id` is the call's number in its run, 0 for a call without a run, and `nth` as
    in `QuestionId`. With `login` the user is asked to log in, and says yes when that is done; None: whether the call
    may be made.
    """

    server_id: str
    tool_name: str
    destructive: bool
    arguments: Any
    timeout: float
    call_id: int = 0
    login: LoginQuestion | None = None
    nth: int = 0
    flow: FlowQuestion | None = None

    @property
    def id(self) -> QuestionId:
        """Names the question in its run."""
        return QuestionId(self.call_id, self.nth)


Approver = Callable[[Question], Awaitable[Verdict]]
"""Asks the user a question, and returns the verdict. It may be cancelled, when the time for the answer is over or the
run has ended."""


@dataclass(frozen=True, slots=True)
class EarlierQuestions:
    """Tells of a run that goes on what became of its questions before it was parked.

    Args:
        asked: How often the user was asked.
        waited_ms: How long the run had waited for answers in its process, in milliseconds.
        verdicts: What the user has said meanwhile, by the numbers of the calls; each is good for one call.
        logins: What the user has said of calls that need a login, likewise.
        rounds: With what calls go on whose servers ask in rounds, likewise.
        waited: The numbers of the calls that waited when it was parked; they count for quotas already.
        labels: By which label calls were asked about, packed, likewise: an answer is good for no more than that.
    """

    asked: int = 0
    waited_ms: int = 0
    verdicts: Mapping[int, Verdict] = field(default_factory=dict[int, Verdict])
    logins: Mapping[int, Verdict] = field(default_factory=dict[int, Verdict])
    rounds: Mapping[int, Round] = field(default_factory=dict[int, Round])
    waited: frozenset[int] = frozenset()
    labels: Mapping[int, str] = field(default_factory=dict[int, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowQuestion:
    """Says what a question about a flow shows besides the call.

    Args:
        said: What would go where, and why that is asked.
        found: Texts of this run's results that were found in the input; they explain, and prove nothing.
        rule: The rule that would allow it from now on, as JSON.
        label: The label by which it was judged, packed.
    """

    said: str
    found: tuple[str, ...] = ()
    rule: str = ""
    label: str = ""

    def pack(self) -> str:
        """Encodes what is shown, for a question that is written down."""
        return json.dumps({"found": self.found, "rule": self.rule, "label": self.label})


def flow_of(question: ParkedQuestion) -> FlowQuestion | None:
    """Returns what a question shows of a flow; None where it is not about one."""
    if question.kind != "approval" or not question.request:
        return None
    data: dict[str, Any] = json.loads(question.request)
    return FlowQuestion(
        said=question.said, found=tuple(data["found"]), rule=data["rule"], label=data["label"]
    )


@dataclass(frozen=True, slots=True)
class Grantee:
    """Says for which principal a run is, and who can be asked for approval.

    Args:
        principal: As in `PolicySettings.clients`: `cli`, `embedding`, `token`, `anybody`, `oauth:SUBJECT` (all of which
            are known), `stdio:NAME` (which is only what the client says), or what a program calls its own client.
        approver: Asks the client's user; None where nobody can be asked now.
        returns: Whether the client goes away with what is asked, and comes back with the answers: its run is parked
            meanwhile.
    """

    principal: str
    approver: Approver | None = None
    returns: bool = False


COMMAND_LINE: Final = "cli"
"""Names the principal of the command line, of which a process runs one script."""

EMBEDDING: Final = Grantee("embedding")


@dataclass(frozen=True, slots=True)
class Caller:
    """Says for which client a run or a call is.

    Args:
        client: Whose it is; workers are shared fairly between clients.
        grantee: Which grants it has, and who is asked for approval.
        observer: Watches this run beside those who watch all.
        requester: The client that upstream servers may ask during a call; None where nobody can be asked.
        leaves: Whether it may leave a run that takes long, which goes on without it.
    """

    client: str = DEFAULT_CLIENT
    grantee: Grantee = EMBEDDING
    observer: Watcher | None = None
    requester: Requester | None = None
    leaves: bool = False

    @property
    def reader(self) -> str:
        """Names who reads what comes of its runs: the principal; of one that may be several people, the client that a
        program names. A connection has no part in it."""
        principal = self.grantee.principal
        return f"{principal} {self.client}" if principal == EMBEDDING.principal else principal


EMBEDDER: Final = Caller()
"""Stands for the program that embeds the broker."""
