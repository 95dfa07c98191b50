"""The state machine of a session, and the pacing of its tool list, by tables: what happens, and what is so then."""

from collections.abc import Callable

import pytest

from cellblock.tools.upstream.lifecycle import (
    AT_ONCE_SECONDS,
    FIRST_PAUSE_SECONDS,
    HOPELESS_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    STEADY_SECONDS,
    Lifecycle,
    State,
)
from cellblock.tools.upstream.listing import MOST_IDLE_LISTS, QUIET_SECONDS, RELIST_SECONDS, Announced

STEPS: dict[str, Callable[[Lifecycle], object]] = {
    "begin": lambda life: life.begin(),
    "ready": lambda life: life.connected(100.0),
    "lost": lambda life: life.lost("gone"),
    "failed": lambda life: life.ended(100.0, "refused"),
    "asked": lambda life: life.ended(100.0, "it ended", at_question=True),
    "closed": lambda life: life.closed(),
}

CONNECTING, WAITING = State.CONNECTING, State.WAITING


@pytest.mark.parametrize(
    ("steps", "state", "reason", "is_first", "handshake"),
    [
        ("", CONNECTING, "still connecting", True, False),
        ("begin", CONNECTING, "still connecting", True, False),
        ("begin ready", State.READY, "", False, False),
        ("begin ready lost", WAITING, "gone", False, False),
        ("begin failed", WAITING, "refused", False, False),
        ("begin failed begin", CONNECTING, "refused", False, False),
        # Greeted in the old way at once, as the first attempt still; and again for as long as that is good.
        ("begin asked", CONNECTING, "still connecting, for the second time: it ended", True, True),
        ("begin asked begin ready failed begin", CONNECTING, "refused", False, True),
        ("begin asked begin failed", WAITING, "refused", False, False),
        ("begin failed begin asked", WAITING, "it ended", False, True),
        ("begin ready closed", State.CLOSED, "Cellblock is stopping", False, False),
        ("closed", State.CLOSED, "Cellblock is stopping", False, False),
    ],
)
def test_states(steps: str, state: State, reason: str, is_first: bool, handshake: bool) -> None:
    life = Lifecycle()
    for step in steps.split():
        STEPS[step](life)
    assert (life.state, life.reason, life.is_first, life.handshake) == (state, reason, is_first, handshake)


def _pause(life: Lifecycle, held: float | None, *, served: bool = False) -> float:
    life.begin()
    if held is not None:
        life.connected(100.0)
        if served:
            life.served()
    return life.ended(100.0 + (held or 0.0), "x")


def test_pauses_double_to_the_longest_and_start_over_after_a_connection_that_was_good() -> None:
    life = Lifecycle(chance=lambda: 0.0)
    assert [_pause(life, None) for _ in range(8)] == [
        min(FIRST_PAUSE_SECONDS * 2**n, LONGEST_PAUSE_SECONDS) for n in range(8)
    ]
    for held, served, pause in (
        # One that dies at once has failed, too; one that ends after an answer has not.
        (STEADY_SECONDS - 0.1, False, LONGEST_PAUSE_SECONDS),
        (STEADY_SECONDS, False, FIRST_PAUSE_SECONDS),
        (None, False, 2 * FIRST_PAUSE_SECONDS),
        (0.1, True, FIRST_PAUSE_SECONDS),
    ):
        assert _pause(life, held, served=served) == pause
    assert _pause(Lifecycle(chance=lambda: 1.0), None) == FIRST_PAUSE_SECONDS / 2, "chance takes up to half"


def test_a_server_without_a_package_is_tried_ever_less_often() -> None:
    life = Lifecycle(chance=lambda: 0.0)
    life.begin()
    pauses = [life.ended(100.0, "no such package", is_hopeless=True) for _ in range(9)]
    assert pauses[:2] == [LONGEST_PAUSE_SECONDS, 2 * LONGEST_PAUSE_SECONDS]
    assert pauses[-1] == HOPELESS_PAUSE_SECONDS
    assert life.ended(100.0, "another reason") == LONGEST_PAUSE_SECONDS


def test_who_needs_the_server_waits_for_an_attempt_unless_one_failed_a_moment_ago() -> None:
    life = Lifecycle()
    life.begin()
    assert life.wanted(0.0) == 1 and not life.is_over(1), "that which is under way"
    life.ended(100.0, "x")
    assert life.is_over(1) and life.wanted(100.0 + AT_ONCE_SECONDS / 2) is None
    assert life.wanted(100.0 + AT_ONCE_SECONDS) == 2 and not life.is_over(2)
    life.begin()
    life.connected(200.0)
    assert life.is_over(2)
    life.ended(200.0, "x")
    assert life.wanted(200.0) == 3, "a connection that was good is no attempt that failed"


def test_a_list_that_changes_nothing_is_waited_for_a_few_times_only() -> None:
    announced, now = Announced(), 1_000.0
    waited: list[bool] = []
    for _ in range(MOST_IDLE_LISTS + 2):
        announced.note(now)
        waited.append(announced.stale)
        assert announced.pause(now) == (RELIST_SECONDS if len(waited) > 1 else 0.0)
        announced.done(announced.begin(now), changed=False)
    assert waited == [True] * MOST_IDLE_LISTS + [False] * 2
    announced.note(now + QUIET_SECONDS + 1)
    assert announced.stale, "a pause makes the server's word good again"
    count = announced.begin(now)
    announced.note(now + QUIET_SECONDS + 2)
    announced.done(count, changed=True)
    assert announced.stale, "what was announced during the list is not read"
