"""Gives the tool to agents of LangChain and LangGraph (`pip install 'cellblock[langchain]'`)."""

from __future__ import annotations

from langchain_core.tools import StructuredTool, ToolException

from cellblock import Broker, Grantee, Watcher


async def codemode_tool(
    broker: Broker,
    *,
    client: str = "default",
    budget: int | None = None,
    grantee: Grantee | None = None,
    observer: Watcher | None = None,
) -> StructuredTool:
    """Returns the tool for `bind_tools` and `ToolNode`, described as the servers are now; it is called with `ainvoke`.

    A call that fails gives a message with the status `error`.

    Args:
        broker: It runs as long as the tool is used.
        client: As for `Broker.run`.
        budget: As for `Broker.tool_definition`.
        grantee: As for `Broker.run`.
        observer: As for `Broker.run`.
    """
    defined = await broker.tool_definition("anthropic", client=client, budget=budget)
    name = defined["name"]

    async def invoke(**arguments: object) -> str | list[dict[str, str]]:
        answer = await broker.handle_tool_call(
            name, arguments, client=client, grantee=grantee, observer=observer
        )
        if answer.is_error:
            raise ToolException(answer.text)
        images = [
            {"type": "image", "base64": one.data, "mime_type": one.mime_type}
            for one in answer.media
            if one.type == "image"
        ]
        return [{"type": "text", "text": answer.text}, *images] if images else answer.text

    return StructuredTool(
        name=name,
        description=defined["description"],
        args_schema=defined["input_schema"],
        coroutine=invoke,
        handle_tool_error=True,
    )
