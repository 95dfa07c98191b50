"""What is said of type errors: of an earlier script, and where tools have answered with texts."""

from __future__ import annotations

import pytest

from cellblock.execution.failure import CORRECT_IT
from cellblock.execution.response import Diagnostic, RunResponse
from cellblock.execution.type_errors import (
    _earlier,  # pyright: ignore[reportPrivateUsage]
    _with_json_text_hint,  # pyright: ignore[reportPrivateUsage]
)
from cellblock.typecheck.faults import TypeFault


@pytest.mark.parametrize(
    ("code", "line"), [("a\fb\n c", 2), ("a\u2028b\r\n c", 3), ("a\rb\u2029 c", 3), ("a\x1cb\x85\v\n c", 2)]
)
def test_the_line_of_an_earlier_script_is_the_one_that_the_engine_counts(code: str, line: int) -> None:
    (told,) = _earlier([TypeFault("It is wrong.", None, line, 2)], code)
    assert told.message == "In your script before this one, at `c`: It is wrong."


FAILED = RunResponse(
    ok=False,
    result=None,
    diagnostics=[
        Diagnostic(
            severity="error",
            code="UNCAUGHT_EXCEPTION",
            message="TypeError: rows.map is not a function",
            hint=CORRECT_IT[0],
        )
    ],
    logs=[],
)


def test_names_of_tools_are_cut_in_the_hint_about_texts() -> None:
    (told,) = _with_json_text_hint(FAILED, ["x" * 10_000, "rows"], "").diagnostics
    assert told.hint is not None and "`rows` answered with JSON text" in told.hint and len(told.hint) < 300


def test_a_script_that_parses_what_it_got_is_not_told_to_parse_it() -> None:
    code = "JSON.parse(await rows()).rows.map(String)"
    assert _with_json_text_hint(FAILED, ["rows"], code) == FAILED
    (told,) = _with_json_text_hint(FAILED, ["rows", "others"], code).diagnostics
    assert told.hint is not None and "JSON.parse" in told.hint, "one of the two is not parsed"
