"""An agent of the OpenAI Agents SDK with Cellblock as its MCP server; the model's API is as the environment says."""

import asyncio
import json
import sys

from agents import Agent, Runner
from agents.mcp import MCPServerStdio


async def main() -> None:
    asked = json.loads(sys.argv[1])
    async with MCPServerStdio(
        {"command": asked["command"], "args": asked["args"]},
        name="cellblock",
        client_session_timeout_seconds=60,
    ) as server:
        agent = Agent(name="helper", instructions="Help.", model="gpt-5", mcp_servers=[server])
        print((await Runner.run(agent, asked["prompt"])).final_output)


asyncio.run(main())
