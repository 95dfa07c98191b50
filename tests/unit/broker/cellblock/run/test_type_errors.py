"""What is said of type errors: of an earlier script, and where tools have answered with texts."""

from __future__ import annotations

import pytest

from cellblock.run.failure import CORRECT_IT
from cellblock.run.response import Diagnostic, RunResponse
from cellblock.run.type_errors import _earlier, _with_json_text_hint
from cellblock.script.lines import place
from cellblock.types.check.faults import TypeFault


@pytest.mark.parametrize(
    ("code", "line"), [("a\fb\n c", 2), ("a\u2028b\r\n c", 3), ("a\rb\u2029 c", 3), ("a\x1cb\x85\v\n c", 2)]
)
def test_the_line_of_an_earlier_script_is_the_one_that_the_engine_counts(code: str, line: int) -> None:
    (told,) = _earlier([TypeFault("It is wrong.", None, line, 2)], code)
    assert told.message == "In an earlier script of yours, at `c`: It is wrong."


TEXTS = {("x", "rows"): "rows", ("x", "page"): "page" * 3_000}
IMPORT = 'import * as x from "@codemode/servers/x";\n'


async def hint_of(code: str, message: str, texts: dict[tuple[str, str], str] = TEXTS) -> str | None:
    """The hint about an exception at `⟦`, as the response has it in the end."""
    at = f"{IMPORT}{code}"
    line, column = place(at, at.index("⟦"))
    failed = RunResponse(
        logs=[],
        diagnostics=[
            Diagnostic(
                severity="error",
                code="UNCAUGHT_EXCEPTION",
                message=f"TypeError: {message}",
                hint=CORRECT_IT[1],
                path=f"script.js:{line}:{column}",
            )
        ],
    )
    (told,) = (await _with_json_text_hint(failed, texts, at.replace("⟦", ""), False)).diagnostics
    return told.hint


@pytest.mark.parametrize(
    "code",
    [
        "const rows = await x.rows({}); rows.⟦map(String);",
        "(await x.rows({})).⟦map(String);",
        "const { rows: get } = x; const all = await get({}); all.items.⟦map(String);",
        "const { items } = await x.rows({}); items.⟦map(String);",
        "const page = await x.rows({}); for (const one of ⟦page.items) one;",
        "const page = await x.rows({}); const [first] = ⟦page.items;",
        "const é = await x.rows({}); console.log('ü😀', é.a.⟦b);",
        "const a = '\u2028'; const rows = await x.rows({});\n rows.⟦map(String);",
    ],
)
async def test_an_exception_about_an_answer_that_was_a_text_is_told_to_parse_it(code: str) -> None:
    told = await hint_of(code, "Cannot read properties of undefined (reading 'b')")
    assert told == "`rows` answered with JSON text: use JSON.parse on it before its fields are read."


@pytest.mark.parametrize(
    "code",
    [
        # Of no answer at all, of another tool's, of what is parsed.
        "const t = await x.rows({}); console.log(t); const o = {}; o.⟦foo();",
        "const t = await x.rows({}); const { issues } = await x.list({}); issues[999].⟦title;",
        "const rows = JSON.parse(await x.rows({})); const text = await x.page({}); rows[9].⟦title;",
        "const rows = await x.rows({}); const read = (some) => some.a.⟦b; read({});",
        "const o = {}; await x.rows({ a: o.⟦b.c });",
        "const rows = await x.rows({}); ⟦",
    ],
)
async def test_an_exception_about_anything_else_is_not(code: str) -> None:
    assert await hint_of(code, "Cannot read properties of undefined (reading 'b')") == CORRECT_IT[1]
    assert await hint_of("(await x.rows({})).⟦map();", "x is not defined") == CORRECT_IT[1]
    assert await hint_of("(await x.rows({})).⟦map();", "a.map is not a function", {}) == CORRECT_IT[1]


async def test_names_of_tools_are_cut_in_the_hint_about_texts() -> None:
    told = await hint_of("const p = await x.page({}); p.⟦map();", "p.map is not a function")
    assert told is not None and "answered with JSON text" in told and len(told) < 300
