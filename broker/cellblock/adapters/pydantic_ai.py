"""Gives the tool to agents of Pydantic AI (`pip install 'cellblock[pydantic-ai]'`)."""

from __future__ import annotations

from pydantic_ai import BinaryContent, Tool, ToolReturn

from cellblock import Broker, Grantee, Watcher


async def codemode_tool(
    broker: Broker,
    *,
    client: str = "default",
    budget: int | None = None,
    grantee: Grantee | None = None,
    observer: Watcher | None = None,
) -> Tool[object]:
    """Returns the tool for `Agent(tools=[…])`, described as the servers are now.

    Args:
        broker: It runs as long as the tool is used.
        client: As for `Broker.run`.
        budget: As for `Broker.tool_definition`.
        grantee: As for `Broker.run`.
        observer: As for `Broker.run`.
    """
    defined = await broker.tool_definition("anthropic", client=client, budget=budget)
    name = defined["name"]

    # No ModelRetry for a script that fails: the framework gives up after a few, and the text says what to do.
    async def invoke(**arguments: object) -> str | ToolReturn:
        answer = await broker.handle_tool_call(
            name, arguments, client=client, grantee=grantee, observer=observer
        )
        media = [BinaryContent.from_data_uri(one.url) for one in answer.media]
        return ToolReturn(answer.text, content=media) if media else answer.text

    return Tool[object].from_schema(invoke, name, defined["description"], defined["input_schema"])
