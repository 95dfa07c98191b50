"""What a name stands for, calls that a script does not wait for, and its own functions where it uses them."""

import math
import time

import pytest
from tree_sitter import Node

from cellblock.run.outcome import with_unawaited
from cellblock.run.response import Diagnostic
from cellblock.script.copies import MAX_COPIED_BYTES, Copies, without_any
from cellblock.script.imports import find_imports, import_nodes
from cellblock.script.meanings import Meaning, Meanings
from cellblock.script.source import prepare
from cellblock.script.trees import parse
from cellblock.script.unawaited import MAX_TOLD, Unawaited, unawaited_calls
from cellblock.types.check.parsed import ParsedScript

T = '"@codemode/servers/t"'
U = '"@codemode/servers/u"'


def parsed(code: str, *, typescript: bool = False) -> tuple[Node, bytes]:
    source = code.encode()
    return parse(source, typescript=typescript, is_late=lambda: False), source


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
    found = Meanings(root, source).of(root.descendant_for_byte_range(at, source.index(b")", at)))
    call = source.find(f"t.{export}".encode()) if export else -1
    assert found == (Meaning("answer", "@codemode/servers/t", export, call, inner) if export else None)


def test_a_script_made_to_be_slow_is_followed_no_further_than_its_bounds() -> None:
    chain = "".join(f"const a{n + 1} = a{n} ?? a{n};" for n in range(2_000))
    root, source = parsed(f"import * as a0 from {T}; {chain} a2000.x();")
    statics, _ = import_nodes(root, source, math.inf)
    began = time.thread_time()
    assert list(Meanings(root, source).calls(statics)) == []
    assert time.thread_time() - began < 2


IMPORTS = """import * as f from "@codemode/servers/files"; import { read, write as w } from "@codemode/servers/x";
"""


def found(code: str) -> tuple[Unawaited, ...]:
    return find_imports((IMPORTS + code).encode(), 2).unawaited


DROPPED = [
    "f.write({});",
    "w({})",
    "f.a().then(x => x)",
    "f.a().catch(() => {});",
    "const r = read({});",
    "[1].forEach((x) => { f.write(x); })",
    "async function main() { await read() } main(); f;",
    "const go = async () => { await read() }; go().catch(console.error); f;",
    "f?.list()",
    "f['list']({})",
    "const g = f; g.list({})",
    "const { list } = f; list({})",
    "let list; list = f.list; list({})",
    "const x = await import('@codemode/servers/x'); x.get();",
    "const { get: one } = await import('@codemode/servers/x'); one();",
    "(await import('@codemode/servers/x')).get();",
    "const [x] = await Promise.all([import('@codemode/servers/x')]); x.get();",
    "import('@codemode/servers/x').then((x) => { x.get(); });",
    "const api = { f, w }; api.f.list({});",
    "const api = { f, w }; api.w({});",
    "[1].forEach((id) => f.get({ id }));",
    "[1].map((id) => f.get({ id }));",
    "function outer() { async function inner() { await read() } inner(); } outer();",
]
"""Calls that are thrown away."""

USED = [
    "f.list().items.map(x=>x)",
    "for (const x of f.list()) {}",
    "const { a } = f.list();",
    "const r = f.list(); console.log(r.items)",
    "JSON.parse(f.list())",
    "`${f.list()}`",
    "if (f.ok()) {}",
    "f.list() + 1",
    "globalThis.__codemode_result__ = f.list();",
    "const x = [...f.list()]",
    "(f.list()).items",
    "const r = f.list() as any; r.b",
    "console.log(f.list())",
    "(f.a())[0]",
    "f.list() ? 1 : 2",
    "const p = f.a(); globalThis.__codemode_result__ = { p };",
    "globalThis.__codemode_result__ = { a: 1, b: [f.a()] };",
    "globalThis.__codemode_result__ = [1].map((id) => f.get({ id }));",
    "const all = [1].map((id) => read({ id })); globalThis.__codemode_result__ = { all };",
]
"""Promises that are used as values."""


@pytest.mark.parametrize(
    ("code", "kind"), [*((code, "dropped") for code in DROPPED), *((code, "used") for code in USED)]
)
def test_calls_that_nothing_waits_for(code: str, kind: str) -> None:
    assert [call.kind for call in found(code)] == [kind]


@pytest.mark.parametrize(
    ("code", "kind", "hint"),
    [
        ("ids.forEach(async (id) => { await f.a({ id }); });", "each", "Promise.all(ids.map(async …))"),
        ("ids.forEach(async function (id) { await f.a({ id }); });", "each", "Promise.all(ids.map(async …))"),
        ("const go = async (id) => { await f.a(id); }; ids.forEach(go);", "each", "Promise.all(ids.map"),
        ("ids.forEach(async (id) => { for await (const x of id) f.b; });", "each", "for … of"),
        ("ids.map(async (id) => { await f.a({ id }); });", "each", "Promise.all(ids.map(async …))"),
        ("await ids.map(async (id) => { await f.a({ id }); });", "each", "Promise.all(ids.map(async …))"),
        ("const all = ids.map(async (id) => await f.a(id)); console.log(all.length);", "each", "Promise.all"),
        (
            "globalThis.__codemode_result__ = ids.map(async (id) => await f.a(id));",
            "list",
            "Promise.all(ids.map",
        ),
        (
            "const all = await ids.map(async (id) => await f.a(id)); globalThis.__codemode_result__ = { all };",
            "list",
            "Promise.all(ids.map(async …))",
        ),
        ("console.log(JSON.stringify(ids.map(async (id) => await f.a(id))));", "list", "Promise.all(ids.map"),
    ],
)
def test_async_callbacks_that_nothing_waits_for(code: str, kind: str, hint: str) -> None:
    script = prepare(f"{IMPORTS}const ids = [1];{code}", lambda _: "data:,", "data:,")
    assert [call.kind for _, call in script.unawaited] == [kind]
    (told,) = with_unawaited([], script)
    assert hint in (told.hint or "")


@pytest.mark.parametrize(
    "code",
    [
        "await f.write({});",
        "const p = f.a(); await p;",
        "const p = f.a(); await Promise.all([p]);",
        "await Promise.all([f.a(), f.b()])",
        "const ps = [1].map(x => f.a(x)); await Promise.all(ps)",
        "return f.a()",
        "const go = () => f.a(); await go()",
        "async function main() { return 1 } main();",
        "xs.map((f) => { f.a() })",
        "xs.map(f => { f.a(); })",
        "const r = await f.a(); r.b",
        "const p = f.a(); p.then(x => x)",
        "f.a",
        "f.__meta__.tools",
        "await f.a().then(x => x)",
        "export default f.a()",
        "const t = f.a(); foo(t)",
        "function q(read) { read(); }",
        "x = c && f.a()",
        "let r; r = f.a(); await r",
        "(async () => { await f.a() })()",
        "const r = (await f.a()).b",
        "await (f.a())",
        "const p = f.a(); const v = (await p).x",
        "for await (const x of await f.a()) {}",
        "Promise.all([f.a()]).then(x=>x)",
        "console.log(await f.list())",
        "const f2 = f.a; await f2()",
        "const { a } = f; await a();",
        "const x = await import('@codemode/servers/x'); await x.get();",
        "await (await import('@codemode/servers/x')).get();",
        "const r = (await (await import('@codemode/servers/x')).get()).items;",
        "JSON.parse(await (f).read({})).map((one) => one.id);",
        "const x = { get() {} }; x.get();",
        "{ const f = { a() {} }; f.a(); }",
        "const { read } = other; { const read = () => 1; read(); }",
        "await Promise.all([1].map(async (id) => { await f.a(id); }))",
        "const all = [1].map(async (id) => { await f.a(id); }); await Promise.all(all);",
        "const all = [1].map((id) => f.a(id)); for (const p of all) await p;",
        "for await (const x of [1].map((id) => f.a(id))) x;",
        "for await (const x of [1].map(async (id) => await f.a(id))) x;",
        "await Promise.allSettled([1].map((id) => f.a(id)).filter(Boolean));",
        "const run = (list) => list.map(async (id) => await f.a(id)); await Promise.all(run([1]));",
        "function all() { return [1].map(async (id) => await f.a(id)); } await Promise.all(all());",
        "[1].forEach(async (id) => { console.log(id); });",
        "[1].forEach(async (id) => { const later = async () => { await f.a(id); }; todo.push(later); });",
        "await new Promise((done) => [1].forEach(async (id) => { await f.a(id); done(); }));",
        "const jobs = []; [1].forEach((id) => { jobs.push(f.a(id)); }); await Promise.all(jobs);",
        "const m = new Map([1].map((id) => [id, f.a(id)])); for (const p of m.values()) await p;",
        "const p = f.a(); globalThis.__codemode_result__ = { p: await p };",
    ],
)
def test_what_may_be_awaited_is_left_alone(code: str) -> None:
    assert found(code) == ()


def test_a_script_that_says_itself_that_it_does_not_wait_is_not_warned() -> None:
    script = prepare(
        f"{IMPORTS}void f.a(); globalThis.__codemode_result__ = 1;", lambda _: "data:,", "data:,"
    )
    late = Diagnostic(
        severity="warning", code="CALLS_NOT_AWAITED", message="1 call had no answer yet.", hint="h"
    )
    assert with_unawaited([late], script) == [late.model_copy(update={"severity": "info", "hint": None})]
    assert with_unawaited([], script) == []


def test_only_tools_count() -> None:
    assert (
        find_imports(b'import { listServers } from "@codemode/discovery"; listServers();', 2).unawaited == ()
    )
    assert len(found("f.a();" * 10)) == MAX_TOLD
    assert found("f.a(; ") == ()


def test_each_is_told_at_its_place_and_the_sandbox_s_notice_with_the_first() -> None:
    script = prepare(f"{IMPORTS}  f.a();\n  w().x;", lambda _: "data:,", "data:,")
    late = Diagnostic(severity="warning", code="CALLS_NOT_AWAITED", message="2 calls had no answer yet.")
    other = Diagnostic(severity="warning", code="RESULT_NOT_JSON", message="m")
    one, two, three = with_unawaited([other, late], script)
    assert (one.path, one.hint) == ("script.js:2:3", "Write `await f.a(…)`.")
    assert "does not see it fail" in one.message and one.message.endswith("2 calls had no answer yet.")
    assert (two.path, two.hint) == ("script.js:3:3", "Write `(await w(…))`.")
    assert three is other
    assert with_unawaited([late], prepare("1", lambda _: None, "")) == [late]


SLOW = [
    # To find a node's parent costs as much as the tree is deep, and each call has as many nodes around it.
    f"(w) => {{{'if(a)' * 800}{{{'w();' * 200}}}}}",
    "".join(f"async function g{number}() {{ await 0 }} g{number}();" for number in range(1_500)),
    f"const {{ {', '.join(f'n{number}' for number in range(10_000))} }} = f;",
    f"const p = [1].map(async () => {{ await 0; }}); globalThis.__codemode_result__ = {{ {'p, ' * 20_000} }};",
    f"const a0 = f; {''.join(f'const a{number + 1} = a{number};' for number in range(4_000))} a4000.x();",
]


@pytest.mark.parametrize("code", SLOW, ids=["deep", "own", "names", "places", "aliases"])
def test_a_script_made_to_be_slow_is_looked_at_no_longer_than_parsing_may_take(code: str) -> None:
    root, source = parsed(f"{IMPORTS}{code}")
    imports = import_nodes(root, source, math.inf)
    began = time.thread_time()
    unawaited_calls(root, source, [*imports[0], *imports[1]], began + 0.012)
    assert time.thread_time() - began < 0.5


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


VERY_MANY_COPIES = "const a = (x) => x;" + "".join(
    f"const {name} = (x) => [{','.join(f'{of}(x)' for _ in range(9))}];"
    for of, name in ("ab", "bc", "cd", "de")
)


@pytest.mark.parametrize(
    "code",
    [
        "const f = (x) => x ? f(x.next) : 0;",
        "function f(x) { return this.a; } f(1);",
        "function f(x) { return arguments; } f(1);",
        "const f = 1; l.map(f); m(f);",
        f"const f = (x) => '{'a' * MAX_COPIED_BYTES}'; f(1);",
        "import { f } from '@codemode/servers/a'; l.map(f);",
        f"{VERY_MANY_COPIES} e(1);",
    ],
)
def test_what_cannot_stand_elsewhere_is_not_copied(code: str) -> None:
    assert _with_copies(code).text is None


def test_functions_that_call_each_other_end() -> None:
    copies = _with_copies("function f(x) { return g(x); } function g(x) { return f(x); } f(1);")
    assert copies.text.count(b"return") == 4


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
