"""What a program made with FastMCP's client is given; prints one line of JSON."""

import asyncio
import json
import sys

from fastmcp import Client
from fastmcp.client.transports import StdioTransport


async def main() -> None:
    asked = json.loads(sys.argv[1])
    async with Client(StdioTransport(asked["command"], asked["args"])) as client:
        instructions = client.instructions
        tool = (await client.list_tools())[0]
        results = [await client.call_tool(tool.name, {"code": script}) for script in asked["scripts"]]
    dumped = tool.model_dump(by_alias=True)
    print(
        json.dumps(
            {
                "name": tool.name,
                "description": tool.description,
                "schema": dumped["inputSchema"],
                "instructions": instructions,
                "results": [
                    {
                        "text": each.content[0].text,
                        "structured": each.structured_content,
                        "error": each.is_error,
                    }
                    for each in results
                ],
            }
        )
    )


asyncio.run(main())
