"""Gives the tool to agents of the OpenAI Agents SDK (`pip install 'cellblock[openai-agents]'`)."""

from __future__ import annotations

from typing import Any

from agents import FunctionTool, ToolOutputImage, ToolOutputText
from agents.tool_context import ToolContext

from cellblock import Broker, Grantee, Watcher


async def codemode_tool(
    broker: Broker,
    *,
    client: str = "default",
    budget: int | None = None,
    grantee: Grantee | None = None,
    observer: Watcher | None = None,
) -> FunctionTool:
    """Returns the tool for `Agent(tools=[…])`, described as the servers are now.

    Args:
        broker: It runs as long as the tool is used.
        client: As for `Broker.run`.
        budget: As for `Broker.tool_definition`.
        grantee: As for `Broker.run`.
        observer: As for `Broker.run`.
    """
    defined = await broker.tool_definition("openai", client=client, budget=budget)
    name = defined["name"]

    async def invoke(
        _context: ToolContext[Any], arguments: str
    ) -> str | list[ToolOutputText | ToolOutputImage]:
        answer = await broker.handle_tool_call(
            name, arguments, client=client, grantee=grantee, observer=observer
        )
        images = [ToolOutputImage(image_url=one.url) for one in answer.media if one.type == "image"]
        return [ToolOutputText(text=answer.text), *images] if images else answer.text

    return FunctionTool(
        name=name,
        description=defined["description"],
        params_json_schema=defined["parameters"],
        on_invoke_tool=invoke,
        strict_json_schema=False,
    )
