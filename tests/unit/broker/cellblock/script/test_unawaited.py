"""Calls that a script does not wait for are found in its text, and nothing else is taken for one."""

from __future__ import annotations

import time

import pytest

from cellblock.execution.outcome import with_unawaited
from cellblock.execution.response import Diagnostic
from cellblock.script.imports import find_imports
from cellblock.script.source import prepare
from cellblock.script.unawaited import MAX_TOLD, Unawaited

IMPORTS = """import * as f from "@codemode/servers/files"; import { read, write as w } from "@codemode/servers/x";
"""


def found(code: str) -> tuple[Unawaited, ...]:
    return find_imports((IMPORTS + code).encode(), 2).unawaited


@pytest.mark.parametrize(
    "code",
    [
        "f.write({});",
        "w({})",
        "f.a().then(x => x)",
        "f.a().catch(() => {});",
        "const r = read({});",
        "[1].forEach((x) => { f.write(x); })",
        "async function main() { await read() } main();",
        "const go = async () => { await read() }; go().catch(console.error)",
        "f?.list()",
    ],
)
def test_calls_that_are_thrown_away(code: str) -> None:
    assert [call.used for call in found(code)] == [False]


@pytest.mark.parametrize(
    "code",
    [
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
    ],
)
def test_promises_that_are_used_as_values(code: str) -> None:
    assert [call.used for call in found(code)] == [True]


@pytest.mark.parametrize(
    "code",
    [
        "await f.write({});",
        "const p = f.a(); await p;",
        "const p = f.a(); await Promise.all([p]);",
        "await Promise.all([f.a(), f.b()])",
        "const ps = [1].map(x => f.a(x)); await Promise.all(ps)",
        "void f.a()",
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
        "const f2 = f.a; f2()",
    ],
)
def test_what_may_be_awaited_is_left_alone(code: str) -> None:
    assert found(code) == ()


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


def test_a_script_made_to_be_slow_is_looked_at_no_longer_than_parsing_may_take() -> None:
    """To find a node's parent costs as much as the tree is deep, and each call has as many nodes around it."""
    code = f"{IMPORTS}(w) => {{{'if(a)' * 800}{{{'w();' * 200}}}}}".encode()
    began = time.thread_time()
    assert find_imports(code, 0.012).unawaited == ()
    assert time.thread_time() - began < 0.5
