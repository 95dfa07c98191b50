"""The first full garbage collection waits for a moment without a run, but not for ever."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cellblock.daemon import first_collection
from cellblock.daemon.first_collection import FirstCollection
from support.waits import until


@pytest.fixture
def full() -> Iterator[list[int]]:
    """The full collections that have begun, in an automatically quiet collector."""
    begun: list[int] = []

    def heard(phase: str, info: dict[str, Any]) -> None:
        if phase == "start" and info["generation"] == 2:
            begun.append(1)

    automatic = gc.isenabled()
    gc.disable()
    gc.callbacks.append(heard)
    try:
        yield begun
    finally:
        gc.callbacks.remove(heard)
        if automatic:
            gc.enable()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_collection, "AFTER_SECONDS", 0.02)
    monkeypatch.setattr(first_collection, "AGAIN_SECONDS", 0.01)


def counted(answers: list[bool]) -> Callable[[], bool]:
    return lambda: answers.pop(0) if answers else False


async def test_once_in_the_first_idle_moment(full: list[int]) -> None:
    looks = [True, True, True]
    collection = FirstCollection(counted(looks))
    await until(lambda: collection.done, "a collection")
    assert (looks, len(full)) == ([], 1)
    await asyncio.sleep(0.1)
    assert len(full) == 1


@pytest.mark.parametrize("freezes", [False, True])
async def test_what_is_left_is_looked_at_again_only_where_it_may_go(
    full: list[int], monkeypatch: pytest.MonkeyPatch, freezes: bool
) -> None:
    monkeypatch.setattr(FirstCollection, "freezes", freezes)
    before = gc.get_freeze_count()
    collection = FirstCollection(lambda: False)
    await until(lambda: collection.done, "a collection")
    # It stays so: all tests here are frozen (conftest.py), and to thaw them would have each collection go through them.
    assert (gc.get_freeze_count() > before) is freezes


async def test_not_before_its_time(full: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_collection, "AFTER_SECONDS", 60.0)
    collection = FirstCollection(lambda: False)
    await asyncio.sleep(0.05)
    assert (collection.done, len(full)) == (False, 0)
    collection.give_up()
    assert collection.done


async def test_never_once_it_is_given_up(full: list[int]) -> None:
    collection = FirstCollection(lambda: False)
    collection.give_up()
    collection.give_up()
    await asyncio.sleep(0.1)
    assert full == []


async def test_a_broker_that_is_never_idle_collects_all_the_same(
    full: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_collection, "LONGEST_SECONDS", 0.1)
    collection = FirstCollection(lambda: True)
    await until(lambda: collection.done, "a collection")
    assert len(full) == 1


async def test_one_that_came_by_itself_is_enough(full: list[int]) -> None:
    collection = FirstCollection(lambda: False)
    gc.collect()
    await until(lambda: collection.done, "a look")
    assert len(full) == 1
