"""Scripts as models send them: what they give, what was done to their text, inputs that cannot be sent, and errors.

One real run for each.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from cellblock import Broker, RunResponse, tool
from support.brokers import ready
from support.entries import plain_server, settings
from support.responses import error_of, succeeded
from support.waits import within

PLAIN = 'import * as plain from "@codemode/servers/plain";\n'
ONE = f"{PLAIN}const one = await plain.echo({{ a: 1 }});\n"
SEVEN = "globalThis.__codemode_result__ = 7;"
FRAMELESS = """
    class MyE extends Error { name = "MyE"; constructor(m) { super(m); this.stack = `MyE: ${m}`; } }
    throw new MyE("q");
"""
OF_NULL = "TypeError: Cannot read properties of null (reading 'x')"
LOCAL = 'import { add, rows } from "@codemode/servers/local";\n'
GIVES = "globalThis.__codemode_result__ = "
IMPORT_ADD = 'import { add } from "@codemode/servers/local";'
NOT_ASYNC = "not async: write `async`"
MESSAGE_BYTES = 1 << 20
URLS = (
    '<script src="data:text/javascript;base64,Zm9vKCk7"></script> data:application/javascript;base64,Zm9v:1:2'
)


@tool
def add(a: int, b: int = 1) -> int:
    """Adds."""
    return a + b


@tool
def rows(ids: list[int], more: dict[str, Any] | None = None) -> dict[str, Any]:
    """Rows."""
    return {"ids": ids, "more": more}


@tool
def pay(said: str) -> dict[str, Any]:
    """Pays, or says why not."""
    raise ValueError(said)


@tool(annotations={"readOnlyHint": True})
def look(said: str) -> dict[str, Any]:
    """Looks."""
    raise ValueError(said)


@pytest.fixture(scope="module")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    # A finding that comes later than a response waits for the next: here each is waited for.
    bounds = {"typecheck_timeout_ms": 60_000, "max_message_bytes": MESSAGE_BYTES}
    # A server that does not say its version is connected all the same.
    servers = {
        "plain": plain_server("--unversioned"),
        "broken": {"command": "cellblock-test-no-such-program"},
    }
    made = settings(tmp_path_factory.mktemp("scripts"), servers, **bounds)
    async with ready(made, tools=[add, rows, pay, look]) as started:
        yield started


@pytest.mark.parametrize(
    ("code", "result"),
    [
        ("export default { a: 1 };", {"a": 1}),
        ("export default (async () => [2])();", [2]),
        ("export default async function main() { return (await plain.echo({ a: 3 })).length > 0; }", True),
        ("export default class Unused {}\nglobalThis.__codemode_result__ = 4;", 4),
        ("async () => { return await 5; }", 5),
        ("async function () { return 6 }", 6),
        ("if (plain) {\n  return { eight: 8 };\n}", {"eight": 8}),
        ("enum A { B = 9 } // which Deno compiles\nreturn A.B;", 9),
        (
            "const { echo } = await import('@codemode/servers/plain'); return typeof echo // no end",
            "function",
        ),
        # The assignment wins, whenever it is made.
        ("globalThis.__codemode_result__ = 10; export default () => { throw 1 };", 10),
        ("async () => { globalThis.__codemode_result__ = 11; return 0 }", 11),
        ("globalThis.__codemode_result__ = null; return 0", None),
        # A script that waits for something is left to wait.
        (f"await new Promise((done) => setTimeout(done, 700)); {SEVEN}", 7),
        # The deepest input reaches the tool.
        (
            "let a = 1; for (let i = 1; i < 128; i++) a = [a]; return (await plain.echo({ a })).length > 250",
            True,
        ),
        # Calls that were answered or refused are not in flight.
        ("await plain.echo({}); await plain.fail({ text: 'x' }).catch(() => 0); return 1", 1),
        ("await plain.echo(1n).catch(() => 0); return 1", 1),
        # What is offered in place of a global is there.
        ("const bytes = new TextEncoder().encode('text'); return new TextDecoder().decode(bytes)", "text"),
        ("return Uint8Array.fromBase64(new Uint8Array([7]).toBase64())[0]", 7),
        (
            "await new Promise((done) => queueMicrotask(done)); return Object.groupBy([1, 2], (n) => n % 2)",
            {"0": [2], "1": [1]},
        ),
        (
            "return [EventTarget, Temporal, performance.now].map((one) => typeof one)",
            ["function", "object", "function"],
        ),
        # A script can make errors without details.
        (
            "const all = Object.values(await import('@codemode/errors'));\n"
            "return all.map((one) => `${new one('msg')} ${new one().message}` === `${one.name}: msg `)",
            [True] * 7,
        ),
    ],
)
async def test_results_by_convention(broker: Broker, code: str, result: Any) -> None:
    response = await within(broker.run(PLAIN + code))
    assert (response.result, response.diagnostics) == (result, [])


@pytest.mark.parametrize(
    ("code", "path", "message"),
    [
        ("\n async () => { await null;\n  null.x }", "script.js:3:8", OF_NULL),
        ("\n  if (1) { null.x } return 1", "script.js:2:17", OF_NULL),
        ("return null.x", "script.js:1:13", OF_NULL),
        ("export default () => null.x", "script.js:1:27", OF_NULL),
        ("const a: string = 'é'; return null.x as string", "script.js:1:36", OF_NULL),
        # Data URLs of the script stay as they are.
        (
            f"const text = '{URLS}';\nthrow new Error(text, {{ cause: new Error(text) }});",
            "script.js:2:7",
            f"Error: {URLS} (cause: Error: {URLS})",
        ),
        # An error of the engine keeps its class, and one with the same words is not taken for it.
        (
            "try { await Promise.any([Promise.reject(1)]); } catch (error) { console.log(error.stack); }\n"
            "throw new RangeError('All promises were rejected');",
            "script.js:2:7",
            "RangeError: All promises were rejected",
        ),
        (
            f"{PLAIN}await Promise.any([plain.fail({{ text: 'one' }}), Promise.reject(new TypeError('two'))]);",
            None,
            "AggregateError: All promises were rejected (errors: ToolCallError: one "
            '{"certainty":"completed","hint":"Read the tool\'s message and correct the call.",'
            '"result":{"content":[{"text":"one","type":"text"}],"isError":true},"serverId":"plain","toolName":"fail"}'
            " | TypeError: two)",
        ),
        # One that lost its frames may be any.
        (FRAMELESS, None, "Error: q"),
    ],
)
async def test_failures_are_told_in_their_words_at_their_place(
    broker: Broker, code: str, path: str | None, message: str
) -> None:
    (told,) = (await within(broker.run(code))).diagnostics
    assert (told.code, told.path, told.message) == ("UNCAUGHT_EXCEPTION", path, message)


@pytest.mark.parametrize(
    ("code", "codes", "told"),
    [
        (ONE, ["warning NO_RESULT"], "hint='Add at the end: `globalThis.__codemode_result__ = one;`'"),
        (f"{ONE}console.log(one)", ["info NO_RESULT"], ""),
        (f"{ONE}{GIVES}one.tow;", ["warning NO_RESULT", "warning TYPE_ERROR"], "is undefined at the end"),
        (f"{ONE}if (!one) return 1;", ["warning NO_RESULT"], "returns"),
        (f"{GIVES}null", [], ""),
        ("throw 1", ["error UNCAUGHT_EXCEPTION"], ""),
        (
            "async function wipeEverything() { throw new Error('called'); }",
            ["warning NO_RESULT"],
            "Nothing calls `wipeEverything`",
        ),
        (f"function wipe() {{ {SEVEN} }}", ["warning NO_RESULT"], "Nothing calls `wipe`"),
        (
            "const wipe = async () => { throw new Error('called'); };",
            ["warning NO_RESULT"],
            "= await wipe();`",
        ),
        ("const limit = 5; const twice = (n) => 2 * n;", ["warning NO_RESULT"], "= limit;`"),
        (
            "void (async function () { return 1; })();",
            ["warning NO_RESULT"],
            "= await (async function () { return 1; })();`",
        ),
        (
            "async function main() { return 1; }\nmain().then(console.log);",
            ["info NO_RESULT"],
            "= await main();`",
        ),
        (
            "const main = async () => 1;\nmain().then((r) => { console.log(r); }).catch(console.error);",
            ["info NO_RESULT"],
            "= await main();`",
        ),
    ],
)
async def test_a_script_without_a_result_is_told_the_fix(
    broker: Broker, code: str, codes: list[str], told: str
) -> None:
    response = await within(broker.run(code))
    found = response.diagnostics
    assert ([f"{one.severity} {one.code}" for one in found], response.result) == (codes, None)
    assert told in str(found[:1])


@pytest.mark.parametrize(
    ("code", "result"),
    [
        (f"```js\n{SEVEN}\n```", 7),
        (f"```typescript\r\nconst x: number = 7;\r\n{GIVES}x;\r\n```\r\n", 7),
        (f"Here is the script, isn't it:\n\n```js\n{SEVEN}\n```\n\nIt's 7.", 7),
        (f"```\n{SEVEN}", 7),
        (f"```node.js\n{SEVEN}\n```", 7),
        (f"~~~ts\n{SEVEN}\n~~~\n", 7),
        (f"{GIVES}[`~~~\nno fence\n~~~`, '```'];", ["~~~\nno fence\n~~~", "```"]),
        ("/*\n```js\nnot this\n```\n*/\n" + SEVEN, 7),
        # What stands at the end is awaited.
        ("(async () => { await null; return 5; })();", 5),
        ("(async function () { await null; globalThis.__codemode_result__ = 5; })();", 5),
        (f"{LOCAL}(async () => {{ return await add({{ a: 4 }}); }})().catch(console.error);", {"result": 5}),
        (f"{LOCAL}const main = async () => add({{ a: 4 }});\nmain().finally(() => {{}});", {"result": 5}),
        (f"{LOCAL}async function main() {{ return (await add({{ a: 4 }})).result; }}\nmain();", 5),
        # The text of an object or array where one is wanted.
        (f"{LOCAL}{GIVES}(await rows({{ ids: '[1, 2]' }})).ids;", [1, 2]),
        (f"{LOCAL}{GIVES}(await rows({{ ids: '[1]', more: '{{\"a\": [2]}}' }})).more;", {"a": [2]}),
        (f"{LOCAL}{GIVES}(await add('{{\"a\": 4}}')).result;", 5),
        # Types that are shown can be imported.
        (f"import {{ add, type AddOutput }} from '@codemode/servers/local';\n{SEVEN}", 7),
        (
            f"import type {{ AddInput }} from '@codemode/servers/local';\nconst x: AddInput = {{ a: 1 }};\n{GIVES}x.a;",
            1,
        ),
        (
            "import { add, AddInput } from '@codemode/servers/local';\nconst x: AddInput = { a: 1 };\n"
            f"{GIVES}(await add(x)).result;",
            2,
        ),
        *(
            (f"console.{call};\n{SEVEN}", 7)
            for call in (
                "assert(true)",
                "count('rows')",
                "groupCollapsed('rows')",
                "timeLog('t')",
                "clear()",
                "dirxml({})",
            )
        ),
    ],
)
async def test_what_is_meant_runs(broker: Broker, code: str, result: Any) -> None:
    for mode in ("after", "before"):
        if (mode == "before" and "'[1" in code) or "add('{" in code:
            continue
        assert succeeded(await within(broker.run(code, typecheck=mode))) == result, mode


@pytest.mark.parametrize(
    ("code", "place", "hint"),
    [
        (f"const x = 1;\\n{GIVES}x;", "1:13", "two characters `\\n`"),
        (f"{LOCAL.strip()}\\nconst x = 1;\\n{GIVES}x;", "1:", "two characters `\\n`"),
        (f"if (true) {{\\n{GIVES}1; }}", "1:", "two characters `\\n`"),
        (f"const f = (y) =&gt; y;\n{SEVEN}", "1:", "`&gt;`"),
        (f"{SEVEN}\nif (1 &lt; 2) null;", "2:", "`&lt;`"),
        (f"const x = &quot;a&quot;;\n{SEVEN}", "1:", "`&quot;`"),
        (f"const x\u200b = 1;\n{SEVEN}", "1:", "U+200B"),
        (f"{SEVEN}\nconst\u2060 y = 2;", "2:", "U+2060"),
        (f"const z =\u200d 2;\n{SEVEN}", "1:", "U+200D"),
        (f"const x = \u201ca\u201d;\n{SEVEN}", "1:11", "plain quotes"),
        ("[1].map((x) => await x);", "1:16", NOT_ASYNC),
        ("[1].forEach(function (x) { await x; });", "1:28", NOT_ASYNC),
        ("function f() { for await (const x of []) x; }", "1:", NOT_ASYNC),
    ],
)
async def test_what_was_done_to_the_text_is_named(broker: Broker, code: str, place: str, hint: str) -> None:
    found = error_of(await within(broker.run(code)), "SYNTAX_ERROR")
    assert hint in (found.hint or "") and f"script.js:{place}" in (found.path or ""), found


@pytest.mark.parametrize(
    "call",
    [
        "tools.local.add({ a: 1 })",
        "tools.add({ a: 1 })",
        "tools['add']({ a: 1 })",
        "mcp__local__add({ a: 1 })",
        "tools.mcp__local__add({ a: 1 })",
        "codemode.add({ a: 1 })",
        "codemode.local.add({ a: 1 })",
        "local_add({ a: 1 })",
        "mcp_local_add({ a: 1 })",
        "local__add({ a: 1 })",
        "servers.local.add({ a: 1 })",
        "callTool('local.add', { a: 1 })",
        "call_tool('add', { a: 1 })",
        "mcp.callTool('add', { a: 1 })",
    ],
)
async def test_calls_in_the_style_of_other_systems_get_the_import(broker: Broker, call: str) -> None:
    response = await within(broker.run(f"{GIVES}await {call};"))
    assert IMPORT_ADD in (error_of(response, "UNCAUGHT_EXCEPTION").hint or "")
    assert all(IMPORT_ADD in (found.hint or "") for found in response.diagnostics)


@pytest.mark.parametrize(
    "code",
    [
        "await new Promise(() => {});",
        "setTimeout(() => {}, 20); await new Promise((resolve) => resolve.call);",
        f"{LOCAL}await add({{ a: 1 }}); for await (const x of [new Promise(() => {{}})]) x;",
    ],
)
@pytest.mark.parametrize("reuse", [True, False])
async def test_an_await_that_nothing_can_settle_ends_at_once(broker: Broker, code: str, reuse: bool) -> None:
    found = error_of(await within(broker.run(code, reuse=reuse)), "UNCAUGHT_EXCEPTION")
    assert "can never settle" in found.message and "resolve" in (found.hint or "")


@pytest.mark.parametrize("rows", [20, 400, 20_000])
async def test_a_long_message_leaves_the_place(broker: Broker, rows: int) -> None:
    thrown = (
        f"throw new Error(JSON.stringify(Array.from({{ length: {rows} }}, (_, id) => ({{ id }}))) + ' END');"
    )
    found = error_of(await within(broker.run(f"function f() {{\n  {thrown}\n}}\nf();")), "UNCAUGHT_EXCEPTION")
    assert found.path == "script.js:2:9" and "stack" not in (found.hint or "")
    assert found.message.endswith((" END", "…"))


@pytest.mark.parametrize(
    ("said", "of_payment", "of_look"),
    [
        ("timeout: the invoice may have been paid", "Look whether", "call it again"),
        ("the gateway timed out", "Look whether", "call it again"),
        ("HTTP 503 from the bank; connection reset", "Look whether", "call it again"),
        ("amount must be over 0", "Correct the input", "Correct the input"),
        ("invoice 17 is closed", "Correct the input", "Correct the input"),
    ],
)
async def test_the_hint_of_a_failed_call_fits_what_is_certain(
    broker: Broker, said: str, of_payment: str, of_look: str
) -> None:
    for name, wanted in (("pay", of_payment), ("look", of_look)):
        code = f'import {{ {name} }} from "@codemode/servers/local";\nawait {name}({{ said: "{said}" }});'
        hint = error_of(await within(broker.run(code)), "UNCAUGHT_EXCEPTION").hint or ""
        assert wanted in hint and ("Correct" in hint) == wanted.startswith("Correct"), hint


PRELUDE = """
    import * as plain from "@codemode/servers/plain";
    import * as discovery from "@codemode/discovery";
    const told = async (work) => {
        try { return { returned: await work() }; } catch (error) {
            const { name, message, hint, serverId, toolName, exportName, path, expected, received } = error;
            return { name, message, hint, serverId, toolName, exportName, path, expected, received };
        }
    };
"""
DONE = "globalThis.__codemode_result__ = null;"


async def run(broker: Broker, script: str) -> RunResponse:
    return await within(broker.run(PRELUDE + script))


async def refused(broker: Broker, expression: str, before: str = "") -> Any:
    """What the expression throws, of a run in which nothing else is wrong and no call was made."""
    response = await run(
        broker, f"{before}; globalThis.__codemode_result__ = await told(() => {expression});"
    )
    error = succeeded(response)
    # Members that an error of this kind does not have are undefined in its copy, and the input has a wrong type.
    assert all(found.severity != "error" for found in response.diagnostics) and response.tool_trace == []
    return error


REFUSED = [
    ("Promise.resolve(1)", "/a/text", "a Promise", "Await it"),
    ("new Map([['a', 1]])", "/a/text", "a Map", "Object.fromEntries"),
    ("new Set([1])", "/a/text", "a Set", "[...set]"),
    ("new Error('x')", "/a/text", "an Error", "message"),
    ("1234567890123456789", "/a/text", "1234567890123456800", "BigInt(value)"),
    ("loop", "/a/text/loop", "a circular reference", "refers back"),
    ("NaN", "/a/text", "NaN", "finite"),
]


@pytest.mark.parametrize(("value", "path", "received", "hint"), REFUSED)
async def test_what_json_cannot_carry_is_refused_with_its_place(
    broker: Broker, value: str, path: str, received: str, hint: str
) -> None:
    error = await refused(
        broker, f"plain.echo({{ a: {{ text: {value} }} }})", "const loop = {}; loop.loop = loop"
    )
    assert error["name"] == "SchemaValidationError"
    assert error["message"].startswith(f"The input of echo cannot be sent: at {path}, ")
    assert (error["path"], error["received"]) == (path, received)
    assert (error["serverId"], error["toolName"], error["exportName"]) == ("plain", "echo", "echo")
    assert error["expected"] in ("a JSON value", "an exact integer") and hint in error["hint"]


@pytest.mark.parametrize("depth", [129, 250, 20_000])
async def test_an_input_that_is_too_deep_is_told_as_such(broker: Broker, depth: int) -> None:
    deep = f"let deep = 1; for (let i = 1; i < {depth}; i++) deep = [deep]"
    error = await refused(broker, "plain.echo({ deep })", deep)
    assert error["name"] == "SchemaValidationError"
    assert error["message"] == "The input of echo cannot be sent: it is nested deeper than 128 levels."
    assert error["path"].startswith("/deep/0/0/") and error["received"] == "more than 128 levels"


async def test_an_input_over_the_cap_is_an_exception_and_the_run_goes_on(broker: Broker) -> None:
    error = await refused(broker, f"plain.echo({{ a: 'x'.repeat({MESSAGE_BYTES}) }})")
    assert error["name"] == "SchemaValidationError" and error["path"] == ""
    assert f"the maximum is {MESSAGE_BYTES}" in error["message"] and "split" in error["hint"]
    # A byte over it in UTF-8, though not in UTF-16.
    error = await refused(broker, f"plain.echo({{ a: 'é'.repeat({(MESSAGE_BYTES - 8) // 2 + 1}) }})")
    assert error["received"] == f"{MESSAGE_BYTES + 2} bytes"


async def test_an_input_as_large_as_the_cap_is_sent(broker: Broker) -> None:
    rest = MESSAGE_BYTES - len('{"bytes":5,"a":""}')
    response = await run(
        broker, f"globalThis.__codemode_result__ = await plain.flood({{ bytes: 5, a: 'x'.repeat({rest}) }});"
    )
    assert succeeded(response) == "fffff"
    error = await refused(broker, f"plain.flood({{ bytes: 5, a: 'x'.repeat({rest + 1}) }})")
    assert error["name"] == "SchemaValidationError"


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        ('discovery.searchTools("x", { limit: 1e19 })', "at /1/limit, 10000000000000000000 is beyond 2^53"),
        ("discovery.describeServer(Promise.resolve(1))", "at /0, a Promise has no JSON form"),
        (f"discovery.describeServer('x'.repeat({MESSAGE_BYTES}))", "it is too large"),
        ("discovery.searchTools('x'.repeat(65_600))", "the maximum is 65536"),
    ],
)
async def test_arguments_of_discovery_are_refused_the_same_way(
    broker: Broker, request_: str, why: str
) -> None:
    error = await refused(broker, request_)
    assert error["name"] == "CodemodeError" and why in error["message"] and error["hint"]


async def test_only_tool_calls_are_warned_of_when_not_awaited(broker: Broker) -> None:
    response = await run(broker, f"discovery.getTool('plain', 'echo'); discovery.listTools('plain'); {DONE}")
    assert response.diagnostics == []
    response = await run(broker, f"discovery.listTools('plain'); plain.echo({{}}).catch(() => {{}}); {DONE}")
    (warning,) = response.diagnostics
    assert warning.code == "CALLS_NOT_AWAITED" and "1 tool call(s)" in warning.message


async def test_data_urls_of_the_script_are_logged_as_they_are(broker: Broker) -> None:
    code = f"""const text = '{URLS}';
console.log(text); console.warn([text]);
try {{ throw new Error(text); }} catch (error) {{ console.error(error); }}
"""
    response = await within(broker.run(code))
    one, two, three = (entry.message for entry in response.logs)
    assert one == URLS and URLS in two.replace("\\", "")
    assert three == f"Error: {URLS}\n    at script.js:3:13"


@pytest.mark.parametrize(
    ("thrown", "message"),
    [
        (
            "new AggregateError([new Error('a'), new TypeError('b')], '2 of 2 failed')",
            "AggregateError: 2 of 2 failed (errors: Error: a | TypeError: b)",
        ),
        (
            "new AggregateError([1, 2, 3, 4, 5, 6], 'm')",
            "AggregateError: m (errors: 1 | 2 | 3 | 4 | … 2 more)",
        ),
        (
            "new SuppressedError(new Error('b'), new Error('a'), 'm')",
            "SuppressedError: m (error: Error: b; suppressed: Error: a)",
        ),
        ("Object.assign(new Error('m'), { errors: 'none' })", "Error: m"),
        (
            "Object.defineProperty(new AggregateError([], 'm'), 'errors', { get() { throw 1; } })",
            "AggregateError: m",
        ),
    ],
)
@pytest.mark.parametrize("how", ["throw THROWN;", "Promise.reject(THROWN); await 0;"])
async def test_errors_within_an_error_are_told(broker: Broker, thrown: str, message: str, how: str) -> None:
    found = error_of(await within(broker.run(how.replace("THROWN", thrown))), "UNCAUGHT_EXCEPTION")
    assert found.message.removeprefix("Unhandled rejection: ") == message


@pytest.mark.parametrize(
    ("server", "says"),
    [("broken", "not connected"), ("nix", "no such server"), ("x" * 5000, "no such server")],
)
async def test_a_computed_import_of_a_server_that_is_not_there(
    broker: Broker, server: str, says: str
) -> None:
    code = f"""
        import {{ ServerNotFoundError }} from "@codemode/errors";
        try {{ await import(`@codemode/servers/${{"{server}"}}`); }} catch (error) {{
            const {{ message, hint, serverId }} = error;
            globalThis.__codemode_result__ = [error instanceof ServerNotFoundError, message, hint, serverId];
        }}
    """
    right, message, hint, server_id = succeeded(await within(broker.run(code)))
    assert right and says in message and len(message) < 500
    assert server.startswith(server_id.removesuffix("…"))
    assert hint == "Connected servers: local, plain." if server != "broken" else hint


async def test_half_a_character_in_a_result_is_told(broker: Broker) -> None:
    code = "globalThis.__codemode_result__ = { cut: ['fine', '😀'.slice(0, 1)], text: '\\\\ud83d' };"
    response = await within(broker.run(code))
    assert response.result == {"cut": ["fine", "\ufffd"], "text": "\\ud83d"}
    (warning,) = response.diagnostics
    assert (warning.code, warning.path) == ("RESULT_NOT_JSON", "/cut/1")
    assert "surrogate" in warning.message


async def test_a_refusal_for_lack_of_credentials_is_told_as_that(broker: Broker) -> None:
    """Also where no HTTP status says it."""
    code = """
        import * as plain from "@codemode/servers/plain";
        import { AuthenticationError } from "@codemode/errors";
        const told = [];
        for (const message of ["Unauthorized", "401: invalid API key", "authorized users only"]) {
            try { await plain.refuse({ code: -32001, message }); } catch (error) {
                told.push([error instanceof AuthenticationError, error.hint]);
            }
        }
        globalThis.__codemode_result__ = told;
    """
    hint = "Correct the credentials of plain in Cellblock's configuration."
    assert succeeded(await within(broker.run(code))) == [
        [True, hint],
        [True, hint],
        [False, "Correct the call as the message says."],
    ]


@pytest.mark.parametrize(
    ("code", "error_class", "hint"),
    [
        ("await crypto.subtle.digest('a');", None, "The sandbox has no crypto.subtle: only randomUUID"),
        ("await performance.mark('a');", None, "The sandbox has no performance.mark: only now()"),
        ("await 1;\n```js\n2;\n```;", None, "Send the code alone, as JavaScript, without a Markdown fence"),
        (FRAMELESS, None, "Leave error.stack to the engine"),
        ("plain.echo();", None, 'Import it: `import * as plain from "@codemode/servers/plain";`'),
        ("echo();", None, 'Import it: `import { echo } from "@codemode/servers/plain";`'),
        ("Buffer.from('x');", None, "The sandbox has no Buffer: use Uint8Array"),
        ("import { eco } from '@codemode/servers/plain';", "ToolNotFoundError", "Did you mean echo"),
        ("import { getTol } from '@codemode/discovery';", "CodemodeError", "Did you mean getTool"),
        ("import 'node:timers/promises';", None, "In place of timers, use the global setTimeout"),
        ("import * as plain from '@codemode/servers/plain'; [].ecco();", None, "Correct the script at that"),
    ],
)
async def test_what_is_missing_is_told_with_what_is_there(
    broker: Broker, code: str, error_class: str | None, hint: str
) -> None:
    (found, *_) = (await within(broker.run(code, typecheck="off"))).diagnostics
    assert (found.severity, found.error_class) == ("error", error_class)
    assert (found.hint or "").startswith(hint)


async def test_a_call_without_await_is_told_however_fast_it_was(broker: Broker) -> None:
    code = """import * as plain from "@codemode/servers/plain";
        plain.echo({});
        await plain.wait({ ms: 100 });
        globalThis.__codemode_result__ = 1;
    """
    (found,) = (await within(broker.run(code))).diagnostics
    assert (found.code, found.path) == ("CALLS_NOT_AWAITED", "script.js:2:9")
    assert found.hint == "Write `await plain.echo(…)`."
    failed = await within(broker.run(f"{code} throw new Error('x');"))
    assert [found.code for found in failed.diagnostics] == ["UNCAUGHT_EXCEPTION", "CALLS_NOT_AWAITED"]
