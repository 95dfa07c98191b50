"""Sections 3.3.3 and 3.3.4: scripts that fail, and diagnostics that point into the agent's own source."""

from dataclasses import dataclass
from typing import Any

import pytest

from cellblock import Broker
from conformance.world import CONTRACT, Agent, run


@dataclass(frozen=True)
class Failure:
    """A script, the code and place of its diagnostic, and texts that its message must have."""

    script: str
    code: str
    path: str | None
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
        "console.log('before');\nPromise.reject(new RangeError('nobody cares'));\n"
        "await new Promise((r) => setTimeout(r, 50));",
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
    errors = [found for found in response.diagnostics if found.severity == "error"]
    assert [found.code for found in errors] == [failure.code], response.as_json()
    [found] = errors
    assert all(text in found.message for text in failure.says), found
    assert found.hint
    assert "base64" not in found.message
    if failure.path is not None:
        assert found.path == failure.path
    assert response.result is None
    assert [entry.message for entry in response.logs] == list(failure.logs)


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
    """Also what is no error, and what fights being read."""
    response = await run(broker, f"console.log('before');\nthrow {thrown};")
    [found] = response.diagnostics
    assert (found.severity, found.code) == ("error", UNCAUGHT)
    assert says in found.message and found.message and found.hint
    assert not found.message.startswith("Thrown value")
    assert response.result is None and [entry.message for entry in response.logs] == ["before"]


@pytest.mark.clause("3.3.4.a")
async def test_a_result_assigned_before_a_failure_is_not_given(broker: Broker) -> None:
    """Section 3.3.4: null, however the script fails."""
    early = "globalThis.__codemode_result__ = 1;"
    for script in (
        f"{early} throw 1;",
        f"{early} Promise.reject(1); await new Promise((r) => setTimeout(r, 20));",
    ):
        assert (await run(broker, script)).result is None


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
        assert response.result is None
        assert [entry.message for entry in response.logs] == ["before"]
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
        assert not result.is_error
        assert isinstance(result.structured_content, dict)
        assert [found["code"] for found in result.structured_content["diagnostics"]] == [code]
        assert result.structured_content["result"] is None
        assert "result" in result.structured_content
