"""Right scripts are not told anything, wrong ones are: a sample of the script corpus."""

import random
from pathlib import Path

import pytest

from cellblock.types.check import compiler
from support.script_corpus import MISTAKES, measured, right_scripts, some_tools, wrong_scripts

if compiler.why_absent() is not None:
    pytest.skip(f"{compiler.why_absent()}; {compiler.FIX}", allow_module_level=True)


async def test_right_scripts_are_told_nothing_and_wrong_ones_the_fix(tmp_path: Path) -> None:
    rng = random.Random(7)
    tools = some_tools(rng, 30)
    right = right_scripts(tools, rng, 60)
    outcomes = await measured(tmp_path, tools, right[:12] + wrong_scripts(right, rng, 2))
    assert [one for one in outcomes if not one.case.mistake and (one.hints or one.refused)] == []
    assert {one.case.mistake for one in outcomes} == {"", *MISTAKES}
    assert [one for one in outcomes if one.case.mistake and not one.is_fixed] == []
