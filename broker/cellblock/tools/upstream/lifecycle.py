"""The life of a session with one server as a state machine: no I/O, no tasks, no clock of its own. `session` drives it.

    CONNECTING --connected--> READY --lost or ended--> WAITING --begin--> CONNECTING
         \\________________________ended________________^          close: CLOSED, from any, for good
                                 READY --rest--> RESTING --begin--> CONNECTING

An attempt goes from `begin` to `ended`, whether or not it connects. `lost` comes before `ended` where a call finds out
first that the server is dead: no further call is to get that connection.

When it is tried again: `ended` returns a pause. Pauses double, and start over after a connection that held, or that
answered a call: a server that ends after each answer is no server that fails. Who needs the server does not wait for
the pause: `wanted` says the end of which attempt answers them, and there is none where one failed a moment ago.

A session that nobody has used for a while may `rest`: nothing is wrong with its server, and a call begins the next
attempt.

How it is greeted: some servers end where what they hear first is not `initialize`. A first attempt that ended so is
made again at once with `initialize` first, and counts as the first still. That greeting is kept until an attempt fails
with it in another way: what does not answer it either may be a newer server.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from enum import Enum
from typing import Final

FIRST_PAUSE_SECONDS: Final = 0.5
"""Sets the pause before the first attempt to connect again; it is doubled for each further one."""

LONGEST_PAUSE_SECONDS: Final = 30.0
"""Bounds the doubled pause: a server that is back is seen within it."""

HOPELESS_PAUSE_SECONDS: Final = 3600.0
"""Bounds it where the server's package is not there."""

STEADY_SECONDS: Final = 10.0
"""Sets how long a good connection holds; one that ended sooner counts as a failure."""

JITTER: Final = 0.5
"""Sets the share of each pause that is left to chance, so that many clients of one server do not come back at once."""

AT_ONCE_SECONDS: Final = 0.5
"""Passes from an attempt that failed until a call starts the next one before its pause is over."""


FIRST_TRY: Final = "still connecting"
"""Stands as the reason until an attempt is over."""

NO_ROOM: Final = "all connections with it are at work for others"


class State(Enum):
    """Says in which state a session is."""

    CONNECTING = "connecting"
    READY = "ready"
    WAITING = "waiting"
    RESTING = "resting"
    CLOSED = "closed"


class Lifecycle:
    """Holds the state of one session; times are of the caller's clock.

    Args:
        chance: Gives numbers from 0 to 1.

    Attributes:
        state: Where it is.
        reason: Why it is not ready.
        attempts: Those that have begun.
        is_first: Whether none is over.
        handshake: Whether the next attempt says `initialize` first.
    """

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self.state = State.CONNECTING
        self.reason = FIRST_TRY
        self.attempts = 0
        self.is_first = True
        self.handshake = False
        self._chance = chance
        self._next_pause = FIRST_PAUSE_SECONDS
        self._ready_at: float | None = None
        self._has_served = False
        self._failed_at = 0.0

    def begin(self) -> None:
        """Begins an attempt."""
        self.attempts += 1
        self._ready_at, self._has_served = None, False
        self.state = State.CONNECTING

    def connected(self, now: float) -> None:
        """Takes the connection as good."""
        self._ready_at = now
        self._settle(State.READY, "")

    def served(self) -> None:
        """Notes that the server has answered a call."""
        self._has_served = True

    def lost(self, why: str) -> None:
        """Notes that the connection is over, before its transport is closed."""
        self._settle(State.WAITING, why)

    def ended(
        self,
        now: float,
        why: str,
        *,
        at_question: bool = False,
        is_unanswered: bool = False,
        is_hopeless: bool = False,
    ) -> float:
        """Ends an attempt, and returns the pause before the next.

        Args:
            now: The time.
            why: The reason.
            at_question: Whether the server ended where it was asked for its revision.
            is_unanswered: Whether it answered neither that nor its greeting.
            is_hopeless: Whether only another configuration helps, as far as is known.
        """
        held = 0.0 if self._ready_at is None else now - self._ready_at
        if self._ready_at is None:
            # It may read nothing after what it does not know.
            self.handshake = at_question or (is_unanswered and not self.handshake)
        if at_question and self.attempts == 1:
            self.reason = f"{FIRST_TRY}, for the second time: {why}"
            return 0.0
        self._failed_at = now if self._ready_at is None else 0.0
        self._settle(State.WAITING, why)
        if held >= STEADY_SECONDS or self._has_served:
            self._next_pause = FIRST_PAUSE_SECONDS
        longest = HOPELESS_PAUSE_SECONDS if is_hopeless else max(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        pause = min(max(self._next_pause, LONGEST_PAUSE_SECONDS if is_hopeless else 0.0), longest)
        self._next_pause = min(2 * pause, longest)
        return pause * (1 - JITTER * self._chance())

    def rest(self, why: str = "") -> None:
        """Ends an attempt that had connected, or none, until somebody needs the server; or one that was refused, and
        why."""
        if not why:
            self._failed_at, self._next_pause = 0.0, FIRST_PAUSE_SECONDS
        self._settle(State.RESTING, why)

    def closed(self) -> None:
        """Ends the session for good."""
        self._settle(State.CLOSED, "Cellblock is stopping")

    def wanted(self, now: float) -> int | None:
        """Returns the number of the attempt whose end answers who needs the server now; None: there is none, as one
        failed a moment ago."""
        if self.state is State.CONNECTING:
            return self.attempts
        return self.attempts + 1 if now - self._failed_at >= AT_ONCE_SECONDS else None

    def is_over(self, attempt: int) -> bool:
        """Says whether an attempt of this number has connected or failed, or there will be none."""
        if self.state is State.CONNECTING:
            return False
        return self.attempts >= attempt or self.state in (State.READY, State.CLOSED)

    def _settle(self, state: State, reason: str) -> None:
        if self.state is not State.CLOSED:
            self.state, self.reason, self.is_first = state, reason, False
