"""Every attack of these scenarios leaks nothing when all questions are answered no; honest tasks are hardly asked."""

from pathlib import Path

import pytest

from support.flow_scenarios import ATTACKS, HONEST
from support.flow_world import Scenario, World


@pytest.mark.parametrize("scenario", ATTACKS, ids=lambda one: one.name)
async def test_an_attack_leaks_nothing(scenario: Scenario, tmp_path: Path) -> None:
    await World(tmp_path, scenario).play()


@pytest.mark.parametrize("scenario", HONEST, ids=lambda one: one.name)
async def test_an_honest_task_is_done(scenario: Scenario, tmp_path: Path) -> None:
    await World(tmp_path, scenario).play()


def test_there_are_enough_of_both() -> None:
    assert len(ATTACKS) >= 20 and len(HONEST) >= 20
