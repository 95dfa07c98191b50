"""Right scripts are not told anything, wrong ones are: a sample of the script corpus."""

import random
from pathlib import Path

import pytest

from cellblock.types.check import compiler
from support.script_corpus import measured, recorded, right_scripts, wrong_scripts

if compiler.why_absent() is not None:
    pytest.skip(f"{compiler.why_absent()}; {compiler.FIX}", allow_module_level=True)


async def test_right_scripts_are_told_nothing_and_wrong_ones_the_fix(tmp_path: Path) -> None:
    rng = random.Random(7)
    tools = recorded(rng, ["github", "memory", "time"])
    right = right_scripts(tools, rng, 12)
    wrong = wrong_scripts(right, rng, 12)
    outcomes = await measured(tmp_path, tools, right, wrong)
    assert [one for one in outcomes if one.case.mistake is None and (one.said or one.refused)] == []
    assert [one for one in outcomes if one.case.mistake is not None and not one.fixed] == []
