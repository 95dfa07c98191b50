"""Asks what a model is told of wrong scripts.

The scripts and commands are those of tests/support/feedback.py.

    bash scripts/bench feedback            prints the answers
    bash scripts/bench feedback --write    writes tests/fixtures/model-feedback.md

tests/e2e/test_model_feedback.py holds that file against what is answered now.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import ROOT, parser
from support.feedback import MODEL_FEEDBACK, all_cases, answers, page, worlds


def main(arguments: Sequence[str]) -> int:
    """Prints or writes; returns 0."""
    arguing = parser("bench feedback", __doc__)
    arguing.add_argument("--write", action="store_true", help="write the file")
    options = arguing.parse_args(arguments)
    cellblock = str(Path(sys.executable).parent / "cellblock")
    with tempfile.TemporaryDirectory(prefix="cb-", dir="/tmp") as folder:
        said = answers(cellblock, worlds(Path(folder)), all_cases(), Path(folder))
    text = page(said)
    if options.write:
        MODEL_FEEDBACK.write_text(text, "utf-8")
        print(f"wrote {MODEL_FEEDBACK.relative_to(ROOT)}")
    else:
        print(text)
    return 0
