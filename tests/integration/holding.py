"""A Python tool that holds its runs until it is told, and counts them."""

import asyncio

from cellblock import tool


class Holding:
    """The tool, how many are in it, and how many have been at once."""

    RUN = """
        import { hold } from "@codemode/servers/local";
        globalThis.__codemode_result__ = await hold({});
    """

    def __init__(self) -> None:
        self.inside = self.most = 0
        self.go_on = asyncio.Event()

        @tool()
        async def hold() -> str:
            """Waits."""
            self.inside += 1
            self.most = max(self.most, self.inside)
            await self.go_on.wait()
            self.inside -= 1
            return "held"

        self.tool = hold
