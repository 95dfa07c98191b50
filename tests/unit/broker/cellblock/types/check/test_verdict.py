"""Which type errors count and what is said of them: scripts and types as the real compiler prints them."""

from itertools import permutations
from typing import Any

import pytest

from cellblock.script import trees
from cellblock.tools.catalog.model import Catalog, ToolEntry, ToolOutput
from cellblock.types.check.faults import TypeFault, hint_of, of_observed
from cellblock.types.check.hints import likely_members
from cellblock.types.check.parsed import Shown
from cellblock.types.check.verdict import Complaint, judge
from support.script_places import ENDS, counted

from .conftest import Faults, catalog_of, object_of

LIST = "const { tasks } = await t.list_tasks({});"


@pytest.mark.parametrize(
    ("code", "said", "hinted"),
    [
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
        ("await t.list_tasks({ state: 'opne' });", '"opne"', ""),
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
    ],
)
async def test_what_a_script_would_trip_over_is_told(
    faults: Faults, code: str, said: str, hinted: str
) -> None:
    (fault,) = await faults(code)
    assert said in fault.message
    assert fault.hint and hinted in fault.hint
    assert (fault.line, fault.column > 1) == (1, True)


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


@pytest.mark.parametrize(
    "code",
    RIGHT,
)
async def test_loosely_typed_code_raises_no_false_alarm(faults: Faults, code: str) -> None:
    assert await faults(code) == ()


async def test_typescript_is_checked_as_such(faults: Faults) -> None:
    right = "interface R { name: string } const n = 1; const rows: R[] = (await t.list_tasks()).tasks; let x: Missing;"
    assert await faults(f"{right} type T = typeof n; let u = {{}} as any; u.a;", typescript=True) == ()
    wrong = "const tasks: any[] = []; for (const row of (await t.list_tasks()).tasks) row.title;"
    (fault,) = await faults(wrong, typescript=True)
    assert fault.hint == "Did you mean `name`? It has: due, name, note."


async def test_places_count_as_the_engine_counts_them(faults: Faults) -> None:
    assert [
        (fault.line, fault.column)
        for fault in await faults(f"{LIST}\r\n/* 🦕é */ tasks[0].title;\n\ntasks[0].colour;")
    ] == [(2, 20), (4, 10)]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("types", ["", "const n: number = 1; "])
async def test_lines_end_as_the_engine_ends_them(faults: Faults, end: str, types: str) -> None:
    """Also at U+2028 and U+2029, which end none in the language server protocol."""
    code = f"'💥';{end}{types}/*{end}\t*/'💥\u2029'; const r = await t.list_tasks();"
    code += f"{end}'💥'; r.taskz;\t'\u2028'; noName;"
    found = await faults(code, typescript=bool(types))
    # The first line, on which the import comes before, has no fault.
    assert [(fault.line, fault.column) for fault in found] == [
        counted(code, code.index(word)) for word in ("taskz", "noName")
    ]
    assert found[0].hint == "Did you mean `tasks`? It has: tasks."


async def test_a_repeated_error_is_told_once_with_its_number(faults: Faults) -> None:
    found = await faults(f"{LIST} {'tasks[0].title; ' * 40}" + "".join(f"no_{n};" for n in range(40)))
    assert len(found) == 10
    assert found[0].message.endswith("(In 40 places.)")


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
    said = of_observed(Complaint("member", "", "y", receiver="{ name: string; }"), code, observed)
    assert (f"Observed, not declared: {told}." in said) if told else said == ""


def test_no_query_is_made_for_what_a_script_does_not_have() -> None:
    """One takes 8 ms, and all of them together more than a response waits for its check."""
    trees._query.cache_clear()  # pyright: ignore[reportPrivateUsage]
    assert judge([], Shown("export default 1;", False, changed=False), "", typescript=False, texts={}) == []
    assert trees._query.cache_info().misses < 10  # pyright: ignore[reportPrivateUsage]


# ---- comparisons with values that a declared enum does not have, and those that only look so -----------

STATUS = {"enum": ["open", "in_progress", "closed"]}
ISSUE = {
    "type": "object",
    "properties": {
        "status": STATUS,
        "maybe": STATUS,
        "mixed": {"enum": ["low", "high", 3, None]},
        "phase": {"enum": [f"{step}_{part}" for step in ("plan", "build", "ship") for part in range(12)]},
        "history": {"type": "array", "items": STATUS},
        "title": {"type": "string"},
    },
    "required": ["status", "mixed", "phase", "history", "title"],
}
# The values of one enum are a part of the other's, and the descriptions name values that the enum does not have.
OTHER = {
    "type": "object",
    "properties": {"state": {"description": 'Once "Closed" | "gone".', "enum": ["OPEN", "CLOSED", "Closed"]}},
    "required": ["state"],
}
ISSUES = (
    ToolEntry(
        "list",
        "list",
        # What is left of the status where it is not open is an enum of its own, here.
        input_schema={
            "type": "object",
            "properties": {"status": STATUS, "other": {"enum": ["in_progress", "closed"]}},
        },
        output_schema={
            "type": "object",
            "properties": {"issues": {"type": "array", "items": ISSUE}},
            "required": ["issues"],
        },
    ),
    ToolEntry("other", "other", input_schema={"type": "object"}, output_schema=OTHER),
)


@pytest.fixture
def in_both(faults: Faults) -> Faults:
    """The same where the module is `t`, `i` an issue, and types are closed; and with open ones, no others."""

    async def run(code: str, *, typescript: bool = False) -> tuple[TypeFault, ...]:
        code = f"const {{ issues }} = await t.list({{}}); const i = issues[0]; const o = await t.other({{}}); {code}"
        closed, opened = [
            await faults(code, typescript=typescript, catalog=catalog_of(*ISSUES), closed=closed)
            for closed in (True, False)
        ]
        assert closed == opened
        return closed

    return run


@pytest.mark.parametrize(
    ("code", "value", "hint"),
    [
        (
            "console.log(i.status === 'Closed');",
            "Closed",
            'mean "closed"? Declared: "closed", "in_progress", "open".',
        ),
        ("console.log('Closed' != i.maybe);", "Closed", '"closed"?'),
        ("console.log(i.maybe?.length && i.maybe === 'inProgress');", "inProgress", '"in_progress"?'),
        ("console.log(i.mixed === 'hihg');", "hihg", 'mean "high"? Declared: "high", "low".'),
        ("console.log(i.phase === 'ship_99');", "ship_99", "Declared: "),
        ("console.log(i.phase === 'build-7');", "build-7", '"build_7"?'),
        ("switch (i.phase) { case 'build-7': }", "build-7", '"build_7"?'),
        (
            "switch (i.status) { case 'open': f(); break; case 'Closed': f(); } function f() {}",
            "Closed",
            '"closed"?',
        ),
        ("const wanted = 'Closed'; issues.find((one) => one.status === wanted);", "Closed", '"closed"?'),
        ("const { status } = i; if (status === 'Closed') f(); function f() {}", "Closed", '"closed"?'),
        ("console.log(i.history.includes('Closed'));", "Closed", '"closed"?'),
        ("issues.map((one) => one.status).indexOf('Closed');", "Closed", '"closed"?'),
        # The other one is no name for what was meant.
        ("issues.filter((one) => one.status === 'open' || one.status === 'Closed');", "Closed", '"closed"?'),
        ("console.log(o.state === 'open');", "open", '"OPEN"?'),
        ("console.log(i.status === 'x' ? 'Closed' : 'open');", "x", "Declared:"),
    ],
)
async def test_a_value_that_the_enum_does_not_have_is_told(
    in_both: Faults, code: str, value: str, hint: str
) -> None:
    (fault,) = await in_both(code)
    assert fault.about.absent == value
    assert f'"{value}" is in vain' in fault.message and hint in (fault.hint or "")


QUIET = [
    "console.log(i.status === 'open', 'closed' !== i.maybe, i.mixed === 3, i.title === 'Closed');",
    # The script's own values.
    "const MODE = 'open'; await t.list({ status: MODE }); if (MODE === 'all') console.log(1);",
    "let s = i.status; if (!s) s = 'none'; if (s === 'none') console.log(1);",
    "if (!i.status) i.status = 'none'; console.log(i.status === 'none');",
    "i.status ??= 'none'; console.log(i.status === 'none');",
    "const s = i.status ?? 'none'; console.log(s === 'none', (i.status || 'none') === 'none');",
    "const s = i.title ? i.status : 'none'; console.log(s === 'none');",
    "const { status = 'none' } = i; console.log(status === 'none');",
    "let status; ({ status = 'none' } = i); console.log(status === 'none');",
    "const rows = issues.map((x) => ({ ...x, status: x.status === 'open' ? 'yes' : 'no' })); rows[0].status === 'yes';",
    # What an `if` around has excluded.
    "if (i.status === 'open') f(); else if (i.status === 'open') f(); function f() {}",
    "issues.map((x) => { if (x.status === 'open') return 1; return x.status === 'open' && x.title ? 2 : 0; });",
    "if (i.status !== 'open') console.log(i.status === 'open');",
    "const { state } = o; if (state === 'OPEN') f(); else if (state === 'OPEN') f(); function f() {}",
    # Several names for the same thing.
    "issues.filter((x) => x.status === 'done' || x.status === 'closed' || x.status === 'finished');",
    "issues.filter((x) => (x.status !== 'Closed') && x.status !== 'closed' && x.title);",
    "switch (i.status) { case 'Closed': case 'closed': case 'done': f(); break; default: } function f() {}",
    "console.log(['done', 'closed'].includes(i.status), ['Closed'].includes(i.status), new Set(['x']).has(i.status));",
    "console.log(String(i.status) === 'Closed', i.status.toLowerCase() === 'Closed', `${i.status}` === 'Closed');",
]


@pytest.mark.parametrize("code", QUIET)
async def test_what_only_looks_so_is_not_told(in_both: Faults, code: str) -> None:
    assert await in_both(code) == ()


async def test_types_of_a_scripts_own_are_its_own_affair(in_both: Faults) -> None:
    code = "const mode: 'open' | 'closed' = f(); if ((mode as string) === 'x' || mode === 'y') f(); function f() {}"
    assert await in_both(code, typescript=True) == ()
    code = "const one: any = 1; console.log(one, i.status === 'Closed');"
    assert len(await in_both(code, typescript=True)) == 1


@pytest.mark.slow
async def test_a_chain_of_hundreds_of_comparisons_is_judged_in_time(in_both: Faults) -> None:
    chain = " || ".join(["i.status === 'Closed'"] * 300)
    assert [fault.about.absent for fault in await in_both(f"console.log({chain});")] == ["Closed"]


# ---- hints of what was likely meant --------------------------------------------------------------------

TEXT = {"type": "string"}


def _list_of(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


NODE = {
    **object_of({"node": {"$ref": "#/$defs/Node"}}, "node"),
    "$defs": {"Node": object_of({"name": TEXT, "below": _list_of({"$ref": "#/$defs/Node"})}, "name")},
}
MANY = {f"prop_{number}": object_of({"shared": TEXT, "more": TEXT, "rest": TEXT}) for number in range(40)}
INPUTS = {
    "search": object_of(
        {"params": object_of({"query": TEXT, "max_results": {"type": "integer"}}, "query"), "limit": TEXT},
        "params",
    ),
    "create": object_of(
        {"entities": _list_of(object_of({"name": TEXT, "kind": TEXT}, "name", closed=False))}, "entities"
    ),
    "edit": object_of(
        {
            "path": TEXT,
            "edits": _list_of(object_of({"oldText": TEXT, "newText": TEXT}, "oldText", "newText")),
        },
        "path",
        "edits",
    ),
    "put": object_of({"map": {"type": "object", "additionalProperties": TEXT}, "tags": _list_of(TEXT)}),
    "choose": object_of(
        {"by": {"anyOf": [object_of({"id": TEXT}, "id"), object_of({"slug": TEXT}, "slug")]}, "note": TEXT},
        "by",
    ),
    "tree": NODE,
    "many": object_of(MANY),
    "list": _list_of(object_of({"id": TEXT}, "id")),
}
CATALOG = catalog_of(*(ToolEntry(name, name, input_schema=schema) for name, schema in INPUTS.items()))
DISCOVERY = 'import * as d from "@codemode/discovery";'

DECLARED = {
    "search": "search(input: { params: { query: string; max_results?: number }; limit?: string })",
    "create": "create(input: { entities: { name: string; kind?: string }[] })",
    "edit": "edit(input: { path: string; edits: { oldText: string; newText: string }[] })",
    "put": "put(input?: { map?: { [key: string]: string }; tags?: string[] })",
    "choose": "choose(input: { by: { id: string } | { slug: string }; note?: string })",
    "tree": "tree(input: { node: Node }); type Node = { name: string; below?: Node[] };",
    "list": "list(input: { id: string }[])",
}


def of(name: str, likely: str = "") -> str:
    return f"Did you mean `{likely}`? " * bool(likely) + f"It is declared as `{DECLARED[name]}`."


HINTS = [
    # the name is one of a nested object
    ("t.search({ query: 'x' });", of("search")),
    ("t.edit({ path: 'p', oldText: 'a' });", of("edit")),
    ("t.choose({ slug: 'x' });", of("choose")),
    ("t.tree({ name: 'x' });", of("tree")),
    # a slip, at the top and further down
    ("t.search({ parms: { query: 'x' } });", of("search", "params")),
    ("t.search({ params: { qery: 'x' } });", of("search", "query")),
    ("t.tree({ node: { nme: 'x' } });", of("tree", "name")),
    ("t.edit({ path: 'p', edits: [{ old: 'a' }] });", of("edit", "oldText")),
    # an array is wanted
    ("t.create({ entities: { name: 'a' } });", of("create")),
    ("t.edit({ path: 'p', edits: { oldText: 'a', newText: 'b' } });", of("edit")),
    ("const edits = { oldText: 'a', newText: 'b' }; t.edit({ path: 'p', edits });", of("edit")),
    ("const input = { path: 'p', edits: { oldText: 'a', newText: 'b' } }; t.edit(input);", of("edit")),
    ("t.put({ tags: 'x' });", of("put")),
    ("t.list({ id: 'x' });", of("list")),
    # something is missing
    ("t.create({ entities: [{ kind: 'a' }] });", of("create")),
    ("t.edit({});", of("edit")),
    # a long declaration is cut
    ("t.many({ shared: 'x' });", "It is declared as `many(input?: { prop_0?: { shared?: string; "),
    # an index signature is no property
    ("t.put({ key: 'x' });", of("put")),
    # functions of the fixed modules
    (f"{DISCOVERY} d.describeServer();", "It is declared as `describeServer(serverId: string)`."),
    (f"{DISCOVERY} d.listServers('a');", "It is declared as `listServers()`."),
    (
        f"{DISCOVERY} d.searchTools({{ query: 'a' }});",
        "It is declared as `searchTools(query: string, options?: SearchToolsOptions)`.",
    ),
    (
        'import { describeServer as tell } from "@codemode/discovery"; tell();',
        "It is declared as `describeServer(serverId: string)`.",
    ),
    (
        f"{DISCOVERY} d.searchTools('a', {{ max: 3 }});",
        "It is declared as `searchTools(query: string, options?: SearchToolsOptions)`.",
    ),
    # `require` is none of the compiler's imports
    ('const { x } = require("@codemode/discovery");', 'write `import { … } from "@codemode/discovery"`.'),
]


# In TypeScript `require` is a name like others.
CASES = [
    (*case, typescript)
    for typescript in (False, True)
    for case in HINTS
    if not typescript or "require" not in case[0]
]


@pytest.mark.parametrize(("code", "hint", "typescript"), CASES)
async def test_the_hint_says_what_to_change(faults: Faults, code: str, hint: str, typescript: bool) -> None:
    (fault,) = await faults(code, catalog=CATALOG, typescript=typescript)
    told = fault.hint or ""
    assert hint in told if hint.endswith("; ") else told.endswith(hint), told


OF_ARRAYS = [
    "at",
    "concat",
    "entries",
    "filter",
    "find",
    "forEach",
    "indexOf",
    "join",
    "length",
    "map",
    "pop",
    "slice",
]


@pytest.mark.parametrize(
    ("wanted", "members", "likely"),
    [
        ("titel", ["body", "title", "due"], ["title"]),
        ("date", ["id", "created", "due"], ["created", "due"]),
        ("user", ["assignee", "author", "id"], ["assignee", "author"]),
        ("name", ["title", "id"], ["title"]),
        ("item1", ["item2", "item3", "x"], ["item2", "item3"]),
        ("zzz", ["a", "b", "c"], []),
    ],
)
def test_the_order_does_not_matter(wanted: str, members: list[str], likely: list[str]) -> None:
    for order in permutations(members):
        assert likely_members(wanted, order) == likely


@pytest.mark.parametrize(
    ("receiver", "members", "wanted", "suggested", "said"),
    [
        # What arrays have is offered only where it fits.
        ("Row[]", OF_ARRAYS, "rows", "entries", "It is the array itself: leave out `.rows`."),
        ("Row[]", OF_ARRAYS, "count", "", "Did you mean `length`?"),
        ("Row[]", OF_ARRAYS, "lenght", "", "Did you mean `length`?"),
        ("Row[]", OF_ARRAYS, "foreach", "", "Did you mean `forEach`?"),
        ("Row[]", OF_ARRAYS, "contains", "", "Did you mean `includes`?"),
        ("Row[]", OF_ARRAYS, "title", "", "It is an array: read `title` of its elements."),
        (
            "Row[]",
            [name for name in OF_ARRAYS if name != "entries"],
            "enters",
            "",
            "It is an array: read `enters` of its elements.",
        ),
        ("string", ["at", "length"], "rows", "", "It is text: if it holds JSON, use JSON.parse first."),
        (
            "string",
            ["at", "length"],
            "size",
            "",
            "Did you mean `length`? It is text: if it holds JSON, use JSON.parse first.",
        ),
        (
            "Issue",
            ["due", "created", "id"],
            "date",
            "",
            "Did you mean `created` or `due`? Issue has: created, due, id.",
        ),
        # The compiler takes the first of equals.
        (
            "Issue",
            ["item3", "item2"],
            "item1",
            "item3",
            "Did you mean `item2` or `item3`? Issue has: item2, item3.",
        ),
    ],
)
def test_a_hint_of_a_member_that_is_not_there(
    receiver: str, members: list[str], wanted: str, suggested: str, said: str
) -> None:
    message = f"Property '{wanted}' does not exist on type '{receiver}'."
    complaint = Complaint("member", message, wanted, receiver=receiver, suggested=suggested)
    assert hint_of(complaint, members, Catalog(), ()) == said
