"""A tool's input is judged before the tool is called (Code Mode specification, sections 5.3.1, 7.2 and 7.3)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cellblock.base.offload.raw import RawJson
from cellblock.run.calls import ToolCalls
from cellblock.tools.catalog.model import Catalog, JsonSchema, ServerEntry, ToolEntry
from cellblock.tools.schemas.cache import ValidatorCache
from cellblock.tools.upstream.requester import CallOrigin
from support.memory_host import always, free_clock, run_context
from support.waits import within

READ: dict[str, Any] = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "tail": {"type": "integer", "minimum": 1}},
    "required": ["path"],
    "additionalProperties": False,
}


class Upstream:
    """One tool that notes its inputs."""

    def __init__(self) -> None:
        self.inputs: list[Any] = []

    def caller(
        self, server: ServerEntry, tool: ToolEntry, origin: CallOrigin
    ) -> Callable[[dict[str, Any]], Awaitable[Any]]:
        async def call(arguments: dict[str, Any]) -> Any:
            self.inputs.append(arguments)
            return "done"

        return call


async def call(
    schema: JsonSchema | None, body: bytes, schemas: ValidatorCache | None = None
) -> tuple[bool, Any, list[Any]]:
    """Calls the tool once: ok, the answer, the inputs that reached the tool."""
    tool = ToolEntry("read-file", "read_file", input_schema=schema)
    server = ServerEntry("files", "files", "files", tools=(tool,), by_export={"read_file": tool})
    upstream = Upstream()
    answers: asyncio.Queue[tuple[bool, bytes]] = asyncio.Queue()
    context = run_context(Catalog(servers={"files": server}), upstream, schemas=schemas)
    calls = ToolCalls(context, lambda _, ok, answer: answers.put_nowait((ok, answer)), always, free_clock())
    calls.begin(1, "files", "read-file", body)
    try:
        ok, answer = await within(answers.get())
    finally:
        await context.share.apart.close()
    counts = calls.counts()
    assert (counts.completed, counts.not_started) == ((1, 0) if ok else (0, 1))
    return ok, json.loads(answer), upstream.inputs


async def test_a_violation_never_reaches_the_upstream_and_says_all_that_the_specification_asks() -> None:
    ok, error, inputs = await call(READ, b'{"pth": "a"}')
    assert not ok
    assert inputs == []
    assert error == {
        "errorClass": "SchemaValidationError",
        "message": "The input of read_file does not fit its schema: /pth is not a property that is known here.",
        "hint": 'Did you mean "path"?',
        "serverId": "files",
        "toolName": "read-file",
        "exportName": "read_file",
        "path": "/pth",
        "expected": "no property of this name",
        "received": 'string "a"',
        "example": {"path": "text"},
    }


UNIQUE: dict[str, Any] = {
    "type": "object",
    "properties": {"rows": {"type": "array", "uniqueItems": True}},
}
MANY_WAYS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "rows": {"type": "array", "items": {"anyOf": [{"type": "integer", "maximum": n} for n in range(400)]}}
    },
}
ROWS = list(range(-5_000, 0))


@pytest.mark.parametrize(
    ("schema", "misfit"),
    [(UNIQUE, [*ROWS, ROWS[0]]), (MANY_WAYS, [*ROWS, 1_000])],
    ids=["of one keyword", "of all of it"],
)
async def test_an_input_over_the_work_bound_is_validated_apart(schema: JsonSchema, misfit: list[int]) -> None:
    """Neither is large: a few kilobytes, which the loop decodes."""
    body = json.dumps({"rows": ROWS}, separators=(",", ":")).encode()
    ok, _, inputs = await call(schema, body)
    assert ok and inputs == [RawJson(body)], "it has come back from a process"
    ok, error, inputs = await call(schema, json.dumps({"rows": misfit}).encode())
    assert (ok, inputs) == (False, [])
    assert error["errorClass"] == "SchemaValidationError"


@pytest.mark.parametrize("depth", [129, 20_000])
async def test_an_input_that_is_too_deep_is_refused_in_true_words(depth: int) -> None:
    ok, error, inputs = await call(READ, b"[" * depth + b"]" * depth)
    assert (ok, inputs) == (False, [])
    assert error["message"] == "The input of read_file is nested deeper than 128 levels."
    assert error["path"] == "" and error["expected"] and error["received"] and error["hint"]
    assert (error["serverId"], error["toolName"], error["exportName"]) == ("files", "read-file", "read_file")


async def test_expected_and_received_of_a_wrong_type() -> None:
    _, error, inputs = await call(READ, b'{"path": "a", "tail": "5"}')
    assert inputs == []
    assert (error["path"], error["expected"], error["received"]) == ("/tail", "integer", 'string "5"')


@pytest.mark.parametrize("body", [b'{"path": "a"}', b'{"path": "a", "tail": 1.0}'])
async def test_what_fits_reaches_the_upstream_unchanged(body: bytes) -> None:
    ok, answer, inputs = await call(READ, body)
    assert (ok, answer, inputs) == (True, "done", [json.loads(body)])


@pytest.mark.parametrize("schema", [None, {}, True, {"type": "object"}, {"type": "object", "properties": {}}])
@pytest.mark.parametrize("body", [b"", b"{}"])
async def test_an_empty_schema_takes_no_argument_or_an_empty_object(schema: Any, body: bytes) -> None:
    assert await call(schema, body) == (True, "done", [{}])


async def test_no_argument_is_judged_as_an_empty_object() -> None:
    ok, error, _ = await call(READ, b"")
    assert not ok
    assert error["path"] == "/path"
    assert error["hint"] == "Add /path: string."


async def test_defaults_are_not_filled_in() -> None:
    schema = {"type": "object", "properties": {"tail": {"type": "integer", "default": 7}}}
    assert await call(schema, b"{}") == (True, "done", [{}])


async def test_a_schema_that_cannot_be_checked_leaves_the_judgement_to_the_upstream() -> None:
    schema = {"$ref": "http://127.0.0.1:1/schema.json"}
    assert await call(schema, b'{"anything": 1}') == (True, "done", [{"anything": 1}])


async def test_runs_that_share_the_cache_share_what_is_compiled() -> None:
    cache = ValidatorCache()
    for _ in range(3):
        await call(READ, b'{"path": "a"}', cache)
    assert cache.size == 1
