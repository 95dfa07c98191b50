"""One MCP client over this process's stdin and stdout, greeted before the broker runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable
from types import TracebackType
from typing import Final

from mcp.server.stdio import stdio_server

from cellblock.apart.pool import Apart
from cellblock.apart.raw import Splices
from cellblock.frontend.due import DueAnswers
from cellblock.frontend.mcp.mcp_server import FrontServer
from cellblock.frontend.service import RunService
from cellblock.frontend.stdio.stdin import StdinLines
from cellblock.frontend.stdio.stdout import StdoutLines
from cellblock.frontend.stdio.unreadable import AnsweringStream
from cellblock.frontend.taken_lines import TakenLines

GREET_SECONDS: Final = 0.1
"""For a client to ask to be greeted, which it does as soon as it has started a server: its question is in the pipe when
this process is ready to read it."""


class StdioFront:
    """Serves from when it is entered until the client closes stdin, or it is left.

    Args:
        service: The broker, which need not run yet.
        version: Of Cellblock.
    """

    def __init__(self, service: RunService, *, version: str) -> None:
        self._service = service
        self._server = FrontServer(service, version=version)
        self._greeted = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> StdioFront:
        """Begins to serve."""
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
        """Ends it."""
        assert self._serving is not None
        self._serving.cancel()
        await asyncio.wait([self._serving])
        if not self._serving.cancelled() and (error := self._serving.exception()) is not None and exc is None:
            raise error

    async def greeted(self) -> None:
        """Waits until the client has been greeted, or has not asked for it within `GREET_SECONDS`, or has gone."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GREET_SECONDS):
                await self._greeted.wait()

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncGenerator[None]:
        """While inside, the broker runs, and requests are answered."""
        from cellblock.frontend.outputs.kept_outputs import keeping

        async with keeping(
            self._service.settings.cellblock.outputs, self._service.settings.state_dir
        ) as kept:
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
        lines = await StdinLines.open()
        taken = TakenLines(lines, self._apart)
        # Who cannot be answered any more need not be listened to.
        splices = Splices()
        output = await StdoutLines.open(on_lost=lines.close, splices=splices, on_written=self._greeted.set)
        server.splices = splices if output is not None else None
        try:
            async with stdio_server(stdin=taken.as_file(), stdout=output.as_file() if output else None) as (
                read,
                write,
            ):
                due = DueAnswers(write)

                async def before_end() -> None:
                    await server.opened()
                    await due.none_left()

                incoming = AnsweringStream(read, due, before_end=before_end, on_message=due.received)
                taken.refuse_by(incoming.answer)
                await server.run(incoming, due, server.create_initialization_options())
                if output is not None:
                    output.say_farewell()
        finally:
            if output is not None:
                output.close()
            lines.close()

    async def _apart(self) -> Apart:
        """The broker's processes for large messages, as soon as it runs."""
        await self._server.opened()
        return self._service.apart
