"""What a program made with the first major version of the Python SDK is given; prints one line of JSON."""

import asyncio
import json
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


async def main() -> None:
    asked = json.loads(sys.argv[1])
    parameters = StdioServerParameters(command=asked["command"], args=asked["args"])
    async with stdio_client(parameters) as (read, write), ClientSession(read, write) as session:
        begun = await session.initialize()
        tool = (await session.list_tools()).tools[0]
        results = [await session.call_tool(tool.name, {"code": script}) for script in asked["scripts"]]
    print(
        json.dumps(
            {
                "name": tool.name,
                "description": tool.description,
                "schema": tool.inputSchema,
                "instructions": begun.instructions,
                "results": [
                    {
                        "text": each.content[0].text,
                        "structured": each.structuredContent,
                        "error": each.isError,
                    }
                    for each in results
                ],
            }
        )
    )


asyncio.run(main())
