"""Whose turn it is: looks wait for runs, within their share, and not when someone asks."""

import threading

import pytest

from cellblock.types.learning import learner as module
from cellblock.types.learning.learner import Turns

BOUND = 30.0


def waits(turns: Turns) -> bool:
    """Whether the next look has to wait."""
    thread = threading.Thread(target=turns.wait, daemon=True)
    thread.start()
    thread.join(0.2)
    waiting = thread.is_alive()
    turns.wanted.set()
    thread.join(BOUND)
    assert not thread.is_alive(), "who asks ends every wait"
    turns.wanted.clear()
    return waiting


def test_a_look_waits_only_after_another_and_while_runs_are_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PAUSE_SECONDS", 3600.0)
    turns, busy = Turns(), True
    turns.busy = lambda: busy
    assert not waits(turns), "the first one has its share"
    turns.took(1.0)
    assert waits(turns)
    busy = False
    assert not waits(turns)


def test_a_wait_ends_with_the_run_and_with_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TURN_SECONDS", 0.01)
    turns, asked = Turns(), 0

    def busy() -> bool:
        nonlocal asked
        asked += 1
        return asked < 5

    turns.busy = busy
    turns.took(100.0)
    turns.wait()
    assert asked == 5
    monkeypatch.setattr(module, "MAX_PAUSE_SECONDS", 0.01)
    turns.busy = lambda: True
    turns.took(100.0)
    turns.wait()
