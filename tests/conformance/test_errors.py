"""Sections 7.1 to 7.3 and 10: the classes, what they carry, and a hint on every error that an agent can get."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cellblock import Broker
from conformance.world import CAUGHT, CONTRACT, Agent, broker_with, evaluated, run, value
from support.entries import http_server, ledger
from support.http_server import Answering, serving

SUBCLASSES = [
    "SchemaValidationError",
    "ToolNotFoundError",
    "ServerNotFoundError",
    "ToolCallError",
    "AuthenticationError",
    "SandboxLimitError",
]

IMPORTS = f'import * as errors from "@codemode/errors";\n{CONTRACT}{CAUGHT}'


REFUSAL = '{"error": "invalid_token", "error_description": "it has expired"}'


class Refusing(Answering):
    """Refuses every request, with the status that its path begins with."""

    def do_POST(self) -> None:
        self.body()
        self.answer(int(self.path.split("/")[1]), REFUSAL.encode())

    do_GET = do_POST


@pytest.mark.clause("4.5.a", "7.1.a")
async def test_the_classes(broker: Broker) -> None:
    """Six subclasses of CodemodeError, which is an Error; the names are their own; `instanceof` works."""
    found = await evaluated(
        broker,
        """Object.fromEntries(Object.entries(errors).map(([name, Class]) => {
            const made = new Class("message", { hint: "hint" });
            return [name, [made instanceof errors.CodemodeError, made instanceof Error, made instanceof Class,
                made.name, made.message, made.hint, Object.prototype.toString.call(made), String(made)]];
        }))""",
        IMPORTS,
    )
    assert set(found) == {"CodemodeError", *SUBCLASSES}
    for name, made in found.items():
        assert made == [True, True, True, name, "message", "hint", "[object Error]", f"{name}: message"]


@pytest.mark.clause("7.1.a", "10.b", "7.3.a")
@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("contract.fails({ text: 'told by the tool' })", "told by the tool"),
        ("contract.fails_silently()", ""),
        ("contract.fails_structured()", "another"),
        ("contract.refuses()", "refused, as told"),
        ("plain.fail({ text: 'plainly' })", "plainly"),
        ("plain.refuse()", "refuse"),
        ("plain.wrong_shape()", ""),
        ("local.explode({ text: 'boom' })", "boom"),
    ],
)
async def test_a_tool_that_fails_is_a_tool_call_error(broker: Broker, call: str, says: str) -> None:
    """For every kind of server and of failure; the script catches it and goes on."""
    (*classes, message, hint, server_id, tool_name), after = await value(
        broker,
        f"""{IMPORTS}
        import * as plain from "@codemode/servers/plain";
        import * as local from "@codemode/servers/local";
        let is = [];
        try {{ await {call}; }} catch (error) {{
            is = [error instanceof errors.ToolCallError, error instanceof errors.CodemodeError,
                error.message, error.hint, error.serverId, error.toolName];
        }}
        globalThis.__codemode_result__ = [is, await contract.one_text()];
    """,
    )
    assert classes == [True, True] and after == "just this"
    assert says in message and message and hint
    assert f"{server_id}.{tool_name}" == call.partition("(")[0]


@pytest.mark.clause("7.1.a")
async def test_a_tool_call_error_has_the_whole_result(broker: Broker) -> None:
    """What the server sent with `isError` is not lost."""
    result = await evaluated(
        broker, "await contract.fails_structured().catch((error) => error.result)", IMPORTS
    )
    assert result["isError"] is True and result["structuredContent"] == {"code": 7}
    assert [block["text"] for block in result["content"]] == ["one thing", "another"]


INVALID: list[tuple[str, str, str, str]] = [
    # input, JSON Pointer, expected, received
    ("{ count: 1 }", "/name", "string", ""),
    ("{}", "/name", "string", ""),
    ("undefined", "/name", "string", ""),
    ("{ name: 5, count: 1 }", "/name", "string", "number 5"),
    ("{ name: 'x', count: 1 }", "/name", "2", ""),
    ("{ name: 'xy', count: 0 }", "/count", "1", "number 0"),
    ("{ name: 'xy', count: 1.5 }", "/count", "integer", "number 1.5"),
    ("{ name: 'xy', count: '1' }", "/count", "integer", 'string "1"'),
    ("{ name: 'xy', count: 1, kind: 'plum' }", "/kind", "apple", 'string "plum"'),
    ("{ name: 'xy', count: 1, tags: ['a', 2] }", "/tags/1", "string", "number 2"),
    ("{ name: 'xy', count: 1, tags: 'a' }", "/tags", "array", 'string "a"'),
    ("{ name: 'xy', count: 1, 'a/b~c': { x: null } }", "/a~1b~0c/x", "number", "null"),
    ("null", "", "object", "null"),
    ("[]", "", "object", "empty array"),
    ("'text'", "", "object", 'string "text"'),
    ("7", "", "object", "number 7"),
]


@pytest.mark.clause("7.2.a", "7.3.a", "7.1.a")
@pytest.mark.parametrize(("given", "pointer", "expected", "received"), INVALID)
async def test_invalid_input(broker: Broker, given: str, pointer: str, expected: str, received: str) -> None:
    """A SchemaValidationError that names the tool, the place, what was wanted and what came."""
    error = await evaluated(broker, f"await caught(() => contract.checked_with_example({given}))", IMPORTS)
    assert error.get("name") == "SchemaValidationError", error
    assert (error["toolName"], error["exportName"]) == ("checked-with.example", "checked_with_example")
    assert error["path"] == pointer and error["hint"] and error["expected"]
    assert expected in str(error["expected"]) or expected in error["message"]
    assert error["received"] is not None and received in str(error["received"])


@pytest.mark.clause("7.2.a", "7.3.a")
async def test_an_unknown_property_is_told_with_the_nearest(broker: Broker) -> None:
    """A closed object and a name with a slip of the pen."""
    error = await evaluated(
        broker, "await caught(() => contract.checked({ name: 'xy', count: 1, tgas: [] }))", IMPORTS
    )
    assert error["name"] == "SchemaValidationError" and "tgas" in error["message"]
    assert "tags" in error["hint"]


@pytest.mark.clause("7.2.a", "11.c")
async def test_invalid_input_does_not_reach_the_server(broker: Broker, ledgers: Path) -> None:
    """Validation happens before the upstream is called; valid input passes."""

    def calls() -> list[Any]:
        found = ledger(ledgers / "contract.jsonl")
        return [event["arguments"] for event in found if event.get("tool") == "checked"]

    before = len(calls())
    invalid = "".join(f"await caught(() => contract.checked({given}));" for given, *_ in INVALID)
    await value(broker, f"{IMPORTS}{invalid}")
    assert calls()[before:] == []
    await value(broker, f"{IMPORTS} await contract.checked({{ name: 'xy', count: 1, kind: 'pear' }});")
    assert calls()[before:] == [{"name": "xy", "count": 1, "kind": "pear"}]


@pytest.mark.clause("7.2.b")
async def test_the_example_is_the_schemas_own_or_minimal(broker: Broker) -> None:
    """`examples` first; a synthesized one is itself valid and holds what is required."""
    own, made = await evaluated(
        broker,
        """[(await caught(() => contract.checked_with_example({}))).example,
            (await caught(() => contract.checked({}))).example]""",
        IMPORTS,
    )
    assert own == {"name": "Topaz", "count": 3} and set(made) == {"name", "count"}
    accepted = await evaluated(broker, f"(await contract.checked({json.dumps(made)})).arguments", IMPORTS)
    assert accepted == made


@pytest.mark.clause("7.2.a")
async def test_python_tools_are_validated_too(broker: Broker) -> None:
    """The same fields from a signature's schema."""
    fine, wrong, missing, unknown = await value(
        broker,
        f"""{CAUGHT}import * as local from "@codemode/servers/local";
        globalThis.__codemode_result__ = [await local.add({{ a: 2 }}), await caught(() => local.add({{ a: "2" }})),
            await caught(() => local.add({{}})), await caught(() => local.add({{ a: 1, c: 2 }}))];
    """,
    )
    assert fine in (3, {"result": 3})
    for error in (wrong, missing, unknown):
        named = (error["name"], error["toolName"], error["exportName"])
        assert named == ("SchemaValidationError", "add", "add")
        assert error["hint"] and error["expected"] and "path" in error
    assert wrong["path"] == "/a"


@pytest.mark.clause("7.1.a", "7.3.a")
async def test_an_unknown_tool_of_a_known_server(broker: Broker) -> None:
    """A namespace has no such function; discovery and a named import say so with a hint."""
    kind, error = await value(
        broker,
        f"""{IMPORTS}import {{ getTool }} from "@codemode/discovery";
        globalThis.__codemode_result__ = [typeof contract.one_txet,
            await caught(() => getTool("contract", "one_txet"))];
    """,
    )
    assert kind == "undefined"
    assert error["name"] == "ToolNotFoundError" and "one_text" in error["hint"]
    [found] = (await run(broker, 'import { one_txet } from "@codemode/servers/contract";')).diagnostics
    assert found.code == "IMPORT_FAILURE" and found.hint
    assert "one_text" in found.hint or "one_text" in found.message


@pytest.mark.clause("7.1.a", "7.3.a")
async def test_an_unknown_server_is_told_with_the_nearest(broker: Broker) -> None:
    """In a static import's diagnostic and in a dynamic import's exception."""
    error = await evaluated(broker, "await caught(() => import('@codemode/servers/contrat'))", IMPORTS)
    assert error["name"] == "ServerNotFoundError" and "contract" in error["hint"]
    [found] = (await run(broker, "import * as x from '@codemode/servers/contrat';")).diagnostics
    assert found.error_class == "ServerNotFoundError" and "contract" in (found.hint or "")


@pytest.mark.clause("3.3.3.a", "7.3.a")
@pytest.mark.parametrize(
    ("script", "error_class"),
    [
        ("await contract.fails({});", "ToolCallError"),
        ("await contract.checked({ name: 1 });", "SchemaValidationError"),
        (
            "await (await import('@codemode/discovery')).getTool('contract', 'none_such');",
            "ToolNotFoundError",
        ),
        ("await (await import('@codemode/discovery')).describeServer('none_such');", "ServerNotFoundError"),
        (
            "import('@codemode/servers/none_such'); await new Promise((r) => setTimeout(r, 100));",
            "ServerNotFoundError",
        ),
    ],
)
async def test_an_uncaught_error_keeps_its_class_and_hint(
    broker: Broker, script: str, error_class: str
) -> None:
    """In the diagnostic's `errorClass` and `hint`."""
    found, *others = (await run(broker, f"{CONTRACT}{script}")).diagnostics
    assert {other.code for other in others} <= {"TYPE_ERROR"}
    assert (found.severity, found.error_class) == ("error", error_class)
    assert found.hint and found.message


@pytest.mark.clause("7.1.a", "7.3.a")
async def test_credentials_that_are_refused_later(tmp_path: Path) -> None:
    """A call that the server answers with 401 is an AuthenticationError, which is a ToolCallError."""
    revoked = tmp_path / "revoked"
    code = f"""{CAUGHT}import * as guarded from "@codemode/servers/guarded";
        import {{ AuthenticationError, ToolCallError, CodemodeError }} from "@codemode/errors";
        let is;
        try {{ is = await guarded.numbered_000(); }} catch (error) {{
            is = [error instanceof AuthenticationError, error instanceof ToolCallError,
                error instanceof CodemodeError, error.name, error.hint];
        }}
        globalThis.__codemode_result__ = is;
    """
    with http_server("--require-header", "X-Token=right", "--revoked", str(revoked)) as url:
        guarded = {"url": url, "headers": {"X-Token": "right"}}
        async with broker_with(tmp_path / "state", {"guarded": guarded}) as broker:
            assert await value(broker, code) == "numbered_000"
            revoked.touch()
            *classes, name, hint = await value(broker, code)
    assert classes == [True, True, True] and name == "AuthenticationError" and hint


@pytest.mark.clause("7.1.a", "3.2.3.d", "7.3.a")
@pytest.mark.parametrize("status", [401, 403])
async def test_credentials_that_are_refused_from_the_start(tmp_path: Path, status: int) -> None:
    """The server is not connected; its import says why, with a hint, and other servers do not suffer."""
    with serving(Refusing) as origin:
        guarded = {"url": f"http://{origin}/{status}/mcp", "headers": {"Authorization": "Bearer wrong-77"}}
        async with broker_with(tmp_path, {"guarded": guarded}) as broker:
            response = await run(broker, 'import * as guarded from "@codemode/servers/guarded";')
            assert (await run(broker, "globalThis.__codemode_result__ = 1")).result == 1
    [found] = response.diagnostics
    wanted = "correct the credentials of guarded in Cellblock's configuration"
    assert (found.code, found.hint) == ("IMPORT_FAILURE", f"Do without it, or ask the user ({wanted}).")
    assert f"HTTP {status}; it said: {REFUSAL}; {wanted}" in found.message
    assert "wrong-77" not in json.dumps(response.as_json())


@dataclass(frozen=True)
class Failure:
    """A script, the code and place of its diagnostic, and texts that its message must have."""

    script: str
    code: str
    path: str
    says: tuple[str, ...] = ()
    logs: tuple[str, ...] = ()


UNCAUGHT, SYNTAX, IMPORT = "UNCAUGHT_EXCEPTION", "SYNTAX_ERROR", "IMPORT_FAILURE"

FAILURES: dict[str, Failure] = {
    "syntax error on line 3": Failure(
        "const a = 1;\nconsole.log(a);\nconst const = 2;\n", SYNTAX, "script.js:3:7", ("SyntaxError",)
    ),
    "syntax error at the end": Failure("console.log('x');\nif (true) {\n", SYNTAX, "script.js:2:12"),
    "await in a function that is not async": Failure(
        "function f() {\n  await 1;\n}\n", SYNTAX, "script.js:2:3", ("SyntaxError",)
    ),
    "a name declared twice": Failure("let twice = 1;\n  let twice = 2;", SYNTAX, "script.js:2:7", ("twice",)),
    "a syntax error after an import": Failure(
        f"{CONTRACT}const x = ;\n", SYNTAX, "script.js:2:11", ("SyntaxError",)
    ),
    "TypeScript that cannot be stripped": Failure(
        "interface Point { x: number }\nconst p: Point = { x: 1 };\nconst q: = 3;\n", SYNTAX, "script.js:3:10"
    ),
    "a syntax error behind a large script": Failure(
        f"const data = '{'x' * 60_000}';\n\nconst = 1;", SYNTAX, "script.js:3:7", ("SyntaxError",)
    ),
    "an exception in a nested function": Failure(
        "console.log('before');\nfunction outer() {\n  const inner = () => {\n"
        "    throw new TypeError('deep inside');\n  };\n  inner();\n}\nouter();\n",
        UNCAUGHT,
        "script.js:4:11",
        ("TypeError", "deep inside"),
        ("before",),
    ),
    "an exception of the engine": Failure(
        "console.log('before');\nconst nothing = undefined;\nconsole.log(nothing.property);\n",
        UNCAUGHT,
        "script.js:3:21",
        ("TypeError", "property"),
        ("before",),
    ),
    "an unknown name": Failure("const a = 1;\n  missing();", UNCAUGHT, "script.js:2:3", ("missing",)),
    "an exception after an import on its line": Failure(
        CONTRACT.strip() + " throw new Error('same line');",
        UNCAUGHT,
        f"script.js:1:{len(CONTRACT.strip()) + 8}",
        ("same line",),
    ),
    "an exception beside a dynamic import": Failure(
        'await import("@codemode/servers/contract"); await import("@codemode/errors"); throw new Error("late");',
        UNCAUGHT,
        "script.js:1:85",
    ),
    "an exception behind astral characters": Failure(
        "const s = '😀😀'; throw new Error('wide');", UNCAUGHT, "script.js:1:25", ("wide",)
    ),
    "an exception in TypeScript": Failure(
        "interface A { a: number }\nconst a: A = { a: 1 };\nfunction f(x: A): never {\n"
        "  throw new Error(`got ${x.a}`);\n}\nf(a);\n",
        UNCAUGHT,
        "script.js:4:9",
        ("got 1",),
    ),
    "an exception after an await": Failure(
        "await new Promise((r) => setTimeout(r, 5));\nthrow new Error('later');", UNCAUGHT, "script.js:2:7"
    ),
    "an exception in a timer": Failure(
        "setTimeout(() => {\n  throw new Error('tick');\n}, 5);\nawait new Promise((r) => setTimeout(r, 500));",
        UNCAUGHT,
        "script.js:2:9",
        ("tick",),
    ),
    "an unhandled rejection": Failure(
        "globalThis.__codemode_result__ = 'early'; console.log('before');\n"
        "Promise.reject(new RangeError('nobody cares'));\nawait new Promise((r) => setTimeout(r, 50));",
        UNCAUGHT,
        "script.js:2:16",
        ("Unhandled rejection: RangeError: nobody cares",),
        ("before",),
    ),
    "an unhandled rejection of an async function": Failure(
        "async function f() {\n  await null;\n  throw new Error('in f');\n}\nf();\n"
        "await new Promise((r) => setTimeout(r, 50));",
        UNCAUGHT,
        "script.js:3:9",
        ("in f",),
    ),
    "an uncaught error of a tool": Failure(
        f"{CONTRACT}console.log('before');\nawait contract.fails({{ text: 'no such file' }});\n",
        UNCAUGHT,
        "script.js:3:1",
        ("no such file",),
        ("before",),
    ),
    "a module that there is not": Failure(
        "console.log('x');\nimport _ from 'lodash';\n", IMPORT, "script.js:2:15", ("lodash",)
    ),
    "a relative module": Failure("import './helper.js';", IMPORT, "script.js:1:8", ("./helper.js",)),
    "a module of Node": Failure("import fs from 'node:fs';", IMPORT, "script.js:1:16", ("node:fs",)),
    "a module of npm": Failure("import 'npm:left-pad';", IMPORT, "script.js:1:8", ("npm:left-pad",)),
    "a module of the network": Failure(
        "import 'https://example.com/x.js';", IMPORT, "script.js:1:8", ("https://example.com/x.js",)
    ),
    "a data: module": Failure("import 'data:text/javascript,export{}';", IMPORT, "script.js:1:8"),
    "a server that there is not": Failure(
        "import * as x from '@codemode/servers/contrakt';", IMPORT, "script.js:1:20", ("contrakt",)
    ),
    "a built-in module that there is not": Failure(
        "import x from '@codemode/discover';", IMPORT, "script.js:1:15", ("@codemode/discover",)
    ),
    "an export that there is not": Failure(
        '\nimport { one_text, one_txet } from "@codemode/servers/contract";\n',
        IMPORT,
        "script.js:2:20",
        ("one_txet",),
    ),
    "an export that discovery has not": Failure(
        'import { listTool } from "@codemode/discovery";', IMPORT, "script.js:1:10", ("listTool",)
    ),
    "an uncaught dynamic import": Failure(
        "console.log('before');\nawait import('node:fs');",
        IMPORT,
        "script.js:2:14",
        ("node:fs",),
        ("before",),
    ),
}


@pytest.mark.clause("3.3.4.a", "3.3.4.b", "3.3.3.a", "7.3.a")
@pytest.mark.parametrize("what", FAILURES)
async def test_a_failing_script_is_diagnosed(broker: Broker, what: str) -> None:
    """One error with its code, a hint, the exact place, no result, and what was logged before."""
    failure = FAILURES[what]
    early = "globalThis.__codemode_result__ = 'early';"
    response = await run(broker, f"{failure.script}\n{early if failure.code == UNCAUGHT else ''}")
    [found] = [found for found in response.diagnostics if found.severity == "error"]
    assert (found.code, found.path) == (failure.code, failure.path), response.as_json()
    assert found.hint and "base64" not in found.message
    assert all(text in found.message for text in failure.says), found
    assert response.result is None and [entry.message for entry in response.logs] == list(failure.logs)


@pytest.mark.clause("3.3.4.a", "3.3.4.b")
@pytest.mark.parametrize(
    ("thrown", "says"),
    [
        ("'just text'", "just text"),
        ("42", "42"),
        ("null", "null"),
        ("undefined", "undefined"),
        ("Symbol('sym')", "Symbol(sym)"),
        ("10n", "10"),
        ("{ code: 7 }", '{"code":7}'),
        ("Object.create(null)", ""),
        ("[1, 2]", "[1,2]"),
        ("{ get message() { throw 1; } }", ""),
        ("new Proxy({}, { get() { throw 1; }, getPrototypeOf() { throw 2; } })", ""),
        ("Object.defineProperty(new Error('x'), 'message', { get() { throw 1; } })", ""),
        ("Object.defineProperty(new Error('x'), 'stack', { value: 5 })", "x"),
        ("new (class Custom extends Error { name = 'Custom'; })('own class')", "Custom: own class"),
        ("new AggregateError([new Error('one')], 'several')", "several"),
        ("new Error('outer', { cause: new Error('inner') })", "inner"),
    ],
)
async def test_whatever_is_thrown_is_told(broker: Broker, thrown: str, says: str) -> None:
    """Also what is no error, and what fights being read; a result that was assigned before is not given."""
    early = "globalThis.__codemode_result__ = 'early';"
    response = await run(broker, f"{early} console.log('before');\nthrow {thrown};")
    [found] = response.diagnostics
    assert (found.severity, found.code) == ("error", UNCAUGHT) and found.hint
    assert says in found.message and found.message and not found.message.startswith("Thrown value")
    assert response.result is None and [entry.message for entry in response.logs] == ["before"]


@pytest.mark.clause("3.3.4.a")
async def test_a_rejection_that_is_handled_later_is_none(broker: Broker) -> None:
    """What is caught in the end does not fail the script."""
    response = await run(
        broker,
        "const p = Promise.reject(new Error('x')); await new Promise((r) => setTimeout(r, 20));"
        "await p.catch(() => {}); globalThis.__codemode_result__ = 'fine';",
    )
    assert (response.result, response.diagnostics) == ("fine", [])


@pytest.mark.clause("3.3.4.a", "11.a")
async def test_a_script_that_never_settles_ends_at_its_deadline(broker: Broker) -> None:
    """With nothing left to wait for or with timers for ever, the answer comes in time."""
    for script in (
        "console.log('before'); await new Promise(() => {});",
        "console.log('before'); const again = () => setTimeout(again, 10); again(); await new Promise(() => {});",
    ):
        response = await run(broker, script, timeoutMs=400)
        assert response.result is None and [entry.message for entry in response.logs] == ["before"]
        [found] = response.diagnostics
        assert found.severity == "error" and found.hint


@pytest.mark.clause("3.3.4.a", "3.3.3.a")
async def test_failures_are_no_errors_of_the_outer_tool(agent: Agent) -> None:
    """What an MCP client sees: a result without `isError`, with the diagnostic in it."""
    scripts: dict[str, Any] = {
        SYNTAX: "const = 1;",
        UNCAUGHT: "throw new Error('x');",
        IMPORT: "import 'left-pad';",
        "SANDBOX_LIMIT": "for (;;) {}",
    }
    for code, script in scripts.items():
        result = await agent.call({"code": script, "limits": {"timeoutMs": 700}})
        response = result.structured_content
        assert not result.is_error and response is not None
        assert [found["code"] for found in response["diagnostics"]] == [code] and response["result"] is None
