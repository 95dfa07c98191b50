"""What one run leaves in a process does not reach the next run there, and nothing of the realm around is in reach.

What a run can leave behind comes first: as data, each with how the next run would see it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from fuzz.contexts import HEAD, MODULES, fuzz_contexts, marked_worker
from support.params import mostly
from support.worker_owner import ContextWorker, Outcome

LEFT: Final = "LEFT"
"""What is left is called so, or says so."""

PROTOTYPES: Final = [
    "Object",
    "Function",
    "Array",
    "Number",
    "Boolean",
    "String",
    "Symbol",
    "Date",
    "Promise",
    "RegExp",
    "Error",
    "AggregateError",
    "EvalError",
    "RangeError",
    "ReferenceError",
    "SyntaxError",
    "TypeError",
    "URIError",
    "SuppressedError",
    "ArrayBuffer",
    "Uint8Array",
    "Float64Array",
    "DataView",
    "Map",
    "Set",
    "WeakMap",
    "WeakSet",
    "WeakRef",
    "FinalizationRegistry",
    "BigInt",
    "Iterator",
    "DisposableStack",
    "URL",
    "URLSearchParams",
    "TextEncoder",
    "TextDecoder",
    "Event",
    "EventTarget",
    "AbortController",
    "AbortSignal",
    "DOMException",
]
"""Each is a case of its own: a property on its prototype, and one on itself."""

HIDDEN: Final = {
    "the prototype of typed arrays": "Object.getPrototypeOf(Uint8Array.prototype)",
    "the prototype of async functions": "Object.getPrototypeOf(async () => {})",
    "the prototype of generators": "Object.getPrototypeOf(function* () {})",
    "the prototype of async generators": "Object.getPrototypeOf(async function* () {})",
    "the prototype of what generators make": "Object.getPrototypeOf((function* () {}).prototype)",
    "the prototype of iterators of arrays": "Object.getPrototypeOf([][Symbol.iterator]())",
    "the prototype of iterators of maps": "Object.getPrototypeOf(new Map()[Symbol.iterator]())",
    "the prototype of iterators of strings": "Object.getPrototypeOf(''[Symbol.iterator]())",
    "the prototype of matches": "Object.getPrototypeOf('a'.matchAll(/a/g))",
    "the segments of a segmenter": "Object.getPrototypeOf(new Intl.Segmenter().segment('a'))",
    "JSON": "JSON",
    "Math": "Math",
    "Reflect": "Reflect",
    "Intl": "Intl",
    "Temporal": "Temporal",
    "crypto": "crypto",
    "performance": "performance",
    "console": "console",
    "structuredClone": "structuredClone",
    "queueMicrotask": "queueMicrotask",
    "setTimeout": "setTimeout",
    "the prototype of Temporal.PlainDate": "Temporal.PlainDate.prototype",
    "the prototype of Intl.NumberFormat": "Intl.NumberFormat.prototype",
    "the binding of a tool": "(await $load('@codemode/servers/s')).call",
    "the errors": "(await $load('@codemode/errors')).ToolCallError.prototype",
}
"""Objects that no global names: a property is left on each that can have one."""

CASES: Final[dict[str, tuple[str, str]]] = {
    "a global": ("globalThis.LEFT = 1", "typeof LEFT !== 'undefined'"),
    "a global that cannot be removed": (
        "Object.defineProperty(globalThis, 'LEFT', { value: 1, configurable: false })",
        "'LEFT' in globalThis",
    ),
    "a global under a symbol": ("globalThis[Symbol.for('LEFT')] = 1", "Symbol.for('LEFT') in globalThis"),
    "a global's getter": (
        "Object.defineProperty(globalThis, 'JSON', { get: () => 'LEFT' })",
        "JSON === 'LEFT'",
    ),
    "a frozen global": ("Object.freeze(globalThis.URL)", "Object.isFrozen(URL)"),
    "a frozen prototype": ("Object.freeze(Object.prototype)", "Object.isFrozen(Object.prototype)"),
    "a global object without extensions": (
        "Reflect.preventExtensions(globalThis)",
        "!Reflect.isExtensible(globalThis)",
    ),
    "another prototype of the global object": (
        "Object.setPrototypeOf(globalThis, { LEFT: 1 })",
        "'LEFT' in globalThis",
    ),
    "a removed global": ("delete globalThis.Map", "typeof Map === 'undefined'"),
    "a removed method": ("delete Array.prototype.map", "![].map"),
    "its result": ("globalThis.__codemode_result__ = 'LEFT'", "__codemode_result__ !== undefined"),
    "a then on Object.prototype": (
        "Object.defineProperty(Object.prototype, 'then', { value: (f) => f('LEFT'), configurable: true })",
        "(await {}) === 'LEFT'",
    ),
    "a toJSON": ("Object.prototype.toJSON = () => 'LEFT'", "JSON.stringify({}) === '\"LEFT\"'"),
    "an iterator": (
        "Array.prototype[Symbol.iterator] = function* () { yield 'LEFT'; }",
        "[...[1]][0] === 'LEFT'",
    ),
    "a species": (
        "Object.defineProperty(Array, Symbol.species, { value: class LEFT extends Array {} })",
        "[].map(() => 0).constructor.name === 'LEFT'",
    ),
    "a species of promises": (
        "Object.defineProperty(Promise, Symbol.species, { value: class LEFT extends Promise {} })",
        "Promise.resolve().then().constructor.name === 'LEFT'",
    ),
    "another then of promises": (
        "const { then } = Promise.prototype;"
        "Promise.prototype.then = function (...all) { this.LEFT = 1; return then.apply(this, all); }",
        "(async () => 1)().then(() => 0).LEFT === 1 || Promise.prototype.then.toString().includes('LEFT')",
    ),
    "a hasInstance": (
        "Object.defineProperty(Error, Symbol.hasInstance, { value: () => 'LEFT' })",
        "({}) instanceof Error",
    ),
    "a toPrimitive": (
        "Object.prototype[Symbol.toPrimitive] = () => 'LEFT'",
        "`${{}}` === 'LEFT'",
    ),
    "a setter on Object.prototype": (
        "Object.defineProperty(Object.prototype, 'x', { set() { globalThis.LEFT = 1; }, configurable: true })",
        "(({}).x = 1, typeof LEFT !== 'undefined')",
    ),
    "the depth of stacks": ("Error.stackTraceLimit = 0", "Error.stackTraceLimit === 0"),
    "a hook for stacks": (
        "try { Error.prepareStackTrace = () => 'LEFT'; } catch { /* it cannot be set */ }",
        "new Error('x').stack === 'LEFT'",
    ),
    "a function that captures stacks": (
        "Error.captureStackTrace = (target) => { target.stack = 'LEFT'; }",
        "(() => { const o = {}; Error.captureStackTrace(o); return o.stack === 'LEFT'; })()",
    ),
    "the last match of a regular expression": ("/LEFT/.test('LEFT')", "RegExp['$&'] === 'LEFT'"),
    "a regular expression's index": (
        "const r = /LEFT/g; r.test('LEFT LEFT'); RegExp.prototype.lastIndex = 3",
        "RegExp.prototype.lastIndex !== undefined || /LEFT/g.lastIndex !== 0",
    ),
    "a timer": ("setTimeout(() => { globalThis.LEFT = 1; console.log('LEFT'); }, 5)", "await seen()"),
    "a thousand timers": (
        "for (let i = 0; i < 1000; i++) setTimeout(() => console.log('LEFT'), i % 20)",
        "await seen()",
    ),
    "a timer that sets another": (
        "const again = () => { console.log('LEFT'); setTimeout(again, 1); }; setTimeout(again, 1)",
        "await seen()",
    ),
    "the ids of timers": (
        "for (let i = 0; i < 9; i++) setTimeout(() => {}, 0)",
        "setTimeout(() => {}, 0) !== 1",
    ),
    "a chain of promises": (
        "(async () => { for (let i = 0; i < 200; i++) await null; console.log('LEFT'); throw new Error('LEFT'); })()"
        ".catch(() => console.log('LEFT'))",
        "await seen()",
    ),
    "a rejection": ("setTimeout(() => Promise.reject(new Error('LEFT')), 0)", "await seen()"),
    "a rejection of the last turn": ("queueMicrotask(() => { Promise.reject('LEFT'); })", "await seen()"),
    "a rejection that is handled later": (
        "const p = Promise.reject('LEFT'); p.catch(() => 0); setTimeout(() => p.then(() => console.log('LEFT')), 3)",
        "await seen()",
    ),
    "a promise of a resolver": (
        "const { promise, resolve } = Promise.withResolvers(); promise.then(() => console.log('LEFT'));"
        "setTimeout(resolve, 3)",
        "await seen()",
    ),
    "a call without an answer": (
        "const { call } = await $load('@codemode/servers/s'); void call({ n: 1 }).then(() => console.log('LEFT'))",
        "await seen()",
    ),
    "an abort that is due": (
        "AbortSignal.timeout(3).addEventListener('abort', () => console.log('LEFT'))",
        "await seen()",
    ),
    "a listener": (
        "globalThis.target = new EventTarget(); target.addEventListener('LEFT', () => console.log('LEFT'))",
        "typeof target !== 'undefined'",
    ),
    "a finalizer": (
        "globalThis.registry = new FinalizationRegistry(() => console.log('LEFT'));"
        "for (let i = 0; i < 1e4; i++) registry.register({ i }, i)",
        "(await churn(), await seen())",
    ),
    "a finalizer that throws": (
        "globalThis.registry = new FinalizationRegistry(() => { throw new Error('LEFT'); });"
        "for (let i = 0; i < 1e4; i++) registry.register({ i }, i)",
        "(await churn(), await seen())",
    ),
    "a weak reference": (
        "globalThis.LEFT = new WeakRef(Object.prototype)",
        "typeof LEFT !== 'undefined'",
    ),
    "a weak map by an intrinsic": (
        "globalThis.map = new WeakMap([[Object, 'LEFT']])",
        "typeof map !== 'undefined'",
    ),
    "a module's state": (
        "const all = await $load('@codemode/errors'); all.CodemodeError.LEFT = 1",
        "(await $load('@codemode/errors')).CodemodeError.LEFT === 1",
    ),
    "a property of the meta of a module": (
        "import.meta.LEFT = 1",
        "import.meta.LEFT === 1",
    ),
    "a locale's cache": (
        "delete Intl.NumberFormat.prototype.format; new Intl.Collator('de')",
        "new Intl.NumberFormat('de').format === undefined",
    ),
    "a format that Date has": (
        "Date.prototype.toLocaleString = () => 'LEFT'; new Date(0).toLocaleString()",
        "new Date(0).toLocaleString() === 'LEFT'",
    ),
    "another clock": (
        "Date.now = () => 0; Temporal.Now.instant = () => 'LEFT'; performance.now = () => -1",
        "Date.now() === 0 || Temporal.Now.instant() === 'LEFT' || performance.now() === -1",
    ),
    "a clock that has run": (
        # Long enough that a busy machine does not take as long to begin the next run.
        "await new Promise((r) => setTimeout(r, 1000))",
        "performance.now() > 990",
    ),
    "another random number": ("Math.random = () => 0.5", "Math.random() === 0.5"),
    "a decoder in the middle of a character": (
        "globalThis.d = new TextDecoder(); d.decode(new Uint8Array([0xe2, 0x82]), { stream: true })",
        "(globalThis.d ?? new TextDecoder()).decode(new Uint8Array([0xac])) !== '\\ufffd'",
    ),
    "parameters of a URL": (
        "URLSearchParams.prototype.get = () => 'LEFT'; new URL('http://x/?a=1').searchParams.append('LEFT', 1)",
        "new URL('http://x/?a=1').searchParams.get('a') !== '1'",
    ),
    "a template's strings": (
        "const tag = (s) => s; globalThis.LEFT = tag`x`; ",
        "typeof LEFT !== 'undefined'",
    ),
    "what constructors of this lead to": (
        "try { this.constructor.constructor('globalThis.LEFT = 1')(); } catch { globalThis.LEFT = 1; }",
        "typeof LEFT !== 'undefined'",
    ),
    "what the constructor of an error leads to": (
        "try { null.x; } catch (e) { e.constructor.LEFT = e.constructor.prototype.LEFT = 1; "
        "Object.getPrototypeOf(e.constructor).LEFT = 1; }",
        "'LEFT' in TypeError || 'LEFT' in Error || 'LEFT' in new Error()",
    ),
    "what a full stack leads to": (
        """const found = [];
        const deep = (f) => { try { deep(f); } catch (e) { found.push(e); try { f(); } catch (e) { found.push(e); } } };
        for (const f of [() => performance.now(), () => new URL('http://x'), () => crypto.randomUUID(),
            () => console.log(1), () => setTimeout(() => {}, 0), () => new TextDecoder(), () => structuredClone({}),
            () => new TextEncoder().encode('x'), () => import('x').catch(() => {}), () => import.meta]) deep(f);
        $leave(...found);""",
        "'LEFT' in {} || 'LEFT' in new RangeError() || 'LEFT' in (() => {})",
    ),
    "what a rejected import leads to": (
        "try { await import('node:vm'); } catch (e) { $leave(e); }",
        "await import('node:vm').catch((e) => 'LEFT' in e)",
    ),
    "what the promise of an import leads to": (
        "const p = import('x'); p.catch(() => 0); p.constructor.prototype.LEFT = 1; p.constructor.LEFT = 1",
        "'LEFT' in Promise || 'LEFT' in import('x').catch(() => 0)",
    ),
    "what a refused module leads to": (
        "try { await $load('@codemode/servers/none'); } catch (e) { $leave(e); }",
        "'LEFT' in {} || 'LEFT' in new Error()",
    ),
    "what an argument's traps are called with": (
        """const got = [];
        const spy = new Proxy(function () {}, new Proxy({}, { get: (_, trap) => (...all) => {
            if (got.length < 500) got.push(...all);
            return Reflect[trap](...all); } }));
        for (const f of [console.log, structuredClone, setTimeout, (x) => new URL(x), atob, (x) => new TextDecoder(x),
            (x) => new TextDecoder('utf-8', x), crypto.getRandomValues, (x) => new URLSearchParams(x),
            (x) => new Event('x', x), queueMicrotask, dispatchEvent]) {
            try { f(spy); } catch (e) { got.push(e); }
        }
        $leave(...got.splice(0));""",
        "'LEFT' in {} || 'LEFT' in (() => {}) || 'LEFT' in console.log",
    ),
    "what a callback's caller is": (
        """const got = [];
        const spy = function () {
            try { got.push(spy.caller, spy.arguments, arguments.callee); } catch (e) { got.push(e); }
            got.push(this, ...arguments);
        };
        setTimeout(spy, 0); queueMicrotask(spy); await new Promise((r) => setTimeout(r, 3));
        $leave(...got.splice(0));""",
        "'LEFT' in {} || 'LEFT' in (() => {})",
    ),
    "an error as its last word": ("throw Object.assign(new Error('LEFT'), { LEFT: 1 })", "await seen()"),
    "an error in a timer": (
        "setTimeout(() => { throw new Error('LEFT'); }, 0); await new Promise((r) => setTimeout(r, 5))",
        "await seen()",
    ),
    "much memory": ("globalThis.LEFT = new Uint8Array(32 << 20).fill(1)", "typeof LEFT !== 'undefined'"),
}
"""By name: the script that leaves something (`$leave` does so on objects and their prototypes), and an expression that
is true in the next run if it is there.

`seen` waits and tells whether anything of another run has come; `churn` makes garbage until some was collected.
"""

NOTHING_IS_LEFT: Final = {
    "a hook for stacks": "the sandbox's own cannot be replaced",
    "a property on the binding of a tool": "the function is frozen",
}
"""Names the cases that leave nothing, and why: of all others the look sees in one run what the run itself has left."""

for _name in PROTOTYPES:
    CASES[f"a property on {_name} and its prototype"] = (
        f"{_name}.LEFT = {_name}.prototype.LEFT = 1",
        f"'LEFT' in {_name} || 'LEFT' in {_name}.prototype",
    )
for _name, _expression in HIDDEN.items():
    CASES[f"a property on {_name}"] = (
        f"try {{ ({_expression}).LEFT = 1; }} catch {{ /* it is frozen */ }}",
        f"'LEFT' in ({_expression})",
    )


LEAVE = """
const $leave = (...all) => {
  for (const one of all) {
    try { for (let o = one; o; o = Object.getPrototypeOf(o)) o.LEFT = 1; } catch { /* frozen */ }
  }
};
"""


LOOK = """
let had = false;
const churn = async () => {
  let collected = false;
  const registry = new FinalizationRegistry(() => collected = true);
  registry.register({}, 0);
  for (let i = 0; i < 100 && !collected; i++) {
    for (let k = 0; k < 20; k++) new Array(1e5).fill(k);
    await new Promise((resolve) => setTimeout(resolve, 0));
  }
};
const seen = () => new Promise((resolve) => setTimeout(() => resolve(had || typeof LEFT !== "undefined"), 25));
globalThis.__codemode_result__ = [%s];
"""

WALK = (Path(__file__).parent / "walk.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def worker() -> Iterator[ContextWorker]:
    """One process for all."""
    with ContextWorker() as made:
        yield made


def _run(worker: ContextWorker, script: str) -> Outcome:
    return worker.run(HEAD + LEAVE + script, MODULES, answer={"a": 1})


@pytest.mark.parametrize("name", CASES)
def test_what_a_run_leaves_does_not_reach_the_next(worker: ContextWorker, name: str) -> None:
    leave, look = CASES[name]
    _run(worker, leave)
    after = _run(worker, LOOK % look)
    assert (after.kind, after.value, after.logs) == ("done", [False], []), name


@pytest.mark.parametrize("name", mostly(list(CASES)[::16], list(CASES)))
def test_what_is_looked_for_would_be_found(worker: ContextWorker, name: str) -> None:
    """In one run each case finds what it has left itself, or fails of it: the looks are none that cannot fail."""
    leave, look = CASES[name]
    found, both = False, None
    # On a busy machine what is left may come after the look: once is enough.
    for _ in range(1 if name in NOTHING_IS_LEFT else 20):
        both = _run(worker, f"{leave}\n;{LOOK % look}")
        told = both.logs if both.kind == "done" else [*both.logs, both.value["message"]]
        found = both.value == [True] or "LEFT" in told
        if found:
            break
    assert found == (name not in NOTHING_IS_LEFT), both


@pytest.fixture(scope="module")
def tagged() -> Iterator[ContextWorker]:
    """A process whose own realm has a mark on every object that others inherit from."""
    with marked_worker(120.0) as made:
        yield made


@pytest.mark.parametrize("depth", ["shallow", "full"])
def test_nothing_of_the_realm_around_is_in_reach(tagged: ContextWorker, depth: str) -> None:
    """From the global object, and from what every function returns and throws, also where the stack is full."""
    done = _run(tagged, f"const DEPTH = {depth!r};\n{WALK}")
    assert done.kind == "done" and done.value["outer"] == [], done
    assert done.value["functions"] > 800 and done.value["objects"] > 1500, done


def test_no_hook_on_what_a_context_has_is_handed_something_of_the_realm_around() -> None:
    """With seed 2, `Error` of the global object is among what an engine may look up; `scripts/fuzz_frames --contexts`
    goes on for as long as one wants."""
    assert fuzz_contexts(40, 2) == 40


@pytest.mark.thorough
def test_the_walk_would_find_an_object_of_the_realm_around(tagged: ContextWorker) -> None:
    """The mark is seen through prototypes: put on an object of this realm, it is told."""
    planted = "globalThis.planted = Object.create({ [Symbol.for('cellblock.outer')]: 'planted' });"
    assert _run(tagged, f"const DEPTH = 'shallow';\n{planted}\n{WALK}").value["outer"] != []
