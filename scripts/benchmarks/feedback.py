"""Asks what a model is told of wrong scripts, and shows it beside what an earlier version said.

The scripts and commands are those of tests/support/feedback_cases.py.

    bash scripts/bench feedback                       prints the page
    bash scripts/bench feedback --write               writes docs/model-feedback.md
    bash scripts/bench feedback --record CELLBLOCK    keeps the answers of another version's program as those before

What an earlier version said is kept in docs/benchmarks/model-feedback-before.json, by script or command.
tests/e2e/test_model_feedback.py holds the page against what is answered now.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.harness import ROOT, parser
from support.feedback import answers
from support.feedback_cases import all_cases, worlds
from support.feedback_page import BEFORE, PAGE, page


def main(arguments: Sequence[str]) -> int:
    """Prints or writes; returns 0."""
    arguing = parser("bench feedback", __doc__)
    arguing.add_argument("--write", action="store_true", help="write the page")
    arguing.add_argument("--record", metavar="CELLBLOCK", help="the program of the version before")
    options = arguing.parse_args(arguments)
    cellblock = options.record or str(Path(sys.executable).parent / "cellblock")
    with tempfile.TemporaryDirectory(prefix="cb-", dir="/tmp") as folder:
        said = answers(cellblock, worlds(Path(folder)), all_cases(), Path(folder), patient=not options.record)
    if options.record:
        kept: Mapping[str, str] = {case.key: answer for case, answer in zip(all_cases(), said, strict=True)}
        BEFORE.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", "utf-8")
        return 0
    text = page(said)
    if options.write:
        PAGE.write_text(text, "utf-8")
        print(f"wrote {PAGE.relative_to(ROOT)}")
    else:
        print(text)
    return 0
