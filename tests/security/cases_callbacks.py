"""Ways out through code that the engine or the sandbox calls: iterators, symbols, thrown values, results."""

from typing import Final

from cellblock import RunResponse
from security.cases import SHORT, Case, attempts, either, error, gives, limit, result, throws


def _logs_the_rest(response: RunResponse) -> None:
    lines = response.logs[0].message.splitlines()
    assert lines[0] == "Error: outer" and lines[-1] == "Caused by: [Unserializable Object]", lines
    assert lines[1].startswith("    at script.js:"), lines


CASES: Final = [
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
