"""How a script may give its result without assigning it, and what is said of one that gives none."""

from __future__ import annotations

import time

import pytest
import tree_sitter_javascript
from tree_sitter import Language, Parser

from cellblock.script.conventions import ASSIGN, Entry, entry_of
from cellblock.script.imports import find_imports
from cellblock.script.source import Script, prepare

IMPORT = 'import * as a from "@codemode/servers/a";\n'
URL = "data:text/javascript;base64,AAAA"


def entry(code: str) -> Entry | None:
    return find_imports(code.encode(), 2).entry


def fix(code: str) -> str | None:
    return find_imports(code.encode(), 2).fix


def prepared(code: str, *, conventions: bool = True) -> Script:
    return prepare(code, lambda _: URL, URL, conventions=conventions)


@pytest.mark.parametrize(
    ("code", "kind", "at"),
    [
        ("export default 1", "export", 0),
        ("const x = 1; export { x as default };", "export", 0),
        ("export const x = 1; export default () => x", "export", 0),
        ("async () => 1", "function", 0),
        ("(() => 1);", "function", 0),
        ("/* first */ (async ({ x } = {}) => x) // last", "function", 12),
        ("async function () { return 1 }", "function", 0),
        ("async function main() { return 1 }", "function", 0),
        ("const x = 1;\nfunction f() {}\nasync () => f(x)", "function", 29),
        ("return 1", "return", 0),
        ("if (x) { return }", "return", 0),
        ("try { f() } catch { return 1 } finally {}", "return", 0),
        (
            "out: for (const x of y) switch (x) { case 1: do return 2; while (0); default: break out }",
            "return",
            0,
        ),
        ("const f = () => { return 1 };\nreturn f();", "return", 0),
        ("#!/usr/bin/env node\n// first\nreturn 1", "return", 29),
        ("const x: number = 1; return x as unknown", "return", 0),
        ('"use strict";\nasync () => 1', "function", 14),
        ("'use strict'\nasync function main() { return 1 }", "function", 13),
        ("'use strict'; const x = 1; (() => x)", "function", 27),
        ("'use strict'; return 1", "return", 0),
    ],
)
def test_conventions_are_found(code: str, kind: str, at: int) -> None:
    found = entry(code)
    assert found is not None and found.kind == kind
    assert kind == "export" or found.at == at
    if not code.startswith("#!"):
        assert entry(IMPORT + code) == Entry(found.kind, 0 if kind == "export" else at + len(IMPORT))


@pytest.mark.parametrize(
    "code",
    [
        "",
        "1; 2",
        "const f = () => { return 1 }; f();",
        "const f = async () => 1",
        "(async () => { return 1 })()",
        "async function main() { return 1 } main();",
        "async function main() { return 1 } const x = 1;",
        "f(); () => 1",
        "'use strict'; f(); () => 1",
        "'use strict';",
        "(function* () {})",
        "class A { m() { return 1 } static { if (1) {} } }",
        "export const x = () => { return 1 };",
        # V8 has an error to tell.
        "export const x = 1; return x",
        'return 1; import "@codemode/errors"',
        "return (",
    ],
)
def test_what_is_none(code: str) -> None:
    assert entry(code) is None


def test_positions_stay() -> None:
    script = prepared(f"{IMPORT}/* é */ const x = await import('@codemode/servers/a');\n  return x.y;")
    line = script.text.splitlines()[1]
    assert "export default async () => {const x" in line
    for piece in ("const x", "await", "import(", "'@codemode", "/* é */"):
        original = "/* é */ const x = await import('@codemode/servers/a');".index(piece) + 1
        assert script.original_column(2, line.index(piece) + 1) == original, piece
    assert script.place(3, 3) == "script.js:3:3"
    assert script.text.splitlines()[2] == "  return x.y;"


def test_only_the_edit_is_made() -> None:
    code = f"{IMPORT}async () => 1 // é\n"
    script = prepared(code)
    assert script.text == code.replace("@codemode/servers/a", URL).replace("async", "export default async")
    assert prepared(code, conventions=False).text == code.replace("@codemode/servers/a", URL)
    assert prepared("export default 1").text == "export default 1"
    assert prepared("return 1 // é").text == "export default async () => {return 1 // é\n};"
    assert prepared("return 1", conventions=False).text == "return 1"


@pytest.mark.parametrize(
    ("code", "statement"),
    [
        (
            "await a.b({ c: 1 })",
            "Write the last statement as `globalThis.__codemode_result__ = await a.b({ c: 1 });`",
        ),
        ("main();", "Write the last statement as `globalThis.__codemode_result__ = await main();`"),
        ("await (main());", "Write the last statement as `globalThis.__codemode_result__ = await (main());`"),
        (
            "await(async () => 1)()",
            "Write the last statement as `globalThis.__codemode_result__ = await(async () => 1)();`",
        ),
        ("awaits(1)", "Write the last statement as `globalThis.__codemode_result__ = await awaits(1);`"),
        ("({ a, b });", "Write the last statement as `globalThis.__codemode_result__ = { a, b };`"),
        ("console.log(rows)", "Write the last statement as `globalThis.__codemode_result__ = rows;`"),
        ("total += 1", "Write the last statement as `globalThis.__codemode_result__ = total;`"),
        ("const { x } = a, y = 1;", "Add at the end: `globalThis.__codemode_result__ = y;`"),
        (
            "const out = [], n = 1;\nfor (const x of y) {\n  out.push(x.n);\n}",
            "Add at the end: `globalThis.__codemode_result__ = out;`",
        ),
        ("console.log('done')", ASSIGN),
        ("console.log('done', x)", ASSIGN),
        (f"f({'x' * 100})", ASSIGN),
        ("const { x } = a;", ASSIGN),
        ("{ a; b }", ASSIGN),
        ("", ASSIGN),
        ("export default 1", ASSIGN),
    ],
)
def test_the_fix_is_one_line(code: str, statement: str) -> None:
    assert fix(IMPORT + code) == statement


@pytest.mark.parametrize("word", ["const", "let", "var"])
def test_a_result_that_is_a_variable_of_the_scripts_own_is_told(word: str) -> None:
    code = f"{word} __codemode_result__ = 5;"
    said = f"`{word} __codemode_result__` makes a variable of the script's own: leave out `{word}`."
    assert find_imports(code.encode(), 2).fix == said
    for right in (
        "__codemode_result__ = 5;",
        f"globalThis.{code.split(' ', 1)[1]} {code}",
        "const a__codemode_result__ = 5;",
    ):
        assert "leave out" not in (find_imports(right.encode(), 2).fix or "")


def test_no_fix_where_the_result_is_named() -> None:
    assert fix("globalThis.__codemode_result__ = undefined;") is None


def test_looking_for_a_return_in_nested_blocks_is_linear() -> None:
    """Searching each block's text anew took 40 times as long as parsing does, and 80 times for twice as many."""
    source = b"if(x){" * 40_000 + b"f(() => { return 1 })" + b"}" * 40_000
    began = time.thread_time()
    root = Parser(Language(tree_sitter_javascript.language())).parse(source).root_node
    parsed = time.thread_time()
    assert entry_of(root, source) is None
    assert time.thread_time() - parsed < 10 * (parsed - began)


def test_of_very_many_names_the_last_one_that_is_used_is_found_at_once() -> None:
    names = "".join(f"let name{number};" for number in range(8_000))

    def seconds(last: str, fix: str) -> float:
        began = time.thread_time()
        assert fix in (find_imports(f"{names}{last}".encode(), 20).fix or "")
        return time.thread_time() - began

    plain = seconds("", "= name7999;")
    assert (
        seconds("if (x.name9 || name7 || name3) {}", "= name7;") < 100 * plain
    )  # by looking at each name anew it would be thousands
