"""Copies of a script's own functions where it uses them."""

import pytest

from cellblock.script.copies import MAX_COPIED_BYTES, Copies, without_any
from cellblock.types.check.parsed import ParsedScript


def _with_copies(code: str) -> Copies:
    script = ParsedScript(code, False)
    return Copies(script.raw, script.meanings, script.calls)


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("const f = (x) => x.a; l.map(f);", "const f = (x) => x.a; l.map(((x) => x.a));"),
        ("function f(x) { x; } f(1);", "function f(x) { x; } (function f(x) { x; })(1);"),
        (
            "const f = (x) => x; const g = (x) => f(x); g(1);",
            "const f = (x) => x; const g = (x) => f(x); ((x) => ((x) => x)(x))(1);",
        ),
    ],
)
def test_a_function_stands_where_it_is_used(code: str, shown: str) -> None:
    copies = _with_copies(code)
    assert copies.text == shown.encode()
    for at, byte in enumerate(copies.text):
        origin, _ = copies.origin(at)
        assert byte in b"()" or code.encode()[origin] == byte


def test_it_is_known_how_often_a_byte_is_shown() -> None:
    code = "const f = (x) => x.a; l.map(f); m.map(f); l;"
    copies = _with_copies(code)
    assert copies.origin(copies.text.rindex(b"x.a")) == (code.index("x.a"), 3)
    assert copies.origin(copies.text.rindex(b"l;")) == (code.rindex("l;"), 1)


@pytest.mark.parametrize(
    "code",
    [
        "const f = (x) => x ? f(x.next) : 0;",
        "function f(x) { return this.a; } f(1);",
        "function f(x) { return arguments; } f(1);",
        "const f = 1; l.map(f); m(f);",
        f"const f = (x) => '{'a' * MAX_COPIED_BYTES}'; f(1);",
        "import { f } from '@codemode/servers/a'; l.map(f);",
    ],
)
def test_what_cannot_stand_elsewhere_is_not_copied(code: str) -> None:
    assert _with_copies(code).text is None


def test_functions_that_call_each_other_end() -> None:
    copies = _with_copies("function f(x) { return g(x); } function g(x) { return f(x); } f(1);")
    assert copies.text.count(b"return") == 4


def test_very_many_copies_are_none() -> None:
    code = "const a = (x) => x;" + "".join(
        f"const {name} = (x) => [{','.join(f'{of}(x)' for _ in range(9))}];"
        for of, name in ("ab", "bc", "cd", "de")
    )
    assert _with_copies(f"{code} e(1);").text is None


@pytest.mark.parametrize(
    ("code", "left"),
    [
        ("const a: any = 1;", "const a      = 1;"),
        ("l.map((x: any) => (x as any).y);", "l.map((x     ) => (x       ).y);"),
        ("for (const x of r.y as any[]) { x; }", "for (const x of r.y         ) { x; }"),
        ("f(x as any);", "f(x as any);"),
        ("const a: anyone = 1;", "const a: anyone = 1;"),
    ],
)
def test_any_has_blanks(code: str, left: str) -> None:
    assert without_any(code) == left
