"""Scripts that ask for much at once and come to the answers later: they wait for nobody but themselves.

Errors as large or as deep as scripts and servers can make them are told, and cost nobody else anything.
"""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from cellblock import Broker, InvalidRequest
from support.brokers import ready
from support.entries import plain_server, settings
from support.params import mostly
from support.responses import error_of, succeeded
from support.waits import within

MESSAGE_BYTES = 1 << 20
TOOL = {
    "description": "x" * 2_000,
    "inputSchema": {
        "type": "object",
        "properties": {f"member_{number}": {"type": "string"} for number in range(30)},
    },
}

COMPUTE = "for (const until = performance.now() + 700; performance.now() < until;) {}"


@pytest.fixture(scope="module")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    folder = tmp_path_factory.mktemp("parallel")
    definitions = folder / "definitions.json"
    tools = [{"name": f"tool_{number}", **TOOL} for number in range(30)]
    definitions.write_text(json.dumps({"pages": [tools]}))
    config = settings(
        folder,
        {"plain": plain_server(), "many": plain_server("--definitions", definitions)},
        pool={"capacity": 4},
        max_message_bytes=MESSAGE_BYTES,
        limits={"max_log_bytes": [65_536, 65_536]},
    )
    async with ready(config) as started:
        yield started


async def test_discovery_requests_queue(broker: Broker) -> None:
    code = f"""
        import {{ listTools, searchTools }} from "@codemode/discovery";
        const one = JSON.stringify(await listTools("many", {{ detail: "full" }}));
        const asked = Array.from({{ length: 300 }}, () => listTools("many", {{ detail: "full" }}));
        asked.push(searchTools("tool"));
        {COMPUTE}
        const found = await Promise.all(asked);
        found.pop();
        globalThis.__codemode_result__ = [
            one.length > 50_000 && 300 * one.length > 8 * {MESSAGE_BYTES},
            found.every((each) => JSON.stringify(each) === one),
        ];
    """
    assert succeeded(await within(broker.run(code))) == [True, True]


async def test_answers_of_calls_wait_for_a_script_that_computes(broker: Broker) -> None:
    code = f"""
        import {{ flood }} from "@codemode/servers/plain";
        const asked = Array.from({{ length: 60 }}, () => flood({{ bytes: 120_000 }}));
        {COMPUTE}
        globalThis.__codemode_result__ = (await Promise.all(asked)).map((text) => text.length);
    """
    response = await within(broker.run(code))
    assert succeeded(response) == [120_000] * 60 and response.usage.tool_calls == 60


async def test_300_calls_at_once_are_made_if_so_many_may_be(broker: Broker) -> None:
    code = """
        import { echo } from "@codemode/servers/plain";
        const asked = Array.from({ length: 300 }, (_, number) => echo({ number }));
        globalThis.__codemode_result__ = (await Promise.all(asked)).length;
    """
    response = await within(broker.run(code, limits={"maxToolCalls": 300}))
    assert succeeded(response) == 300
    response = await within(broker.run(code, limits={"maxToolCalls": 299}))
    assert "maxToolCalls = 299" in error_of(response, "SANDBOX_LIMIT").message


async def test_a_request_over_the_cap_is_refused_in_the_sandbox(broker: Broker) -> None:
    code = """
        import { searchTools } from "@codemode/discovery";
        try { await searchTools("x".repeat(65_600)); } catch ({ name, message }) {
            globalThis.__codemode_result__ = [name, message];
        }
    """
    name, message = succeeded(await within(broker.run(code)))
    assert name == "CodemodeError" and "the maximum is 65536" in message


@pytest.mark.parametrize(
    ("code", "fails"),
    [
        (
            """
            const text = "\\0".repeat(10_000);
            const error = new Error(text);
            Object.assign(error, { name: text, stack: text, hint: text, path: text, errors: Array(9).fill(text) });
            error.cause = new Error(text, { cause: new Error(text, { cause: new Error(text, { cause: text }) }) });
            throw error;
            """,
            True,
        ),
        ("throw '\\0'.repeat(100_000);", True),
        (
            """
            const named = { ["\\0".repeat(100_000)]() {} };
            globalThis.__codemode_result__ = Array(30).fill(Object.values(named)[0]);
            """,
            False,
        ),
    ],
    ids=["an error", "a thrown text", "notices"],
)
async def test_what_the_sandbox_tells_by_itself_fits_its_caps(broker: Broker, code: str, fails: bool) -> None:
    response = await within(broker.run(code))
    codes = [each.code for each in response.diagnostics]
    assert response.ok is not fails and codes
    assert "PROTOCOL_VIOLATION" not in codes and codes[0] != "WORKER_CRASHED"


TOLD = """
    const told = async (work) => {
        try { await work(); return "no error"; } catch ({ name, message, certainty }) {
            return [name, message.length < 5000, certainty ?? null];
        }
    };
"""


@pytest.mark.parametrize(
    "call",
    mostly(
        [
            'discovery.listTools("\\u0000".repeat(150_000))',
            "plain.refuse({ bytes: 3_000_000 })",
            "plain.deep({ depth: 150, error: true })",
        ],
        [
            'discovery.describeServer("x".repeat(700_000))',
            'discovery.listTools("\\u0000".repeat(150_000))',
            'discovery.getTool("plain", "x".repeat(700_000))',
            'discovery.searchTools("x", { serverId: "x".repeat(700_000) })',
            'discovery.searchTools("x", { detail: "x".repeat(700_000) })',
            "plain.refuse({ bytes: 3_000_000 })",
            "plain.fail({ text: 'x'.repeat(900_000) })",
            "plain.deep({ depth: 150, error: true })",
        ],
    ),
)
async def test_a_huge_error_is_told_and_nobody_else_loses_a_run(broker: Broker, call: str) -> None:
    host = broker.host_pid
    other = asyncio.create_task(
        broker.run(
            "await new Promise((done) => setTimeout(done, 700)); globalThis.__codemode_result__ = 'here';"
        )
    )
    code = f"""
        import * as discovery from "@codemode/discovery";
        import * as plain from "@codemode/servers/plain";
        {TOLD}
        globalThis.__codemode_result__ = await told(() => {call});
    """
    name, is_short, certainty = succeeded(await within(broker.run(code)))
    assert is_short and name != "Error"
    if call.startswith("plain."):
        assert certainty == ("may_have_run" if "refuse" in call else "completed")
    assert succeeded(await within(other)) == "here"
    assert broker.host_pid == host


async def test_an_import_of_any_length_is_refused_in_short_words(broker: Broker) -> None:
    response = await within(broker.run(f'import "{"x" * 500_000}";'))
    assert len(error_of(response, "IMPORT_FAILURE").message) < 1000
    response = await within(
        broker.run("globalThis.__codemode_result__ = 1", requested_capabilities=["x" * 200])
    )
    (warning,) = response.diagnostics
    assert warning.code == "CAPABILITY_UNAVAILABLE" and len(warning.message) < 1000
    with pytest.raises(InvalidRequest, match="at most 200 characters") as caught:
        await within(broker.run("1", requested_capabilities=["x" * 500_000]))
    assert len(str(caught.value)) < 1000
