"""Sections 3.4 and 3.5: what a script finds on `globalThis`, and what it must not find anywhere."""

from pathlib import Path

import pytest

from cellblock import Broker
from conformance.world import CAUGHT, CONTRACT, CONTRACT_TOOLS, broker_with, evaluated, run, value, words
from support.entries import plain_server

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
            assert "returned" not in answer and answer["hint"], specifier


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


PATCH = """
const evil = [];
const { ownKeys, getOwnPropertyDescriptor } = Reflect;
const text = String;
const steal = (name) => function (...args) { evil[evil.length] = name; return undefined; };
const spoil = (holder, where) => {
    const keys = ownKeys(holder);
    for (let i = 0; i < keys.length; i++) {
        const property = getOwnPropertyDescriptor(holder, keys[i]);
        if (typeof property.value === "function" && property.writable && keys[i] !== "constructor") {
            try { holder[keys[i]] = steal(`${where}.${text(keys[i])}`); } catch {}
        }
    }
};
"""

TARGETS = {
    "Array.prototype": ["Array.prototype"],
    "Object": ["Object", "Object.prototype"],
    "Function.prototype": ["Function.prototype"],
    "String.prototype": ["String.prototype", "String", "RegExp.prototype"],
    "Map and Set": ["Map.prototype", "Set.prototype", "WeakMap.prototype", "WeakSet.prototype"],
    "JSON": ["JSON"],
    "Promise": ["Promise", "Promise.prototype"],
    "Error": ["Error", "Error.prototype", "TypeError.prototype"],
    "Reflect and Proxy": ["Reflect", "Proxy"],
    "bytes": ["Uint8Array", "Uint8Array.prototype", "Object.getPrototypeOf(Uint8Array.prototype)",
              "TextEncoder.prototype", "TextDecoder.prototype", "DataView.prototype", "ArrayBuffer.prototype"],
    "numbers": ["Math", "Number", "Number.prototype", "Date", "Date.prototype", "Symbol", "Symbol.prototype"],
    "iterators": ["Object.getPrototypeOf(Object.getPrototypeOf([][Symbol.iterator]()))",
                  "Object.getPrototypeOf([][Symbol.iterator]())"],
    "events": ["EventTarget.prototype", "Event.prototype", "AbortSignal.prototype", "performance", "crypto"],
}  # fmt: skip
"""What is patched, all methods of it, before anything of `@codemode/*` is used."""

USE = """
const one = await contract.one_text();
const structured = await contract.structured();
const echoed = await contract.echo(input);
let failure;
try { await contract.fails({ text: "why" }); } catch (error) { failure = error; }
let invalid;
try { await contract.checked({ name: 5, count: 1 }); } catch (error) { invalid = error; }
const tools = await discovery.listTools("plain", { detail: "name" });
const found = await discovery.searchTools("echo", { limit: 1, detail: "name" });
let unknown;
try { await discovery.getTool("contract", "none"); } catch (error) { unknown = error; }
console.log("logged", input);
"""


@pytest.mark.clause("11.d", "11.b")
@pytest.mark.parametrize("target", TARGETS)
async def test_patched_built_ins_do_not_reach_the_modules(broker: Broker, target: str) -> None:
    """Bindings, discovery, errors, the console and the result work as before, and no patch is called by them."""
    spoil = "".join(f"spoil({holder}, {holder!r});" for holder in TARGETS[target])
    response = await run(
        broker,
        f"""{CONTRACT}import * as discovery from "@codemode/discovery";
        import {{ ToolCallError, SchemaValidationError, ToolNotFoundError }} from "@codemode/errors";
        {PATCH}
        const input = {{ b: [1, "two", {{ c: null }}], a: "\\u00e4" }};
        {spoil}
        evil.length = 0;
        {USE}
        const called = evil.length === 0 ? "" : evil[0];
        globalThis.__codemode_result__ = {{ text: one, n: structured.n, echoed: echoed.arguments,
            failed: failure instanceof ToolCallError, message: failure.message, hint: typeof failure.hint,
            invalid: invalid instanceof SchemaValidationError, path: invalid.path,
            tool: typeof tools[0].toolName, tools: tools.length > 5, found: found.results[0].toolName,
            unknown: unknown instanceof ToolNotFoundError, called }};
    """,
    )
    assert response.ok, response.as_json()
    assert response.result == {
        "called": "",
        "text": "just this",
        "n": 1,
        "echoed": {"b": [1, "two", {"c": None}], "a": "ä"},
        "failed": True,
        "message": "why",
        "hint": "string",
        "invalid": True,
        "path": "/name",
        "tool": "string",
        "tools": True,
        "found": "echo",
        "unknown": True,
    }
    assert [entry.message for entry in response.logs] == ['logged {"a":"ä","b":[1,"two",{"c":null}]}']


@pytest.mark.clause("11.d", "11.b")
async def test_patched_globals_do_not_reach_the_modules(broker: Broker) -> None:
    """The names on `globalThis` themselves replaced or deleted, and accessors planted on Object.prototype."""
    code = f"""{CONTRACT}import * as discovery from "@codemode/discovery";
        import {{ ToolCallError, SchemaValidationError, ToolNotFoundError }} from "@codemode/errors";
        const input = {{ a: 1 }};
        const seen = [];
        const {{ defineProperty, prototype }} = Object;
        const names = ["hint", "errorClass", "toolName", "message", "t", "id", "ok", "value", "get", "toJSON", "then",
            "0", "result", "code", "path", "level", "ms", "server", "tool", "detail"];
        for (const name of names) {{
            defineProperty(prototype, name, {{ __proto__: null, configurable: true,
                get() {{ return undefined; }},
                set(value) {{ seen[seen.length] = name;
                    const own = {{ __proto__: null, value, writable: true, configurable: true }};
                    defineProperty(this, name, own); }} }});
        }}
        for (const name of ["Promise", "JSON", "Object", "Array", "Map", "TypeError", "Uint8Array", "String",
            "TextEncoder", "TextDecoder", "Reflect", "Symbol", "performance"]) {{
            globalThis[name] = undefined;
            delete globalThis[name];
        }}
        {USE}
        for (const name of names) delete prototype[name];
        globalThis.__codemode_result__ = {{ text: one, n: structured.n, echoed: echoed.arguments,
            message: failure.message, path: invalid.path, found: found.results[0].toolName,
            is: [failure instanceof ToolCallError, invalid instanceof SchemaValidationError,
                unknown instanceof ToolNotFoundError], set: seen }};
    """
    assert await value(broker, code) == {
        "text": "just this",
        "n": 1,
        "echoed": {"a": 1},
        "message": "why",
        "path": "/name",
        "found": "echo",
        "is": [True, True, True],
        "set": [],
    }


@pytest.mark.clause("11.d")
async def test_namespaces_and_bindings_cannot_be_altered(broker: Broker) -> None:
    """Assigning, defining, deleting and extending all fail, on modules, functions and `__meta__`, at every depth."""
    tries, server_id, tool, kind = await value(
        broker,
        f"""{CONTRACT}{CAUGHT}
        import * as discovery from "@codemode/discovery";
        import * as errors from "@codemode/errors";
        const tries = {{}};
        const attempt = async (name, work) => {{
            try {{ const done = await work(); tries[name] = done === false ? "refused" : "done"; }}
            catch (error) {{ tries[name] = error instanceof TypeError ? "refused" : String(error); }}
        }};
        for (const [where, holder, key] of [["module", contract, "echo"], ["discovery", discovery, "listTools"],
            ["errors", errors, "ToolCallError"], ["binding", contract.echo, "call"], ["binding", contract.echo, "name"],
            ["meta", contract.__meta__, "serverId"], ["tools", contract.__meta__.tools, "0"],
            ["tool", contract.__meta__.tools[0], "toolName"]]) {{
            await attempt(`${{where}}.${{key}} set`, () => {{ holder[key] = 1; }});
            await attempt(`${{where}}.${{key}} define`, () => Object.defineProperty(holder, key, {{ value: 1 }}));
            await attempt(`${{where}} extend`, () => {{ holder.brandNew = 1; }});
            await attempt(`${{where}} prototype`, () => {{ Object.setPrototypeOf(holder, {{ x: 1 }}); }});
            await attempt(`${{where}}.${{key}} reflect`, () => Reflect.set(holder, key, 1));
        }}
        for (const [where, holder, key] of [["module", contract, "echo"], ["discovery", discovery, "specVersion"],
            ["meta", contract.__meta__, "tools"], ["tools", contract.__meta__.tools, "0"]]) {{
            await attempt(`${{where}}.${{key}} delete`, () => {{ delete holder[key]; }});
        }}
        await attempt("tools push", () => {{ contract.__meta__.tools.push({{}}); }});
        globalThis.__codemode_result__ = [tries, contract.__meta__.serverId, (await contract.echo({{ a: 1 }})).tool,
            typeof discovery.listTools];
    """,
    )
    assert {name: ended for name, ended in tries.items() if ended != "refused"} == {} and len(tries) > 30
    assert (server_id, tool, kind) == ("contract", "echo", "function")


@pytest.mark.clause("11.d", "7.1.a")
async def test_error_classes_that_a_script_patches_hurt_only_itself(broker: Broker) -> None:
    """Errors that come later still have their class, message and hint; another run sees nothing."""
    message, hint, server_id = await value(
        broker,
        f"""{CONTRACT}import * as errors from "@codemode/errors";
        for (const Class of Object.values(errors)) {{
            try {{ Class.prototype.hint = "spoiled"; }} catch {{}}
            try {{ Object.defineProperty(Class, Symbol.hasInstance, {{ value: () => false }}); }} catch {{}}
            const message = {{ set() {{}}, get() {{ return "spoiled"; }} }};
            try {{ Object.defineProperty(Class.prototype, "message", message); }} catch {{}}
        }}
        globalThis.__codemode_result__ = await contract.fails({{ text: "why" }})
            .catch((error) => [error.message, error.hint, error.serverId]);
    """,
    )
    assert (message, server_id) == ("why", "contract") and hint != "spoiled"
    again = await evaluated(
        broker,
        "await contract.fails({}).catch((error) => error instanceof ToolCallError)",
        f'{CONTRACT}import {{ ToolCallError }} from "@codemode/errors";',
    )
    assert again is True


@pytest.mark.clause("11.b", "11.c")
async def test_results_of_servers_cannot_pollute_prototypes(broker: Broker) -> None:
    """`__proto__` and `constructor` in structured content are plain own keys, at every depth."""
    *checks, got = await value(
        broker,
        f"""{CONTRACT}
        const got = await contract.polluting();
        const copy = Object.assign({{}}, JSON.parse(JSON.stringify(got.list)));
        globalThis.__codemode_result__ = [({{}}).polluted === undefined, [].polluted === undefined,
            Object.hasOwn(got, "__proto__"), Object.getPrototypeOf(got) === Object.prototype,
            Object.hasOwn(got.list[0], "__proto__"), typeof ({{}}).constructor, copy.polluted === undefined, got];
    """,
    )
    assert checks == [True, True, True, True, True, "function", True]
    assert got == CONTRACT_TOOLS["polluting"]["answer"]["structuredContent"]


@pytest.mark.clause("11.c")
async def test_hostile_names_and_texts_are_only_data(broker: Broker) -> None:
    """Tool names with quotes, line ends and comment marks are in `__meta__`, and nothing of them has run."""
    names, plain, text = await evaluated(
        broker,
        """[contract.__meta__.tools.map((tool) => tool.toolName), typeof globalThis.escaped,
            await contract.hostile_text()]""",
        CONTRACT,
    )
    assert set(names) == {name for name, row in CONTRACT_TOOLS.items()}
    assert plain == "undefined"
    assert text == CONTRACT_TOOLS["hostile_text"]["answer"]["content"][0]["text"]


@pytest.mark.clause("11.c", "10.b", "11.a")
async def test_answers_that_are_no_answers_are_errors(tmp_path: Path) -> None:
    """Nested too deep, of another shape or no JSON: an exception in time, and the server can be used afterwards."""
    code = f"""{CAUGHT}import * as plain from "@codemode/servers/plain";
        globalThis.__codemode_result__ = [await caught(() => plain.deep({{ depth: 5000 }})),
            await caught(() => plain.wrong_shape()), await caught(() => plain.garbage()),
            await caught(() => plain.never()), await plain.echo({{ a: 1 }})];
    """
    bounds = {"call_timeout_ms": 3_000}
    async with broker_with(tmp_path, {"plain": plain_server()}, upstream=bounds) as broker:
        *failures, after = await value(broker, code)
    assert after == '{"a": 1}'
    assert [(one.get("name"), bool(one.get("hint"))) for one in failures] == [("ToolCallError", True)] * 4


@pytest.mark.clause("11.b", "11.d")
async def test_what_bindings_give_holds_no_host_object(broker: Broker) -> None:
    """Promises, results, errors and functions have the sandbox's own prototypes and no hidden members."""
    own, hidden, plain, error, function, hook, short, stack = await value(
        broker,
        f"""{CONTRACT}{CAUGHT}
        const promise = contract.one_text();
        const result = await contract.structured();
        const error = await contract.fails({{}}).catch((thrown) => thrown);
        const keys = (value) => Reflect.ownKeys(value).map(String).sort();
        globalThis.__codemode_result__ = [Object.getPrototypeOf(promise) === Promise.prototype, keys(promise),
            Object.getPrototypeOf(result) === Object.prototype, keys(error), keys(contract.echo),
            typeof globalThis.__cellblock_boot__, contract.echo.toString().length < 200, error.stack];
    """,
    )
    # The agent's own frames, and nothing of the machine that the sandbox runs on.
    assert (
        stack.startswith("ToolCallError: it failed\n    at ") and "file:" not in stack and "ext:" not in stack
    )
    assert (own, hidden, plain, hook, short) == (True, [], True, "undefined", True)
    assert set(error) <= {"stack", "message", "hint", "serverId", "toolName", "certainty", "result"}
    assert set(function) == {"length", "name"}


@pytest.mark.clause("11.d", "3.4.b")
async def test_the_own_channel_cannot_be_taken(broker: Broker) -> None:
    """Replacing the console or forging messages makes no call and no log under another name."""
    response = await run(
        broker,
        f"""{CONTRACT}
        console.log = (...args) => {{ throw new Error("mine"); }};
        console.warn("still heard");
        console = {{ log() {{}} }};
        try {{ dispatchEvent(new Event("unhandledrejection")); }} catch {{}}
        try {{ dispatchEvent({{ type: "error", error: new Error("forged") }}); }} catch {{}}
        globalThis.__codemode_result__ = await contract.one_text();
        """,
    )
    assert response.result == "just this" and response.diagnostics == []
    assert [entry.message for entry in response.logs] == ["still heard"]
    assert [call.tool_name for call in response.tool_trace] == ["one_text"]
