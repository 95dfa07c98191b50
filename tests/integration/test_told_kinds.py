"""Kinds of wrong scripts that an outsider wrote and nobody was told of, and of right ones that were warned of.

Right scripts of the script corpus are not told anything, wrong ones are.
"""

import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cellblock import Broker, TypecheckMode
from cellblock.types.check import compiler
from support.brokers import ready
from support.entries import plain_server, settings
from support.script_corpus import MISTAKES, measured, right_scripts, some_tools, wrong_scripts
from support.waits import within

if compiler.why_absent() is not None:
    pytest.skip(f"{compiler.why_absent()}; {compiler.FIX}", allow_module_level=True)

RECORD: dict[str, Any] = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "name": {"type": "string"}},
}
LIST = {
    "type": "object",
    "properties": {"result": {"type": "array", "items": RECORD}},
    "required": ["result"],
}
NUMBERS = {"type": "object", "additionalProperties": {"type": "integer"}}
NEEDED = {
    "type": "object",
    "properties": {**RECORD["properties"], "slug": {"type": "string"}},
    "required": ["id", "name", "slug"],
}
STATES = {
    "type": "object",
    "properties": {
        "rows": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "state": {"enum": ["on", "off"]},
                    "mode": {"enum": ["fast", "slow"]},
                    "sku": {"type": "string"},
                    "marks": {"type": "array", "items": {"enum": ["old", "gone"]}},
                },
                "required": ["state", "mode", "sku", "marks"],
            },
        }
    },
    "required": ["rows"],
}
PAIR = {
    "type": "array",
    "prefixItems": [{"type": "number"}, {"type": "number"}],
    "items": False,
    "minItems": 2,
}
ONE_OF: list[Any] = [
    {"properties": {"a": {"type": "string"}}, "required": ["a"]},
    {"properties": {"b": {}}, "required": ["b"]},
]


def tool(name: str, answer: Any, output: Any = None, **given: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    definition = {"name": name, "inputSchema": {"type": "object", **given}}
    text = answer if isinstance(answer, str) else "a value"
    result: dict[str, Any] = {"content": [{"type": "text", "text": text}]}
    if text is not answer:
        result["structuredContent"] = answer
    return definition | ({"outputSchema": output} if output else {}), result


TOOLS = [
    tool("list_users", {"result": [{"id": 1, "name": "A"}]}, LIST),
    tool("page", json.dumps({"title": "x", "tags": ["a"]})),
    tool("tree", "src\n  a.py"),
    tool("search_pages", json.dumps([{"title": "x"}])),
    tool("list_files", "[FILE] a"),
    tool("edit_file", "ok"),
    tool("get_env", {"PATH": "/bin", "LANG": "C"}),
    tool("open_one", {"amount": 1, "count": 2}, {"type": "object", "additionalProperties": True}),
    tool(
        "open_all",
        {"result": [{"amount": 1}]},
        {**LIST, "properties": {"result": {"type": "array", "items": {}}}},
    ),
    tool("repr", "{'id': 1, 'name': None}"),
    tool("invoices", {"rows": [{"amount": "12.50", "n": 1}]}),
    tool(
        "events", {"rows": [{"at": "2026-01-31T12:00:00Z", "n": 1}, {"at": "2026-02-01T12:00:00Z", "n": 2}]}
    ),
    tool("seen", {"rows": [{"id": 1}], "total": 1}),
    tool("numbers", {"data": [{"id": 1}], "meta": {"all": 1}}),
    tool("busy", json.dumps({"days": {"a@example.com": [{"at": "9"}], "b@example.com": []}})),
    tool("paged", {"rows": [{"id": 1}], "next_page": None}),
    tool("first", {"rows": [{"id": 1}], "next_cursor": "a"}),
    tool("numbered", json.dumps({"rows": [{"id": 1}], "meta": {"page": 1, "total_pages": 3}})),
    tool(
        "teams",
        {"teams": [{"id": 1, "name": "A", "slug": "a"}]},
        {
            "type": "object",
            "properties": {"teams": {"type": "array", "items": NEEDED}},
            "required": ["teams"],
        },
    ),
    tool("order", json.dumps({"order": {"sum": 3, "lines": [{"sku": "a", "n": 1}]}, "buyer": {"name": "A"}})),
    tool(
        "states",
        {"rows": [{"state": s, "mode": "fast", "sku": "b", "marks": ["new"]} for s in ("on", "broken")]},
        STATES,
    ),
    tool(
        "sales",
        {
            "rows": [
                {
                    "state": "SHIPPED",
                    "day": "03/15/2024",
                    "at": "2026-03-01T08:00:00+02:00",
                    "made": 1735689600,
                    "until": "2026-03-01T08:00:00+02:00",
                },
                {"state": "NEW", "day": "12/01/2023", "at": "2026-03-01T08:00:00Z", "made": 1735776000},
                {
                    "state": "NEW",
                    "day": "11/02/2023",
                    "at": "2026-03-01T08:00:00Z",
                    "made": 1735776000,
                    "until": "2026-03-01T08:00:00Z",
                },
            ],
            "sent": None,
        },
    ),
    tool(
        "deals",
        json.dumps(
            {
                "data": [
                    {
                        "deal_id": "a",
                        "amount": "1,562.00",
                        "closed": "13.11.2026",
                        "stamp": "20261103T101112Z",
                        "owner": {"id": "o"},
                        "pair": [1, "a"],
                    }
                ]
            }
        ),
    ),
    tool("stock", "17"),
    tool("escalate", "ERROR: it is closed"),
    (
        {"name": "blocks", "inputSchema": {"type": "object"}},
        {"content": [{"type": "text", "text": '{"id": 1}'}, {"type": "text", "text": '{"id": 2}'}]},
    ),
    tool(
        "warts",
        {
            "rows": [
                {
                    "left": "2h 31m",
                    "price": "$3.50",
                    "ms": 1772442000000,
                    "code": "1767225600000",
                    "parts": json.dumps([{"n": 1}]),
                    "rating": "4.5 out of 5",
                    "rate": "1.08",
                }
            ],
            "days": {"mon": {"busy": []}},
        },
    ),
    tool("table", "sku,qty\nA-01,12\nB-02,7\n"),
    tool("trigger", {"queued": False, "reason": "it is disabled"}),
    tool("counts", {"on": 1, "off": 2}, NUMBERS),
    tool("sizes", {"length": 1, "width": 2}, NUMBERS),
    tool("at", "ok", properties={"at": PAIR}),
    tool("either", "ok", oneOf=ONE_OF),
]
EVERY = "".join(f"await p.{definition['name']}({{}}).catch(() => 0);\n" for definition, _ in TOOLS)
WARTS = "const { rows } = await p.warts({});"
DEALS = "const { data } = JSON.parse(await p.deals({}));"
IMPORT = 'import * as p from "@codemode/servers/plain";\n'


@pytest.fixture(scope="module")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    folder = tmp_path_factory.mktemp("kinds")
    definitions = folder / "definitions.json"
    answers = {definition["name"]: answer for definition, answer in TOOLS}
    definitions.write_text(json.dumps({"pages": [[one for one, _ in TOOLS]], "answers": answers}))
    config = settings(
        folder, {"plain": plain_server("--definitions", definitions)}, typecheck_timeout_ms=60_000
    )
    async with ready(config) as made:
        for _ in range(2):
            assert (await within(made.run(IMPORT + EVERY + "globalThis.__codemode_result__ = 1;"))).ok
        await made.learnt(60.0)
        yield made


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("const d = (await p.page({})) ?? {}; d.title;", "JSON.parse"),
        ("const d = (await p.page({})) || {}; d.tags;", "JSON.parse"),
        ("const { title = 'none' } = await p.page({}); title;", "JSON.parse"),
        ("const t = await p.tree({}); for (const line of t) line;", '.split("\\n")'),
        ("const t = await p.tree({}); const lines = [...t]; lines;", '.split("\\n")'),
        ("const all = await p.list_files({}); const n = all.length; n;", '.split("\\n")'),
        ("const u = await p.list_users({}); const n = u.length; n;", "`.result.length`"),
        ("const u = await p.list_users({}); u.map((one) => one.name);", "`.result.map`"),
        ("const u = await p.open_all({}); u.filter(Boolean);", "`.result.filter`"),
        ("const u = await p.list_users({}); u[0].name;", "`.result[0]`"),
        ("const r = await p.repr({}); r.name;", "It is text: no earlier result was JSON."),
        (
            "const { rows } = await p.invoices({}); let s = 0; for (const r of rows) s += r.amount; s;",
            "Number(r.amount)",
        ),
        (
            "const { rows } = await p.invoices({}); rows.reduce((s, x) => s + x.amount, 0);",
            "Number(x.amount)",
        ),
        ("const e = await p.events({}); e.rows.sort((a, b) => a.at - b.at);", "Date.parse(a.at)"),
        ("const e = await p.events({}); Math.max(e.rows.map((r) => r.n));", "Math.max(...e.rows"),
        (
            "const e = await p.events({}); let n = []; for (const r of e.rows) n = n.push(r.n);",
            "Leave out `n =`",
        ),
        ("const d = await p.open_one({}); if (d.status === 'open') d;", "It has: amount, count."),
        ("try { p.tree; } catch (e) { e instanceof ToolCallError; }", 'from "@codemode/errors"'),
        ("await listTools('p');", 'from "@codemode/discovery"'),
        ("await searchTools('x');", 'from "@codemode/discovery"'),
        ("await p.lst_files({});", "Did you mean `list_files`?"),
        ("const found = await p.search_pages({}); const n = found.length; n;", "JSON.parse(found)"),
        ("const r = await p.edit_file({}); const said = r.success ? 'ok' : 'failed'; said;", "It is text"),
        ("const r = await p.edit_file({}); if (!r.ok) throw new Error('failed');", "It is text"),
        ("const e = await p.events({}); e.rows.map((r) => r.n).sort().at(-1);", "(a, b) => a - b"),
        ("const e = await p.events({}); e.rows.sort((a, b) => a.at > b.at);", "? -1 : 1"),
        ("const e = await p.events({}); e.rows.filter((r) => r.n === '1').length;", "Convert one"),
        ("const r = await p.edit_file({}); const said = r === true ? 'ok' : 'failed'; said;", "Convert one"),
        ("const e = await p.events({}); e.rows.filter((r) => r.at > new Date()).length;", "new Date(…)"),
        ("const e = await p.events({}); e.rows.filter((r) => new Date(r.at) === new Date(0));", ".getTime()"),
        ("const e = await p.events({}); e.rows.includes('A');", "Ask for a field"),
        ("const m = new Map([[1, 'a']]); const u = await p.list_users({}); m.get('1');", "Convert it"),
        (
            "const m = new Map([[1, 'a']]); const u = await p.list_users({}); m[u.result[0].id];",
            "Use `m.get(",
        ),
        ("const s = new Set((await p.list_users({})).result); const n = s.length; n;", "`size`"),
        ("const u = await p.list_users({}); for (const one of u) one.name;", "such as `.result`"),
        ("const u = await p.list_users({}); const n = u > 3 ? 'many' : 'few'; n;", "such as `.result`"),
        (
            "async function* all() { yield await p.seen({}); } for (const one of all()) one.total;",
            "for await",
        ),
        ("const u = await p.list_users({}); for (const i in u.result) i.name;", "for (const … of …)"),
        ("const t = await p.tree({}); Object.keys(t).length;", "JSON.parse"),
        ("let all = []; all.concat((await p.list_users({})).result);", "Take it"),
        (
            "const u = await p.list_users({}); u.result.map((o) => o.name).forEach((n) => n.trim());",
            "Take it",
        ),
        ("const u = await p.list_users({}); u.result.filter((o) => { o.id > 1; });", "Return a value"),
        ("const u = await p.list_users({}); u.result.filter((o) => o.name = 'A');", "compare with `===`"),
        (
            "const u = await p.list_users({}); const n = u.result.map((o) => { o.name; }); n;",
            "Return a value",
        ),
        ("const u = await p.list_users({}); u.result.filter(async (o) => await p.page(o));", "Promise.all"),
        (
            "const u = await p.list_users({}); await u.result.reduce(async (s, o) => s + o.id, 0);",
            "Await that",
        ),
        ("const u = await p.list_users({}); u.result.forEach((o) => { if (o.id) return o; });", ".find(…)"),
        ("const u = await p.list_users({}); for (let o of u.result) { o = o.name; }", "list.map(…)"),
        (
            "const { rows } = await p.invoices({}); const s = {}; for (const r of rows) s.a = (s.a || 0) + r.amount;",
            "Number(…)",
        ),
        (
            "const u = await p.list_users({}); const n = u.result.items?.map((o) => o.id) ?? []; n;",
            "the array itself",
        ),
        ("const u = await p.list_users({}); const l = u.result.split?.('\\n') ?? []; l;", "It is an array"),
        (
            "const u = await p.teams({}); const f = (t) => t.lead ?? 'none'; u.teams.map(f);",
            "It has: id, name, slug.",
        ),
        ("const u = await p.teams({}); const s = u.content?.[0]?.text ?? ''; s;", "gives the value itself"),
        ("const t = await p.tree({}); t.content[0].text;", "gives the value itself"),
        ("const d = await p.page({}); JSON.parse(d.content[0].text);", "read `JSON.parse(d)`"),
        (
            "const { rows } = await p.invoices({}); rows.sort((a, b) => (a.amount > b.amount ? 1 : -1));",
            "Number(",
        ),
        ("const { rows } = await p.invoices({}); rows.filter((r) => r.amount >= '9').length;", "Number("),
        (
            "const { rows } = await p.invoices({}); rows.filter((r) => typeof r.amount === 'number');",
            "Number(",
        ),
        (
            "const { rows } = await p.invoices({}); let s; for (let r of rows) if (typeof r.amount === 'number') s++;",
            "Number(",
        ),
        ("const u = await p.teams({}); u.teams.filter((t) => t.slug === null).length;", "what it may be"),
        (
            "const u = await p.teams({}); Object.keys(u.teams).map((key) => key.trim());",
            "Object.keys(teams[0]",
        ),
        (
            "const { teams } = await p.teams({}); Object.entries(teams).map(([name, t]) => name + t.id);",
            "teams.map",
        ),
        ("const u = await p.teams({}); const fields = Object.keys(u.teams); fields;", "Object.keys(teams[0]"),
        ("const u = await p.teams({}); const all = new Set(); u.teams.forEach(all.add);", "(value) =>"),
        ("const n = await p.teams({}).then((u) => { u.teams.length; }); n;", "needs `return`"),
        ("const { teams } = await p.teams({}); for (const t in teams) t.name;", "for (const … of …)"),
        ("const u: any = await p.teams({}); u.items.map((t: any) => t.name);", "It has: teams."),
        (
            "const u = (await p.teams({})) as any; u.teams.map((t: any) => t.lead.name);",
            "It has: id, name, slug.",
        ),
        ("const t = p.page({}); JSON.parse(t);", "JSON.parse(await"),
        ("const { teams } = await p.teams({}); for (const { teams } of teams) teams;", "another name"),
        (
            "const o = JSON.parse(await p.order({})) as any; o.sum;",
            "`sum` is in `order`: read `o.order.sum`.",
        ),
        ("const o = JSON.parse(await p.order({})); o.sum;", "`sum` is in `order`: read `o.order.sum`."),
        ("const { sum } = JSON.parse(await p.order({})); sum;", "`sum` is in `order`."),
        ("const o = JSON.parse(await p.order({})); o.order.buyer;", "It has: lines, sum."),
        ("const s = await p.states({}); s.rows.filter((r) => r.state === 'fast').length;", "Declared: "),
        (
            "const o = JSON.parse(await p.order({})); const s = await p.states({}); o.order.sku === s.rows[0].sku;",
            "It has: lines, sum.",
        ),
        ("const c = await p.counts({}); const n = c.length; n;", "`Object.keys(…).length`"),
        ("const { result } = await p.list_users({}); for (const u in result) u.name;", "for (const … of …)"),
        ("const u = await p.list_users({}); u.result.map((o) => { name: o.name });", "`(…) => ({ … })`"),
        (
            "const all = await Promise.allSettled([p.seen({}), p.events({})]); all.map((r) => r.total);",
            "read `.value?.total`",
        ),
        ("const u = await p.list_users({}); u.result.filter((o) => o.name === 'A' || 'B');", "… === 'B'"),
        ("const e = await p.events({}); e.rows.filter((r) => !r.n > 1);", "Write `!(… > …)`"),
        ("const e = await p.events({}); e.rows.filter((r) => r.n ?? 0 > 1);", "`(… ?? …) > …`"),
        ("const u = await p.list_users({}); u.result.filter((o) => (o.name = 'A'));", "compare with `===`"),
        ("const s = await p.seen({}); if (s.total = 3) s;", "Compare with `===`"),
        ("let at; do { const s = await p.paged({}); s.rows; at = s.nextPage; } while (at);", "`next_page`"),
        ("[JSON.parse(await p.page({}))].filter((one) => one.tags).length;", "`.tags.length > 0`"),
        ("const u = await p.list_users({}); u.result.map((o) => o.id).includes('1');", "Convert it"),
        (
            "async function again(f) { await f(); } const r = await again(() => p.seen({})); r?.total ?? 0;",
            "add `return`",
        ),
        (
            "interface Order { sum: number } const o: Order = JSON.parse(await p.order({})); o.sum;",
            "read `o.order.sum`",
        ),
        (
            "type One = { title: string }; const u = (await p.list_users({})) as unknown as { result: One[] }; "
            "u.result.map((o: One) => o.title);",
            "It has: id, name.",
        ),
        ("const { rows } = await p.invoices({}); rows.map((r) => r.amount).sort();", "Number("),
        (
            "const { rows } = await p.invoices({}); rows.sort((a, b) => a.amount.localeCompare(b.amount));",
            "Number(",
        ),
        ("const { rows } = await p.invoices({}); rows.map((r) => r.amount + 10);", "Add to `Number("),
        ("const { rows } = await p.invoices({}); rows.reduce((s, r) => s + r.n);", ", 0)"),
        (
            "const { rows } = await p.invoices({}); const c = {}; for (const r of rows) c[r.n] += 1;",
            "Begin with 0",
        ),
        ("const e = await p.events({}); e.rows.map((r) => new Date(r.at + 86400000));", "Add to its time"),
        ("const e = await p.events({}); Date.now() - e.rows[0].at > 1;", "Date.parse("),
        ("const e = await p.events({}); e.rows[0].at.getTime();", "`new Date(…).getTime`"),
        (
            "const f = (r) => !r.n || r.at < new Date(); const e = await p.events({}); e.rows.filter(f);",
            "new Date(…)",
        ),
        ("const e = await p.events({}); Math.max(...e.rows.map((r) => r.at));", "Date.parse("),
        ("const u = await p.teams({}); u.teams.sort((a, b) => a.name - b.name);", "localeCompare"),
        (
            "const u = await p.teams({}); const t = u.teams[0]; await p.page({ q: 'team ' + t });",
            "Take a field",
        ),
        ("const u = await p.teams({}); await p.page({ q: `all ${u}` });", "Take a field"),
        ("const { users } = await p.list_users({}); users?.length;", "It has: result."),
        (
            "const { teams } = await p.teams({}); teams.forEach((t, i) => { if (t.id) teams.splice(i, 1); });",
            ".filter(…)",
        ),
        ("const { content } = await p.tree({}); content.trim();", "gives the value itself"),
        (
            "const { rows } = await p.invoices({}); typeof rows[0].amount === 'number' && rows[0].n > 9 ? 'a' : 'b';",
            "Number(",
        ),
        (
            "const s = await p.states({}); const w = { on: 1 }; s.rows.reduce((n, r) => n + w[r.state], 0);",
            "`(w[…] ?? 0)`",
        ),
        ("const s = await p.states({}); const n = 2 * s; n;", "Take a member"),
        (
            "const { rows } = await p.sales({}); rows.filter((r) => r.state === 'shipped').length;",
            "'SHIPPED'",
        ),
        ("const { rows } = await p.sales({}); for (const r of rows) if (r.state == 'New') r;", "'NEW'"),
        (
            "const { rows } = await p.sales({}); rows.filter((r) => r.day > '2024-01-01').length;",
            "Date.parse(",
        ),
        (
            "const { rows } = await p.sales({}); rows.sort((a, b) => a.day.localeCompare(b.day));",
            "Date.parse(",
        ),
        ("const { rows } = await p.sales({}); rows.map((r) => r.day).sort();", "Date.parse("),
        ("const { rows } = await p.sales({}); rows.sort((a, b) => (a.at < b.at ? 1 : -1));", "Date.parse("),
        (
            "const { rows } = await p.sales({}); rows.filter((r) => r.at < '2026-03-01T09:00:00Z');",
            "Date.parse(",
        ),
        ("const { rows } = await p.sales({}); rows.filter((r) => r.until < '2026-03-01T09:00:00Z');", "time"),
        ("const { rows } = await p.sales({}); rows.map((r) => new Date(r.made));", "* 1000"),
        ("const { rows } = await p.sales({}); rows.filter((r) => r.made < Date.now() - 1).length;", "* 1000"),
        (
            "const { rows } = await p.sales({}); rows.reduce((s, r) => { s[r.made] = 1; return s; });",
            ", 0)",
        ),
        (
            "const { rows } = await p.sales({}); for (const r of rows) if (r.made) rows.splice(0, 1);",
            ".filter(…)",
        ),
        (
            "const { rows } = await p.sales({}); for (let i = 0; i < rows.length; i++) if (rows[i]) rows.splice(i, 1);",
            ".filter(…)",
        ),
        (
            "const { rows } = await p.sales({}); rows.filter((r) => r.state === 'A' && r.state === 'B');",
            "`||`",
        ),
        (
            "const { rows } = await p.sales({}); rows.filter((r) => r.state !== 'A' || r.state !== 'B');",
            "`&&`",
        ),
        (
            "const { rows } = await p.sales({}); rows.filter((r) => !r.state === 'A');",
            "Write `r.state !== 'A'`",
        ),
        ("const { rows } = await p.states({}); rows.filter((r) => r.marks.indexOf('old'));", ".includes("),
        ("const { rows } = await p.states({}); rows.filter((r) => 'old' in r.marks);", "`.marks.includes("),
        ("const { rows } = await p.sales({}); const last = rows[rows.length]; last?.state;", ".at(-1)"),
        ("const { rows } = await p.states({}); rows.sort((a, b) => a.mode - b.mode);", "localeCompare"),
        ("const b = await p.busy({}); Object.keys(b.days || {}).length;", "JSON.parse(b).days"),
        ("const { users } = await p.numbers({}); users?.length ?? 0;", "It has: data, meta."),
        (
            "const u = await p.teams({}); const all = Array.isArray(u) ? u : []; all.length;",
            "the member that has",
        ),
        (
            "let u; try { u = JSON.parse(await p.list_users({})); } catch { u = {}; } u;",
            "Use the value as it is.",
        ),
        ("const e = await p.events({}); e.rows.filter((r) => r.at > Date.now() - 1).length;", "Date.parse("),
        ("JSON.parse(await p.tree({}));", "Use a text that is not meant to be JSON as it is."),
        (f"{DEALS} return data.map((one) => one.dealId);", "`deal_id`"),
        (f"{DEALS} if (data.length) {{ return {{ n: data[0].amont }}; }}", "`amount`"),
        (f"{DEALS} data.filter((one) => one.owner === 'o');", "Compare a member"),
        (
            f"{DEALS} const o = {{ id: 'o' }}; data.filter((one) => one.owner == o);",
            "Compare a member of both",
        ),
        (f"{DEALS} data.filter((one) => /o/.test(one.owner));", "Take a field of it"),
        (f"{DEALS} data.reduce((sum, one) => sum + one.deal_id, []);", "Begin with 0"),
        (f"{DEALS} data.map((one) => parseFloat(one.amount));", "replaceAll(',', '')"),
        (f"{DEALS} data.map((one) => new Date(one.closed));", "Take it apart"),
        (f"{DEALS} data.filter((one) => Date.parse(one.stamp) > 0);", "Take it apart"),
        (f"{DEALS} data.map((one) => one.pair.value);", "`values`"),
        (f"{DEALS} return {{ last: data[data.length] }};", "data.at(-1)"),
        (f"{DEALS} return data.map((one) => {{ one.deal_id; }});", "leave out the braces"),
        ("const m = new Map([[1, 2]]); JSON.stringify(m); await p.seen({});", "Object.fromEntries(m)"),
        ("(await p.stock({})).split('').map(parseInt);", ".map(Number)"),
        ("const s = await p.stock({}); const n = s + 5; n;", "Number(s)"),
        ("const { content = '' } = await p.tree({}); content.length;", "leave out `content`"),
        ("const t = await p.tree({}); Array.from(t).length;", '.split("\\n")'),
        ("const b = await p.blocks({}); b.length;", "in `content`"),
        ("const b = await p.blocks({}); JSON.parse(b.content[0].text).id;", "Read them all"),
        ("const e = await p.events({}); e.rows.filter((r) => new Date(r.at) === e.day);", ".getTime()"),
        (
            "const { rows } = await p.sales({}); const old = Date.now() - 864e5; rows.filter((r) => r.made < old);",
            "r.made * 1000".replace("r.", "one."),
        ),
        ("const { days } = JSON.parse(await p.busy({})); const n = days.length; n;", "Object.keys("),
        ("const { days } = JSON.parse(await p.busy({})); days.map((one) => one);", "Object.entries(days)"),
        (f"{DEALS} const s = new Set(data.map((one) => one.owner)); s.has('o');", "Ask for a field"),
        (f"{DEALS} const m = new Map(); for (const one of data) m.set(one.owner, 1);", "for the key"),
        ("await p.escalate({});", "before you count it as done"),
        ("await p.trigger({});", "before you count it as done"),
        (f"{WARTS} parseInt(rows[0].left, 10);", "read each part"),
        (f"{WARTS} parseFloat(rows[0].price);", "before the digits"),
        (f"{WARTS} Number(rows[0].price);", "Take its digits"),
        (f"{WARTS} rows[0].price * 2;", "Take its digits"),
        (f"{WARTS} new Date(rows[0].ms * 1000);", "Leave the factor out"),
        (f"{WARTS} new Date(rows[0].code);", "new Date(Number("),
        (f"{WARTS} const n = rows[0].parts.length; n;", "JSON.parse(….parts).length"),
        (f"{WARTS} const n = 1 + rows[0].rate; n;", "Add `Number(…)`"),
        (f"{WARTS} rows['0'] === 'x';", "Compare a member"),
        ("const t = await p.table({}); const n = t.split('\\n').length; n;", ".slice(1)"),
        (
            "const u = await p.teams({}); const o = { ...Object.fromEntries([['a', 1]]) }; u.titles.map(String); o.a;",
            "It has: teams.",
        ),
        (
            "let f = await p.first({}); while (f.hasMore) f = await p.first({ cursor: f.next_cursor });",
            "the next part",
        ),
        (
            "const f = JSON.parse(await p.numbered({})); let n = f.rows.length; "
            "for (let i = 2; i < f.meta.total_pages; i++) n += 1;",
            "the next part",
        ),
        ("const s = await p.sales({}); new Date(s.sent ?? 'x').toISOString();", "no date that it can read"),
        ("const s = await p.sales({}); s.sent.at(0);", "use `?.` and a default"),
    ],
)
async def test_what_is_wrong_is_told(broker: Broker, code: str, hint: str) -> None:
    response = await within(broker.run(f"{IMPORT}{code}\nglobalThis.__codemode_result__ = 1;"))
    assert any(hint in (found.hint or "") for found in response.diagnostics), response.diagnostics


@pytest.mark.parametrize(
    "value",
    [
        "`${u}`",
        "{ [u]: 1 }",
        "u.result.join()",
        "Number('x').toFixed(1)",
        "`${u['no' + 1]}, ${u.result[0].id}`",
    ],
)
async def test_an_object_that_became_a_text_is_told(broker: Broker, value: str) -> None:
    code = f"{IMPORT}const u = await p.list_users({{}}); globalThis.__codemode_result__ = {value};"
    told = [found.hint or "" for found in (await within(broker.run(code))).diagnostics]
    assert any(" a field of " in hint for hint in told), told


@pytest.mark.parametrize(
    ("code", "is_told"),
    [
        ("(await p.first({})).rows.length", True),
        ("(await p.first({ limit: 100 })).rows.length", True),
        ("(await p.first({})).rows.reduce((total, row) => total + row.id, 0)", True),
        ("(await p.first({ limit: 5 })).rows.length", False),
        ("(await p.first({})).next_cursor === null", False),
        ("(await p.paged({})).rows.length", False),
        ("JSON.parse(await p.numbered({})).rows.length", True),
        ("JSON.parse(await p.numbered({ page: 2 })).rows.length", False),
    ],
)
async def test_that_there_is_more_is_told(broker: Broker, code: str, is_told: bool) -> None:
    found = (await within(broker.run(f"{IMPORT}export default {code};"))).diagnostics
    assert [(one.severity, one.code) for one in found] == [("info", "TOOL_RESULT_NOTE")] * is_told, found


@pytest.mark.parametrize(
    ("text", "is_told"),
    [
        ("'seen: ' + [u]", True),
        ("`Dear ${u.nobody}`", True),
        ("String(null)", True),
        ("'it is not undefined'", False),
        ("String(u.result[0].name)", False),
    ],
)
async def test_an_object_that_became_a_text_in_an_input_is_told(
    broker: Broker, text: str, is_told: bool
) -> None:
    code = f"{IMPORT}const u = await p.list_users({{}}); await p.page({{ text: {text} }}); export default 1;"
    told = [found.message for found in (await within(broker.run(code))).diagnostics]
    assert any("in the input of `page`" in message for message in told) == is_told, told


@pytest.mark.parametrize(
    ("value", "is_told"),
    [
        ("new Date(s.sent)", True),
        ("new Date(s.rows[0].made)", True),
        ("new Date(s.rows[0].made * 1000)", False),
    ],
)
async def test_a_date_of_null_or_of_seconds_is_told(broker: Broker, value: str, is_told: bool) -> None:
    code = f"{IMPORT}const s = await p.sales({{}}); globalThis.__codemode_result__ = [{value}.toISOString()];"
    told = [found.hint or "" for found in (await within(broker.run(code))).diagnostics]
    assert any("1000" in hint for hint in told) == is_told, told


@pytest.mark.parametrize(
    ("value", "is_advised"), [("u.result[0].nam", False), ("u.result['a' + 1]", True), ("u.page", False)]
)
async def test_a_default_is_advised_only_where_nothing_is_known_to_be_wrong(
    broker: Broker, value: str, is_advised: bool
) -> None:
    code = f"{IMPORT}const u = await p.list_users({{}}); globalThis.__codemode_result__ = [{value}];"
    found = (await within(broker.run(code))).diagnostics
    hints = [one.hint or "" for one in found if one.code == "RESULT_NOT_JSON"]
    assert [("?? null" in hint, bool(hint)) for hint in hints] == [(is_advised, is_advised)], found


@pytest.mark.parametrize("mode", ["after", "before"])
async def test_a_default_is_advised_for_a_member_that_no_result_had_before_a_run_alone(
    broker: Broker, mode: TypecheckMode
) -> None:
    code = f"{IMPORT}const s = await p.seen({{}}); globalThis.__codemode_result__ = 'is ' + s.rowz;"
    found = (await within(broker.run(code, typecheck=mode))).diagnostics
    hints = [one.hint or "" for one in found if one.code == "TYPE_ERROR"]
    assert ["Observed, not declared: seen" in hint for hint in hints] == [True]
    assert ["?? null" in hint for hint in hints] == [mode == "before"]


@pytest.mark.parametrize(
    ("asked", "is_told"),
    [
        ("r.state === 'broken'", False),
        ("r.state === 'fast'", True),
        ("r.marks.includes('new')", False),
        ("r.marks.includes('gold')", True),
    ],
)
async def test_a_text_that_came_in_its_own_field_is_not_told(
    broker: Broker, asked: str, is_told: bool
) -> None:
    code = f"const s = await p.states({{}}); globalThis.__codemode_result__ = s.rows.some((r) => {asked});"
    assert bool((await within(broker.run(IMPORT + code))).diagnostics) == is_told


@pytest.mark.parametrize(
    ("code", "is_told"),
    [
        ("(f.orders ?? []).length", True),
        ("f.data.map((one) => one.amount)", True),
        ("f.data.reduce((sum, one) => sum + one.total, 0)", True),
        ("f.data.filter((one) => one.total > '9').length", True),
        ("f.data.length + (f.tags ?? []).length", False),
        ("f.data.map((one) => one.note ?? 'none')", False),
        ("f.data.reduce((sum, one) => sum + Number(one.total), 0)", False),
    ],
)
async def test_first_answers_of_a_tool_count_in_the_run_that_gets_them(
    tmp_path: Path, code: str, is_told: bool
) -> None:
    rows = [{"id": 1, "total": "36.50"}, {"id": 2, "total": "9.50"}]
    definition, answer = tool("fresh", {"data": rows, "next_cursor": None})
    definitions = tmp_path / "definitions.json"
    definitions.write_text(json.dumps({"pages": [[definition]], "answers": {"fresh": answer}}))
    servers = {"plain": plain_server("--definitions", definitions)}
    async with ready(settings(tmp_path, servers, typecheck_timeout_ms=60_000)) as broker:
        response = await within(
            broker.run(f"{IMPORT}const f = await p.fresh({{}}); globalThis.__codemode_result__ = {code};")
        )
    assert any(one.code == "TYPE_ERROR" for one in response.diagnostics) == is_told, response.diagnostics


@pytest.mark.parametrize("wanted", ["read_files", "delete_file", "move_files"])
async def test_another_verb_is_not_suggested(broker: Broker, wanted: str) -> None:
    response = await within(broker.run(f"{IMPORT}await p.{wanted}({{}});"))
    assert "edit_file?" not in "".join(found.hint or "" for found in response.diagnostics)


async def test_the_same_verb_for_another_thing_is_not_suggested(broker: Broker) -> None:
    code = 'import { list_deals } from "@codemode/servers/plain"; await list_deals({});'
    said = "".join(found.hint or "" for found in (await within(broker.run(code))).diagnostics)
    assert "deals" in said and "list_users?" not in said


@pytest.mark.parametrize(
    "code",
    [
        "const u = await p.list_users({}); (u.result ?? u).length;",
        "const u = await p.teams({}); let v; try { v = JSON.parse(u); } catch { v = u; } v.teams.length;",
        "const { rows } = await p.invoices({}); rows.filter((r) => r.amount > 5).length;",
        "let s = await p.states({}); s = s.rows.length; const n = 2 * s; n;",
        "const w = { on: 1 }; (await p.states({})).rows.reduce((n, r) => n + (w[r.state] ?? 0), 0);",
        "const w = { on: 1 }; (await p.states({})).rows.map((r) => (r.state in w ? 1 + w[r.state] : 0));",
        "const w = { on: 1, off: 2 }; (await p.states({})).rows.map((r) => 1 + w[r.state]);",
        "const u = await p.list_users({}); const all = u.result ?? u; all.map((one) => one.id);",
        "const u = await p.list_users({}); const all = Array.isArray(u) ? u : u.result; all.length;",
        "const e = await p.get_env({}); String(e.HOME);",
        "const e = await p.get_env({}); if (e.CI === 'true') e;",
        "const s = await p.seen({}); if (s.isError) throw new Error(s.content?.[0]?.text); s.total;",
        "const s = await p.tree({}); const t = typeof s === 'string' ? s : s.content[0].text; t.length;",
        "async function* all() { yield await p.seen({}); } for await (const one of all()) one.total;",
        "async function* all() { yield* (await p.seen({})).rows; } for await (const r of all()) r.id;",
        "const t = await p.tree({}); if (t.length > 1000) t.slice(0, 1000);",
        "const t = await p.search_pages({}); if (t.length < 9) t; JSON.parse(t).length;",
        "const t = await p.search_pages({}); const n = JSON.parse(t).length + t.length; n;",
        "const r = await p.edit_file({}); if (r.isError) throw new Error(r.content?.[0]?.text); r.includes('ok');",
        "const { rows } = await p.invoices({}); let s = 0; for (const r of rows) s += Number(r.amount) + r.n; s;",
        "const { rows } = await p.invoices({}); rows.map((r) => r.n + ': ' + r.amount).reduce((s, x) => s + x, '');",
        "const t = await p.tree({}); for (const line of t.split('\\n')) line;",
        "const e = await p.events({}); e.rows.sort((a, b) => new Date(a.at) - new Date(b.at));",
        "const { rows } = await p.invoices({}); rows.sort((a, b) => a.amount - b.amount);",
        "const e = await p.events({}); Math.max(...e.rows.map((r) => r.n)) - Math.min(0, e.rows[0].n);",
        "const e = await p.events({}); const n = []; const size = n.push(e.rows[0].n); size;",
        "const xy = [[1, 2]].map(([x, y]) => [x, y]); await p.at({ at: xy[0] });",
        "const at = [1, 2]; await p.at({ at });",
        "const one = {}; one.a = 'x'; await p.either(one);",
        "const other = {}; if (p) other.b = 2; await p.either(other);",
        "let u = await p.list_users({}); u = u.result; u.map((o) => o.name);",
        "let d = await p.page({}); d = JSON.parse(d); d.title.trim().length;",
        "let { rows } = await p.events({}); rows = rows.map((r) => r.at); rows.map((at) => at.slice(0, 4));",
        "const q = { filter(f) { f(this); } }; q.filter((o) => { o.k = 1; }); await p.seen({});",
        "const u = await p.list_users({}); u.result.map((o) => o.name).sort();",
        "const e = await p.events({}); e.rows.filter((r) => r.n === '1' || r.n === 1).length;",
        "const e = await p.events({}); e.rows.filter((r) => r.n !== '' && String(r.n) === '1').length;",
        "const e = await p.events({}); e.rows.filter((r) => new Date(r.at) > new Date(0)).length;",
        "const u = await p.list_users({}); u.result.map((o) => o.name).includes('A');",
        "const m = new Map(); for (const o of (await p.list_users({})).result) m.set(o.name, o); m.get('1');",
        "const n = (x) => x.name ?? x.title ?? '?'; const u = await p.teams({}); u.teams.map(n);",
        "const get = (o, k) => o[k]; const u = await p.teams({}); get(u.teams[0], 'name');",
        "const u = await p.teams({}); const t = (u.items ?? u.teams ?? []).map((o) => o.name ?? null); t;",
        "const u = await p.teams({}); const t = u.content?.[0]?.text ?? u; t.teams.length;",
        "const { rows } = await p.invoices({}); rows.map((r) => (typeof r.amount === 'number' ? 1 : +r.amount));",
        "const e = await p.events({}); e.rows.sort((a, b) => (a.at > b.at ? 1 : -1)).filter((r) => r.at >= '2026');",
        "const u = await p.teams({}); for (const t of u.teams) { if (t.slug === null) continue; t.id; }",
        "const u = await p.teams({}); Object.keys(u.teams).map((k) => u.teams[k]); Object.keys(u.teams).map(Number);",
        "const u = await p.teams({}); Object.entries(u.teams).map(([i, t]) => `${i} ${t.name}`);",
        "const u = await p.teams({}); const all = new Set(); u.teams.forEach(all.add, all);",
        "await p.teams({}).then((u) => { console.log(u); }); const n = await p.teams({}).then((u) => u.teams); n;",
        "const u: any = await p.teams({}); const o: any = {}; for (const t of u.teams) o[t.id] = t; o.a = 1; o.a;",
        "const { rows } = await p.invoices({}); rows.map((r) => `${r.amount} ${r.n}`); rows.map((r) => r.n + 1);",
        "const { rows } = await p.invoices({}); rows.map((r) => r.n).reduce((a, b) => a + b); 'n: ' + rows.length;",
        "const { rows } = await p.invoices({}); const c = {}; for (const r of rows) { c[r.n] ??= 0; c[r.n] += 1; } c;",
        "const e = await p.events({}); e.rows.map((r) => r.at).sort(); Date.now() - Date.parse(e.rows[0].at);",
        "const e = await p.events({}); e.rows.sort((a, b) => a.at.localeCompare(b.at)); `${new Date()} ${/a/}`;",
        "const u = await p.list_users({}); const o = {}; for (const i in u.result) o[i] = u.result[i].name; o;",
        "const r = await p.edit_file({}); const kept = []; kept.push(r.concat('!').trim()); kept;",
        "const u = await p.list_users({}); u.result.filter((o) => { const is = o.id > 1; return is; });",
        "const u = await p.list_users({}); await Promise.all(u.result.map(async (o) => { await p.page(o); }));",
        "const u = await p.list_users({}); const o = {}; u.result.forEach((one) => { o[one.id] = one; });",
        "const u = await p.list_users({}); await u.result.reduce(async (s, o) => (await s) + o.id, 0);",
        "const u = await p.list_users({}); u.result.forEach((o) => { if (!o.id) return; console.log(o); });",
        "const u = await p.list_users({}); for (let o of u.result) { o = { ...o }; console.log(o); }",
        "const { rows } = await p.invoices({}); const s = {}; for (const r of rows) s.a = (s.a || 0) + r.n;",
        "const n = {}; for (const letter of await p.tree({})) n[letter] = (n[letter] ?? 0) + 1; n;",
        "const { rows } = await p.sales({}); rows.filter((r) => r.state === 'shipped' || r.state === 'SHIPPED');",
        "const { rows } = await p.sales({}); rows.filter((r) => r.state.toLowerCase() === 'shipped');",
        "const { rows } = await p.sales({}); for (const r of rows) r.state = r.state.toLowerCase(); "
        "rows.filter((r) => r.state === 'shipped').length;",
        "const { rows } = await p.sales({}); rows.filter((r) => r.state === 'lost').length;",
        "const { rows } = await p.sales({}); rows.filter((r) => Date.parse(r.day) > Date.parse('2024-01-01'));",
        "const { rows } = await p.sales({}); rows.filter((r) => r.day === '03/15/2024');",
        "const e = await p.events({}); e.rows.filter((r) => r.at >= '2026-02-01').length;",
        "const { rows } = await p.sales({}); rows.map((r) => new Date(r.made * 1000));",
        "const { rows } = await p.sales({}); rows.filter((r) => r.made < Date.now() / 1000).length;",
        "const { rows } = await p.sales({}); rows.filter((r) => r.at >= '2026-03-01').length;",
        "const { rows } = await p.sales({}); for (const r of rows) if (!r.made) rows.splice(rows.indexOf(r), 1, {});",
        "[[1], [2]].reduce((a, b) => { a[0] += b[0]; return a; }); await p.sales({});",
        "const s = await p.sales({}); const d = s.sent ? new Date(s.sent) : null; d?.getTime();",
        "const { rows } = await p.sales({}); rows.reduce((a, b) => { return a.made > b.made ? a : b; });",
        "const { rows } = await p.sales({}); for (const r of rows) if (r.made) { rows.splice(0, 1); break; }",
        "const { rows } = await p.sales({}); for (let i = 0; i < rows.length; i++) if (!rows[i]) rows.splice(i--, 1);",
        "const { rows } = await p.sales({}); rows[rows.length] = rows[0]; rows.length;",
        "const { rows } = await p.states({}); rows.filter((r) => r.marks.indexOf('old') >= 0 || 'result' in rows);",
        "type One = { id: number; name: string }; const by: Record<string, One> = {}; "
        "for (const o of (await p.list_users({})).result as One[]) by[o.name] = o; by.A?.id;",
        "const all = await Promise.allSettled([p.seen({})]); all.map((r) => r.value?.total ?? String(r.reason));",
        "const all = await Promise.allSettled([p.seen({})]); all.map((r) => r.status[0] === 'r' || r.value.total);",
        "[JSON.parse(await p.page({}))].filter((one) => one.tags).map((one) => one.tags.length);",
        "let lines = 0; for (const letter of await p.tree({})) if (letter === '\\n') lines += 1; lines;",
        "const u = await p.list_users({}); u.result.map((o) => o.name?.first ?? o.name ?? 'nobody');",
        "const u = await p.list_users({}); u.result.filter((o) => o.name === 'A' || o.name);",
        "const e = await p.events({}); e.rows.filter((r) => (r.n ?? 0) > 1 && !(r.n > 3));",
        "const found = []; const word = /a/g; let at; while ((at = word.exec(await p.tree({})))) found.push(at);",
        "const e = await p.events({}); e.rows.filter((r) => r.at.includes(r.n));",
        "const c = await p.counts({}); Object.entries(c).length + c.on;",
        f"{DEALS} const f = (one) => {{ return one.deal_id; }}; data.map(f);",
        f"{DEALS} data.filter((one) => one.owner.id === 'o' && one.owner !== null && /o/.test(one.owner.id));",
        f"{DEALS} data.reduce((all, one) => all.concat(one.deal_id), []);",
        f"{DEALS} data.map((one) => Number(one.amount.replaceAll(',', '')));",
        f"{DEALS} data.map((one) => new Date(one.closed.split('.').reverse().join('-')));",
        f"{DEALS} data.map((one) => ({{ id: 1, ...Object.fromEntries([['a', one.deal_id]]) }})).map((one) => one.a);",
        f"{DEALS} data[data.length] = data[0]; data.map((one) => one.pair[1]);",
        f"{DEALS} data.forEach((one) => {{ one.kept = true; }});",
        "const { days } = JSON.parse(await p.busy({})); Object.values(days).map((one) => one.length);",
        f"{DEALS} const s = new Set(data.map((one) => one.owner.id)); s.has('o'); s.has(data[0].owner.id);",
        f"{DEALS} const m = new Map(); for (const one of data) {{ m.set(one, 1); m.set(one.deal_id, 2); }}",
        "const m = new Map([[1, 2]]); JSON.stringify([...m]); JSON.stringify(Object.fromEntries(m)); await p.seen({});",
        "(await p.stock({})).split('').map((one) => parseInt(one, 10));",
        "const s = await p.stock({}); const n = Number(s) + 5; n;",
        "const t = await p.tree({}); const u = t.content ?? t; u.length;",
        "let t = await p.tree({}); try { t = JSON.parse(t); } catch {} const { content = '' } = t; content;",
        "const b = await p.blocks({}); b.content.map((one) => JSON.parse(one.text).id);",
        "const b = await p.blocks({}); b.content[0].type; b.content.length; b._meta ?? null; b.isError ?? false;",
        "const { rows } = await p.sales({}); const old = Date.now() / 1000 - 86400; rows.filter((r) => r.made < old);",
        "const said = await p.escalate({}); if (said.startsWith('ERROR')) said.length;",
        "let f = await p.first({}); for (let n = 0; n < 2 && f.next_cursor; n++) f = await p.first({});",
        "const s = await p.sizes({}); const n = s.length; n;",
        "const u = await p.list_users({}); u.result.map((o) => ({ name: o.name }));",
        "const t = await p.table({}); const n = t.split('\\n').length - 1; n;",
        f"{WARTS} parseFloat(rows[0].rating) + Number(rows[0].rate); new Date(rows[0].ms);",
        f"{WARTS} JSON.parse(rows[0].parts).length; new Date(Number(rows[0].code)); rows[0].left.length;",
        "const w = await p.warts({}); const n = w.busy?.length ?? w.rows.length; n;",
        "async function again(f) { return await f(); } const r = await again(() => p.seen({})); r?.total ?? 0;",
    ],
)
@pytest.mark.parametrize("mode", ["after", "before"])
async def test_what_is_right_is_told_nothing(broker: Broker, code: str, mode: TypecheckMode) -> None:
    response = await within(broker.run(f"{IMPORT}{code}\nexport default 1;", typecheck=mode))
    assert (response.result, response.diagnostics) == (1, [])


async def test_what_only_a_good_answer_has_is_not_told(broker: Broker) -> None:
    code = f"{IMPORT}const r = await p.trigger({{}}); export default r.queued ? r.number : r.reason;"
    response = await within(broker.run(code))
    assert (response.result, response.diagnostics) == ("it is disabled", [])


async def test_what_is_right_behind_a_return_is_told_nothing(broker: Broker) -> None:
    code = f"{IMPORT}{DEALS} if (data.length) return data.map((one) => one.deal_id); return [];"
    response = await within(broker.run(code))
    assert (response.result, response.diagnostics) == (["a"], [])


async def test_a_second_result_makes_certain_what_one_did_not(tmp_path: Path) -> None:
    definition, answer = next(one for one in TOOLS if one[0]["name"] == "seen")
    definitions = tmp_path / "definitions.json"
    definitions.write_text(json.dumps({"pages": [[definition]], "answers": {"seen": answer}}))
    servers = {"plain": plain_server("--definitions", definitions)}
    wrong = f"{IMPORT}const s = await p.seen({{}}); s.rowz.length;"
    async with ready(settings(tmp_path, servers, typecheck_timeout_ms=60_000)) as made:
        assert (await within(made.run(f"{IMPORT}globalThis.__codemode_result__ = await p.seen({{}});"))).ok
        for calls in (1, 0):
            await made.learnt(60.0)
            response = await within(made.run(wrong, typecheck="before"))
            assert (response.ok, len(response.tool_trace)) == (False, calls), response


async def test_right_scripts_are_told_nothing_and_wrong_ones_the_fix(tmp_path: Path) -> None:
    rng = random.Random(7)
    tools = some_tools(rng, 30)
    right = right_scripts(tools, rng, 60)
    outcomes = await measured(tmp_path, tools, right[:12] + wrong_scripts(right, rng, 2))
    assert [one for one in outcomes if not one.case.mistake and (one.hints or one.refused)] == []
    assert {one.case.mistake for one in outcomes} == {"", *MISTAKES}
    assert [one for one in outcomes if one.case.mistake and not one.is_fixed] == []
