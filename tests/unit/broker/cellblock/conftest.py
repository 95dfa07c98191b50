"""Fixtures of the broker's tests."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.memory_host import MakeWorld, World


@pytest.fixture
async def make_world() -> AsyncIterator[MakeWorld]:
    """Makes the broker's parts above the wire; closes them, and checks that no lease was kept."""
    made: list[World] = []

    def make(**options: Any) -> World:
        made.append(World(**options))
        return made[-1]

    yield make
    for world in made:
        await world.close()
        assert world.pool.running == 0
        assert world.pool.queued == 0


@pytest.fixture
async def world(make_world: MakeWorld) -> World:
    """One of them, as it is by default."""
    return make_world()
