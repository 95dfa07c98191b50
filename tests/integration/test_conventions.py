"""Results that are exported or returned, and scripts that give none: one real run for each."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from cellblock import Broker
from cellblock.run.response import RunResponse
from support.brokers import ready
from support.entries import plain_server, settings
from support.waits import within

PLAIN = 'import * as plain from "@codemode/servers/plain";\n'
ONE = f"{PLAIN}const one = await plain.echo({{ a: 1 }});\n"


@pytest.fixture(scope="module")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    # A finding that comes later than a response waits for the next: here each is waited for.
    patient = {"typecheck_timeout_ms": 60_000}
    folder = tmp_path_factory.mktemp("state")
    async with ready(settings(folder, {"plain": plain_server()}, **patient)) as made:
        yield made


async def run(broker: Broker, code: str) -> RunResponse:
    return await within(broker.run(code))


def told(response: RunResponse) -> list[tuple[str, str]]:
    return [(found.severity, found.code) for found in response.diagnostics]


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
    ],
)
async def test_results_by_convention(broker: Broker, code: str, result: Any) -> None:
    response = await run(broker, PLAIN + code)
    assert (response.result, response.diagnostics) == (result, [])


@pytest.mark.parametrize(
    ("code", "path"),
    [
        ("\n async () => { await null;\n  null.x }", "script.js:3:8"),
        ("\n  if (1) { null.x } return 1", "script.js:2:17"),
        ("return null.x", "script.js:1:13"),
        ("export default () => null.x", "script.js:1:27"),
        ("const a: string = 'é'; return null.x as string", "script.js:1:36"),
    ],
)
async def test_failures_are_told_at_their_place(broker: Broker, code: str, path: str) -> None:
    response = await run(broker, code)
    assert told(response) == [("error", "UNCAUGHT_EXCEPTION")]
    assert response.diagnostics[0].path == path


async def test_a_script_without_a_result_is_told_the_fix(broker: Broker) -> None:
    silent = await run(broker, ONE)
    assert (silent.result, told(silent)) == (None, [("warning", "NO_RESULT")])
    assert silent.diagnostics[0].hint == "Add at the end: `globalThis.__codemode_result__ = one;`"
    logged = await run(broker, f"{ONE}console.log(one)")
    assert told(logged) == [("info", "NO_RESULT")]
    undefined = await run(broker, f"{ONE}globalThis.__codemode_result__ = one.tow;")
    assert told(undefined) == [("warning", "NO_RESULT"), ("warning", "TYPE_ERROR")]
    assert "is undefined at the end" in undefined.diagnostics[0].message
    returned = await run(broker, f"{ONE}if (!one) return 1;")
    assert told(returned) == [("warning", "NO_RESULT")] and "returns" in returned.diagnostics[0].message
    assert told(await run(broker, "globalThis.__codemode_result__ = null")) == []
    assert told(await run(broker, "throw 1")) == [("error", "UNCAUGHT_EXCEPTION")]
