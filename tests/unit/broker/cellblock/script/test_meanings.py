"""What a name stands for is followed through every way in which models write it, and no further."""

from __future__ import annotations

import math
import time

import pytest
from tree_sitter import Node

from cellblock.script.imports import import_nodes
from cellblock.script.meanings import Meaning, Meanings
from cellblock.script.trees import parse

T = '"@codemode/servers/t"'
U = '"@codemode/servers/u"'


def parsed(code: str, *, typescript: bool = False) -> tuple[Node, bytes]:
    source = code.encode()
    root = parse(source, typescript=typescript, is_late=lambda: False)
    assert not root.has_error, code
    return root, source


def called(code: str, *, typescript: bool = False) -> list[str]:
    """Module and export of each call of a tool, in the order of the text."""
    root, source = parsed(code, typescript=typescript)
    statics, dynamics = import_nodes(root, source, math.inf)
    calls = {call.start_byte: of for call, of in Meanings(root, source).calls([*statics, *dynamics])}
    return [f"{calls[at].module[-1]}.{calls[at].export}" for at in sorted(calls)]


@pytest.mark.parametrize(
    ("code", "tools"),
    [
        (f"import * as t from {T}; t.a(); t['b'](); t?.c(); t[`d`]();", "t.a t.b t.c t.d"),
        (f"import {{ a as z, b }} from {T}; z(); b(); const y = z; y();", "t.a t.b t.a"),
        (f"import t from {T}; t.a();", "t.a"),
        (f"import * as t from {T}; const {{ a, b: c, d = null }} = t; a(); c(); d();", "t.a t.b t.d"),
        (
            f"import * as t from {T}; const f = t.d; f(); const g = t; g.e(); const k = 'list'; t[k]();",
            "t.d t.e t.list",
        ),
        (f"const t = await import({T}); t.a(); const {{ b }} = await import({T}); b();", "t.a t.b"),
        (f"(await import({T})).c(); await (await import({T})).d();", "t.c t.d"),
        (f"let t; t = await import({T}); t.a();", "t.a"),
        (f"let t = null; try {{ t = await import({T}); }} catch {{}} t.a(); ", "t.a"),
        (f"let t = await import({T}); t.a(); t = await import({U}); t.b();", "t.a u.b"),
        (f"const [t, u] = await Promise.all([import({T}), import({U})]); t.a(); u.b();", "t.a u.b"),
        (f"import({T}).then((m) => m.a()); import({T}).then(({{ b }}) => b());", "t.a t.b"),
        (f"import * as t from {T}; const api = {{ t, z: t.z }}; api.t.a(); api.z();", "t.a t.z"),
        (f"import * as t from {T}; const p = x ? t.a : t.b; p(); (t.c ?? t.d)();", "t.a t.c"),
        (f"import * as t from {T}; async function go() {{ const {{ a }} = t; await a(); }} go();", "t.a"),
        # Another's.
        (f"import * as t from {T}; function q(t) {{ t.a(); }} {{ const t = 1; t.b(); }} t.c();", "t.c"),
        (
            f"import * as t from {T}; for (const t of [1]) t.a(); try {{}} catch (t) {{ t.b(); }} t.c();",
            "t.c",
        ),
        (f"import {{ read }} from {T}; const f = ({{ read }}) => read(); f(1);", ""),
        (f"import {{ read }} from {T}; let r = read; r = () => 1; r();", ""),
        (f"import * as t from {T}; let m = t; if (x) m = other(); m.a();", ""),
        (f"import * as t from {T}; t(); x.t.a(); ({{ t: 1 }}).t; t.a;", ""),
        ("const t = await import(name); t.a(); const { b } = require('x'); b();", ""),
    ],
)
def test_the_tool_that_is_called_is_found(code: str, tools: str) -> None:
    assert called(code) == tools.split()


def test_types_are_passed_over() -> None:
    code = f"const t = (await import({T})) as any; const f = t.a!; f(); function g(t: any) {{ t.b(); }}"
    assert called(code, typescript=True) == ["t.a"]


@pytest.mark.parametrize(
    ("code", "export", "inner"),
    [
        ("const r = await t.rows({}); SEEN(r);", "rows", False),
        ("const r = await t.rows({}).catch(() => null); SEEN(r);", "rows", False),
        ("const r = (await t.rows({})) ?? []; SEEN(r);", "rows", False),
        ("const p = await t.page({}); const list = p.issues; SEEN(list);", "page", True),
        ("const { issues = [] } = await t.page({}); SEEN(issues);", "page", True),
        ("for (const one of await t.rows({})) SEEN(one);", "rows", True),
        ("(await t.rows({})).filter(Boolean).map((row) => SEEN(row));", "rows", True),
        ("t.page({}).then(({ issues }) => SEEN(issues));", "page", True),
        ("const r = JSON.parse(await t.rows({})); SEEN(r);", "", False),
        ("const r = [await t.rows({})].map(clean); SEEN(r);", "", False),
        ("const r = {}; SEEN(r);", "", False),
    ],
)
def test_what_a_tool_has_answered_is_followed(code: str, export: str, inner: bool) -> None:
    root, source = parsed(f"import * as t from {T}; {code}")
    at = source.index(b"SEEN(") + 5
    name = root.descendant_for_byte_range(at, source.index(b")", at))
    found = Meanings(root, source).of(name)
    call = source.find(f"t.{export}".encode()) if export else -1
    assert found == (Meaning("answer", "@codemode/servers/t", export, call, inner) if export else None)


def test_a_script_made_to_be_slow_is_followed_no_further_than_its_bounds() -> None:
    chain = "".join(f"const a{n + 1} = a{n} ?? a{n};" for n in range(2_000))
    root, source = parsed(f"import * as a0 from {T}; {chain} a2000.x();")
    statics, _ = import_nodes(root, source, math.inf)
    began = time.thread_time()
    assert list(Meanings(root, source).calls(statics)) == []
    assert time.thread_time() - began < 2
