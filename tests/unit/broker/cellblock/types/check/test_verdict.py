"""Which type errors count and what is said of them: scripts and types as the real compiler prints them."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cellblock.script import trees
from cellblock.tools.catalog.model import ToolOutput
from cellblock.types.check.faults import of_observed
from cellblock.types.check.parsed import Shown
from cellblock.types.check.verdict import Complaint, judge
from support.script_places import ENDS, counted

Check = Callable[..., Awaitable[Any]]


@pytest.fixture(scope="module")
def checker(shared_checker: Any) -> Any:
    """One compiler for all of these."""
    return shared_checker


LIST = "const { tasks } = await t.list_tasks({});"

WRONG = [
    # the failure that this is for: a likely name that the tool does not have
    (f"{LIST} for (const task of tasks) console.log(task.title);", "'title'", "`name`"),
    (f"{LIST} tasks.map((task) => task.nmae);", "'nmae'", "`name`"),
    (f"{LIST} const {{ title }} = tasks[0];", "'title'", "`name`"),
    (f"{LIST} console.log(tasks[0].deadline);", "'deadline'", "`due`"),
    (f"{LIST} console.log(tasks[0].colour);", "'colour'", "due, name, note"),
    (f"{LIST} console.log(tasks.name);", "'name'", "elements"),
    ("console.log((await t.list_tasks({})).items.length);", "'items'", "tasks"),
    ("const tasks = t.list_tasks({}).tasks;", "'tasks'", "(await …).tasks"),
    ("await t.lst_tasks({});", "'lst_tasks'", "`list_tasks`"),
    ("const found = await t.text(); console.log(found.issues);", "'issues'", "JSON.parse"),
    ("const found = await t.find(); console.log(found.middle);", "'middle'", "kind"),
    ('import { list_task } from "@codemode/servers/tracker";', "'list_task'", "`list_tasks`"),
    ("await t.add({ title: 'x' });", "'title'", "`name`"),
    ("await t.add({});", "'name' is missing", "`add("),
    ("await t.add();", "Expected 1", "`add("),
    ("await t.add({ name: 1 });", "`name`", "`add("),
    ("await t.add({ name: 12345678901234567890n });", "`name`", "`add("),
    ("await t.list_tasks({ state: 'opne' });", '"opne"', None),
    (
        "const found = await t.find(); console.log(found.kind === 'B');",
        '"B" is in vain',
        'mean "b"? Declared: "a", "b".',
    ),
    (
        "switch ((await t.find()).kind) { case 'a': break; case 'other': }",
        '"other" is in vain',
        '"a", "b"',
    ),
    ("console.log(undeclared);", "'undeclared'", "`undeclared`"),
    ("await list_tasks({});", "'list_tasks'", "import { list_tasks }"),
    ("await fetch('https://example.com');", "'fetch'", "no fetch"),
    ("setInterval(() => {}, 5);", "'setInterval'", "setTimeout"),
    ("const fs = require('fs');", "'require'", "no require"),
]

RIGHT = [
    f"{LIST} for (const task of tasks) console.log(task.name, task.due, task.note?.length);",
    # what no one declares may be anything
    "const all = await t.add({ name: 'x' }); all.items.map((item) => item.title); all.length; all[0].b;",
    "const data = JSON.parse('{}'); data.a.b.c;",
    # looked at before it is read
    f"{LIST} const label = tasks[0].title ?? tasks[0].name; const b = tasks[0].title || tasks[0].label || '';",
    f"{LIST} if (tasks[0].title) console.log(1); const c = tasks[0].title ? 1 : 2; console.log(!tasks[0].title);",
    f"{LIST} console.log(tasks[0].title?.length, typeof tasks[0].title, tasks[0].title === undefined);",
    f"{LIST} const {{ title = 'none' }} = tasks[0];",
    f"{LIST} if ('title' in tasks[0]) console.log(tasks[0].title);",
    "for (const { kind, left, right = 1 } of [await t.find()]) console.log(kind, left, right);",
    "const found = await t.find(); console.log(found.left, found.kind === 'b' ? found.right : 0);",
    # what an `if` around excludes, and the script's own constants, are its own affair
    "const { kind } = await t.find(); if (kind === 'a') f(); else if (kind === 'a') f(); function f() {}",
    "const mode = 'x'; if (mode === 'y') console.log(1); switch (mode) { case 'z': }",
    "const { kind } = await t.find(); console.log(kind !== 'a', ['a', 'q'].includes(kind), kind == 'b');",
    # the script's own objects grow
    "const o = {}; o.a = 1; o.b.c; const p = { a: 1 }; p.z = 2; console.log(p.z);",
    f"{LIST} tasks[0].score = 1; console.log(tasks[0].score); tasks.total = 1; console.log(tasks.total);",
    "class A { constructor() { this.a = 1; } } const a = new A(); a.extra = 1; console.log(a.extra, a.other);",
    "function f(x, y = 1) { return x + y; } f(1); f(1, '2'); f(1, 2, 3); f.cache = {}; console.log(f.cache);",
    "const e = new Error('x'); e.code = 'E'; try { f(); } catch (err) { console.log(err.hint); } function f() {}",
    "let v = 1; v = 'text'; let w = null; w = {}; w.a = 1; const list = []; list.push(1); list.push('a');",
    "const counts = {}; for (const k of ['a']) counts[k] = (counts[k] || 0) + 1; console.log(counts.a);",
    "const by = [1].reduce((acc, x) => { acc[x] = x; return acc; }, {}); console.log(by.anything);",
    "const r = await Promise.allSettled([t.text()]); console.log(r.map((x) => x.value ?? x.reason));",
    "console.log([..'a b'.matchAll(/(?<w>a)/g)].map((m) => m.groups.w, m => m.index));".replace(
        "[..", "[..."
    ),
    # a widened literal is none of the script's faults
    "const input = { state: 'open' }; await t.list_tasks(input); const s = 'open'; await t.list_tasks({ state: s });",
    "const id = own(); function own() { return typeof process === 'undefined' ? 1 : process.pid; }",
    # what the sandbox has
    "console.info(1); console.table([]); new URL('https://a.b').searchParams.get('x'); new TextEncoder().encode('a');",
    "setTimeout(() => {}, 1); structuredClone({ a: 1 }).a; crypto.randomUUID(); performance.now();",
    "globalThis.__codemode_result__ = { a: 1 }; globalThis.mine = 1; console.log(globalThis.mine, atob(btoa('a')));",
    "const m = await import('@codemode/servers/tracker'); await m.list_tasks({}); await (await import('./x')).y();",
    "/** @param {Unknown} a @type {import('./b').C} */ const g = (a) => a.b; g({});",
    'import { ToolCallError as E } from "@codemode/errors"; try { await t.text(); } catch (e) { e instanceof E; }',
    'import { searchTools } from "@codemode/discovery"; console.log((await searchTools("x")).results[0].toolName);',
]


@pytest.mark.parametrize(("code", "said", "hinted"), WRONG)
async def test_what_a_script_would_trip_over_is_told(
    check: Check, code: str, said: str, hinted: str | None
) -> None:
    checked = await check(code)
    assert checked.gave_up is None
    assert len(checked.faults) == 1, checked
    fault = checked.faults[0]
    assert said in fault.message
    assert fault.hint
    assert hinted is None or hinted in fault.hint
    assert (fault.line, fault.column > 1) == (1, True)


async def test_loosely_typed_code_raises_no_false_alarm(check: Check) -> None:
    for code in RIGHT:
        checked = await check(code)
        assert checked.gave_up is None
        assert checked.faults == (), (code, checked.faults)


async def test_typescript_is_checked_as_such(check: Check) -> None:
    right = "interface R { name: string } const n = 1; const rows: R[] = (await t.list_tasks()).tasks; let x: Missing;"
    assert (
        await check(f"{right} type T = typeof n; let u = {{}} as any; u.a;", typescript=True)
    ).faults == ()
    wrong = await check(
        "const tasks: any[] = []; for (const row of (await t.list_tasks()).tasks) row.title;", typescript=True
    )
    assert [fault.hint for fault in wrong.faults] == ["Did you mean `name`? It has: due, name, note."]


async def test_places_count_as_the_engine_counts_them(check: Check) -> None:
    checked = await check(f"{LIST}\r\n/* 🦕é */ tasks[0].title;\n\ntasks[0].colour;")
    assert [(fault.line, fault.column) for fault in checked.faults] == [(2, 20), (4, 10)]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("types", ["", "const n: number = 1; "])
async def test_lines_end_as_the_engine_ends_them(check: Check, end: str, types: str) -> None:
    """Also at U+2028 and U+2029, which end none in the language server protocol."""
    code = f"'💥';{end}{types}/*{end}\t*/'💥\u2029'; const r = await t.list_tasks();"
    code += f"{end}'💥'; r.taskz;\t'\u2028'; noName;"
    checked = await check(code, typescript=bool(types))
    # The first line, on which the import comes before, has no fault.
    places = [counted(code, code.index(word)) for word in ("taskz", "noName")]
    assert [(fault.line, fault.column) for fault in checked.faults] == places
    assert checked.faults[0].hint == "Did you mean `tasks`? It has: tasks."


async def test_a_repeated_error_is_told_once_with_its_number(check: Check) -> None:
    checked = await check(f"{LIST} {'tasks[0].title; ' * 40}" + "".join(f"no_{n};" for n in range(40)))
    assert len(checked.faults) == 10
    assert checked.faults[0].message.endswith("(In 40 places.)")


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("const tasks = await list({}); find({}); tasks.x;", "list (1 result), find (3 results)"),
        ("import { list as l } from 'm'; l({}).x;", "list (1 result)"),
        ("const { list } = t; (await list ({})).find;", "list (1 result)"),
        ("nothing();", None),
    ],
)
def test_a_hint_says_which_outputs_were_only_observed(code: str, told: str | None) -> None:
    observed = {name: ToolOutput("observed", "", samples=count) for name, count in (("list", 1), ("find", 3))}
    complaint = Complaint("member", "", "y", receiver="{ name: string; }")
    said = of_observed(complaint, code, observed)
    assert (f"Observed, not declared: {told}." in said) if told else said == ""


def test_no_query_is_made_for_what_a_script_does_not_have() -> None:
    """One takes 8 ms, and all of them together more than a response waits for its check."""
    trees._query.cache_clear()  # pyright: ignore[reportPrivateUsage]
    shown = Shown("export default 1;", False, changed=False)
    assert judge([], shown, "", typescript=False, texts={}) == []
    assert trees._query.cache_info().misses < 10  # pyright: ignore[reportPrivateUsage]
