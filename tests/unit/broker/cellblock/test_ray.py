"""What `run_many` does before there is a cluster."""

import importlib.util
import inspect
from typing import Any

import pytest

from cellblock import CellblockError, ConfigError, InvalidRequest
from cellblock.ray import arun_many, run_many


async def test_in_an_event_loop_it_says_which_one_to_await() -> None:
    with pytest.raises(
        CellblockError, match=r"event loop runs in this thread.* Await `arun_many` instead\.$"
    ):
        run_many(["globalThis.__codemode_result__ = 1"])


def test_no_scripts_need_no_cluster() -> None:
    assert run_many([]) == [] and inspect.signature(run_many) == inspect.signature(arun_many)


@pytest.mark.parametrize(
    ("scripts", "options", "says"),
    [
        ("globalThis.x = 1", {}, "must be a list"),
        (["globalThis.x = 1", 2], {}, "Script 1 is no text, but int"),
        (["globalThis.x = 1"], {"hosts": 0}, "`hosts` is 0"),
        (["globalThis.x = 1"], {"capacity": 0}, "`capacity` is 0"),
    ],
)
def test_no_script_is_left_out_or_cut_into_letters(scripts: Any, options: dict[str, int], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        run_many(scripts, **options)


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is here")
def test_without_ray_it_says_how_to_get_it() -> None:
    with pytest.raises(ConfigError, match=r"Ray is not installed.* pip install 'cellblock\[ray\]'$"):
        run_many(["globalThis.x = 1"])
