"""Sections 7.1 to 7.3 and 10: the classes, what they carry, and a hint on every error that an agent can get."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cellblock import Broker
from conformance.world import CAUGHT, CONTRACT, broker_with, evaluated, run, value
from support.entries import forked_server, ledger
from support.waits import within

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


@asynccontextmanager
async def refusing_server(status: int) -> AsyncIterator[str]:
    """The URL of a real HTTP server that answers every request with a status, such as 401."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 {status} No\r\nContent-Length: {len(REFUSAL)}\r\nConnection: close\r\n\r\n"
        writer.write(f"{head}{REFUSAL}".encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"


@asynccontextmanager
async def http_server(revoked: Path) -> AsyncIterator[dict[str, Any]]:
    """The entry of an SDK server over HTTP that answers with 401 once the file `revoked` exists."""
    command = forked_server(
        "sdk_server.py", "http", "--require-header", "X-Token=right", "--revoked", revoked
    )
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        line = await within(process.stdout.readline())
        yield {"url": f"http://127.0.0.1:{int(line.split()[1])}/mcp", "headers": {"X-Token": "right"}}
    finally:
        process.kill()
        await process.wait()


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
    code = f"""{IMPORTS}
        import * as plain from "@codemode/servers/plain";
        import * as local from "@codemode/servers/local";
        let is = [];
        try {{ await {call}; }} catch (error) {{
            is = [error instanceof errors.ToolCallError, error instanceof errors.CodemodeError,
                error.message, error.hint, error.serverId, error.toolName];
        }}
        globalThis.__codemode_result__ = [is, await contract.one_text()];
    """
    (*classes, message, hint, server_id, tool_name), after = await value(broker, code)
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
    assert error["path"] == pointer
    assert expected in str(error["expected"]) or expected in error["message"]
    assert received in str(error["received"])
    assert error["expected"] and error["received"] is not None and error["hint"]


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
    assert own == {"name": "Topaz", "count": 3}
    assert set(made) == {"name", "count"}
    accepted = await evaluated(broker, f"(await contract.checked({json.dumps(made)})).arguments", IMPORTS)
    assert accepted == made


@pytest.mark.clause("7.2.a")
async def test_python_tools_are_validated_too(broker: Broker) -> None:
    """The same fields from a signature's schema."""
    code = f"""{CAUGHT}import * as local from "@codemode/servers/local";
        globalThis.__codemode_result__ = [await local.add({{ a: 2 }}), await caught(() => local.add({{ a: "2" }})),
            await caught(() => local.add({{}})), await caught(() => local.add({{ a: 1, c: 2 }}))];
    """
    fine, wrong, missing, unknown = await value(broker, code)
    assert fine in (3, {"result": 3})
    for error in (wrong, missing, unknown):
        assert (error["name"], error["toolName"], error["exportName"]) == (
            "SchemaValidationError",
            "add",
            "add",
        )
        assert error["hint"] and error["expected"] and "path" in error
    assert wrong["path"] == "/a"


@pytest.mark.clause("7.1.a", "7.3.a")
async def test_an_unknown_tool_of_a_known_server(broker: Broker) -> None:
    """A namespace has no such function; discovery and a named import say so with a hint."""
    code = f"""{IMPORTS}import {{ getTool }} from "@codemode/discovery";
        globalThis.__codemode_result__ = [typeof contract.one_txet,
            await caught(() => getTool("contract", "one_txet"))];
    """
    kind, error = await value(broker, code)
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
    async with http_server(revoked) as entry, broker_with(tmp_path / "state", {"guarded": entry}) as broker:
        code = f"""{CAUGHT}import * as guarded from "@codemode/servers/guarded";
            import {{ AuthenticationError, ToolCallError, CodemodeError }} from "@codemode/errors";
            let is;
            try {{ is = await guarded.numbered_000(); }} catch (error) {{
                is = [error instanceof AuthenticationError, error instanceof ToolCallError,
                    error instanceof CodemodeError, error.name, error.hint];
            }}
            globalThis.__codemode_result__ = is;
        """
        assert await value(broker, code) == "numbered_000"
        revoked.touch()
        *classes, name, hint = await value(broker, code)
    assert classes == [True, True, True] and name == "AuthenticationError" and hint


@pytest.mark.clause("7.1.a", "3.2.3.d", "7.3.a")
@pytest.mark.parametrize("status", [401, 403])
async def test_credentials_that_are_refused_from_the_start(tmp_path: Path, status: int) -> None:
    """The server is not connected; its import says why, with a hint, and other servers do not suffer."""
    async with (
        refusing_server(status) as url,
        broker_with(
            tmp_path, {"guarded": {"url": url, "headers": {"Authorization": "Bearer wrong-77"}}}
        ) as broker,
    ):
        response = await run(broker, 'import * as guarded from "@codemode/servers/guarded";')
        [found] = response.diagnostics
        wanted = "correct the credentials of guarded in Cellblock's configuration"
        assert (found.code, found.hint) == ("IMPORT_FAILURE", f"Do without it, or ask the user ({wanted}).")
        assert f"HTTP {status}; it said: {REFUSAL}; {wanted}" in found.message
        assert "wrong-77" not in json.dumps(response.as_json())
        assert (await run(broker, "globalThis.__codemode_result__ = 1")).result == 1
