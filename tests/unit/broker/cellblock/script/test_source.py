"""Imports found and rewritten, how a script may give its result without assigning it, and its lines and columns:
against a plain count, and against what a real Deno says.
"""

import contextlib
import json
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import deno
import hypothesis
import pytest
import tree_sitter_javascript
from hypothesis import given, strategies as st
from tree_sitter import Language, Parser

from cellblock.script import imports, lines as script_lines, source
from cellblock.script.conventions import ASSIGN, Entry, entry_of
from cellblock.script.imports import JAVASCRIPT, MAX_IMPORTS, TYPESCRIPT, TooComplex, find_imports
from cellblock.script.lines import CompilerPlaces, parsed_place, place, with_plain_ends
from cellblock.script.source import Script, prepare
from support.params import mostly
from support.script_places import ENDS, counted, fillers, path_of, spaces, starts

URL = "data:text/javascript;base64,AAAA"
IMPORT_URL = "data:text/javascript;base64,BBBB"
FUNCTION = source.IMPORT_FUNCTION


def known(specifier: str) -> str | None:
    return URL if specifier.startswith("@codemode/") else None


def rewrite(code: str) -> Script:
    return prepare(code, known, IMPORT_URL)


def rewritten(code: str) -> tuple[str, list[str], list[str], bool, str]:
    """What is sent, the static and the dynamic imports, whether one is computed, and as what it is sent."""
    script = rewrite(code)
    static = [found.specifier for found in script.static]
    return script.text, static, script.dynamic, script.computed, script.media_type


def imported(name: str) -> str:
    """The line that imports what dynamic imports call."""
    return f'import {{ importable as {name} }} from "{IMPORT_URL}";\n'


@pytest.mark.parametrize(
    "statement",
    [
        'import * as a from "@codemode/x";',
        "import a from '@codemode/x'",
        'import { a, b as c } from "@codemode/x";',
        'import "@codemode/x";',
        'import a, { b } from\n  "@codemode/x"\n',
        'export * from "@codemode/x";',
        'export * as n from "@codemode/x";',
        'export { a } from "@codemode/x";',
        'import a from "@codemode/x" with { type: "json" };',
    ],
)
def test_static_forms(statement: str) -> None:
    code = f"{statement}\nlet y = 1;"
    sent = re.sub("([\"'])@codemode/x\\1", f'"{URL}"', code)
    assert rewritten(code) == (sent, ["@codemode/x"], [], False, JAVASCRIPT)


@pytest.mark.parametrize(
    "code",
    [
        "const s = 'import * as a from \"@codemode/x\"';",
        '// import a from "@codemode/x"\n1;',
        '/* import("@codemode/x") */ 1;',
        'const t = `import a from "@codemode/x"; import("@codemode/x")`;',
        'const r = /import("@codemode.x")/;',
        'const o = { import: 1, export: 2 }; o.import("@codemode/x");',
        'function imported(x) {} imported("@codemode/x");',
        "import.meta.url;",
        "export const a = 1; export default a; export { a as b };",
        "",
        "#!/usr/bin/env import\n1;",
    ],
)
def test_what_only_looks_like_an_import(code: str) -> None:
    assert rewritten(code) == (code, [], [], False, JAVASCRIPT)


@pytest.mark.parametrize(
    ("code", "sent", "static", "dynamic", "computed"),
    [
        # Unknown specifiers stay for the caller to refuse.
        (
            'import fs from "node:fs"; import * as a from "@codemode/x";',
            f'import fs from "node:fs"; import * as a from "{URL}";',
            ["node:fs", "@codemode/x"],
            [],
            False,
        ),
        # An escape in a specifier resolves to nothing.
        (
            r'import a from "@codemode\/x"; await import("@codemode\x2fx");',
            rf'import a from "@codemode\/x"; await import({FUNCTION}("@codemode\x2fx"));'
            f"\n{imported(FUNCTION)}",
            [r"@codemode\/x"],
            [],
            True,
        ),
        (
            'import((await import("a")).b)',
            f'import({FUNCTION}((await import({FUNCTION}("a"))).b))\n{imported(FUNCTION)}',
            [],
            ["a"],
            True,
        ),
        # What has no argument is left to the engine.
        ("import()", "import()", [], [], False),
        # The function's name is used.
        (
            f'const {FUNCTION} = 1, {FUNCTION}2 = 2; import("a");',
            f'const {FUNCTION} = 1, {FUNCTION}2 = 2; import({FUNCTION}3("a"));\n{imported(f"{FUNCTION}3")}',
            [],
            ["a"],
            False,
        ),
        ('import("a") // end', f'import({FUNCTION}("a")) // end\n{imported(FUNCTION)}', [], ["a"], False),
        (
            'const t = `${await import("a")}`;',
            f'const t = `${{await import({FUNCTION}("a"))}}`;\n{imported(FUNCTION)}',
            [],
            ["a"],
            False,
        ),
    ],
    ids=[
        "unknown",
        "an escape",
        "in another",
        "without an argument",
        "a name like ours",
        "a comment at the end",
        "inside a template",
    ],
)
def test_imports_are_found_and_rewritten(
    code: str, sent: str, static: list[str], dynamic: list[str], computed: bool
) -> None:
    assert rewritten(code) == (sent, static, dynamic, computed, JAVASCRIPT)


def test_places_that_are_in_no_line_of_the_script_map_back() -> None:
    script = rewrite('\nimport b from "@codemode/b"; import c from "@codemode/long-name";')
    # Inside a replacement there is no place of the original but its start.
    assert script.original_column(2, len('import b from "data:')) == len('import b from "')
    assert [script.original_column(*place) for place in ((1, 7), (99, 3))] == [7, 3]


STATEMENTS = [
    'import "@codemode/a";',
    "export * from '@codemode/b';",
    'import "other";',
    'import("@codemode/c");',
    "import(f(1), {});",
    "import((await import('d')).e);",
    "const x: number = 1;",
    "here;",
    "enum E {}",
]


@given(starts, st.lists(st.tuples(fillers, st.sampled_from(STATEMENTS)), max_size=6), fillers)
def test_positions_map_back_past_any_line_ends(
    start: str, statements: list[tuple[str, str]], filler: str
) -> None:
    """The engine's own count in what is sent becomes the same count in what the agent wrote."""
    code = start
    specifiers: list[tuple[str, int, int]] = []
    for before, statement in statements:
        code += before
        if statement.startswith(("import ", "export ")):
            at = max(statement.find("'"), statement.find('"'))
            specifiers.append((statement[at + 1 : -2], *counted(code + statement, len(code) + at)))
        code += statement
    code += filler + "there;"
    script = rewrite(code)
    assert [(found.specifier, found.line, found.column) for found in script.static] == specifiers
    loaded = script.text.removeprefix("\ufeff")
    for word in ("here;", "there;"):
        sent, written = -1, -1
        while (written := code.find(word, written + 1)) >= 0:
            sent = loaded.index(word, sent + 1)
            line, column = counted(loaded, sent)
            assert script.original_column(line, column) == counted(code, written)[1]
            if script.media_type == JAVASCRIPT:
                assert script.place(line, column) == path_of(code, written)


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\u2028", "\u2029"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_the_first_line_ends_as_the_engine_ends_it(mark: str, end: str) -> None:
    code = f"{mark}#!/bin/x import('a'){end}import '@codemode/x';"
    sent = code.replace("'@codemode/x'", f'"{URL}"')
    assert rewritten(code) == (sent, ["@codemode/x"], [], False, JAVASCRIPT)


@pytest.mark.parametrize(
    ("argument", "dynamic", "computed"),
    [
        ('"@codemode/x"', ["@codemode/x"], False),
        ("'other'", ["other"], False),
        ('/* why */ "@codemode/x"', ["@codemode/x"], False),
        ('"@codemode/" + name', [], True),
        ("`@codemode/x`", [], True),
        ("name", [], True),
        ("f(1, (2))", [], True),
    ],
)
def test_dynamic_imports_are_wrapped(argument: str, dynamic: list[str], computed: bool) -> None:
    value = argument.removeprefix("/* why */ ")
    wrapped = argument.replace(value, f"{FUNCTION}({value})")
    sent = f"const m = await import({wrapped});\n{imported(FUNCTION)}"
    assert rewritten(f"const m = await import({argument});") == (sent, [], dynamic, computed, JAVASCRIPT)


def test_imports_of_types_are_none() -> None:
    code = 'import type { A } from "zod"; export type { B } from "zod"; import { type C } from "zod";'
    script = rewrite(code)
    assert script.typescript
    assert [found.column for found in script.static] == [code.rindex('"zod"') + 1]


@pytest.mark.parametrize(
    "code", ["import * as a from ", "import {", 'import("', "const = ;", "\x00", "\ufeff1"]
)
def test_broken_code_is_passed_on(code: str) -> None:
    assert rewrite(code).text.startswith(code)


def test_lone_surrogates_become_something_that_can_be_sent() -> None:
    assert rewrite('const a = "\ud800"; import b from "x";').text == 'const a = "?"; import b from "x";'


def test_imports_are_capped() -> None:
    assert len(rewrite('import "@codemode/x";' * MAX_IMPORTS).static) == MAX_IMPORTS
    with pytest.raises(TooComplex, match=f"over {MAX_IMPORTS} imports"):
        rewrite('import "@codemode/x";' * MAX_IMPORTS + 'import("a")')


HOSTILE = {
    "imports on one line": 'import("a");' * 80_000,
    "names like ours": 'import("a");' + "".join(f"{FUNCTION}{n};" for n in range(42_000, 1, -1)),
    "templates": "`${" * 300_000 + 'import("a")',
    "nested calls": "f(" * 200_000 + 'import("a")' + ")" * 200_000,
    "nested imports": "import(" * 100_000 + '"a"' + ")" * 100_000,
    "holes": "[" + "," * 900_000 + 'import("a")]',
    "type arguments": "<a" * 300_000 + "import",
    "comments": "// import\n" * 100_000,
    "a long line": "/*" + "x" * 900_000 + "*/" + 'import("a");' * 900,
    "brackets": "[" * 500_000 + "]" * 500_000 + "import",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "code", mostly([HOSTILE["templates"], HOSTILE["names like ours"]], list(HOSTILE.values())), ids=HOSTILE
)
def test_hostile_text_costs_a_bounded_time(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "PARSE_BOUND_SECONDS", 0.3)
    started = time.process_time()
    with contextlib.suppress(TooComplex):
        rewrite(code[: 1 << 20])
    # Unbounded, some of these take minutes.
    assert time.process_time() - started < 6


def test_after_a_text_that_was_given_up_the_parser_works(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(imports, "PARSE_BOUND_SECONDS", 0.0)
        for _ in range(3):
            with pytest.raises(TooComplex, match="within"):
                rewrite('import * as a from "@codemode/x";\n' * 900)
    assert len(rewrite('import * as a from "@codemode/x";\n' * 900).static) == 900


@pytest.mark.parametrize(
    "code", ["/* never closed", "let a = 1; /* b(); import('x')", "let x: number = 1; /*"]
)
def test_a_comment_without_end_is_left_to_the_engine(code: str) -> None:
    """Deno's type stripping would take it for an empty rest and run the script without it."""
    assert prepare(code, lambda _: None, "data:,").media_type == JAVASCRIPT


def test_many_places_in_a_line_of_many_imports_take_no_longer_than_in_one_of_few() -> None:
    def seconds(imports: int) -> float:
        code = " ".join('import("@codemode/x");' for _ in range(imports))
        script = prepare(code, lambda _: URL, URL)
        started = time.perf_counter()
        for column in range(1, 4_000):
            script.original_column(1, column * 7)
        return time.perf_counter() - started

    ratios = [seconds(900) / seconds(9) for _ in range(5)]
    # It was eighty.
    assert min(ratios) < 10


def own(code: str) -> Script:
    return prepare(code, known, IMPORT_URL, own_import=True)


def test_an_import_becomes_a_call_of_a_name_of_its_length() -> None:
    """No column moves; the place of the call is told as the engine tells that of an import: by its argument."""
    script = own("const a = 1; await import( name, {});")
    assert script.text == (
        f"const a = 1; await $im000( {FUNCTION}(name), {{}});\n"
        f'import {{ importable as {FUNCTION}, load as $im000 }} from "{IMPORT_URL}";\n'
    )
    assert script.fits_context and script.computed and not script.has_namespace("a")
    assert script.place(1, 20) == "script.js:1:28"
    assert own("const files = await import('@codemode/x')").has_namespace("files")


def test_the_name_is_none_that_the_script_has() -> None:
    assert "await $im001(" in own("let $im000 = 1; await import('@codemode/x');").text


@pytest.mark.parametrize(
    ("code", "fits"),
    [
        ("let a = 1;", True),
        ("import '@codemode/x';", True),
        ("await import(/* why */ '@codemode/x');", False),
        (f"await import({' ' * 100}'@codemode/x');", False),
        ("enum A { B }", False),
        (
            f"/* {' '.join(f'$im{number:03}' for number in range(1000))} */ await import('@codemode/x');",
            False,
        ),
    ],
    ids=[
        "no import",
        "a static import",
        "a comment",
        "far away",
        "Deno compiles it",
        "all names are taken",
    ],
)
def test_whether_it_fits_a_context_is_told(code: str, fits: bool) -> None:
    """What has no dynamic import, or cannot run in a context, is sent as ever."""
    script = own(code)
    assert (script.fits_context, script.text) == (fits, rewrite(code).text)


@pytest.mark.parametrize(
    ("code", "typescript", "media_type"),
    [
        ("const a: number = 1;", True, JAVASCRIPT),
        ("interface A { b: string }\nconst a = {} as A;", True, JAVASCRIPT),
        ("function f<T>(x: T): T { return x }", True, JAVASCRIPT),
        ('import * as a from "@codemode/x";\nconst b = a as any;', True, JAVASCRIPT),
        ("const b = <any>a;", True, TYPESCRIPT),
        ("enum E { A }", True, TYPESCRIPT),
        ("let x = a satisfies B;", True, JAVASCRIPT),
        ("const a = 1;", False, JAVASCRIPT),
        ("a < b > (c)", False, JAVASCRIPT),
        ("class A { #x = 1; static { } }", False, JAVASCRIPT),
        ("a ??= b?.c ?? 1n ** 2n;", False, JAVASCRIPT),
        ("await 1; label: for (;;) {}", False, JAVASCRIPT),
    ],
)
def test_typescript_is_told_by_its_syntax(code: str, typescript: bool, media_type: str) -> None:
    assert (rewrite(code).typescript, rewrite(code).media_type) == (typescript, media_type)


IMPORTS_A = 'import * as a from "@codemode/servers/a";\n'
TOOL_URL = "data:text/javascript;base64,AAAA"
SENT_A = IMPORTS_A.replace("@codemode/servers/a", TOOL_URL)


def entry(code: str) -> Entry | None:
    return find_imports(code.encode(), 2).entry


def fix(code: str) -> str | None:
    return find_imports(code.encode(), 2).fix


def prepared(code: str, *, conventions: bool = True) -> Script:
    return prepare(code, lambda _: TOOL_URL, TOOL_URL, conventions=conventions)


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
        ("(async () => { return 1 })()", "call", 0),
        ("async function main() { return 1 } main();", "call", 35),
        ("const go = async () => 1; f(); go().then(console.log).catch(f)", "call", 31),
        ("function main() { return f() } main().then(console.log)", "call", 31),
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
        ("'use strict'; const x = 1; (() => x)", "function", 27),
        ("'use strict'; return 1", "return", 0),
    ],
)
def test_conventions_are_found(code: str, kind: str, at: int) -> None:
    found = entry(code)
    assert found.kind == kind and (kind == "export" or found.at == at)
    if not code.startswith("#!"):
        assert entry(IMPORTS_A + code) == Entry(kind, 0 if kind == "export" else at + len(IMPORTS_A))


@pytest.mark.parametrize(
    "code",
    [
        "",
        "1; 2",
        "const f = () => { return 1 }; f();",
        "const f = async () => 1",
        "async function main() { return 1 }",
        "'use strict'\nasync function main() { return 1 }",
        "async function main() { return 1 } void main();",
        "async function main() { return 1 } other().then(main);",
        "(() => { return 1 })()",
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
    script = prepared(f"{IMPORTS_A}/* é */ const x = await import('@codemode/servers/a');\n  return x.y;")
    _, line, last, *_ = script.text.splitlines()
    assert "export default async () => {const x" in line
    for piece in ("const x", "await", "import(", "'@codemode", "/* é */"):
        original = "/* é */ const x = await import('@codemode/servers/a');".index(piece) + 1
        assert script.original_column(2, line.index(piece) + 1) == original, piece
    assert (script.place(3, 3), last) == ("script.js:3:3", "  return x.y;")


@pytest.mark.parametrize(
    ("code", "conventions", "sent"),
    [
        (f"{IMPORTS_A}async () => 1 // é\n", True, f"{SENT_A}export default async () => 1 // é\n"),
        (f"{IMPORTS_A}async () => 1 // é\n", False, f"{SENT_A}async () => 1 // é\n"),
        ("export default 1", True, "export default 1"),
        ("return 1 // é", True, "export default async () => {return 1 // é\n};"),
        ("return 1", False, "return 1"),
    ],
)
def test_only_the_edit_is_made(code: str, conventions: bool, sent: str) -> None:
    assert prepared(code, conventions=conventions).text == sent


@pytest.mark.parametrize(
    ("code", "statement"),
    [
        (
            "await a.b({ c: 1 })",
            "Write the last statement as `globalThis.__codemode_result__ = await a.b({ c: 1 });`",
        ),
        (
            "titles.filter((one) => one.ok)",
            "Write the last statement as `globalThis.__codemode_result__ = titles.filter((one) => one.ok);`",
        ),
        (
            "JSON.stringify(rows)",
            "Write the last statement as `globalThis.__codemode_result__ = JSON.stringify(rows);`",
        ),
        (
            "Promise.all(ids.map(get))",
            "Write the last statement as `globalThis.__codemode_result__ = await Promise.all(ids.map(get));`",
        ),
        (
            "async function count() { return 1; }\nconst most = 3;",
            "Nothing calls `count`: add `globalThis.__codemode_result__ = await count();`",
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
        # The result is named.
        ("globalThis.__codemode_result__ = undefined;", None),
    ],
)
def test_the_fix_is_one_line(code: str, statement: str | None) -> None:
    assert fix(IMPORTS_A + code) == statement


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


RUNNER = """
const all = JSON.parse(await Deno.readTextFile(Deno.args[0]));
const places = [];
let count = 0;
for (const [type, code] of all) {
  const url = `data:application/${type};base64,` + new TextEncoder().encode(`${code}\\n//${count++}`).toBase64();
  let said = "";
  try { await import(url); } catch (error) { said = error.message.includes("base64,") ? error.message : error.stack; }
  const found = /base64,[^:]*:(\\d+):(\\d+)/.exec(said);
  places.push(found === null ? said : [Number(found[1]), Number(found[2])]);
}
console.log(JSON.stringify(places));
"""

texts = st.lists(st.sampled_from([*ENDS, "\t", "a", "é", "💥", "\u2027", "\x85", "\x0b"])).map("".join)


def of_deno(scripts: list[tuple[str, str]], folder: Path) -> list[Any]:
    """Where each script fails, as Deno says it."""
    (folder / "run.js").write_text(RUNNER)
    (folder / "all.json").write_text(json.dumps(scripts))
    command = [
        deno.find_deno_bin(),
        "run",
        "-q",
        "--no-config",
        "--no-lock",
        "--allow-read",
        "run.js",
        "all.json",
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=True)
    return json.loads(done.stdout)


@given(texts, st.data())
def test_a_place_is_what_a_plain_count_gives(text: str, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(text)))
    assert place(text, index) == counted(text, index)


@given(texts)
def test_only_lf_ends_lines_then_and_nothing_moves(text: str) -> None:
    raw = text.encode()
    plain = with_plain_ends(raw)
    assert len(plain) == len(raw)
    begins = {len(text[:at].encode()) for at in range(len(text) + 1) if counted(text, at)[1] == 1}
    assert {0, *(at + 1 for at, byte in enumerate(plain) if byte == 0x0A)} == begins


@given(texts, st.data())
def test_compilers_places_become_the_engines(text: str, data: st.DataObject) -> None:
    """To a compiler the separators are characters of a line like others."""
    index = data.draw(st.integers(0, len(text)))
    there = counted(text.replace("\u2028", "x").replace("\u2029", "x"), index)
    assert CompilerPlaces(text).place(*there) == counted(text, index)


@given(texts, st.data())
def test_the_parsers_places_become_the_engines(text: str, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(text)))
    before = text[:index].rpartition("\n")[2]
    line, column = text.count("\n", 0, index) + 1, len(before) + before.count("\t") + 1
    assert parsed_place(text, line, column) == counted(text, index)


@pytest.mark.parametrize(("line", "column"), [(0, 1), (3, 1), (10**9, 10**9)])
def test_a_line_that_is_not_there_is_given_back(line: int, column: int) -> None:
    assert parsed_place("a\nb", line, column) == (line, column)
    assert CompilerPlaces("a\nb").place(line, column) == (line, column)


@hypothesis.settings(max_examples=5)
@given(scripts=st.lists(st.tuples(starts, fillers, spaces), min_size=40, max_size=40))
def test_deno_counts_as_is_said_here(
    scripts: list[tuple[str, str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The engine in JavaScript, its frames of compiled TypeScript, and the parser in syntax errors."""
    engine = [f"{start}{text}throw new Error();" for start, text, _ in scripts]
    compiled = [f"{start}{text}enum E {{}} throw new Error();" for start, _, text in scripts]
    parsed = [f"{start}{text}\t'💥'; let a = ;" for start, text, _ in scripts]
    pairs = [
        *(("javascript", code) for code in engine),
        *(("typescript", code) for code in compiled),
        *(("javascript", code) for code in parsed),
    ]
    found = iter(of_deno(pairs, tmp_path_factory.mktemp("deno")))
    for codes, as_engine, failing in (
        (engine, lambda _, *place: place, "new Error"),
        (compiled, lambda code, *place: CompilerPlaces(code).place(*place), "new Error"),
        (parsed, parsed_place, ";"),
    ):
        # Deno takes a byte order mark off.
        for code in (code.removeprefix("\ufeff") for code in codes):
            assert as_engine(code, *next(found)) == counted(code, code.rindex(failing)), repr(code)


def test_separators_are_capped() -> None:
    text = "\u2028" * 300_000 + "💥" * 100_000
    started = time.process_time()
    places = CompilerPlaces(text)
    for column in range(1, 3_000):
        assert places.place(1, column + 1) == (column + 1, 1)
    assert time.process_time() - started < 2
    assert places.place(1, 300_000)[0] == script_lines.MAX_SEPARATORS + 1
