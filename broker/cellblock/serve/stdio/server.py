"""Serves one MCP client over this process's stdin and stdout, and greets it before the broker runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final

from cellblock.base.tasks import at_most, end_tasks
from cellblock.serve.mcp.mcp_server import FrontServer
from cellblock.serve.service import RunService
from cellblock.serve.stdio.client_streams import FromClient, ToClient
from cellblock.serve.stdio.lines import ClientLines, StdoutLines

GREET_SECONDS: Final = 0.1
"""Bounds the wait for a client to ask to be greeted, which it does as soon as it has started a server: its question is
in the pipe when this process is ready to read it."""


UntilGone = Callable[[Awaitable[None]], Awaitable[None]]
"""Answers requests until the client has gone; what is given, and raises before, ends that."""


@contextlib.asynccontextmanager
async def stdio_front(service: RunService, *, version: str) -> AsyncGenerator[UntilGone]:
    """Serves one client over stdio inside the block, which is entered when the client was greeted, or has not asked for
    it within `GREET_SECONDS`, or has gone. Inside it the broker is started: then requests can be answered.

    Args:
        service: The broker, which need not run yet.
        version: Of Cellblock.
    """
    server, greeted = FrontServer(service, version=version), asyncio.Event()
    serving = asyncio.create_task(_serve(server, lambda _: greeted.set()), name="stdio")
    # Whoever waits for a greeting waits no longer when there will be none.
    serving.add_done_callback(lambda _: greeted.set())

    async def until_gone(unless: Awaitable[None]) -> None:
        from cellblock.serve.kept_outputs import keeping

        async with keeping(service.settings.cellblock.frontend.outputs, service.store) as kept:
            server.open(kept)
            failing = asyncio.ensure_future(unless)
            try:
                await asyncio.wait([serving, failing], return_when=asyncio.FIRST_COMPLETED)
                if failing.done():
                    failing.result()
                    await asyncio.wait([serving])
            finally:
                failing.cancel()

    try:
        async with at_most(GREET_SECONDS):
            await greeted.wait()
        yield until_gone
    finally:
        await end_tasks(serving)
    if not serving.cancelled():
        serving.result()


async def _serve(server: FrontServer, on_answered: Callable[[object], object]) -> None:
    lines = await ClientLines.of_stdin()
    # Who cannot be answered any more need not be listened to.
    output = await StdoutLines.open(on_lost=lines.close)
    answers = ToClient(output.put, output.flush, server.splices, answered=on_answered)
    try:
        messages = FromClient(lines, answers, server.opened)
        await server.run(messages, answers, server.create_initialization_options())
        output.say_farewell()
        await output.flush()
    finally:
        output.close()
        lines.close()
