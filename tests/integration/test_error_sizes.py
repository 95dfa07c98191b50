"""Errors as large or as deep as scripts and servers can make them: they are told, and cost nobody else anything."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from cellblock import Broker, InvalidRequest
from support.brokers import ready
from support.entries import plain_server, settings
from support.params import mostly
from support.responses import error_of, succeeded
from support.waits import within

MESSAGE_BYTES = 1 << 20

TOLD = """
    const told = async (work) => {
        try { await work(); return "no error"; } catch ({ name, message, certainty }) {
            return [name, message.length < 5000, certainty ?? null];
        }
    };
"""


@pytest.fixture(scope="module")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    config = settings(
        tmp_path_factory.mktemp("sizes"),
        {"plain": plain_server()},
        pool={"capacity": 4},
        max_message_bytes=MESSAGE_BYTES,
        limits={"max_log_bytes": [65_536, 65_536]},
    )
    async with ready(config) as started:
        yield started


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
    if call.startswith("plain.refuse"):
        assert certainty == "may_have_run"
    elif call.startswith("plain."):
        assert certainty == "completed"
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
