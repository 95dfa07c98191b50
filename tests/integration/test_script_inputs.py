"""Inputs that cannot be sent: refused before anything is, where the script can catch it, with their place."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from cellblock import Broker, RunResponse
from support.brokers import ready
from support.entries import plain_server, settings
from support.responses import succeeded
from support.waits import within

MESSAGE_BYTES = 1 << 20

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


@pytest.fixture(scope="module")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    config = settings(
        tmp_path_factory.mktemp("inputs"), {"plain": plain_server()}, max_message_bytes=MESSAGE_BYTES
    )
    async with ready(config) as started:
        yield started


async def run(broker: Broker, script: str) -> RunResponse:
    return await within(broker.run(PRELUDE + script))


async def told(broker: Broker, expression: str, before: str = "") -> Any:
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
    loop = "const loop = {}; loop.loop = loop"
    error = await told(broker, f"plain.echo({{ a: {{ text: {value} }} }})", loop)
    assert error["name"] == "SchemaValidationError"
    assert error["message"].startswith(f"The input of echo cannot be sent: at {path}, ")
    assert (error["path"], error["received"]) == (path, received)
    assert (error["serverId"], error["toolName"], error["exportName"]) == ("plain", "echo", "echo")
    assert error["expected"] in ("a JSON value", "an exact integer") and hint in error["hint"]


@pytest.mark.parametrize("depth", [129, 250, 20_000])
async def test_an_input_that_is_too_deep_is_told_as_such(broker: Broker, depth: int) -> None:
    deep = f"let deep = 1; for (let i = 1; i < {depth}; i++) deep = [deep]"
    error = await told(broker, "plain.echo({ deep })", deep)
    assert error["name"] == "SchemaValidationError"
    assert error["message"] == "The input of echo cannot be sent: it is nested deeper than 128 levels."
    assert error["path"].startswith("/deep/0/0/") and error["received"] == "more than 128 levels"


async def test_the_deepest_input_reaches_the_tool(broker: Broker) -> None:
    deep = "let deep = 1; for (let i = 1; i < 128; i++) deep = [deep];"
    response = await run(
        broker, f"{deep} globalThis.__codemode_result__ = (await plain.echo({{ deep }})).length"
    )
    assert succeeded(response) > 250


async def test_an_input_over_the_cap_is_an_exception_and_the_run_goes_on(broker: Broker) -> None:
    error = await told(broker, f"plain.echo({{ a: 'x'.repeat({MESSAGE_BYTES}) }})")
    assert error["name"] == "SchemaValidationError" and error["path"] == ""
    assert f"the maximum is {MESSAGE_BYTES}" in error["message"] and "split" in error["hint"]
    # A byte over it in UTF-8, though not in UTF-16.
    error = await told(broker, f"plain.echo({{ a: 'é'.repeat({(MESSAGE_BYTES - 8) // 2 + 1}) }})")
    assert error["received"] == f"{MESSAGE_BYTES + 2} bytes"


async def test_an_input_as_large_as_the_cap_is_sent(broker: Broker) -> None:
    rest = MESSAGE_BYTES - len('{"bytes":5,"a":""}')
    response = await run(
        broker, f"globalThis.__codemode_result__ = await plain.flood({{ bytes: 5, a: 'x'.repeat({rest}) }});"
    )
    assert succeeded(response) == "fffff"
    error = await told(broker, f"plain.flood({{ bytes: 5, a: 'x'.repeat({rest + 1}) }})")
    assert error["name"] == "SchemaValidationError"


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        ('discovery.searchTools("x", { limit: 1e19 })', "at /1/limit, 10000000000000000000 is beyond 2^53"),
        ("discovery.describeServer(Promise.resolve(1))", "at /0, a Promise has no JSON form"),
        (f"discovery.describeServer('x'.repeat({MESSAGE_BYTES}))", "it is too large"),
    ],
)
async def test_arguments_of_discovery_are_refused_the_same_way(
    broker: Broker, request_: str, why: str
) -> None:
    error = await told(broker, request_)
    assert error["name"] == "CodemodeError" and why in error["message"] and error["hint"]


async def test_only_tool_calls_are_warned_of_when_not_awaited(broker: Broker) -> None:
    response = await run(broker, f"discovery.listServers(); discovery.listTools('plain'); {DONE}")
    assert response.diagnostics == []
    response = await run(broker, f"discovery.listServers(); plain.echo({{}}).catch(() => {{}}); {DONE}")
    (warning,) = response.diagnostics
    assert warning.code == "CALLS_NOT_AWAITED" and "1 tool call(s)" in warning.message


async def test_calls_that_were_answered_or_refused_are_not_in_flight(broker: Broker) -> None:
    script = (
        "await plain.echo({}); await told(() => plain.fail({ text: 'x' })); await told(() => plain.echo(1n));"
    )
    assert (await run(broker, script + DONE)).diagnostics == []
