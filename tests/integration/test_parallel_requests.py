"""Scripts that ask for much at once and come to the answers later: they wait for nobody but themselves."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cellblock import Broker
from support.brokers import ready
from support.entries import plain_server, settings
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
    folder: Path = tmp_path_factory.mktemp("parallel")
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
    assert "PROTOCOL_VIOLATION" not in [each.code for each in response.diagnostics]
    if not fails:
        assert response.ok and response.diagnostics
    else:
        assert not response.ok and response.diagnostics[0].code != "WORKER_CRASHED"
