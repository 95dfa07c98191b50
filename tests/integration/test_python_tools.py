"""Python tools as a script meets them: a real broker and real workers, tools given in code and by module path."""

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import mcp_types as types
import pytest
from pydantic import BaseModel, Field

from cellblock import Broker, tool
from cellblock.types.typescript import declare_server
from support.entries import settings
from support.responses import error_of, succeeded
from support.waits import until, within

SECRET = "hunter2-hunter2"

MODULE = """
from cellblock import tool


@tool()
def double(n: int) -> int:
    "Twice as much."
    return 2 * n


def untold(n: int) -> dict[str, int]:
    return {"n": n}
"""

AT_ONCE = 8
"""More blocking calls than asyncio's own pool has threads on two cores."""

meeting = threading.Barrier(AT_ONCE)
held, release = threading.Event(), threading.Event()


@dataclass
class Report:
    """What the weather is."""

    temperature: float
    humidity: float | None = None


class Order(BaseModel):
    sku: str = Field(pattern="^[A-Z]+$")
    count: int = Field(1, ge=1)


@tool(annotations={"readOnlyHint": True})
async def weather(city: str) -> Report:
    """The weather of a city."""
    return Report(21.5)


@tool()
def order(order: Order) -> str:
    return f"{order.count} {order.sku}"


@tool(flatten=True)
def order_flat(order: Order) -> str:
    return f"{order.count} {order.sku}"


@tool()
def untyped(value):  # pyright: ignore
    return value


@tool()
def meet() -> bool:
    """Ends only when all have come."""
    meeting.wait(20)
    return True


@tool()
def block() -> None:
    held.set()
    release.wait(30)


@tool()
def leave() -> None:
    raise SystemExit(3)


@tool()
async def interrupt() -> None:
    raise KeyboardInterrupt


@tool()
def leak() -> None:
    raise ConnectionError(f"postgres://ada:{SECRET}@db.example is down")


@tool()
def wrong() -> int:
    return "seven"  # pyright: ignore


@tool()
def say(text: str) -> types.TextContent:
    return types.TextContent(type="text", text=text)


@tool()
def picture() -> list[types.ImageContent]:
    return [types.ImageContent(type="image", data="aGk=", mime_type="image/png")]


TOOLS = [weather, order, order_flat, untyped, meet, block, leave, interrupt, leak, wrong, say, picture]


@pytest.fixture(scope="module")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    """A broker without servers; `cellblock_test_team` is named in its configuration."""
    folder = tmp_path_factory.mktemp("python_tools")
    (folder / "cellblock_test_team.py").write_text(MODULE, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        config = settings(
            folder / "state",
            tools=["cellblock_test_team", "cellblock_test_team:untold"],
            pool={"warm": 2},
        )
        made = Broker(config, tools=TOOLS)
    async with made:
        yield made
        release.set()


async def value(broker: Broker, expression: str) -> Any:
    code = f"""import * as local from "@codemode/servers/local";
        const caught = (work) => work().then((value) => ({{ value }}), (error) => ({{ name: error.name,
            message: error.message, hint: error.hint, certainty: error.certainty, path: error.path }}));
        globalThis.__codemode_result__ = {expression};"""
    return succeeded(await within(broker.run(code), 60))


async def test_values_are_boxed_by_section_5_3_2(broker: Broker) -> None:
    """Structured content is what a script gets, and the declarations say so."""
    assert await value(
        broker,
        """[await local.double({ n: 21 }), await local.untold({ n: 1 }), await local.weather({ city: "Rome" }),
            await local.order({ order: { sku: "A" } }), await local.order_flat({ sku: "B", count: 2 }),
            await local.untyped({ value: [1] }), await local.untyped({ value: { a: 1 } })]""",
    ) == [
        {"result": 42},
        {"n": 1},
        {"temperature": 21.5, "humidity": None},
        {"result": "1 A"},
        {"result": "2 B"},
        {"result": [1]},
        {"a": 1},
    ]
    declared = declare_server(broker.catalog.servers["local"])
    assert "result: number" in declared and "humidity: number | null" in declared
    assert "Twice as much." in declared


async def test_discovery_shows_what_was_inferred(broker: Broker) -> None:
    code = """import { getTool } from "@codemode/discovery";
        globalThis.__codemode_result__ = [await getTool("local", "double"), await getTool("local", "weather")];"""
    double, report = succeeded(await within(broker.run(code)))
    assert double["outputSchema"]["x-dedalus-box"] == {"field": "result"}
    assert double["inputSchema"]["properties"]["n"] == {"type": "integer", "description": "Parameter n"}
    assert report["annotations"] == {"readOnlyHint": True}
    assert report["outputSchema"]["required"] == ["temperature", "humidity"]


async def test_wrong_inputs_have_a_place(broker: Broker) -> None:
    nested, flat, missing = await value(
        broker,
        """[await caught(() => local.order({ order: { sku: "a" } })),
            await caught(() => local.order_flat({ sku: "A", count: 0 })), await caught(() => local.order({}))]""",
    )
    assert {one["name"] for one in (nested, flat, missing)} == {"SchemaValidationError"}
    assert (nested["path"], flat["path"], missing["path"]) == ("/order/sku", "/count", "/order")


async def test_content_is_unwrapped_like_that_of_a_server(broker: Broker) -> None:
    text, image = await value(broker, '[await local.say({ text: "hi" }), await local.picture()]')
    assert text == "hi"
    assert image["content"] == [{"type": "image", "data": "aGk=", "mimeType": "image/png"}]


async def test_whatever_a_tool_raises_is_an_exception_and_no_more(broker: Broker) -> None:
    left, interrupted, leaked, misfit, fine = await value(
        broker,
        """[await caught(local.leave), await caught(local.interrupt), await caught(local.leak),
            await caught(local.wrong), await caught(() => local.double({ n: 1 }))]""",
    )
    assert {one["name"] for one in (left, interrupted, leaked, misfit)} == {"ToolCallError"}
    assert "SystemExit: 3" in left["message"] and "KeyboardInterrupt" in interrupted["message"]
    assert "ConnectionError" in leaked["message"] and "db.example is down" in leaked["message"]
    assert SECRET not in str(leaked)
    assert "does not fit what it declares" in misfit["message"] and misfit["certainty"] == "completed"
    assert fine == {"value": {"result": 2}}


async def test_the_trace_says_how_it_ended_without_any_text(broker: Broker) -> None:
    code = """import { leak, wrong } from "@codemode/servers/local";
        await Promise.allSettled([leak(), wrong()]);"""
    response = await within(broker.run(code))
    assert response.ok
    assert [call.error for call in response.tool_trace] == [
        "the tool raised an exception",
        "the result does not fit the tool's output schema",
    ]


async def test_blocking_functions_run_at_the_same_time(broker: Broker) -> None:
    calls = f"(await Promise.all(Array.from({{ length: {AT_ONCE} }}, () => local.meet()))).length"
    assert await value(broker, calls) == AT_ONCE


async def test_a_blocking_function_stalls_nothing(broker: Broker) -> None:
    """While it holds its thread, other runs go on; its own run ends at its deadline, and the thread is given up."""
    code = 'import { block } from "@codemode/servers/local"; await block();'
    run = asyncio.create_task(broker.run(code, limits={"timeoutMs": 4_000}))
    await until(held.is_set, "the function blocks")
    assert await value(broker, "await local.double({ n: 2 })") == {"result": 4}
    response = await within(run, 60)
    error_of(response, "SANDBOX_LIMIT")
    assert response.tool_trace[0].error and not response.tool_trace[0].ok
    assert await value(broker, "await local.double({ n: 3 })") == {"result": 6}
    release.set()
