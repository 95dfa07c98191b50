"""Programs in Python: their tools as a script meets them, and the adapters with their frameworks.

Tools are given in code and by module path. The agent of each framework is told of the tool, calls it, and has the
answer; what stands for a model answers as one of that framework does, and all else is real.
"""

import asyncio
import base64
import json
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, Field

from cellblock import Broker, tool
from cellblock.types.typescript import declare_server
from support.entries import settings
from support.responses import error_of, succeeded
from support.waits import until, within

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
def leak() -> None:
    raise ConnectionError("db.example is down")


@tool()
def wrong() -> int:
    return "seven"  # pyright: ignore


TOOLS = [weather, order, order_flat, untyped, meet, block, leak, wrong]


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


CODE = "import { price } from '@codemode/servers/local'; export default (await price({ fruit: 'pear' })).result * 3;"
PICTURE = "import { picture } from '@codemode/servers/local'; export default await picture({});"
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"x" * 22).decode()
READERS = "team:readers"


@tool(annotations={"readOnlyHint": True})
def price(fruit: str) -> int:
    "The price of one fruit."
    return {"pear": 55}[fruit]


@tool(annotations={"readOnlyHint": True})
def picture() -> dict[str, str]:
    "An image, as MCP has it."
    return {"type": "image", "data": PNG, "mimeType": "image/png"}


@tool
def buy(fruit: str) -> str:
    "Buys one."
    return f"bought {fruit}"


@pytest.fixture(scope="module")
async def shop(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    given = settings(tmp_path_factory.mktemp("state"), {}, policy={"clients": {READERS: {"readOnly": True}}})
    async with Broker(given, tools=[price, picture, buy]) as broker:
        yield broker


# For what the frameworks take to import.
@pytest.mark.slow
async def test_openai_agents(shop: Broker) -> None:
    pytest.importorskip("agents")
    from agents import Agent, ModelResponse, RunConfig, Runner, Usage
    from agents.models.interface import Model
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

    from cellblock.adapters.openai_agents import codemode_tool

    told: list[Any] = []
    seen: list[Any] = []

    class Replay(Model):
        """Calls the tool twice, the first time wrongly, and ends."""

        async def get_response(self, *args: Any, **more: Any) -> ModelResponse:
            names = ["system_instructions", "input", "model_settings", "tools"]
            given = {**dict(zip(names, args, strict=False)), **more}
            told.extend(given["tools"])
            seen.append(given["input"])
            calls = ["{", json.dumps({"code": CODE, "limits": None}), json.dumps({"code": PICTURE})]
            if len(seen) <= len(calls):
                output: Any = ResponseFunctionToolCall(
                    type="function_call",
                    name="codemode_run",
                    call_id=f"c{len(seen)}",
                    arguments=calls[len(seen) - 1],
                )
            else:
                text = ResponseOutputText(type="output_text", text="done", annotations=[])
                output = ResponseOutputMessage(
                    id="m", type="message", role="assistant", status="completed", content=[text]
                )
            return ModelResponse(output=[output], usage=Usage(), response_id=None)

        def stream_response(self, *args: Any, **more: Any) -> Any:
            raise NotImplementedError

    agent = Agent(name="a", model=Replay(), tools=[await codemode_tool(shop, client=READERS)])
    result = await within(Runner.run(agent, "go", run_config=RunConfig(tracing_disabled=True)), 60)
    assert result.final_output == "done"
    assert "function price(" in told[0].description and "buy" not in told[0].description
    first, second, third = [one["output"] for one in seen[-1] if one.get("type") == "function_call_output"]
    assert "no JSON" in first
    assert second == "165"
    text, image = third
    assert text["type"] == "input_text" and "image block 1" in text["text"]
    assert (image["type"], image["image_url"]) == ("input_image", f"data:image/png;base64,{PNG}")


# For what the frameworks take to import.
@pytest.mark.slow
@pytest.mark.thorough
async def test_langgraph(shop: Broker) -> None:
    pytest.importorskip("langgraph")
    from langchain_core.messages import AIMessage, ToolCall, ToolMessage
    from langchain_core.utils.function_calling import convert_to_openai_tool
    from langgraph.graph import MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode

    from cellblock.adapters.langchain import codemode_tool

    made = await codemode_tool(shop, client=READERS)
    assert "function price(" in made.description and "buy" not in made.description
    asked = convert_to_openai_tool(made)["function"]["parameters"]
    assert asked["required"] == ["code"] and "limits" in asked["properties"]
    graph = StateGraph(MessagesState)
    graph.add_node("tools", ToolNode([made]))
    graph.set_entry_point("tools")
    calls = [
        ToolCall(name="codemode_run", args={"code": CODE}, id="1"),
        ToolCall(name="codemode_run", args={"code": CODE.replace("price", "buy")}, id="2"),
        ToolCall(name="codemode_run", args={"limits": {}}, id="3"),
        ToolCall(name="codemode_run", args={"code": PICTURE}, id="4"),
    ]
    state = await within(graph.compile().ainvoke({"messages": [AIMessage("", tool_calls=calls)]}), 60)
    answers = {one.tool_call_id: one for one in state["messages"] if isinstance(one, ToolMessage)}
    assert (answers["1"].status, answers["1"].content) == ("success", "165")
    assert answers["2"].status == "error" and "cellblock.policy" in str(answers["2"].content)
    assert answers["3"].status == "error" and "code" in str(answers["3"].content)
    text, image = answers["4"].content_blocks
    assert text["type"] == "text" and "image block 1" in text["text"]
    assert (image["type"], image.get("base64"), image.get("mime_type")) == ("image", PNG, "image/png")


# For what the frameworks take to import.
@pytest.mark.slow
@pytest.mark.thorough
async def test_pydantic_ai(shop: Broker) -> None:
    pytest.importorskip("pydantic_ai")
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    from cellblock.adapters.pydantic_ai import codemode_tool

    told: list[Any] = []
    shown: list[Any] = []

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        told.extend(info.function_tools)
        calls: list[Any] = [{"limits": 3}, {"code": CODE}, {"code": PICTURE}]
        answered = len(messages) // 2
        if answered < len(calls):
            return ModelResponse(parts=[ToolCallPart("codemode_run", calls[answered])])
        parts = [part for one in messages for part in one.parts]
        answers = [part.content for part in parts if part.part_kind == "tool-return"]
        shown.extend(part.content for part in parts if part.part_kind == "user-prompt")
        return ModelResponse(parts=[TextPart(json.dumps(answers))])

    agent = Agent(FunctionModel(model), tools=[await codemode_tool(shop, client=READERS)])
    first, second, third = json.loads((await within(agent.run("go"), 60)).output)
    assert "code" in first
    assert second == "165"
    assert "image block 1" in third
    asked, (image,) = shown
    assert asked == "go" and (image.media_type, image.data) == ("image/png", base64.b64decode(PNG))
    assert "function price(" in told[0].description and "buy" not in told[0].description


# For what the frameworks take to import.
@pytest.mark.slow
@pytest.mark.thorough
async def test_fastmcp(shop: Broker) -> None:
    pytest.importorskip("fastmcp")
    from fastmcp import Client, FastMCP

    from cellblock.adapters.fastmcp import codemode_server

    main: FastMCP[Any] = FastMCP("main")
    main.mount(codemode_server(shop, client=READERS), namespace="scripts")
    async with Client(main) as client:
        (listed,) = await within(client.list_tools(), 60)
        assert listed.name == "scripts_codemode_run"
        assert (
            listed.description and "function price(" in listed.description and "buy" not in listed.description
        )
        result = await within(client.call_tool(listed.name, {"code": CODE}), 60)
        assert result.structured_content and result.structured_content["result"] == 165
        assert result.content[0].text.startswith("165")
        wrong = await within(client.call_tool(listed.name, {"code": 3}, raise_on_error=False), 60)
        assert wrong.is_error and "code" in wrong.content[0].text
        pictured = await within(client.call_tool(listed.name, {"code": PICTURE}), 60)
        text, image = pictured.content
        assert "image block 1" in text.text and (image.data, image.mime_type) == (PNG, "image/png")
        assert pictured.structured_content and pictured.structured_content["result"]["data"] == PNG
