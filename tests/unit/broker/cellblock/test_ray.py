"""What `run_many` does before there is a cluster."""

from __future__ import annotations

import inspect

import pytest

from cellblock import CellblockError
from cellblock.ray import arun_many, run_many


async def test_in_an_event_loop_it_says_which_one_to_await() -> None:
    with pytest.raises(CellblockError, match="event loop runs in this thread") as caught:
        run_many(["globalThis.__codemode_result__ = 1"])
    assert caught.value.hint == "Await `arun_many` instead."


def test_no_scripts_need_no_cluster() -> None:
    assert run_many([]) == [] and inspect.signature(run_many) == inspect.signature(arun_many)
