"""Sections 3.4 and 3.5: what a script finds on `globalThis`, and what it must not find anywhere."""

import pytest

from cellblock import Broker
from conformance.world import CAUGHT, CONTRACT, evaluated, run, value, words

WORKS: dict[str, str] = {
    "JSON": """JSON.stringify(JSON.parse('{"a":[1]}')) === '{"a":[1]}'""",
    "Math": "Math.max(1, 2) === 2 && Math.random() < 1",
    "Date": "new Date(0).toISOString() === '1970-01-01T00:00:00.000Z' && Date.now() > 1.6e12",
    "URL": "new URL('../b?c=1#d', 'https://example.com/a/x').href === 'https://example.com/b?c=1#d'",
    "URLSearchParams": "new URLSearchParams('a=1&a=2&b=%20').getAll('a').length === 2",
    "Promise": "(await Promise.allSettled([Promise.resolve(1), Promise.reject(2)])).length === 2",
    "Map": "new Map([[NaN, 1]]).get(NaN) === 1",
    "Set": "[...new Set([1, 1, 2])].length === 2",
    "WeakMap": "(() => { const key = {}; return new WeakMap([[key, 1]]).get(key) === 1; })()",
    "WeakSet": "(() => { const key = {}; return new WeakSet([key]).has(key); })()",
    "Symbol": "Symbol.for('a') === Symbol.for('a') && Symbol('a') !== Symbol('a')",
    "Proxy": "new Proxy({}, { get: (_, name) => name }).anything === 'anything'",
    "Reflect": "Reflect.ownKeys({ a: 1, [Symbol.iterator]: 2 }).length === 2",
    "RegExp": "new RegExp('(?<y>\\\\d{4})', 'u').exec('in 2024').groups.y === '2024'",
    "Error": "new Error('m', { cause: 1 }).cause === 1 && new Error('m') instanceof Error",
    "Array": "Array.from({ length: 3 }, (_, i) => i).at(-1) === 2",
    "Object": "Object.entries({ a: 1 })[0][0] === 'a'",
    "String": "String.raw`\\n` === '\\\\n' && 'ab'.padStart(3) === ' ab'",
    "Number": "Number('0x10') === 16 && (1.005).toFixed(2) === '1.00'",
    "Boolean": "Boolean([]) === true",
    "BigInt": "BigInt('9007199254740993') + 1n === 9007199254740994n",
    "parseInt": "parseInt('12px', 10) === 12",
    "parseFloat": "parseFloat('1.5e3x') === 1500",
    "isNaN": "isNaN('x') === true",
    "isFinite": "isFinite('1') === true",
    "Infinity": "Infinity === 1 / 0",
    "NaN": "Number.isNaN(NaN)",
    "undefined": "undefined === void 0 && 'undefined' in globalThis",
    "TextEncoder": "new TextEncoder().encode('é').join() === '195,169'",
    "TextDecoder": "new TextDecoder('utf-8').decode(new Uint8Array([195, 169])) === 'é'",
    "ArrayBuffer": "new ArrayBuffer(8).slice(2).byteLength === 6",
    "DataView": "((v) => (v.setInt16(0, -2), v.getUint8(1) === 254))(new DataView(new ArrayBuffer(4)))",
    "Uint8Array": "new Uint8Array([256, -1]).join() === '0,255'",
    "Int8Array": "new Int8Array([128]).join() === '-128'",
    "Uint16Array": "new Uint16Array([65536 + 3]).join() === '3'",
    "Int16Array": "new Int16Array([32768]).join() === '-32768'",
    "Uint32Array": "new Uint32Array([-1]).join() === '4294967295'",
    "Int32Array": "new Int32Array([2 ** 31]).join() === '-2147483648'",
    "Float32Array": "new Float32Array([0.5]).join() === '0.5'",
    "Float64Array": "new Float64Array([0.1]).join() === '0.1'",
    "setTimeout": "(await new Promise((r) => setTimeout((a, b) => r(a + b), 5, 1, 2))) === 3",
    "clearTimeout": "await new Promise((r) => { clearTimeout(setTimeout(r, 5, false)); setTimeout(r, 40, true); })",
    "console": "['log', 'debug', 'warn', 'error'].every((name) => typeof console[name] === 'function')",
    "__codemode_result__": "'__codemode_result__' in globalThis",
}
"""Each global of section 3.5, and an expression that is true when it works."""

NETWORK = words("""fetch XMLHttpRequest WebSocket WebSocketStream WebSocketError EventSource WebTransport
    WebTransportBidirectionalStream RTCPeerConnection Request Response Headers FormData Worker SharedWorker
    ServiceWorker importScripts navigator Navigator WorkerNavigator location Location BroadcastChannel sendBeacon
    close postMessage onmessage MessageChannel MessagePort""")

STORAGE = words("""localStorage sessionStorage Storage caches Cache CacheStorage indexedDB IDBFactory cookieStore File
    FileReader Blob showOpenFilePicker""")

HOST = words("""process require module exports global Buffer __dirname __filename setImmediate clearImmediate Deno Bun
    WorkerGlobalScope Window window self document alert confirm prompt gc v8 d8 quit load print read version
    __bootstrap ext core Ops queueTask reportError addEventListener removeEventListener GPU GPUDevice ImageBitmap
    createImageBitmap ImageData FileSystem Notification WebAssembly SharedArrayBuffer Atomics ShadowRealm
    SubtleCrypto CryptoKey PerformanceObserver PerformanceEntry CompressionStream __cellblock_boot__
    name status event parent top opener frames""")

RAN = "await new Promise((r) => setTimeout(r, 30)); if (!globalThis.ran) throw 0"

CODE = {
    "eval": "eval('1')",
    "indirect eval": "(0, globalThis.eval)('1')",
    "Function": "Function('return 1')()",
    "new Function": "new Function('a', 'return a')(1)",
    "Function of a function": "(() => {}).constructor('return 1')()",
    "AsyncFunction": "await (async () => {}).constructor('return 1')()",
    "GeneratorFunction": "[...(function* () {}).constructor('yield 1')()]",
    "AsyncGeneratorFunction": "(async function* () {}).constructor('yield 1')()",
    "Function of a class": "(class {}).constructor('return 1')()",
    "Function of a built-in": "[].map.constructor('return 1')()",
    "Function of a binding": "contract.echo.constructor('return 1')()",
    "Function of the console": "console.log.constructor('return 1')()",
    "Function of the timers": "setTimeout.constructor('return 1')()",
    "Reflect.construct": "Reflect.construct(Function, ['return 1'])()",
    "a subclass of Function": "new (class extends Function {})('return 1')()",
    "bind and apply": "Function.prototype.apply.call((() => {}).constructor, null, ['return 1'])()",
    "Function without text": "(Function()(), (() => { throw new Error('no text, nothing to run'); })())",
    "a timer of a text": f"setTimeout('globalThis.ran = 1', 0); {RAN}",
    "a timer of an object with a text": f"setTimeout({{ toString: () => 'globalThis.ran = 1' }}, 0); {RAN}",
    "an import of a data: URL": "await import('data:text/javascript,export default 1')",
    "an import of a blob: URL": "await import('blob:null/0')",
    "a ShadowRealm": "new ShadowRealm().evaluate('1')",
    "a WebAssembly module": "new WebAssembly.Module(new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0]))",
}
"""Ways to run code that is no part of the script; each must throw."""

SPECIFIERS = words("""node:fs node:process node:child_process node:net node:worker_threads node:vm node:module fs
    process child_process npm:left-pad npm:left-pad@1.3.0 jsr:@std/path https://example.com/x.js http://127.0.0.1/x.js
    file:///etc/passwd /etc/passwd ./x.js ../x.js data:text/javascript,1 data:application/json,1 blob:x ext:core/ops
    ext:core/mod.js chrome:x @codemode/none @codemode/ @codemode @codemode/servers @codemode/servers/
    @codemode/servers/../errors @codemode/errors/ @codemode/errors?x @codemode/errors#x""")


@pytest.mark.clause("3.5.a")
async def test_every_listed_global_is_there_and_works(broker: Broker) -> None:
    """Each by an expression that uses it, in one run."""
    checks = "".join(
        f"""try {{ found[{name!r}] = [{name!r} in globalThis, {check}]; }} catch (error) {{
            found[{name!r}] = String(error); }}\n"""
        for name, check in WORKS.items()
    )
    found = await evaluated(broker, "found", f"const found = {{}};\n{checks}")
    assert {name: how for name, how in found.items() if how != [True, True]} == {}
    assert len(found) == len(WORKS)


@pytest.mark.clause("3.5.a", "3.5.b", "3.5.c", "3.5.e", "3.4.a")
async def test_what_must_not_be_there_is_absent(broker: Broker) -> None:
    """Neither on `globalThis` nor on its prototypes nor as a name."""
    names = [*NETWORK, *STORAGE, *HOST, "setInterval", "clearInterval", "eval"]
    listed = ", ".join(f"{name!r}: typeof {name}" for name in names)
    found = await evaluated(
        broker,
        f"""Object.entries({{ {listed} }}).filter(([name, type]) => type !== "undefined" || name in globalThis)""",
    )
    assert found == []


@pytest.mark.clause("3.5.a", "3.5.f")
async def test_nothing_else_is_there(broker: Broker) -> None:
    """The names on `globalThis` are the specification's, the language's own, and a short list besides."""
    language = words("""globalThis Function AggregateError EvalError RangeError ReferenceError SyntaxError TypeError
        URIError SuppressedError BigInt64Array BigUint64Array Uint8ClampedArray Float16Array Iterator WeakRef
        FinalizationRegistry DisposableStack AsyncDisposableStack Intl Temporal decodeURI decodeURIComponent
        encodeURI encodeURIComponent escape unescape""")
    short = words("""structuredClone queueMicrotask atob btoa crypto performance AbortController AbortSignal EventTarget
        Event DOMException dispatchEvent""")
    names = await evaluated(
        broker,
        """(() => { const names = []; for (let o = globalThis; o && o !== Object.prototype;
            o = Object.getPrototypeOf(o)) names.push(...Reflect.ownKeys(o).map(String)); return names; })()""",
    )
    assert set(names) - set(WORKS) - set(language) - set(short) == set()
    assert set(WORKS) - set(names) == set()


@pytest.mark.clause("3.5.c")
async def test_set_timeout_is_for_single_delays(broker: Broker) -> None:
    """A timer fires once; a cleared one never; no repeat hides behind another name."""
    code = """
        let fired = 0;
        setTimeout(() => { fired++; }, 5);
        clearTimeout(setTimeout(() => { fired += 100; }, 10));
        await new Promise((resolve) => setTimeout(resolve, 80));
        globalThis.__codemode_result__ = [fired, typeof setInterval, "setInterval" in globalThis];
    """
    assert await value(broker, code) == [1, "undefined", False]


@pytest.mark.clause("3.5.d")
async def test_no_code_from_strings(broker: Broker) -> None:
    """Every way that the language has, each of which must throw."""
    tries = "".join(
        f"""results[{name!r}] = await (async () => {{
            try {{ {how}; return "ran"; }} catch {{ return "threw"; }} }})();\n"""
        for name, how in CODE.items()
    )
    results = await evaluated(broker, "results", f"{CONTRACT}const results = {{}};\n{tries}")
    assert {name: ended for name, ended in results.items() if ended != "threw"} == {}


@pytest.mark.clause("3.5.e", "3.4.a", "11.d")
async def test_only_codemode_modules_can_be_imported(broker: Broker) -> None:
    """Literal and computed specifiers are refused with a hint; nothing is looked up anywhere."""
    listed = ", ".join(repr(specifier) for specifier in SPECIFIERS)
    literal = ", ".join(f"await caught(() => import({specifier!r}))" for specifier in SPECIFIERS)
    code = f"""{CAUGHT}
        const computed = [];
        for (const specifier of [{listed}]) computed.push(await caught(() => import(specifier)));
        globalThis.__codemode_result__ = [computed, [{literal}]];
    """
    for answers in await value(broker, code):
        for specifier, answer in zip(SPECIFIERS, answers, strict=True):
            assert "returned" not in answer, specifier
            assert answer["hint"], specifier


@pytest.mark.clause("3.5.e", "3.4.a", "3.4.b", "11.b")
async def test_no_way_leads_from_what_is_there_to_what_is_not(broker: Broker) -> None:
    """Prototypes, constructors, error stacks, symbols, `import.meta` and events give no host object."""
    code = """
        const names = new Set(["Deno", "process", "require", "fetch", "Worker", "WebAssembly", "SharedArrayBuffer"]);
        const found = [];
        const seen = new Set();
        const walk = (value, path, depth) => {
            if ((typeof value !== "object" && typeof value !== "function") || value === null) return;
            if (seen.has(value) || depth > 6) return;
            seen.add(value);
            for (const key of Reflect.ownKeys(value)) {
                if (typeof key === "string" && names.has(key)) found.push(`${path}.${key}`);
                const property = Reflect.getOwnPropertyDescriptor(value, key);
                for (const part of ["value", "get", "set"]) walk(property?.[part], `${path}.${String(key)}`, depth + 1);
            }
            walk(Reflect.getPrototypeOf(value), `${path}.__proto__`, depth + 1);
            if (typeof value === "function" && names.has(value.name)) found.push(path);
        };
        walk(globalThis, "globalThis", 0);
        walk(import.meta, "import.meta", 0);
        walk(await import("@codemode/errors"), "errors", 0);
        walk(await import("@codemode/discovery"), "discovery", 0);
        walk(await import("@codemode/servers/contract"), "contract", 0);
        const stack = [];
        try {
            Error.prepareStackTrace = (_, sites) => { stack.push(...sites.map((site) => typeof site.getThis)); };
            void new Error("x").stack;
        } catch {}
        const where = String(new Error("y").stack);
        globalThis.__codemode_result__ = [found, stack, /file:|ext:|\\/home|\\/usr/.test(where), seen.size > 500];
    """
    assert await value(broker, code) == [[], [], False, True]


@pytest.mark.clause("3.4.a", "3.4.b")
async def test_stack_and_import_meta_tell_nothing_of_the_machine(broker: Broker) -> None:
    """No path, no user, no environment."""
    response = await run(
        broker,
        "console.log(import.meta.url.slice(0, 5), import.meta.filename, import.meta.dirname);"
        "console.log(new Error('x').stack); console.log(JSON.stringify(performance), JSON.stringify(crypto));",
    )
    texts = "\n".join(entry.message for entry in response.logs)
    assert texts.startswith("data: undefined undefined")
    for part in ("file://", "/home", "/root", "/usr", "/tmp", "site-packages", "boot.js"):
        assert part not in texts


@pytest.mark.clause("3.5.f")
@pytest.mark.parametrize(
    "check",
    [
        "structuredClone({ a: [new Date(0)] }).a[0].getTime() === 0",
        "atob(btoa('\\x00\\xff')) === '\\x00\\xff'",
        "/^[0-9a-f-]{36}$/.test(crypto.randomUUID())",
        "crypto.getRandomValues(new Uint8Array(64)).some((byte) => byte > 0)",
        "await new Promise((r) => queueMicrotask(() => r(true)))",
        "performance.now() >= 0",
        "(() => { const c = new AbortController(); c.abort('why'); return c.signal.reason === 'why'; })()",
        "new Intl.NumberFormat('en-US').format(12345.6) === '12,345.6'",
    ],
)
async def test_what_is_there_besides_works(broker: Broker, check: str) -> None:
    """The documented additions to the specification's list."""
    assert await evaluated(broker, check) is True
