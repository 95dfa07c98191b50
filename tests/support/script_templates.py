"""What scripts do with a tool's answer: templates of the corpus, with places for its value and the names of fields.

`VALUE` and `LIST` are expressions; A and B are fields of a record; F is one that has an enum, V and W two values of it.
Of reads behind a guard, which say nothing of a misspelt field, they are A_ and B_. `⟦w⟧await Promise.all(…)⟦/w⟧` is
what a script waits for.
"""

IMPORTS = (
    ('import * as server from "MODULE";', "server.TOOL"),
    ('import * as server from "MODULE";', 'server["TOOL"]'),
    ('import { TOOL as ask } from "MODULE";', "ask"),
    ('import * as server from "MODULE";\nconst { TOOL: ask } = server;', "ask"),
    ('import * as server from "MODULE";\nconst ask = server.TOOL;', "ask"),
    ('const server = await import("MODULE");', "server.TOOL"),
    ('const { TOOL: ask } = await import("MODULE");', "ask"),
    ('let server;\nserver = await import("MODULE");', "server.TOOL"),
    ('const [server] = await Promise.all([import("MODULE")]);', "server.TOOL"),
    ("", '(await import("MODULE")).TOOL'),
)
"""Ways to reach a tool: what stands at the beginning, and what is called."""

OF_TEXT = (
    "const text = VALUE;\nglobalThis.__codemode_result__ = text.split('\\n').map((line) => line.trim());\n",
    "const text = VALUE;\nglobalThis.__codemode_result__ = { size: text.length, start: text.slice(0, 20) };\n",
    "let text = VALUE;\nif (text.includes('line')) text = text.trim();\nglobalThis.__codemode_result__ = text;\n",
)

OF_LIST = (
    "const list = LIST;\nglobalThis.__codemode_result__ = list.map((one) => one.A);\n",
    "const out = [];\nfor (const one of LIST) {\n  out.push({ first: one.A, more: one.B });\n}\n"
    "globalThis.__codemode_result__ = out;\n",
    "const list = LIST;\nconst wanted = list.filter((one) => one.A === 'open' || one.B !== 3);\n"
    "globalThis.__codemode_result__ = { count: wanted.length, first: wanted[0]?.A };\n",
    "globalThis.__codemode_result__ = LIST.map(({ A, B: other, extra = 'none' }) => `${A} ${other} ${extra}`);\n",
    "const by = {};\nfor (const one of LIST) (by[one.A] ??= []).push(one.B);\n"
    "globalThis.__codemode_result__ = Object.keys(by).length;\n",
    "const sorted = [...LIST].sort((a, b) => (a.A < b.A ? -1 : 1));\n"
    "globalThis.__codemode_result__ = sorted.slice(0, 3).map((one) => ({ ...one, rank: one.B }));\n",
    "const seen = new Map(LIST.map((one) => [String(one.A), one]));\n"
    "globalThis.__codemode_result__ = [...seen.values()].map((one) => [one.B, one.extra ?? null]);\n",
    "const [first] = LIST;\nconst { A: kept } = first;\n"
    "globalThis.__codemode_result__ = { kept, tag: first.tag ?? first.label ?? 'none', more: first.B };\n",
    "const list = LIST;\nconst total = list.reduce((sum, one) => sum + String(one.A).length, 0);\n"
    "globalThis.__codemode_result__ = total / list.length;\n",
    "let all = [];\nfor (let page = 0; page < 2; page++) {\n  const list = LIST;\n  all.push(...list);\n}\n"
    "globalThis.__codemode_result__ = all.map((one) => one.A);\n",
    "let last = null;\nfor (const one of LIST) if (!last || one.A > last.A) last = one;\n"
    "globalThis.__codemode_result__ = { last: last.B };\n",
    "const counts = { total: 0 };\nfor (const one of LIST) {\n  counts[one.A] = (counts[one.A] || 0) + 1;\n"
    "  counts.total++;\n}\nglobalThis.__codemode_result__ = { total: counts.total, open: counts.open || 0 };\n",
    "const list = LIST;\nconst names = list.map((one) => one['A']).join();\n"
    "globalThis.__codemode_result__ = names;\n",
    "const list = LIST;\nconst late = list.filter((one) => one.overdue && one.A);\n"
    "for (const one of list) if (typeof one.note === 'string') console.log(one.note, one.B);\n"
    "globalThis.__codemode_result__ = late.length;\n",
    "const list = LIST;\n"
    "const rows = ⟦w⟧await Promise.all(list.map(async (one) => ({ a: one.A, n: LIST.length })))⟦/w⟧;\n"
    "globalThis.__codemode_result__ = rows;\n",
    "const out = [];\n⟦w⟧await Promise.all(LIST.map(async (one) => {\n  out.push([one.B, LIST.length]);\n}))⟦/w⟧;\n"
    "globalThis.__codemode_result__ = out;\n",
    "const list = LIST;\nconst jobs = list.map(async (one) => [one.A, LIST.length]);\n"
    "globalThis.__codemode_result__ = await Promise.all(jobs);\n",
    "const list = LIST;\nconst out = [];\n"
    "for (const job of list.map(async (one) => [one.B, LIST.length])) out.push(await job);\n"
    "globalThis.__codemode_result__ = out;\n",
    "const list = LIST;\nconst out = [];\nfor (let n = 0; n < list.length; n++) out.push(list[n]?.A_ ?? null);\n"
    "globalThis.__codemode_result__ = out;\n",
    "const list = LIST;\nconst out = [];\nfor (const n in list) out.push(list[n].A);\n"
    "globalThis.__codemode_result__ = { out, first: list[0] ?? null };\n",
    "const list = (LIST) ?? [];\n"
    "globalThis.__codemode_result__ = Array.isArray(list) ? list.map((one) => one.B) : [];\n",
)

OF_ENUM = (
    "const wanted = LIST.filter((one) => one.⟦f:F⟧ === '⟦e:V⟧');\nglobalThis.__codemode_result__ = wanted.length;\n",
    "const rest = LIST.filter((one) => one.⟦f:F⟧ !== '⟦e:V⟧' && one.⟦f:F⟧ !== '⟦e:W⟧');\n"
    "globalThis.__codemode_result__ = rest;\n",
    "const marks = LIST.map((one) => (one.⟦f:F⟧ === '⟦e:V⟧' ? 1 : '⟦e:W⟧' === one.F ? 2 : 0));\n"
    "globalThis.__codemode_result__ = marks;\n",
    "let count = 0;\nfor (const one of LIST) {\n  switch (one.⟦f:F⟧) {\n    case '⟦e:V⟧':\n    case '⟦e:W⟧':\n"
    "      count++;\n      break;\n    default:\n      count--;\n  }\n}\nglobalThis.__codemode_result__ = count;\n",
    "const WANTED = '⟦e:V⟧';\nconst found = LIST.find((one) => one.⟦f:F⟧ === WANTED);\n"
    "globalThis.__codemode_result__ = found ?? null;\n",
    "const kinds = LIST.map(({ F: kind }) => kind);\n"
    "globalThis.__codemode_result__ = { some: kinds.includes('⟦e:V⟧'), at: kinds.indexOf('⟦e:W⟧') };\n",
    # Several names for the same, of which one is declared; and the script's own values.
    "const done = LIST.filter((one) => one.F === 'V' || one.F === 'gone' || one.F === 'finished');\n"
    "globalThis.__codemode_result__ = done.length;\n",
    "let count = 0;\nfor (const one of LIST) {\n  switch (one.F) {\n    case 'gone':\n"
    "    case 'V':\n      count++;\n  }\n}\n"
    "globalThis.__codemode_result__ = count;\n",
    "const some = LIST.filter((one) => ['V', 'gone', 'finished'].includes(one.F));\n"
    "globalThis.__codemode_result__ = some.length;\n",
    "const kinds = LIST.map((one) => one.F ?? 'none');\n"
    "globalThis.__codemode_result__ = kinds.filter((kind) => kind === 'none').length;\n",
    "let none = 0;\nfor (const one of LIST) {\n  let kind = one.F;\n  if (!kind) kind = 'none';\n"
    "  if (kind === 'none') none++;\n}\n"
    "globalThis.__codemode_result__ = none;\n",
    "const MODE = 'V';\nconst list = LIST;\n"
    "globalThis.__codemode_result__ = MODE === 'all' ? list : list.filter((one) => one.F === MODE);\n",
    "const rows = LIST.map((one) => {\n  if (one.F === 'V') return 1;\n"
    "  if (one.F === 'V' && one.extra) return 2;\n  return 0;\n});\n"
    "globalThis.__codemode_result__ = rows;\n",
    "const rows = LIST.map((one) => ({ ...one, F: one.F === 'V' ? 'yes' : 'no' }));\n"
    "globalThis.__codemode_result__ = rows.filter((row) => row.F === 'yes').length;\n",
    "const { F: kind = 'none' } = LIST[0] ?? {};\nglobalThis.__codemode_result__ = kind === 'none' ? null : kind;\n",
    "const rows = LIST.filter((one) => String(one.F).toLowerCase() === 'gone' || `${one.F}` === 'Gone');\n"
    "globalThis.__codemode_result__ = rows.length;\n",
)

OF_OBJECT = (
    "const value = VALUE;\nglobalThis.__codemode_result__ = { a: value.A, b: value.B };\n",
    "const { A: first, B: second = null } = VALUE;\nglobalThis.__codemode_result__ = [first, second];\n",
    "const value = VALUE;\nif (value.error) throw new Error(value.error);\n"
    "globalThis.__codemode_result__ = value.A;\n",
    "const value = VALUE;\nconst next = value.nextCursor;\nif (next) console.log(next);\n"
    "globalThis.__codemode_result__ = JSON.stringify(value.A);\n",
    "const value = VALUE;\nglobalThis.__codemode_result__ = 'more' in value ? value.more : value.A;\n",
    "const value = VALUE;\nglobalThis.__codemode_result__ = Object.hasOwn(value, 'hint') ? value.hint : value.B;\n",
    "const value = VALUE;\nObject.assign(value, { seen: true });\n"
    "globalThis.__codemode_result__ = { seen: value.seen, a: value.A, note: value.note?.length ?? 0 };\n",
    "const [one, two] = await Promise.all([1, 2].map(async () => VALUE));\n"
    "globalThis.__codemode_result__ = one.A === two.A;\n",
    "let found;\ntry {\n  found = VALUE;\n} catch (error) {\n  console.error(error.message);\n}\n"
    "globalThis.__codemode_result__ = found ? found.A : null;\n",
    "async function read() {\n  const value = VALUE;\n  return { ...value, at: Date.now() };\n}\n"
    "globalThis.__codemode_result__ = (await read()).A;\n",
    "const value = VALUE;\nglobalThis.__codemode_result__ = { a: value.A_ ?? 'none', b: value?.B_ };\n",
    "const { A_: first = 'none' } = VALUE;\nglobalThis.__codemode_result__ = first;\n",
    "const value = VALUE;\nglobalThis.__codemode_result__ = value.A_ ? [value.B_ || 0] : [];\n",
    "const value = VALUE;\nconst out = {};\nfor (const key in value) out[key] = typeof value[key];\n"
    "globalThis.__codemode_result__ = out;\n",
    "const value = VALUE;\nif (value && typeof value === 'object' && value.A_) Object.freeze(value.A_);\n"
    "globalThis.__codemode_result__ = value.B;\n",
)
