"""Blanks for types make the same program of a script as Deno's compiler does, and move nothing."""

import contextlib
import json
import random
import subprocess
import time
from pathlib import Path
from typing import Any

import deno
import pytest

from cellblock.script.imports import JAVASCRIPT, TYPESCRIPT, Imports, TooComplex, find_imports
from cellblock.script.trees import parse
from cellblock.script.type_blanking import blank, blank_types
from support.params import mostly
from support.typescript_corpus import CORPUS

RUNNER = """
const all = JSON.parse(await Deno.readTextFile(Deno.args[0]));
const url = (type, code) =>
  `data:application/${type};base64,` + new TextEncoder().encode(`${code}\\n//${count++}`).toBase64();
const place = (error) => /base64,[^:]*:(\\d+:\\d+)/.exec(error.stack)?.[1];
let seen, count = 0;
globalThis.out = (x) => void seen.push(x === undefined ? "undefined" : x);
const results = [];
for (const pair of all) {
  const two = [];
  for (const [type, code] of [["typescript", pair[0]], ["javascript", pair[1]]]) {
    seen = [];
    let failed = null;
    try { await import(url(type, code)); } catch (error) { failed = [error.name, error.message, place(error)]; }
    two.push([seen, failed]);
  }
  results.push(two);
}
console.log(JSON.stringify(results));
"""

FALLS_BACK = 54
"""At most so many of the corpus may be left to Deno."""


def blanked(code: str) -> Imports:
    return find_imports(code.encode(), 20)


def variants(code: str) -> list[str]:
    wide = "/* é❤💥 */ const wide\U00010400 = '💥'; "
    return [code, wide + code, "// 💥\n" + code.replace("\n", "\r\n")]


def shape(code: str) -> tuple[int, int, list[tuple[int, int]]]:
    """Its bytes and UTF-16 units, how many, and its ends of lines with their places."""
    units = memoryview(code.encode("utf-16-le")).cast("H")
    ends = [(at, unit) for at, unit in enumerate(units) if unit in (0x0A, 0x0D, 0x2028, 0x2029)]
    return len(code.encode()), len(units), ends


def run_both(pairs: list[tuple[str, str]], folder: Path) -> list[Any]:
    (folder / "run.js").write_text(RUNNER)
    (folder / "pairs.json").write_text(json.dumps(pairs))
    done = subprocess.run(
        [deno.find_deno_bin(), "run", "-A", "--no-config", "run.js", "pairs.json"],
        cwd=folder,
        env={"NO_COLOR": "1", "DENO_DIR": str(folder / "cache"), "HOME": str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("variant", mostly([1], range(3)))
def test_the_blanked_script_does_the_same(tmp_path: Path, variant: int) -> None:
    assert len(CORPUS) >= 150
    found = {code: blanked(code) for code in (variants(each)[variant] for each in CORPUS)}
    pairs = [(code, each.javascript) for code, each in found.items() if each.javascript is not None]
    left = [each for each in CORPUS if blanked(each).javascript is None]
    assert len(left) <= FALLS_BACK, left
    differ: list[Any] = []
    for (code, javascript), (typescript, result) in zip(pairs, run_both(pairs, tmp_path), strict=True):
        if typescript[0] != result[0] or bool(typescript[1]) != bool(result[1]):
            differ.append((code, javascript, typescript, result))
        elif result[1] is not None:
            assert typescript[1][:2] == result[1][:2]
    assert not differ, differ[:3]


@pytest.mark.parametrize("variant", range(3))
def test_nothing_moves(variant: int) -> None:
    for each in CORPUS:
        code = variants(each)[variant]
        javascript = blanked(code).javascript
        if javascript is not None:
            assert shape(javascript) == shape(code)
            again = blanked(javascript)
            assert (again.media_type, again.javascript) == (JAVASCRIPT, None)


@pytest.mark.parametrize(
    "code",
    [
        "enum E { A }",
        "const enum E { A }",
        "namespace N { export const a = 1 }",
        "import a = b.c; let x: any",
        'import x = require("y")',
        "class A { constructor(private x: number) {} }",
        "class A { constructor(readonly x: number) {} }",
        "function d(x: any) {} class A { @d x: number }",
        "let a = out as any\n(1)",
        "let a = out as any // b\u2028(1)",
        "let a = out as any\n\u3000(1)",
        "let a = out as any\n\u2003\ufeff\u1680\u202f\u205f(1)",
        "let a = b as T\n[0]",
        "let a: any, q = a as any\n[0]",
        "let x: any = 1 + 2 as any * 3",
        "let a: any; f(g<string>`x`)",
        "<any>(function () {})()",
        "const f = () => <any>{ a: 1 }",
        "type A = 1; export { A }",
        "import { A } from 'a'; let f = (A: any) => A",
        "import { A } from 'a'; { const A: any = 1; f(A) }",
        "class A { accessor x: number = 1 }",
        "class A { private x: number = 1 }",
        "class A { x?: number }",
        "abstract class A { abstract f(): number }",
        "class A { f(a: string): void; f(a: any) { out(a) } }",
        "function f(this: Date, a: number) { return a }",
        "let x = <any>1",
        "const f = g<string>; let x: any",
        "import { Missing } from 'a'; let x: Missing",
    ],
)
def test_what_has_a_meaning_or_a_doubt_is_left_to_deno(code: str) -> None:
    found = blanked(code)
    assert (found.media_type, found.javascript) == (TYPESCRIPT, None)


def test_blanks_have_the_size_of_what_they_cover() -> None:
    text = "aé❤💥\u2028\r\n\tb\u2029"
    white = blank(text.encode()).decode()
    assert white == " \xa0\u3000\xa0\xa0\u2028\r\n  \u2029" and white.isspace()
    assert shape(white) == shape(text)


def test_imports_in_types_are_no_imports() -> None:
    found = blanked(
        'type A = import("./a").B; declare module "x" { import b from "y" }\nimport c from "z"; c()'
    )
    assert (len(found.statics), found.dynamics) == (1, ())


PIECES = [
    *(
        "let a",
        ": T",
        " = ",
        "x",
        " as ",
        "<T>",
        "(",
        ")",
        "{",
        "}",
        "[",
        "]",
        ";",
        "\n",
        "\r\n",
        " ",
        "!",
        "?",
    ),
    *(
        "type A = ",
        "interface B ",
        "class C ",
        "declare ",
        "abstract ",
        "private ",
        "=>",
        "💥",
        "é",
        "/*",
        "*/",
    ),
    *(
        "//",
        "'",
        "`",
        "${",
        "import ",
        "export ",
        "type ",
        "{ a }",
        " from ",
        "'m'",
        "this",
        "function f",
        "enum ",
    ),
    *("satisfies ", "readonly ", "async ", "get ", "static ", "@d ", "\u2028", "<", ">", ",", "...", "\x00"),
]


def test_random_text_is_survived() -> None:
    pick = random.Random(1)
    for _ in range(1500):
        if pick.random() < 0.5:
            code = "".join(pick.choices(PIECES, k=pick.randrange(1, 12)))
        else:
            code = pick.choice(CORPUS)
            at = pick.randrange(len(code))
            code = code[:at] + pick.choice(PIECES) + code[at + pick.randrange(6) :]
        found = blanked(code)
        if found.javascript is not None:
            assert len(found.javascript.encode()) == len(code.encode())


def test_a_tree_is_whole_after_its_types_are_blanked() -> None:
    """The lists of children are the tree's own, and its binding reads as many as the node has."""
    code = b"type A = { b: 1; };\ninterface B { c: 2; }\nconst f = async (a: A): Promise<B> => ({ c: 2 });\nf(1);"
    root = parse(code, typescript=True, is_late=lambda: False)
    assert blank_types(root, code, time.thread_time() + 20) is not None
    waiting = [root]
    while waiting:
        node = waiting.pop()
        assert len(node.children) == node.child_count, node.type
        waiting += node.named_children


@pytest.mark.parametrize(
    "code",
    [
        "let a: T;" * 50_000,
        "import { A } from 'a'; let x: A;" + "f(1); // A\n" * 20_000,
        "import { A, B } from 'a'; let x: any;" + "({ A: 1 });\n" * 20_000,
        "x as T;\n" + "x!;" * 80_000,
        "let a: " + "A<" * 300 + "B" + ">" * 300,
        "let a: {" + "b: { c: 1 };" * 30_000 + "}",
        "class A {" + "private x: T;" * 20_000 + "}",
    ],
)
def test_hostile_text_costs_a_bounded_time(code: str) -> None:
    started = time.process_time()
    with contextlib.suppress(TooComplex):
        find_imports(code.encode(), 0.3, 0.3)
    assert time.process_time() - started < 6
