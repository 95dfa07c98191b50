"""Every attack of these scenarios leaks nothing when all questions are answered no; honest tasks are hardly asked."""

from pathlib import Path

import pytest

from integration.flows.scenarios import ATTACKS, HONEST
from integration.flows_blind.harness import Play, Scenario


async def played(scenario: Scenario, folder: Path, *, yes: bool) -> None:
    play = await Play(scenario, folder, guard=True, yes=yes).play()
    for tool, times in scenario.calls.items():
        assert len(play.sent(tool)) == times, (tool, play.asked, play.given)
    assert scenario.asks in (None, len(play.asked)), play.asked


@pytest.mark.parametrize("name", ATTACKS)
async def test_an_attack_leaks_nothing(name: str, tmp_path: Path) -> None:
    await played(ATTACKS[name], tmp_path, yes=False)


@pytest.mark.parametrize("name", HONEST)
async def test_an_honest_task_is_done(name: str, tmp_path: Path) -> None:
    await played(HONEST[name], tmp_path, yes=True)


def test_there_are_enough_of_both() -> None:
    assert len(ATTACKS) >= 20 and len(HONEST) >= 20
