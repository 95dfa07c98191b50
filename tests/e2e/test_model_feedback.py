"""tests/fixtures/model-feedback.md has what Cellblock answers today."""

from pathlib import Path

import pytest

from cellblock.types.check import compiler
from support.cellblock_zygote import forked_cellblock
from support.feedback import MODEL_FEEDBACK, all_cases, answers, page, worlds

if compiler.why_absent() is not None:
    pytest.skip(f"{compiler.why_absent()}; {compiler.FIX}", allow_module_level=True)


@pytest.mark.thorough
def test_each_answer_is_the_answer_of_today(short_path: Path) -> None:
    said = answers(str(forked_cellblock()), worlds(short_path), all_cases(), short_path)
    today, written = page(said).splitlines(), MODEL_FEEDBACK.read_text("utf-8").splitlines()
    assert today == written, "bash scripts/bench feedback --write"
