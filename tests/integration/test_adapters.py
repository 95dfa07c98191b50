"""The adapters with their frameworks: the agent of each is told of the tool, calls it, and has the answer.

What stands for a model answers as one of that framework does; all else is real.
"""

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cellblock import Broker, tool
from support.entries import settings
from support.waits import within

pytestmark = pytest.mark.slow  # for what the frameworks take to import

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
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    given = settings(tmp_path_factory.mktemp("state"), {}, policy={"clients": {READERS: {"readOnly": True}}})
    async with Broker(given, tools=[price, picture, buy]) as broker:
        yield broker


async def test_openai_agents(broker: Broker) -> None:
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

    agent = Agent(name="a", model=Replay(), tools=[await codemode_tool(broker, client=READERS)])
    result = await within(Runner.run(agent, "go", run_config=RunConfig(tracing_disabled=True)), 60)
    assert result.final_output == "done"
    assert "function price(" in told[0].description and "buy" not in told[0].description
    first, second, third = [one["output"] for one in seen[-1] if one.get("type") == "function_call_output"]
    assert "no JSON" in first
    assert second.startswith("165\n")
    text, image = third
    assert text["type"] == "input_text" and "image block 1" in text["text"]
    assert (image["type"], image["image_url"]) == ("input_image", f"data:image/png;base64,{PNG}")


@pytest.mark.thorough
async def test_langgraph(broker: Broker) -> None:
    pytest.importorskip("langgraph")
    from langchain_core.messages import AIMessage, ToolCall, ToolMessage
    from langchain_core.utils.function_calling import convert_to_openai_tool
    from langgraph.graph import MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode

    from cellblock.adapters.langchain import codemode_tool

    made = await codemode_tool(broker, client=READERS)
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
    assert (answers["1"].status, str(answers["1"].content)[:4]) == ("success", "165\n")
    assert answers["2"].status == "error" and "cellblock.policy" in str(answers["2"].content)
    assert answers["3"].status == "error" and "code" in str(answers["3"].content)
    text, image = answers["4"].content_blocks
    assert text["type"] == "text" and "image block 1" in text["text"]
    assert (image["type"], image.get("base64"), image.get("mime_type")) == ("image", PNG, "image/png")


@pytest.mark.thorough
async def test_pydantic_ai(broker: Broker) -> None:
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

    agent = Agent(FunctionModel(model), tools=[await codemode_tool(broker, client=READERS)])
    first, second, third = json.loads((await within(agent.run("go"), 60)).output)
    assert "code" in first
    assert second.startswith("165\n")
    assert "image block 1" in third
    asked, (image,) = shown
    assert asked == "go" and (image.media_type, image.data) == ("image/png", base64.b64decode(PNG))
    assert "function price(" in told[0].description and "buy" not in told[0].description


@pytest.mark.thorough
async def test_fastmcp(broker: Broker) -> None:
    pytest.importorskip("fastmcp")
    from fastmcp import Client, FastMCP

    from cellblock.adapters.fastmcp import codemode_server

    main: FastMCP[Any] = FastMCP("main")
    main.mount(codemode_server(broker, client=READERS), namespace="scripts")
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
