"""Taking all there is: memory of every kind, time in every loop, logs, calls, results."""

from typing import Final

from security.cases import (
    LEAN,
    MIB,
    SHORT,
    Case,
    Expectation,
    either,
    error,
    gives,
    limit,
    log_cut,
    result,
    throws,
)

OUT_OF_MEMORY: Final = either(limit("maxMemoryBytes"), throws("RangeError"))
"""Some requests are refused by the engine at once, before a byte is taken."""

MEMORY: Final = {
    "array buffers": "for (;;) kept.push(new Uint8Array(4 * 1024 * 1024).fill(1));",
    "one array buffer": "kept.push(new Uint8Array(900 * 1024 * 1024).fill(1));",
    "many small array buffers": "for (;;) kept.push(new Uint8Array(2000).fill(1));",
    "resizable array buffers": "for (;;) { const b = new ArrayBuffer(1, { maxByteLength: 8e6 }); b.resize(8e6);"
    " kept.push(new Uint8Array(b).fill(1)); }",
    "transfers of array buffers": "for (let n = 1e6; ; n += 1e6) { let b = new ArrayBuffer(n);"
    " new Uint8Array(b).fill(1); kept.push(b.transfer(n + 1e6)); }",
    "flat strings": "for (let i = 0; ; i++) { const s = 'x'.repeat(1e6) + i; s.charCodeAt(3); kept.push(s); }",
    "joined strings": "for (;;) kept.push(new Array(1e5).fill('abcdefgh').join(kept.length));",
    "map": "const map = new Map(); for (let i = 0; ; i++) map.set(i, { i });",
    "set of strings": "const set = new Set(); for (let i = 0; ; i++) set.add('key ' + i);",
    "weak map with live keys": "const map = new WeakMap(); for (;;) { const k = {}; kept.push(k); map.set(k, [k]); }",
    "typed arrays of doubles": "for (;;) kept.push(Float64Array.from({ length: 1e5 }, Math.random));",
    "big integers": "let n = 1n << 1000000n; for (;;) { n = (n << 100000n) | 1n; kept.push(n); }",
    "regular expression results": "const s = 'ab'.repeat(1e5); for (;;) kept.push([...s.matchAll(/(a)(b)/g)]);",
    "closures": "for (let i = 0; ; i++) { const big = new Array(500).fill(i); kept.push(() => big); }",
    "symbols": "for (let i = 0; ; i++) kept.push(Symbol('s'.repeat(50) + i));",
    "errors with stacks": "for (let i = 0; ; i++) { const e = new Error('e' + i); e.stack; kept.push(e); }",
    "structured clones": "const a = new Array(1e5).fill(0.5); for (;;) kept.push(structuredClone(a));",
    "sparse arrays": "for (;;) { const a = []; for (let i = 0; i < 1e4; i++) a[i * 1e5] = i; kept.push(a); }",
    "text encoder": "for (;;) kept.push(new TextEncoder().encode('é'.repeat(1e6)));",
    "JSON text": "const a = new Array(1e5).fill({ a: 1 }); for (let i = 0; ; i++) kept.push(JSON.stringify(a) + i);",
    "generators": "for (;;) { const g = (function* () { const a = new Array(100).fill(1); yield a; })(); g.next();"
    " kept.push(g); }",
    "pending promises": "for (;;) kept.push(new Promise(() => {}).then(() => 1));",
    "promise flood with payload": "for (let i = 0; ; i++) kept.push(Promise.resolve({ i }).then((x) => [x]));",
    "timers": "for (;;) setTimeout(() => kept.length, 1e8);",
    "event listeners": "for (;;) { const t = new EventTarget(); t.addEventListener('x', () => t); kept.push(t); }",
    "microtasks that multiply": "const twice = () => { queueMicrotask(twice); queueMicrotask(twice); };"
    " twice(); await null; await new Promise(() => {});",
    "search parameters": "const p = new URLSearchParams(); for (let i = 0; ; i++) p.append('k' + i, 'v'.repeat(1000));",
}

TIME: Final = {
    "empty loop": "for (;;) {}",
    "loop that catches": "for (;;) { try { throw 1; } catch { continue; } }",
    "finally that loops": "label: for (;;) { try { break; } finally { continue label; } }",
    "await of nothing": "for (;;) await null;",
    "microtask chain": "const next = () => queueMicrotask(next); next(); await new Promise(() => {});",
    "promise chain": "const f = () => Promise.resolve().then(f); await f();",
    "timer chain": "const f = () => setTimeout(f, 0); f(); await new Promise(() => {});",
    "event listeners": "const t = new EventTarget(); for (;;) t.addEventListener('x', () => t);",
    "idle timer": "await new Promise((resolve) => setTimeout(resolve, 1e8));",
    "async generator": "async function* g() { for (;;) yield 1; } for await (const _ of g());",
    "catastrophic regular expression": "/^(a+)+$/.test('a'.repeat(45) + '!');",
    "catastrophic backreference": r"/^(.*)*\1x$/.test('a'.repeat(40) + 'b');",
    "catastrophic lookahead": "/^(?=(a|a?)+$)b/.test('a'.repeat(45) + 'c');",
    "catastrophic split": "('a'.repeat(45) + 'b').split(/(?:a+)+c/);",
    "catastrophic replace with sticky flag": "('x'.repeat(45) + 'y').replace(/(x+x+)+z/gy, '');",
    "sort with an endless comparison": "[3, 2, 1].sort(() => { for (;;); });",
    "iterator without end": "Array.from({ [Symbol.iterator]: () => ({ next: () => ({ done: false }) }) }, () => 0,);",
    "proxy without end": "const p = new Proxy({}, { get: (t, k, r) => { for (;;); } }); p.x;",
    "big integer power": "let n = 3n; for (;;) n = n ** 3n % (10n ** 20000n);",
    "destructuring without end": "const [...all] = (function* () { for (;;) yield; })().filter(() => false);",
    "valueOf without end": "+{ valueOf() { for (;;); } };",
    "JSON reviver without end": "JSON.parse('[1]', () => { for (;;); });",
    "top-level await of a thenable that never settles": (
        "(function again() { setTimeout(again, 10); })(); await { then() {} };"
    ),
    "unsettled dispose": "await using x = { [Symbol.asyncDispose]: () => new Promise(() => setTimeout(Date, 1e8)) }",
}

NEVER: Final[Expectation] = either(limit("timeoutMs"), limit("maxMemoryBytes"))

CALLS: Final = 'import * as plain from "@codemode/servers/plain";\n'

TOO_LARGE: Final = either(
    error("RESULT_NOT_JSON"),
    limit("maxMemoryBytes"),
    error("PROTOCOL_VIOLATION"),
)

FLOODS: Final = [
    Case("exhaustion/logs: many lines",
         gives("'went on'", "for (let i = 0; i < 50_000; i++) console.log('line', i);"), log_cut,
         {"timeoutMs": 30_000, "maxLogBytes": 4_000}),
    Case("exhaustion/logs: one line of 30 MB", gives("'went on'", "console.log('x'.repeat(30_000_000));"), log_cut),
    Case("exhaustion/logs: without end", "for (;;) console.error('x'.repeat(10_000));", limit("timeoutMs"), SHORT),
    Case("exhaustion/logs: a wide, deep object",
         gives("'went on'", """let deep = {}; for (let i = 0; i < 20_000; i++) deep = { deep, list: [i, i] };
            console.log(deep); console.log(new Array(1e6).fill("x"));"""),
         either(log_cut, result("went on"))),
    Case("exhaustion/logs: an object with endless getters",
         "console.log(new Proxy({}, { ownKeys: () => { for (;;); } }));", either(limit("timeoutMs"), result(None)),
         SHORT),
    Case("exhaustion/deep recursion", "const f = () => f() + 1; f();", throws("RangeError", "call stack")),
    Case("exhaustion/mutual async recursion", "const f = async () => await f(); await f();",
         either(throws("RangeError"), limit("maxMemoryBytes")), LEAN),
    Case("exhaustion/recursion through JSON.stringify",
         "const f = { toJSON: () => JSON.stringify(f) }; JSON.stringify(f);", throws("RangeError", "call stack")),
    Case("exhaustion/recursion through a proxy's prototype",
         "const p = new Proxy({}, {}); Object.setPrototypeOf(p, p); p.x;", throws("RangeError")),
    Case("exhaustion/array of the greatest length", "new Array(2 ** 32 - 1).fill(0);", OUT_OF_MEMORY, LEAN),
    Case("exhaustion/string of the greatest length", "'x'.repeat(2 ** 30);", throws("RangeError")),
    Case("exhaustion/padStart to the greatest length", "'x'.padStart(2 ** 31);", throws("RangeError")),
    Case("exhaustion/spread of too many arguments", "Math.max(...new Array(5_000_000).fill(1));",
         either(throws("RangeError"), limit("maxMemoryBytes"))),
    Case("exhaustion/getRandomValues of too much", "crypto.getRandomValues(new Uint8Array(1e6));",
         error("UNCAUGHT_EXCEPTION", "QuotaExceededError")),
    Case("exhaustion/result: 40 MB of text", gives("'x'.repeat(40_000_000)"), TOO_LARGE),
    Case("exhaustion/result: five thousand levels", gives("a", "let a = 1; for (let i = 0; i < 5000; i++) a = [a];"),
         either(error("RESULT_NOT_JSON"), result(None), lambda response: _bounded(response.result))),
    Case("exhaustion/result: a million keys",
         gives("Object.fromEntries(Array.from({ length: 1e6 }, (_, i) => ['key' + i, 'value' + i]))"), TOO_LARGE,
         {"timeoutMs": 110_000}),
    Case("exhaustion/result: grows by sharing",
         gives("a", "let a = ['xxxxxxxx']; for (let i = 0; i < 28; i++) a = [a, a];"),
         either(TOO_LARGE, limit("timeoutMs")), {"timeoutMs": 2_000}),
    Case("exhaustion/result: a ring", gives("a", "const a = {}; a.a = a;"),
         lambda response: _bounded(response.result)),
    Case("exhaustion/input: 40 MB of text", CALLS + "await plain.echo({ text: 'x'.repeat(40_000_000) });",
         either(error("UNCAUGHT_EXCEPTION"), error("PROTOCOL_VIOLATION"), limit("maxMemoryBytes"))),
    Case("exhaustion/input: five thousand levels",
         CALLS + "let a = {}; for (let i = 0; i < 5000; i++) a = { a }; await plain.echo(a);",
         error("UNCAUGHT_EXCEPTION")),
    Case("exhaustion/input: a ring", CALLS + "const a = {}; a.a = a; await plain.echo(a);",
         error("UNCAUGHT_EXCEPTION")),
    Case("exhaustion/input: toJSON without end", CALLS + "await plain.echo({ toJSON() { for (;;); } });",
         either(limit("timeoutMs"), error("UNCAUGHT_EXCEPTION")), SHORT),
    Case("exhaustion/calls: one after the other", CALLS + "for (;;) await plain.echo({});", limit("maxToolCalls"),
         {"maxToolCalls": 20, "timeoutMs": 5_000}),
    Case("exhaustion/calls: a hundred thousand at once",
         CALLS + "await Promise.all(Array.from({ length: 100_000 }, () => plain.echo({})));",
         either(limit("maxToolCalls"), error("PROTOCOL_VIOLATION"), limit("maxMemoryBytes"))),
    Case("exhaustion/calls: errors are caught",
         CALLS + "for (;;) { try { await plain.fail({ text: 'x' }); } catch { } }",
         limit("maxToolCalls"), {"maxToolCalls": 20, "timeoutMs": 5_000}),
    Case("exhaustion/calls: never awaited", CALLS + "for (let i = 0; i < 1000; i++) plain.never({}).catch(() => {});",
         limit("maxToolCalls"), {"maxToolCalls": 50, "timeoutMs": 5_000}),
    Case("exhaustion/calls: refused inputs count too",
         'import { checked } from "@codemode/servers/contract"; for (;;) { try { await checked({}); } catch { } }',
         either(limit("maxToolCalls"), limit("timeoutMs")), {"maxToolCalls": 20, "timeoutMs": 1_500}),
    Case("exhaustion/discovery: one after the other",
         'import { searchTools } from "@codemode/discovery"; for (;;) await searchTools("echo");',
         either(limit("discovery requests"), limit("timeoutMs")), {"timeoutMs": 3_000}),
    Case("exhaustion/discovery: all at once",
         """import { listServers } from "@codemode/discovery";
         await Promise.all(Array.from({ length: 20_000 }, () => listServers()));""",
         either(limit("discovery requests"), error("PROTOCOL_VIOLATION"), limit("timeoutMs")), {"timeoutMs": 3_000}),
    Case("exhaustion/discovery: a query of 10 MB",
         gives("typeof (await discovery.searchTools('word '.repeat(2_000_000)))",
               'import * as discovery from "@codemode/discovery";'),
         either(result("object"), error("UNCAUGHT_EXCEPTION"), limit("timeoutMs")), {"timeoutMs": 1_500}),
    Case("exhaustion/notices: a result with a hundred thousand oddities",
         gives("Array.from({ length: 100_000 }, () => () => 1)"),
         lambda response: _few(len(response.diagnostics))),
    Case("exhaustion/rejections: ten thousand unhandled",
         "for (let i = 0; i < 10_000; i++) Promise.reject(new Error('r' + i)); await null;",
         error("UNCAUGHT_EXCEPTION", "Unhandled rejection")),
]  # fmt: skip


def _bounded(value: object) -> None:
    assert len(repr(value)) < 20 * MIB


def _few(count: int) -> None:
    assert count <= 200, f"{count} diagnostics"


CASES: Final = [
    *(
        Case(f"exhaustion/memory: {how}", f"const kept = [];\n{code}", OUT_OF_MEMORY, LEAN)
        for how, code in MEMORY.items()
    ),
    *(Case(f"exhaustion/time: {how}", code, NEVER, SHORT) for how, code in TIME.items()),
    *FLOODS,
]
