"""What open schemas let pass and nobody meant: undeclared keys, undeclared fields, JSON text used as a value."""

from typing import Any

import pytest

from cellblock.tools.catalog.model import ServerEntry, ToolEntry, ToolOutput, stated_output
from cellblock.types.check.ambient import closed_view
from cellblock.types.check.checker import TypeChecker
from cellblock.types.check.faults import TypeFault
from cellblock.types.check.hints import is_slip
from cellblock.types.typescript import declare_server

from .conftest import SPECIFIER, Faults, catalog_of


def schema(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **more}


TEXT = {"type": "string"}
ISSUE = schema({"id": {"type": "integer"}, "title": TEXT, "assignee": TEXT}, required=["id", "title"])
PAGE = schema(
    {"issues": {"type": "array", "items": ISSUE}, "total": {"type": "integer"}}, required=["issues"]
)
TOOLS = (
    ToolEntry(
        "list_issues",
        "list_issues",
        input_schema=schema(
            {"status": {"enum": ["open", "closed"]}, "label": TEXT, "limit": {"type": "integer"}}
        ),
        output_schema=PAGE,
    ),
    ToolEntry(
        "get_issue",
        "get_issue",
        input_schema=schema({"id": {"type": "integer"}}, required=["id"]),
        output_schema={**ISSUE, "additionalProperties": False},
    ),
    ToolEntry(
        "edit",
        "edit",
        input_schema=schema(
            {
                "path": TEXT,
                "edits": {"type": "array", "items": schema({"oldText": TEXT, "newText": TEXT})},
                "dryRun": {"type": "boolean"},
                "tags": {"type": "array", "items": TEXT, "minItems": 1},
                **{f"setting_of_the_editor_number_{number}": TEXT for number in range(20)},
            },
            required=["path"],
        ),
        output_schema={"type": "string"},
    ),
    ToolEntry("any_key", "any_key", input_schema=schema({"query": TEXT}, additionalProperties=True)),
    ToolEntry("by_name", "by_name", input_schema={"type": "object", "additionalProperties": True}),
    ToolEntry("rows", "rows", input_schema=schema({})),
    ToolEntry(
        "wrapped",
        "wrapped",
        input_schema=schema({"page": TEXT}),
        output_schema=schema({"items": {"type": "array", "items": ISSUE}}),
    ),
    ToolEntry("one", "one", input_schema=schema({})),
    ToolEntry("list_files", "list_files", input_schema=schema({}), output_schema=schema({"content": TEXT})),
)


def outputs(server: ServerEntry, tool: ToolEntry) -> ToolOutput | None:
    """What is stated, and of two tools what was observed: JSON text."""
    if tool.tool_name == "rows":
        return ToolOutput("observed", "", document={"type": "array", "items": ISSUE}, samples=2)
    if tool.tool_name == "one":
        return ToolOutput("observed", "", document=ISSUE, samples=2)
    return stated_output(server, tool)


@pytest.fixture(scope="module")
def checker(checker: TypeChecker) -> TypeChecker:
    """It knows what these tools give."""
    checker.declarations.outputs = lambda _principal: outputs
    return checker


@pytest.fixture
def closed(faults: Faults) -> Faults:
    """The faults of a script in which the tracker's module is `t`; `closed=False` has open types."""

    async def run(code: str, *, closed: bool = True, **more: Any) -> tuple[TypeFault, ...]:
        return await faults(code, catalog=catalog_of(*TOOLS), closed=closed, **more)

    return run


LIST = "const { issues } = await t.list_issues({}); const i = issues[0];"


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ('await t.list_issues({ status: "open", lable: "bug" });', {"lable": "Did you mean `label`?"}),
        (
            'await t.list_issues({ state: "open", lable: "bug" });',
            {"state": "Did you mean `status`?", "lable": "Did you mean `label`?"},
        ),
        (
            "await t.list_issues({ colour: 1 });",
            {
                "colour": 'It is declared as `list_issues(input?: { status?: "open" | "closed"; label?: string; '
            },
        ),
        ("const b = {}; await t.list_issues({ ...b, lable: 'bug' });", {"lable": "Did you mean `label`?"}),
        ("await t.edit({ path: 'a', 'dry_run': true });", {"dry_run": "Did you mean `dryRun`?"}),
        ("await t.edit({ path: 'a', edits: [{ oldTxt: 'a', newText: 'b' }] });", {"oldTxt": "`oldText`"}),
        (
            "await t.edit({ path: 'a', oldText: 'b' });",
            {"oldText": "edits?: { oldText?: string; newText?: string }[]"},
        ),
        ("await t.any_key({ qeury: 'a' });", {"qeury": "Did you mean `query`?"}),
        # However the function is reached.
        (
            "const { list_issues } = t; await list_issues({ lable: 'bug' });",
            {"lable": "Did you mean `label`?"},
        ),
        (
            "const { list_issues: list } = t; await list({ lable: 'bug' });",
            {"lable": "Did you mean `label`?"},
        ),
        ("const list = t.list_issues; await list({ lable: 'bug' });", {"lable": "Did you mean `label`?"}),
        ("const api = t; await api.list_issues({ lable: 'bug' });", {"lable": "Did you mean `label`?"}),
        ("await t['list_issues']({ lable: 'bug' });", {"lable": "Did you mean `label`?"}),
        ("await t?.list_issues?.({ lable: 'bug' });", {"lable": "Did you mean `label`?"}),
        (
            f"const m = await import('{SPECIFIER}'); await m.list_issues({{ lable: 1 }});",
            {"lable": "`label`"},
        ),
        (
            f"const {{ edit }} = await import('{SPECIFIER}'); await edit({{ path: 'a', 'dry_run': true }});",
            {"dry_run": "Did you mean `dryRun`?"},
        ),
        (f"await (await import('{SPECIFIER}')).list_issues({{ lable: 'bug' }});", {"lable": "`label`"}),
        (
            f"let m; m = await import('{SPECIFIER}'); await m.list_issues({{ lable: 'bug' }});",
            {"lable": "`label`"},
        ),
        (
            f"const [m] = await Promise.all([import('{SPECIFIER}')]); await m.edit({{ path: 'a', dry_run: 1 }});",
            {"dry_run": "Did you mean `dryRun`?"},
        ),
        (
            f"import('{SPECIFIER}').then(async ({{ edit }}) => {{ await edit({{ path: 'a', dry_run: 1 }}); }});",
            {"dry_run": "Did you mean `dryRun`?"},
        ),
        ("const api = { t }; await api.t.list_issues({ lable: 'bug' });", {"lable": "Did you mean `label`?"}),
        # given already, so that is not what was meant
        ("await t.list_issues({ label: 'a', labels: ['b'] });", {"labels": "It is declared as"}),
    ],
)
async def test_a_key_that_is_not_declared_is_told(closed: Faults, code: str, told: dict[str, str]) -> None:
    faults = await closed(code)
    assert [fault.message.split("'")[1] for fault in faults] == list(told)
    for fault, hint in zip(faults, told.values(), strict=True):
        assert "declares no" in fault.message and hint in (fault.hint or "")
    assert await closed(code, closed=False) == (), "the schema itself allows it"


@pytest.mark.parametrize(
    ("code", "field", "hint"),
    [
        (f"{LIST} issues.filter((i) => i.asignee === 'mira');", "asignee", "`assignee`"),
        (f"{LIST} const {{ tite }} = i;", "tite", "`title`"),
        (f"{LIST} issues.map(({{ tite }}) => tite);", "tite", "`title`"),
        (f"{LIST} issues.sort((a, b) => a.opened - 1);", "opened", "assignee, id, title"),
        (f"{LIST} issues.filter((issue) => !issue.done);", "done", "assignee, id, title"),
        ("let page = null; page = await t.list_issues({}); console.log(page.isues);", "isues", "`issues`"),
        (f"{LIST} console.log(i['ids']);", "ids", "`id`"),
        (f"{LIST} console.log(i['tite']);", "tite", "`title`"),
        ("console.log((await t.list_issues({})).Total);", "Total", "`total`"),
        (
            "const all = await Promise.all([1].map((id) => t.get_issue({ id }))); all.map((x) => x.tite);",
            "tite",
            "`title`",
        ),
        ("console.log((await t.list_issues({})).isues.length);", "isues", "`issues`"),
        ("console.log((await t.wrapped({}))[0].title);", "0", "The array is in `items`: read `.items[0]`."),
        ("JSON.parse(await t.rows({})).map((row) => row.tite);", "tite", "`title`"),
    ],
)
async def test_a_field_that_is_not_declared_is_told(closed: Faults, code: str, field: str, hint: str) -> None:
    (fault,) = await closed(code)
    assert fault.about.absent == field and hint in (fault.hint or "")


@pytest.mark.parametrize("view", [True, False], ids=["closed", "open"])
@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("const rows = await t.rows({}); rows.map((row) => row.id);", "JSON.parse(rows).map"),
        ("const rows = await t.rows({}); for (const row of rows) console.log(row);", "JSON.parse(rows)"),
        ("const rows = await t.rows({}); console.log([...rows]);", "JSON.parse(rows)"),
        ("const [first] = await t.rows({}); console.log(first);", "JSON.parse(…)"),
        ("const rows = await t.rows({}); console.log(rows[0].title);", "JSON.parse(rows)"),
        ("const rows = await t.rows({}); console.log(Array.from(rows));", "JSON.parse(rows)"),
        (
            "const rows = await t.rows({}); for (let n = 0; n < rows.length; n++) f(rows[n].id); function f() {}",
            "JSON.parse",
        ),
        (
            "const rows = await t.rows({}); if (rows.length) rows.slice(0, 3).map((row) => row.id);",
            "JSON.parse",
        ),
        ("const one = await t.one({}); console.log(one.title);", "JSON.parse(one).title"),
        ("const { title } = await t.one({}); console.log(title);", "JSON.parse(…).title"),
        ("const one = await t.one({}); console.log(Object.keys(one));", "JSON.parse(one)"),
        ("const one = await t.one({}); console.log({ ...one, done: true });", "JSON.parse(one)"),
        (
            "let one; try { one = await t.one({}); } finally { console.log(one.title); }",
            "JSON.parse(one).title",
        ),
        ("console.log((await t.one({})).title);", "JSON.parse(…).title"),
        # Behind guards, which say nothing of texts.
        ("const one = await t.one({}); console.log((one.labels ?? []).length);", "JSON.parse(one).labels"),
        ("const one = await t.one({}); console.log(one.labels?.length || 0);", "JSON.parse(one).labels"),
        ("const one = await t.one({}); console.log(one?.title ?? 'none');", "JSON.parse(one).title"),
        ("const one = await t.one({}); if (one.title) console.log(1);", "JSON.parse(one).title"),
        ("const { title = 'none' } = await t.one({}); console.log(title);", "JSON.parse(…).title"),
        (
            "const one = await t.one({}); const { title = 'none' } = one; console.log(title);",
            "JSON.parse(…).title",
        ),
        (
            "const rows = await t.rows({}); console.log(rows.map?.((row) => row.id) ?? []);",
            "JSON.parse(rows).map",
        ),
        (
            "const rows = (await t.rows({})) ?? []; console.log(rows.filter && rows.filter(Boolean));",
            "JSON.parse(rows).filter",
        ),
        (
            "const a = await t.one({}); const b = JSON.parse(await t.rows({})); console.log(a.title ?? b[0].title);",
            "JSON.parse(a).title",
        ),
        (
            "const rows = await t.rows({}); console.log(Array.isArray(rows) ? rows.length : 0);",
            "JSON.parse(rows)",
        ),
        # One character after the other.
        ("const rows = await t.rows({}); for (const k in rows) console.log(k);", "JSON.parse(rows)"),
        ("const rows = await t.rows({}); console.log([rows[0]]);", "JSON.parse(rows)"),
        (
            "const rows = await t.rows({}); const out = []; for (let n = 0; n < rows.length; n++) out.push(rows[n]);",
            "JSON.parse(rows)",
        ),
        ("console.log((await t.rows({}))[0]);", "JSON.parse(…)"),
        ("const [rows] = await Promise.all([t.rows({})]); console.log(rows?.[0]);", "JSON.parse(rows)"),
    ],
)
async def test_json_text_that_is_used_as_a_value_is_told(
    closed: Faults, code: str, hint: str, view: bool
) -> None:
    (fault,) = await closed(code, closed=view)
    assert hint in (fault.hint or "") and not fault.about.absent


async def test_what_a_run_has_got_goes_before_what_is_declared(closed: Faults) -> None:
    """004's own example: an object is declared, and the tool answers with its JSON in a text."""
    code = "const page = await t.list_issues({}); console.log(page.issues);"
    assert await closed(code) == ()
    (fault,) = await closed(code, got={("tracker", "list_issues"): ToolOutput("observed", "", document=PAGE)})
    assert "JSON.parse(page).issues" in (fault.hint or "")
    assert await closed(code) == (), "that was this run's alone"


@pytest.mark.parametrize(
    ("code", "field"),
    [
        # The same but for case and `_`; else a list, an object or a number in place of all that is there.
        ("let at; do { const p = await t.list_issues({}); p.issues; at = p.Total; } while (at);", "Total"),
        ("const p = await t.list_issues({}); console.log((p.rows || []).length);", "rows"),
        ("const p = await t.list_issues({}); console.log(p.nodes?.length ?? 0, [{ total: 1 }]);", "nodes"),
        ("const p = await t.list_issues({}); const [one] = p.items ?? p.data ?? [];", "items"),
        ("const { items = [] } = await t.list_issues({}); console.log(items.length);", "items"),
        # A text, number or truth value stands in its place, each time.
        (f"{LIST} console.log(i.priority ?? 'none', i.title);", "priority"),
        (f"{LIST} console.log(issues.map((one) => one.votes || 0));", "votes"),
        (f"{LIST} console.log(i.sla?.due ?? 'no sla');", "sla"),
        (
            f"{LIST} const row = (one) => `${{one.title}} ${{one.team ?? '-'}}`; console.log(issues.map(row));",
            "team",
        ),
        (
            f"{LIST} function row(one) {{ return one.area ?? '-'; }} for (const each of issues) row(each);",
            "area",
        ),
        (f"{LIST} const a = (x) => x.zone; const b = (x) => a(x); console.log(issues.map(b));", "zone"),
    ],
)
async def test_a_guard_in_front_of_what_is_never_there_is_told_and_refuses_nothing(
    closed: Faults, code: str, field: str
) -> None:
    assert field in [fault.about.absent for fault in await closed(code)]
    assert await closed(code, closed=False) == ()


@pytest.mark.parametrize(
    ("code", "said", "hint"),
    [
        (
            "const { issues } = await t.list_issues({}); issues === 'open';",
            "`issues` is an array, which equals no text or number.",
            "Use `issues.includes(…)`.",
        ),
        (
            "await t.get_issue(10);",
            "type 'number' is not assignable",
            "It is declared as `get_issue(input: { id: number })`.",
        ),
        ("(await t.edit({ path: 'a' })).toFixed(2);", "'toFixed'", "It is text: read `Number(…).toFixed`."),
        (
            "const all = await Promise.all([1].map(() => t.rows({}))); all.titel;",
            "'titel'",
            "It is an array: read `titel` of its elements.",
        ),
        # `rows` is a tool, and here the name of a field that no array has: nothing of it was observed.
        (
            "const all = [await t.get_issue({ id: 1 })]; all.rows;",
            "'rows'",
            "It is the array itself: leave out `.rows`.",
        ),
    ],
)
async def test_what_takes_one_kind_of_value_for_another_is_told(
    closed: Faults, code: str, said: str, hint: str
) -> None:
    (fault,) = await closed(code)
    assert said in fault.message and fault.hint == hint


@pytest.mark.parametrize(
    "code",
    [
        # A guard beside what is read.
        "const p = await t.list_issues({}); console.log(p.issues ?? p.items ?? p.data ?? []);",
        "const p = await t.list_issues({}); console.log(p.Total ?? p.total);",
        "const p = await t.list_issues({}); for (const e of p.errors ?? []) throw e; if (p.warning) throw 1;",
        "const p = await t.list_issues({}); const { issues: all } = p; console.log(p.next ?? 0, all);",
        "const p = await t.list_issues({}); console.log(p.note ?? null, p.comment || null);",
        # What may stand for another kind of value.
        "const { issues } = await t.list_issues({}); issues == ''; issues === null; issues.length === 1;",
        # JSON text is taken for what it holds.
        "await t.get_issue(JSON.stringify({ id: 1 })); await t.edit({ path: 'a', edits: JSON.stringify([{}]) });",
    ],
)
async def test_what_a_script_does_with_reason_is_not_told(closed: Faults, code: str) -> None:
    assert await closed(code) == ()


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("const { content } = await t.list_files({}); console.log({ files: content.length });", True),
        ("const { content } = await t.list_files({}); for (const one of content) console.log(one);", True),
        ("const r = await t.list_files({}); console.log([...r.content]);", True),
        (
            "const r = await t.list_files({}); for (const one of r.content.split('x')) console.log(one);",
            False,
        ),
        ("const r = await t.list_files({}); if (r.content.length > 9) console.log(r.content);", False),
    ],
)
async def test_the_characters_of_the_one_text_in_an_object_are_told(
    closed: Faults, code: str, told: bool
) -> None:
    faults = await closed(code)
    assert bool(faults) == told and all("split" in (fault.hint or "") for fault in faults)


@pytest.mark.parametrize(
    ("loop", "told"),
    [
        ("for (const line in text.split('\\n')) console.log(line);", True),
        ("const lines = text.split('\\n'); for (const line in lines) console.log(line.trim());", True),
        ("for (const line of text.split('\\n')) console.log(line);", False),
        ("const lines = text.split('\\n'); for (const at in lines) console.log(lines[at]);", False),
        ("const lines = { text: text.split('\\n') }; for (const key in lines) console.log(key);", False),
    ],
)
async def test_for_in_over_the_lines_of_a_text_is_told(closed: Faults, loop: str, told: bool) -> None:
    code = f"const one = await t.list_files({{}}); const text = one.content; {loop}"
    assert [fault.hint for fault in await closed(code)] == [
        "Take the elements themselves: `for (const … of …)`."
    ] * told
    assert await closed(code, closed=False) == ()


GUARDED = [
    "if (i.done) console.log(i.done); console.log(i.next && i.next.id, i.due ?? null, i.note || null, i.a?.b);",
    "console.log(typeof i.run === 'function' ? i.run() : 1, i.x === undefined ? 1 : i.x, i.y != null && i.y.z);",
    "if (Object.hasOwn(i, 'done')) console.log(i.done); if (i.hasOwnProperty('due')) console.log(i.due);",
    "const is = 'done' in i; console.log(issues.map((each) => each.done));",
    "const { done = null, due: until = '', note: { text } = {} } = i; console.log(done, until, text);",
    "for (const { done = null } of issues) console.log(done);",
    "const next = i.next; if (next) console.log(next); const { due } = i; console.log(due ?? 'none');",
    "let cursor; do { cursor = (await t.list_issues({ label: cursor })).nextCursor; } while (cursor);",
    "Object.assign(i, { score: 1, 'late': true }); console.log(i.score, i.late); i.mine = 1; console.log(i.mine);",
    "const rich = issues.map((issue) => ({ ...issue, score: 1 })); console.log(rich[0].score, rich[0].title);",
    "console.log(Array.isArray(i.labels) ? i.labels.length : 0, i.first ? i.first : i.second ? 1 : 2);",
    "const counts = { total: 0 }; for (const x of issues) counts[x.title] = 1; console.log(counts.open, counts.total);",
    "const own = {}; own.a = 1; console.log(own.b);",
    "let state = { a: 1 }; state = { ...state, b: 2 }; console.log(state.b);",
    "const out = []; out.push({ a: 1 }); out.push({ a: 2, b: 3 }); console.log(out[0].b, { ...i });",
    "const part = issues.length ? { a: 1 } : null; console.log({ ...part, ...(i.x && { y: 1 }), ...null });",
    "console.log(i['done'] ?? null, i['x']?.y); const k = 'ti' + 'tle'; console.log(i[k]); for (const k in i) i[k];",
    "while (i.busy) break; for (; i.more; ) break; if (!(i.a || i.b)) console.log(1); if (!i.gone) console.log(2);",
    "await t.get_issue(i); await t.get_issue({ ...i }); await t.list_issues(i);",
    "const input = { lable: 1 }; await t.list_issues(input); await t.list_issues({ ...input });",
    "await t.edit({ path: 'a', tags: issues.map((each) => each.title) });",
    "await t.any_key({ query: 'a', anything: 1 }); await t.by_name({ whatever: 1 });",
    "const any = await t.any_key({}); console.log(any.what.ever, any[0].there.is);",
    "const text = await t.rows({}); const rows = JSON.parse(text); console.log(rows[0].title, text.length);",
    "const text = await t.rows({}); console.log({ size: text.length, start: text.slice(0, 80) }, text.trim());",
    "const raw = await t.one({}); const one = typeof raw === 'string' ? JSON.parse(raw) : raw; console.log(one.id);",
    # A function that is used for several kinds of objects.
    "const id = (x) => x.key; console.log(issues.map(id), [{ key: 1 }].map(id));",
    "const own = { limit: 2 }; console.log(own.page ?? 1, own.limit);",
    "console.log((await t.edit({ path: 'a' })).split('\\n').map((line) => line.trim()));",
    "await t.edit({ path: 'a', edits: [{ oldText: await t.rows({}), newText: String(await t.one({})) }] });",
    # Texts that the script knows for texts, or may.
    "const raw = await t.rows({}); const rows = Array.isArray(raw) ? raw : JSON.parse(raw); console.log(rows.length);",
    "const rows = JSON.parse(await t.rows({})); console.log(Array.isArray(rows) ? rows.length : 0);",
    "const raw = await t.one({}); const one = raw.title ? raw : JSON.parse(raw); console.log(one.id);",
    "const raw = await t.one({}); const one = raw?.id ?? JSON.parse(raw).id; console.log(one);",
    "const raw = await t.one({}); if (typeof raw !== 'string') console.log(raw.title ?? 1);",
    "const raw = await t.rows({}); const rows = raw[0] === '[' ? JSON.parse(raw) : []; console.log(rows.length);",
    "const read = (x) => (x.id ? x : JSON.parse(x)); const raw = await t.one({}); [read(raw), raw.id ?? 1].at(0);",
    "const rows = await t.rows({}).then(JSON.parse); console.log(rows[0].title); for (const k in rows) console.log(k);",
    "const rows = JSON.parse(await t.rows({})); console.log(rows[0].id, rows[0]?.x ?? null); for (const k in rows) k;",
    "const page = JSON.parse(await t.one({})); for (const key in page) console.log(page[key], key[0]);",
    "const text = await t.edit({ path: 'a' }); console.log(text[0], text.length); for (const k in text) text[k];",
    "const text = await t.rows({}); console.log(text.at(0), text.charAt(1), text.split('\\n')[0], text.trim()[1]);",
]


@pytest.mark.parametrize("code", GUARDED)
async def test_who_looks_before_reading_is_not_told_anything(closed: Faults, code: str) -> None:
    script = f"{LIST} {code}"
    assert await closed(script) == ()
    assert await closed(script, closed=False) == ()
    # The same of an output that is closed by its schema.
    own = script.replace("issues[0];", "await t.get_issue({ id: 1 });")
    assert await closed(own, closed=False) == (), "and it is not refused before it runs"


async def test_a_guard_of_one_value_is_none_of_another(closed: Faults) -> None:
    code = f"{LIST} console.log(i.done ?? null); console.log(issues.map((each) => each.done));"
    assert [fault.about.absent for fault in await closed(code)] == ["done"]


@pytest.mark.parametrize(
    ("name", "members", "is_one"),
    [
        ("lable", ["label"], True),
        ("labels", ["label"], True),
        ("dry_run", ["dryRun"], True),
        ("statsu", ["status"], True),
        ("state", ["status"], False),
        ("id", ["ids"], False),
        ("from", ["form"], True),
        ("label", ["label"], False),
        ("x" * 100, ["x" * 99], False),
        ("name", [], False),
    ],
)
def test_a_slip_is_within_two_edits_and_a_third_of_the_name(
    name: str, members: list[str], is_one: bool
) -> None:
    assert is_slip(name, members) == is_one


def test_a_closed_view_has_no_open_object_but_those_that_declare_nothing() -> None:
    text = declare_server(catalog_of(*TOOLS).servers["tracker"], shared=True, reading=False)
    left = [line for line in closed_view(text).splitlines() if "[key: string]" in line]
    assert text.count("[key: string]: unknown") >= 10
    assert [line.split("(")[0].split()[-1] for line in left] == ["by_name", "rows", "one", "list_files"]


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize(
    "code",
    [
        "const v = JSON.parse('{}'); Object.keys(v); Object.values(v); Object.entries(v); Array.from(v);",
        "const call = async (name, input) => t[name](input); Object.entries(await call('rows', {}));",
        "const v = await t.rows({}); typeof v === 'string' ? JSON.parse(v) : Object.values(v);",
        "const [a] = await Promise.allSettled([t.rows({}), t.get_issue({ id: 1 })]); a.reason;",
        "const r = await t.list_issues({}); const next = r.next ?? r.cursor; if (next) next.x;",
    ],
)
async def test_what_may_be_anything_is_taken_for_no_json_text(
    closed: Faults, code: str, is_closed: bool
) -> None:
    assert await closed(code, closed=is_closed) == ()
