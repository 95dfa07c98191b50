"""Where data may go, judged by what servers record: attacks whose questions are all answered no, honest tasks whose
questions are all answered yes."""

from pathlib import Path

import pytest

from integration.flows.attacks import ATTACKS
from integration.flows.harness import Play
from integration.flows.tasks import TASKS
from support.params import mostly

MOST_IN_ALL = 3
"""Of 40 honest tasks, half of which are here: how often they may be asked about more than is acceptable."""

EXCESS: dict[str, int] = {}
"""How much more often than acceptable each honest task was asked about."""

SOME = slice(None, None, 2)
"""Chooses those that every run of the suite plays; the others, and what happens without the guard, are `--thorough`."""


def each(names: list[str], *, seldom: bool = False) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", mostly([] if seldom else names[SOME], names))


@each(list(ATTACKS), seldom=True)
async def test_without_the_guard_the_attack_works(tmp_path: Path, name: str) -> None:
    scenario = ATTACKS[name]
    play = await Play(scenario, tmp_path, guard=False, yes=True).play()
    assert play.sent(scenario.reads) and play.leaked, play.given


@each(list(ATTACKS))
async def test_under_guard_nothing_leaks(tmp_path: Path, name: str) -> None:
    scenario = ATTACKS[name]
    play = await Play(scenario, tmp_path, guard=True, yes=False).play()
    assert play.sent(scenario.reads), play.given
    assert not play.leaked, (play.asked, play.given)


def check_effects(play: Play) -> None:
    """Each tool was called as often as is right, with what is right."""
    for pattern, (text, times) in play.scenario.effects.items():
        sent = play.sent(pattern)
        assert len(sent) == times and text in str(sent), (pattern, sent, play.asked, play.given)


@each(list(TASKS), seldom=True)
async def test_without_the_guard_only_the_policy_asks(tmp_path: Path, name: str) -> None:
    scenario = TASKS[name]
    play = await Play(scenario, tmp_path, guard=False, yes=True).play()
    check_effects(play)
    assert len(play.asked) == len(scenario.policy.keys() - {"flows"})


@each(list(TASKS))
async def test_under_guard_an_honest_task_is_done(tmp_path: Path, name: str) -> None:
    scenario = TASKS[name]
    play = await Play(scenario, tmp_path, guard=True, yes=True).play()
    check_effects(play)
    EXCESS[name] = max(0, len(play.asked) - scenario.acceptable_questions)
    assert EXCESS[name] <= 1, play.asked


def test_honest_tasks_are_seldom_asked_about_too_often() -> None:
    """Of those that this process has played."""
    assert sum(EXCESS.values()) <= MOST_IN_ALL, EXCESS
