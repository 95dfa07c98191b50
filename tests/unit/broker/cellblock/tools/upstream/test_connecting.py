"""Pauses before reconnecting."""

from __future__ import annotations

from cellblock.tools.upstream.connecting import STEADY_SECONDS, Backoff


def test_pauses_double_to_the_longest_and_start_over_after_a_steady_connection() -> None:
    backoff = Backoff(0.5, 3.0, chance=lambda: 0.0)
    assert [backoff.pause(0) for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert backoff.pause(STEADY_SECONDS - 0.1) == 3.0, "a connection that dies at once is a failure, too"
    assert backoff.pause(STEADY_SECONDS) == 0.5
    assert backoff.pause(0) == 1.0


def test_chance_takes_up_to_half() -> None:
    assert Backoff(2.0, 2.0, chance=lambda: 1.0).pause(0) == 1.0
    pauses = {Backoff(2.0, 2.0).pause(0) for _ in range(50)}
    assert len(pauses) > 10
    assert all(1.0 <= pause <= 2.0 for pause in pauses)


def test_a_first_pause_over_the_longest_is_kept() -> None:
    backoff = Backoff(5.0, 1.0, chance=lambda: 0.0)
    assert [backoff.pause(0), backoff.pause(0)] == [5.0, 5.0]
