"""Ways out of the script's world: constructors, prototypes, stack traces."""

from typing import Final

from security.cases import Case, attempts, either, error, gives, limit, result, throws

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

CASES: Final = [*CONSTRUCTORS, *PROTOTYPES, *STACK]
