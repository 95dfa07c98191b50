"""Ways out of the script's world: constructors, prototypes, stack traces."""

import json
import re
from typing import Any, Final

from cellblock import RunResponse
from security.cases import (
    SHORT,
    Case,
    Expectation,
    attempts,
    either,
    error,
    gives,
    limit,
    result,
    shown,
    throws,
)

NO_CODE: Final = throws("EvalError", "Code generation from strings")

CONSTRUCTORS: Final = [
    Case("escape/function constructor", "(() => {}).constructor('return globalThis.Deno')()", NO_CODE),
    Case(
        "escape/constructor of an async function", "await (async () => {}).constructor('return 1')()", NO_CODE
    ),
    Case("escape/constructor of a generator", "(function* () {}).constructor('yield 1')().next()", NO_CODE),
    Case(
        "escape/constructor of an async generator",
        "await (async function* () {}).constructor('yield 1')().next()",
        NO_CODE,
    ),
    Case(
        "escape/constructor by way of a promise",
        "Promise.resolve().then.constructor('return 1')()",
        NO_CODE,
    ),
    Case("escape/constructor by computed parts", "(() => {})['const' + 'ructor']('return 1')()", NO_CODE),
    Case(
        "escape/constructor of a bound function",
        "const F = (() => {}).bind().constructor; F('return 1')()",
        NO_CODE,
    ),
    Case(
        "escape/constructor through Reflect.construct with another new.target",
        "Reflect.construct((() => {}).constructor, ['return 1'], class extends Array {})()",
        NO_CODE,
    ),
    Case(
        "escape/constructor through a proxy",
        "new (new Proxy((() => {}).constructor, {}))('return 1')()",
        NO_CODE,
    ),
    Case(
        "escape/constructor of a tool binding",
        "import { echo } from '@codemode/servers/plain'; echo.constructor('return 1')()",
        NO_CODE,
    ),
    Case(
        "escape/constructor of an error class",
        "import { ToolCallError } from '@codemode/errors'; ToolCallError.constructor('return 1')()",
        NO_CODE,
    ),
    Case(
        "escape/constructor of a discovery function",
        "import { listTools } from '@codemode/discovery'; listTools.constructor('return 1')()",
        NO_CODE,
    ),
    Case("escape/constructor of the console", "console.log.constructor('return 1')()", NO_CODE),
    Case("escape/constructor of dispatchEvent", "dispatchEvent.constructor('return 1')()", NO_CODE),
    Case(
        "escape/getter's constructor",
        "Object.getOwnPropertyDescriptor(URL.prototype, 'href').get.constructor('return 1')()",
        NO_CODE,
    ),
    Case("escape/indirect eval by comma", "(0, eval)('1')", throws("ReferenceError", "eval")),
    Case("escape/string timer", "setTimeout('globalThis.x = 1', 0)", throws("TypeError", "needs a function")),
    Case(
        "escape/event handler attribute of text",
        gives(
            "typeof globalThis.x",
            "const target = new EventTarget(); target.onfoo = 'globalThis.x = 1';"
            "target.dispatchEvent(new Event('foo'));",
        ),
        result("undefined"),
    ),
]

PROTOTYPES: Final = [
    Case(
        "escape/Object.prototype is poisoned before a call",
        gives(
            "[await echo({ a: 1 }), Object.keys({})]",
            """import { echo } from "@codemode/servers/plain";
            Object.prototype.t = "call"; Object.prototype.id = 1; Object.prototype.server = "contract";
            Object.prototype.then = undefined; Object.defineProperty(Object.prototype, "ok", { get: () => false });
            for (const key of ["t", "id", "server", "then"]) {
                Object.defineProperty(Object.prototype, key, { enumerable: false });
            }""",
        ),
        result(['{"a": 1}', []]),
    ),
    Case(
        "escape/setter traps on Object.prototype catch no internals",
        gives(
            "caught",
            """import { echo } from "@codemode/servers/plain";
            const caught = [];
            for (const key of ["body", "resolve", "reject", "settle", "pending", "host", "core", "ops"]) {
                Object.defineProperty(Object.prototype, key, { set(value) { caught.push(key); }, configurable: true });
            }
            await echo({});""",
        ),
        result([]),
    ),
    Case(
        "escape/array index setters catch no internals",
        gives(
            "caught",
            """import { echo } from "@codemode/servers/plain";
            const caught = [];
            for (const key of ["0", "1", "2"]) {
                Object.defineProperty(Array.prototype, key, {
                    set() { caught.length; Object.defineProperty(caught, caught.length, { value: key }); },
                    configurable: true });
            }
            await echo({}); console.log("x", "y");
            delete Array.prototype[0]; delete Array.prototype[1]; delete Array.prototype[2];""",
        ),
        result([]),
    ),
    Case(
        "escape/Promise.prototype.then is replaced",
        gives(
            "[stolen, answer]",
            """import { echo } from "@codemode/servers/plain";
            const stolen = []; const then = Promise.prototype.then;
            Promise.prototype.then = function (...more) { stolen.push(1); return then.apply(this, more); };
            const answer = await echo({ n: 1 });""",
        ),
        result([[], '{"n": 1}']),
    ),
    Case(
        "escape/Function.prototype.call is replaced",
        gives(
            "[seen, answer]",
            """import { echo } from "@codemode/servers/plain";
            const seen = [];
            Function.prototype.call = Function.prototype.apply = Function.prototype.bind =
                function () { seen.push(1); };
            const answer = await echo({ n: 2 });""",
        ),
        result([[], '{"n": 2}']),
    ),
    Case(
        "escape/Symbol.hasInstance and Symbol.species",
        gives(
            "await echo({ n: 3 })",
            """import { echo } from "@codemode/servers/plain";
            Object.defineProperty(Function.prototype, Symbol.species, { get() { throw 1; } });
            Object.defineProperty(Array, Symbol.species, { get() { throw 1; } });
            Object.defineProperty(Promise, Symbol.species, { get() { throw 1; } });""",
        ),
        # `catch` makes a promise of the species: what it throws is the script's own rejection.
        either(result('{"n": 3}'), error("UNCAUGHT_EXCEPTION", "Unhandled rejection: 1")),
    ),
    Case(
        "escape/__proto__ of the global object",
        gives(
            "[Object.getPrototypeOf(globalThis) === Object.prototype, typeof globalThis.Deno, typeof self]".replace(
                "typeof self", "typeof globalThis.self"
            )
        ),
        result([True, "undefined", "undefined"]),
    ),
    Case(
        "escape/every reachable object is searched for host names",
        gives(
            "[...found].sort()",
            """const found = new Set(); const done = new Set(); const queue = [globalThis, console, import.meta];
            queue.push(function* () {}, async () => {}, async function* () {}, new Error("x"));
            const wanted = /^(Deno|process|require|ops|core|__bootstrap|internalBinding|Worker|WebAssembly|fetch)$/;
            while (queue.length) {
                const item = queue.pop();
                if ((typeof item !== "object" && typeof item !== "function") || item === null) continue;
                if (done.has(item)) continue;
                done.add(item); queue.push(Object.getPrototypeOf(item));
                for (const key of Reflect.ownKeys(item)) {
                    if (wanted.test(String(key))) found.add(String(key));
                    const property = Object.getOwnPropertyDescriptor(item, key);
                    queue.push(property.value, property.get, property.set);
                }
            }""",
        ),
        result([]),
    ),
    Case(
        "escape/sloppy this and callers",
        attempts(
            "(function () { return arguments.callee; })()", "(function f() { return f.caller.name; })()"
        ),
        result(["TypeError", "TypeError"]),
    ),
    Case(
        "escape/the result cannot become a getter",
        attempts(
            "Object.defineProperty(globalThis, '__codemode_result__', { get() { return 1; } })",
            "delete globalThis.__codemode_result__",
        ).replace("= seen", "= seen.slice()"),
        result(["TypeError", "TypeError"]),
    ),
]

STACK: Final = [
    Case(
        "escape/prepareStackTrace cannot be assigned",
        "Error.prepareStackTrace = (_, sites) => sites;",
        throws("TypeError", "prepareStackTrace"),
    ),
    Case(
        "escape/prepareStackTrace cannot be defined",
        "Object.defineProperty(Error, 'prepareStackTrace', { value: (_, sites) => sites })",
        throws("TypeError", "prepareStackTrace"),
    ),
    Case(
        "escape/Error of the global object, whose prepareStackTrace Deno looks up, stays",
        attempts(
            "globalThis.Error = { prepareStackTrace: (_, sites) => sites }",
            "delete globalThis.Error",
            "Object.defineProperty(globalThis, 'Error', { get: () => ({}) })",
        ),
        result(["TypeError", "TypeError", "TypeError"]),
    ),
    Case(
        "escape/prepareStackTrace of an error subclass gives no call sites",
        gives(
            "typeof new Mine('x').stack",
            "class Mine extends Error { static prepareStackTrace(_, sites) { return sites; } }",
        ),
        result("string"),
    ),
    Case(
        "escape/prepareStackTrace on Object.prototype and Function.prototype",
        gives(
            "[typeof new Error('x').stack, typeof new TypeError('y').stack]",
            """for (const holder of [Function.prototype, TypeError, TypeError.prototype]) {
                try { holder.prepareStackTrace = (_, sites) => sites; } catch { } }
            Object.defineProperty(Object.prototype, "prepareStackTrace",
                { value: (_, sites) => sites, configurable: true });""",
        ),
        result(["string", "string"]),
    ),
    Case(
        "escape/captureStackTrace gives text, no call sites",
        gives("typeof holder.stack", "const holder = {}; Error.captureStackTrace(holder);"),
        result("string"),
    ),
    Case(
        "escape/captureStackTrace on the sandbox's own objects",
        gives(
            "[typeof plain.__meta__.stack, await plain.echo({})]",
            """import * as plain from "@codemode/servers/plain";
            for (const item of [plain.__meta__, plain.echo, console, globalThis]) {
                try { Error.captureStackTrace(item, plain.echo); } catch { } }""",
        ),
        either(result(["undefined", "{}"]), result(["string", "{}"])),
    ),
    Case(
        "escape/a stack names no file of this machine",
        gives(
            "stacks.filter((text) => /file:|ext:|base64|\\.ts:|boot|\\/(home|usr|tmp|root|var|opt)\\//.test(text))",
            """import { echo } from "@codemode/servers/plain";
            Error.stackTraceLimit = 200; const stacks = [new Error("x").stack];
            try { await echo(1n); } catch (error) { stacks.push(error.stack); }
            try { await import("node:fs"); } catch (error) { stacks.push(error.stack); }
            try { structuredClone(() => {}); } catch (error) { stacks.push(error.stack); }
            try { setTimeout("x"); } catch (error) { stacks.push(error.stack); }""",
        ),
        result([]),
    ),
    Case(
        "escape/stackTraceLimit as an object",
        "Error.stackTraceLimit = { valueOf() { throw 1; } }; null.x;",
        throws("TypeError"),
    ),
    Case(
        "escape/a stack that is a getter which throws",
        "const error = new Error('mine'); Object.defineProperty(error, 'stack', { get() { throw 2; } }); throw error;",
        error("UNCAUGHT_EXCEPTION", "mine"),
    ),
    Case(
        "escape/overflowing the stack inside a binding",
        gives(
            "typeof failure",
            """import { echo } from "@codemode/servers/plain";
            let failure; const sink = (e) => { failure ??= e.constructor.constructor === Function ? "host" : "own"; };
            function dive() { try { dive(); } catch (e) { sink(e); try { echo({}).catch(() => {}); } catch { } } }
            try { dive(); } catch { failure = "deep"; }""",
        ),
        either(
            result("string"),
            limit("maxToolCalls"),
            limit("timeoutMs"),
            error("PROTOCOL_VIOLATION"),
            throws("RangeError"),
        ),
        {"timeoutMs": 1000},
    ),
]


def _logs_the_rest(response: RunResponse) -> None:
    lines = response.logs[0].message.splitlines()
    assert lines[0] == "Error: outer" and lines[-1] == "Caused by: [Unserializable Object]", lines
    assert lines[1].startswith("    at script.js:"), lines


CALLBACKS: Final = [
    # Code that the engine or the sandbox calls: iterators, symbols, thrown values, results.
    Case(
        "escape/async generator return with a thenable",
        gives(
            "[typeof seen, first]",
            """let seen, first = true; async function* g() { yield 1; }
            const it = g(); await it.next();
            await it.return({ get then() { seen = (function () { return this; })(); return undefined; } });""",
        ),
        result(["undefined", True]),
    ),
    Case(
        "escape/async iterator that throws on close",
        """for await (const x of { [Symbol.asyncIterator]() { return {
            next: async () => ({ value: 1, done: false }), return() { throw new RangeError("close"); } };
        } }) break;""",
        throws("RangeError", "close"),
    ),
    Case(
        "escape/yield* to an async generator's rejected thenable",
        """async function* g() { yield* (async function* () { yield { then(_, no) { no(new URIError("mine")); } };
        })(); }
        for await (const x of g()) { }""",
        throws("URIError", "mine"),
    ),
    Case(
        "escape/Symbol.toPrimitive as a specifier changes its mind",
        """let n = 0; await import({ [Symbol.toPrimitive]: () => n++ ? "node:fs" : "@codemode/errors" });
        await import({ [Symbol.toPrimitive]: () => n++ ? "node:fs" : "@codemode/errors" });""",
        error("IMPORT_FAILURE", "Cannot import"),
    ),
    Case(
        "escape/Symbol.toStringTag and toJSON lie in the result",
        gives("{ [Symbol.toStringTag]: 'Module', toJSON: () => ({ inner: 1n }) }"),
        either(error("RESULT_NOT_JSON"), result(None), result({"inner": None}), result({"inner": 1})),
    ),
    Case(
        "escape/Symbol.unscopables, Symbol.for registry shows no host symbol",
        gives(
            "Reflect.ownKeys(globalThis).filter((key) => typeof key === 'symbol').map(String)"
            ".filter((text) => text !== 'Symbol(Symbol.toStringTag)')"
        ),
        result([]),
    ),
    Case(
        "escape/cause chain in a ring",
        "const a = new Error('a'); const b = new Error('b', { cause: a }); a.cause = b; throw a;",
        throws("Error", "a"),
    ),
    Case(
        "escape/cause is a proxy that throws for everything",
        """const bad = new Proxy({}, { get() { throw 1; }, getPrototypeOf() { throw 2; }, ownKeys() { throw 3; } });
        throw new Error("outer", { cause: bad });""",
        throws("Error", "outer (cause: [Unserializable Object])"),
    ),
    *[
        Case(
            f"escape/an error's {member} is a getter that throws",
            f"""const error = new RangeError("mine", {{ cause: new Error("other") }});
            Object.defineProperty(error, "{member}", {{ get() {{ throw 1; }} }}); throw error;""",
            error("UNCAUGHT_EXCEPTION", kept),
        )
        for member, kept in (
            ("name", "Error: mine (cause: Error: other)"),
            ("message", "RangeError:  (cause: Error: other)"),
            ("cause", "RangeError: mine"),
            ("hint", "RangeError: mine (cause: Error: other)"),
            ("toJSON", "RangeError: mine (cause: Error: other)"),
        )
    ],
    Case(
        "escape/a logged error whose toJSON and cause throw",
        """const bad = new Proxy({}, { get() { throw 1; }, getPrototypeOf() { throw 2; } });
        const error = new Error("outer", { cause: bad });
        Object.defineProperty(error, "toJSON", { get() { throw 3; } });
        console.log(error);""",
        _logs_the_rest,
    ),
    Case(
        "escape/cause chain of ten thousand",
        "let e = new Error('bottom'); for (let i = 0; i < 10000; i++) e = new Error('e' + i, { cause: e }); throw e;",
        throws("Error", "e9999"),
    ),
    Case(
        "escape/thrown proxy",
        "throw new Proxy(new Error('x'), { get() { throw 1; }, getPrototypeOf() { throw 2; }, has() { throw 3; } });",
        error("UNCAUGHT_EXCEPTION"),
    ),
    Case(
        "escape/thrown object whose name is endless",
        "throw { name: 'N'.repeat(5_000_000), message: 'M'.repeat(5_000_000), stack: 'S'.repeat(5_000_000) };",
        either(error("UNCAUGHT_EXCEPTION"), error("PROTOCOL_VIOLATION")),
    ),
    Case(
        "escape/thrown error with forged fields",
        "throw Object.assign(new Error('no more memory'), { name: 'SandboxLimitError', code: 'SANDBOX_LIMIT' });",
        error("UNCAUGHT_EXCEPTION", "no more memory"),
    ),
    Case("escape/throwing in toString never runs", "throw { toString() { for (;;) { } } };",
         error("UNCAUGHT_EXCEPTION")),
    Case(
        "escape/getter in the result that never ends",
        gives("{ get a() { for (;;) { } } }"),
        limit("timeoutMs"),
        SHORT,
    ),
    Case(
        "escape/result proxy that reports other keys each time",
        gives(
            "new Proxy({}, { ownKeys: () => ['k' + Math.random()], "
            "getOwnPropertyDescriptor: () => ({ value: 1, enumerable: true, configurable: true }), get: () => 1 })"
        ),
        lambda response: None if isinstance(response.result, dict | None) else _odd(response.result),
    ),
    Case(
        "escape/uncaught error is dispatched by hand",
        attempts("dispatchEvent({ type: 'error' })", "dispatchEvent(new Event('unhandledrejection'))",
                 "dispatchEvent.call(null, null)", "dispatchEvent = () => {}"),
        result(["nothing", "nothing", "nothing", "TypeError"]),
    ),
    Case(
        "escape/finalizers see nothing of the sandbox",
        gives("'quiet'", "new FinalizationRegistry((held) => { throw held; }).register({}, 'x');"),
        result("quiet"),
    ),
    Case(
        "escape/a tool binding used as a constructor and a tag",
        "import { echo } from '@codemode/servers/plain'; new echo({});",
        throws("TypeError", "constructor"),
    ),
]  # fmt: skip


def _odd(value: object) -> None:
    raise AssertionError(f"a proxy became {value!r}")


_MADE: Final = (
    "const stacks = []; const made = (why) => { const e = Error(why); stacks.push(e.stack); return e; };\n"
)


def _clean(least: int) -> Expectation:
    """No text of the response leaks, and it names the script at least so often."""

    def check(response: RunResponse) -> None:
        told: dict[str, Any] = {"logs": [entry.message for entry in response.logs], "result": response.result}
        told["diagnostics"] = [f"{found.message} {found.path}" for found in response.diagnostics]
        text = json.dumps(told)
        assert not re.search(r"file:|ext:|data:|base64|boot\.js|\.ts:|node:internal", text), shown(response)
        assert len(re.findall(r"script\.js:\d+:\d+", text)) >= least, shown(response)

    return check


def _inside(name: str, code: str, least: int = 1) -> Case:
    return Case(f"escape/stack made in {name}", gives("stacks", _MADE + code), _clean(least))


STDLIB: Final = """import { echo } from "@codemode/servers/plain"; import * as discovery from "@codemode/discovery";
    import * as errors from "@codemode/errors";"""

STACKS: Final = [
    # Of errors that are made inside the sandbox's own functions: they name the agent's script and nothing else.
    _inside("a getter of a logged value", "console.log({ get a() { throw made('in a getter'); } });"),
    _inside("the toJSON of a logged value", "console.log({ toJSON() { return made('in toJSON').stack; } });"),
    _inside("a proxy that is logged", "console.log(new Proxy({}, { ownKeys() { throw made('in a trap'); } }));"),
    _inside(
        "a getter of a tool's input",
        STDLIB + "try { await echo({ get a() { throw made('in'); } }); } catch (e) { stacks.push(e.stack); }",
        2,
    ),
    _inside(
        "the toJSON of a tool's input",
        STDLIB + "try { await echo({ toJSON() { throw made('in'); } }); } catch (e) { stacks.push(e.stack); }",
        2,
    ),
    _inside(
        "a discovery function",
        STDLIB + """for (const ask of Object.values(discovery)) {
            if (typeof ask !== "function") continue;
            const bad = { toJSON() { throw made("in"); } };
            try { await ask(bad, bad); } catch (e) { stacks.push(e.stack); } }""",
        4,
    ),
    _inside(
        "an error class of the library",
        STDLIB + """for (const Class of Object.values(errors)) {
            try { new Class({ toString() { throw made("in"); } }); } catch (e) { stacks.push(e.stack); }
            try { throw new Class("plain", { hint: "h" }); } catch (e) { stacks.push(e.stack); } }""",
        4,
    ),
    _inside("a timer", "await new Promise((done) => setTimeout(() => { made('in'); done(); }, 1));"),
    _inside("a microtask", "await new Promise((done) => queueMicrotask(() => { made('in'); done(); }));"),
    _inside(
        "an event listener",
        "const t = new EventTarget(); t.addEventListener('x', () => made('in')); t.dispatchEvent(new Event('x'));",
    ),
    _inside(
        "an abort listener",
        "const c = new AbortController(); c.signal.addEventListener('abort', () => made('in')); c.abort();",
    ),
    _inside("an import's specifier", "try { await import({ toString() { throw made('in'); } }); } catch { }"),
    _inside("structuredClone", "try { structuredClone({ get a() { throw made('in'); } }); } catch { }"),
    _inside(
        "a promise callback after a tool call",
        STDLIB + "await echo({}).then(() => made('in')); await echo({}); made('after');",
        2,
    ),
    _inside(
        "a then that every object inherits",
        STDLIB + """Object.defineProperty(Object.prototype, "then",
            { get() { if (stacks.length < 9) made("in"); }, configurable: true });
        await echo({}); delete Object.prototype.then; made("after");""",
    ),
    _inside(
        "a toJSON that every object inherits",
        STDLIB + """Object.prototype.toJSON = function () { made("in"); return this; };
        await echo({}); delete Object.prototype.toJSON; made("after");""",
    ),
    _inside("captureStackTrace", "const o = {}; Error.captureStackTrace(o); stacks.push(o.stack);"),
    Case(
        "escape/stack made in a getter of the result",
        gives("{ get a() { return new Error('in').stack; }, b: { toJSON() { return new Error('in').stack; } } }"),
        _clean(2),
    ),
    Case(
        "escape/stack made in a getter of the result that throws it",
        gives("{ get a() { throw new Error(new Error('in').stack); } }"),
        _clean(1),
    ),
    Case(
        "escape/stack made in a getter of what is thrown",
        "throw { get message() { return new Error('in').stack; } };",
        _clean(1),
    ),
    Case(
        "escape/stack as name, message, hint and path of what is thrown",
        "const { stack } = new Error('in'); throw Object.assign(new Error(stack), "
        "{ name: stack, hint: stack, path: stack });",
        _clean(2),
    ),
]  # fmt: skip


CASES: Final = [*CONSTRUCTORS, *PROTOTYPES, *STACK, *CALLBACKS, *STACKS]
