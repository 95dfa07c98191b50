"""Section 11: hostile scripts and hostile servers against the modules that scripts are given."""

from pathlib import Path

import pytest

from cellblock import Broker
from conformance.world import CAUGHT, CONTRACT, CONTRACT_TOOLS, broker_with, evaluated, run, value
from support.entries import plain_server

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
    code = f"""{CONTRACT}import * as discovery from "@codemode/discovery";
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
    """
    response = await run(broker, code)
    assert response.ok, response.as_json()
    result = response.result
    assert result.pop("called") == ""
    assert result == {
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
    code = f"""{CONTRACT}{CAUGHT}
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
    """
    tries, server_id, tool, kind = await value(broker, code)
    assert {name: ended for name, ended in tries.items() if ended != "refused"} == {}
    assert len(tries) > 30
    assert (server_id, tool, kind) == ("contract", "echo", "function")


@pytest.mark.clause("11.d", "7.1.a")
async def test_error_classes_that_a_script_patches_hurt_only_itself(broker: Broker) -> None:
    """Errors that come later still have their class, message and hint; another run sees nothing."""
    code = f"""{CONTRACT}import * as errors from "@codemode/errors";
        for (const Class of Object.values(errors)) {{
            try {{ Class.prototype.hint = "spoiled"; }} catch {{}}
            try {{ Object.defineProperty(Class, Symbol.hasInstance, {{ value: () => false }}); }} catch {{}}
            const message = {{ set() {{}}, get() {{ return "spoiled"; }} }};
            try {{ Object.defineProperty(Class.prototype, "message", message); }} catch {{}}
        }}
        globalThis.__codemode_result__ = await contract.fails({{ text: "why" }})
            .catch((error) => [error.message, error.hint, error.serverId]);
    """
    message, hint, server_id = await value(broker, code)
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
    code = f"""{CONTRACT}
        const got = await contract.polluting();
        const copy = Object.assign({{}}, JSON.parse(JSON.stringify(got.list)));
        globalThis.__codemode_result__ = [({{}}).polluted === undefined, [].polluted === undefined,
            Object.hasOwn(got, "__proto__"), Object.getPrototypeOf(got) === Object.prototype,
            Object.hasOwn(got.list[0], "__proto__"), typeof ({{}}).constructor, copy.polluted === undefined, got];
    """
    *checks, got = await value(broker, code)
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
    code = f"""{CONTRACT}{CAUGHT}
        const promise = contract.one_text();
        const result = await contract.structured();
        const error = await contract.fails({{}}).catch((thrown) => thrown);
        const keys = (value) => Reflect.ownKeys(value).map(String).sort();
        globalThis.__codemode_result__ = [Object.getPrototypeOf(promise) === Promise.prototype, keys(promise),
            Object.getPrototypeOf(result) === Object.prototype, keys(error), keys(contract.echo),
            typeof globalThis.__cellblock_boot__, contract.echo.toString().length < 200, error.stack];
    """
    own, hidden, plain, error, function, hook, short, stack = await value(broker, code)
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
