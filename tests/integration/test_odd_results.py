"""Results that the SDK's models refuse, or that are large or deep, reach scripts by the rules of section 5.3.2."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from cellblock.types.lookup import inspect_tool
from support.brokers import ready
from support.entries import plain_server, settings
from support.responses import succeeded

pytestmark = pytest.mark.thorough

REVISIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""All that begin with `initialize`; the newest is that of `tests/conformance`."""

WIDGET: Final = {"type": "widget", "data": {"rows": [None]}}
TEXT: Final = {"type": "text", "text": "beside it"}
LARGE: Final = "x" * 300_000
"""Over what is read on the loop."""

VALUES: Final[list[Any]] = [[1, {"a": None}], [], "text", 0, 1.5, False, True, None, [LARGE]]


def script(server: str, results: list[Any]) -> str:
    texts = json.dumps([f'"result": {json.dumps(result)}' for result in results])
    return (
        f'import {{ raw }} from "@codemode/servers/{server}";\n'
        f"const answers = {texts}.map((text) => raw({{ text }}));\n"
        "globalThis.__codemode_result__ = await Promise.all(answers);"
    )


async def test_results_that_no_model_of_the_sdk_takes(tmp_path: Path) -> None:
    results = [{"content": [TEXT], "structuredContent": value} for value in VALUES]
    odd = [{"content": blocks} for blocks in ([WIDGET], [TEXT, WIDGET], [{**WIDGET, "large": LARGE}])]
    servers = {
        f"s{revision[:4]}{revision[5:7]}": plain_server("--protocol", revision) for revision in REVISIONS
    }
    async with ready(settings(tmp_path, servers)) as broker:
        for name in servers:
            found = succeeded(await broker.run(script(name, [*results, *odd])))
            # Before 2026-07-28, null is as if absent.
            assert found[: len(VALUES)] == [TEXT["text"] if value is None else value for value in VALUES], (
                name
            )
            assert found[len(VALUES) :] == [{**one, "isError": False} for one in odd], name


PARSES: Final = """
import { raw } from "@codemode/servers/plain";
import { raw as spec } from "@codemode/servers/spec";
const nested = (depth) => "[".repeat(depth) + "]".repeat(depth);
const large = (bytes, rest) => `["${"x".repeat(bytes)}", ${rest}]`;
const texts = [
  '{"a": 1}', '["\\\\ud83d"]', large(5 << 20, 1), nested(512), large(3e5, nested(511)),
  nested(513), large(3e5, nested(5000)),
];
const kind = (value) => Array.isArray(value) ? "array" : typeof value;
const found = [];
for (const made of texts) {
  const text = `"result": ${JSON.stringify({ content: [{ type: "text", text: made }] })}`;
  const parsed = await raw({ text }).then(kind, (error) => error.message);
  found.push([parsed, kind(await spec({ text }))]);
}
globalThis.__codemode_result__ = found;
"""


async def test_texts_are_parsed_at_every_size_and_depth_or_the_call_throws(tmp_path: Path) -> None:
    servers = {"plain": plain_server(), "spec": plain_server()}
    config = settings(tmp_path, servers, schemas={"servers": {"plain": {"unwrap": "json"}}})
    async with ready(config) as broker:
        parsed, plain = zip(*succeeded(await broker.run(PARSES)), strict=True)
        assert set(plain) == {"string"}
        assert parsed[:5] == ("object", *["array"] * 4)
        assert all("nests" in told and "deep" in told for told in parsed[5:])
        await broker.learnt(30.0)
        notes = [
            inspect_tool(broker.catalog, name, broker.output_of, broker.observed_of)["output"]["note"]
            for name in ("plain.raw", "spec.raw")
        ]
    # Those too deep never were a result where they are parsed.
    assert all("Observed from 5 results," in note for note in notes), notes
    assert ["more" in notes[0], "(2 more" in notes[1]] == [False, True], notes
