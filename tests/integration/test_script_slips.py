"""Scripts as models send them: fenced, mangled on the way, or in the style of other systems; one real run for each."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from cellblock import Broker, tool
from support.brokers import ready
from support.entries import plain_server, settings
from support.responses import error_of, succeeded
from support.waits import within

SEVEN = "globalThis.__codemode_result__ = 7;"
LOCAL = 'import { add, rows } from "@codemode/servers/local";\n'
GIVES = "globalThis.__codemode_result__ = "
IMPORT_ADD = 'import { add } from "@codemode/servers/local";'
NOT_ASYNC = "not async: write `async`"


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
    folder = tmp_path_factory.mktemp("slips")
    patient = settings(folder, {"plain": plain_server()}, typecheck_timeout_ms=60_000)
    async with ready(patient, tools=[add, rows, pay, look]) as made:
        yield made


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
    ("code", "told"),
    [
        ("async function wipeEverything() { throw new Error('called'); }", "Nothing calls `wipeEverything`"),
        (f"function wipe() {{ {SEVEN} }}", "Nothing calls `wipe`"),
        ("const wipe = async () => { throw new Error('called'); };", "= await wipe();`"),
        ("const limit = 5; const twice = (n) => 2 * n;", "= limit;`"),
        ("void (async function () { return 1; })();", "= await (async function () { return 1; })();`"),
        ("async function main() { return 1; }\nmain().then(console.log);", "= await main();`"),
        (
            "const main = async () => 1;\nmain().then((r) => { console.log(r); }).catch(console.error);",
            "= await main();`",
        ),
    ],
)
async def test_what_gives_no_result_gets_the_statement_that_does(
    broker: Broker, code: str, told: str
) -> None:
    response = await within(broker.run(code))
    (found,) = response.diagnostics
    assert response.ok and response.result is None
    assert found.code == "NO_RESULT" and told in (found.hint or ""), found


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


async def test_a_script_that_waits_for_something_is_left_to_wait(broker: Broker) -> None:
    slow = f"await new Promise((done) => setTimeout(done, 700)); {SEVEN}"
    assert succeeded(await within(broker.run(slow))) == 7


@pytest.mark.parametrize("rows", [20, 400, 20_000])
async def test_a_long_message_leaves_the_place(broker: Broker, rows: int) -> None:
    thrown = (
        f"throw new Error(JSON.stringify(Array.from({{ length: {rows} }}, (_, id) => ({{ id }}))) + ' END');"
    )
    found = error_of(await within(broker.run(f"function f() {{\n  {thrown}\n}}\nf();")), "UNCAUGHT_EXCEPTION")
    assert found.path == "script.js:2:9" and "stack" not in (found.hint or "")
    assert found.message.endswith((" END", "…"))


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("crypto.subtle.digest('a')", "no crypto.subtle: only randomUUID"),
        ("performance.mark('a')", "no performance.mark: only now()"),
        ("1;\n```js\n2;\n```", "without a Markdown fence"),
    ],
)
async def test_what_is_not_there_is_named(broker: Broker, code: str, told: str) -> None:
    found = error_of(await within(broker.run(f"await {code};")), "UNCAUGHT_EXCEPTION")
    assert told in (found.hint or ""), found


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
