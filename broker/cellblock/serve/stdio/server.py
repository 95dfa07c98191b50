"""Serves one MCP client over this process's stdin and stdout, and greets it before the broker runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable
from types import TracebackType
from typing import Final

from cellblock.base.tasks import at_most, end_tasks
from cellblock.serve.mcp.mcp_server import FrontServer
from cellblock.serve.service import RunService
from cellblock.serve.splices import Splices
from cellblock.serve.stdio.client_streams import FromClient, ToClient
from cellblock.serve.stdio.lines import ClientLines, StdoutLines

GREET_SECONDS: Final = 0.1
"""Bounds the wait for a client to ask to be greeted, which it does as soon as it has started a server: its question is
in the pipe when this process is ready to read it."""


class StdioFront:
    """Serves one client over stdio, from when it is entered until the client closes stdin, or it is left.

    Args:
        service: The broker, which need not run yet.
        version: Of Cellblock.
    """

    def __init__(self, service: RunService, *, version: str) -> None:
        self._service = service
        self._server = FrontServer(service, version=version, splices=Splices())
        self._greeted = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> StdioFront:
        """Begins to serve the client on stdin and stdout."""
        self._serving = asyncio.create_task(self._serve(), name="stdio")
        # Whoever waits for a greeting waits no longer when there will be none.
        self._serving.add_done_callback(lambda _: self._greeted.set())
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ends the serving."""
        assert self._serving is not None
        await end_tasks(self._serving)
        if not self._serving.cancelled() and (error := self._serving.exception()) is not None and exc is None:
            raise error

    async def greeted(self) -> None:
        """Waits until the client has been greeted, or has not asked for it within `GREET_SECONDS`, or has gone."""
        async with at_most(GREET_SECONDS):
            await self._greeted.wait()

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncGenerator[None]:
        """Answers requests inside the block, in which the broker runs."""
        from cellblock.serve.kept_outputs import keeping

        config = self._service.front_config
        async with keeping(config.outputs, self._service.store) as kept:
            self._server.open(kept)
            yield

    async def ended(self, unless: Awaitable[None]) -> None:
        """Waits until the client has gone. What `unless` raises before ends that."""
        assert self._serving is not None
        failing = asyncio.ensure_future(unless)
        try:
            await asyncio.wait([self._serving, failing], return_when=asyncio.FIRST_COMPLETED)
            if failing.done():
                failing.result()
                await asyncio.wait([self._serving])
        finally:
            failing.cancel()

    # ---- inside ------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        server = self._server
        lines = await ClientLines.of_stdin()
        # Who cannot be answered any more need not be listened to.
        output = await StdoutLines.open(
            on_lost=lines.close, splices=server.splices, on_written=self._greeted.set
        )
        answers = ToClient(output)
        try:
            messages = FromClient(lines, answers, server.opened)
            await server.run(messages, answers, server.create_initialization_options())
            output.say_farewell()
            await output.flush()
        finally:
            output.close()
            lines.close()
