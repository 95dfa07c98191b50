"""One call of a server's tool, or another request: its turn, its bound, and one more try where it certainly was not
begun."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from mcp import MCPError
from mcp.client.session import ClientSession
from pydantic import ValidationError

from cellblock.base.errors import Certainty, ToolCallError
from cellblock.tools.upstream import failures
from cellblock.tools.upstream.connecting import Link, Upstream
from cellblock.tools.upstream.outstanding import Outstanding, Routing
from cellblock.tools.upstream.requester import CallOrigin
from cellblock.tools.upstream.wire.errors import ConnectionLost, HttpRefused, SessionForgotten
from cellblock.tools.upstream.wire.results import ToolResult

if TYPE_CHECKING:
    from cellblock.tools.upstream.session import UpstreamSession

LEFT_SHARE: Final = 0.05
"""Sets the share of a call's time that must be left when its turn comes: sent at the last moment, it can only time out,
and may have run."""

Send = Callable[[ClientSession, Outstanding], Awaitable[Any]]
"""Sends a call and returns its result, as `input_rounds.call_tool`."""


class Calls:
    """The calls of one server, at most `max_calls` at a time.

    Args:
        server: The server.
        routing: Finds whom the server may ask during a call.
        session: Has the connection.
    """

    def __init__(self, server: Upstream, routing: Routing, session: UpstreamSession) -> None:
        self._server, self._routing, self._session = server, routing, session
        most = server.bounds.max_calls
        self._places = None if most is None else asyncio.Semaphore(most)

    async def call(self, send: Send, name: str, value: Any, bound: float, origin: CallOrigin) -> Any:
        """Makes a call.

        Args:
            send: Sends it.
            name: Of the tool, or the method of another request.
            value: The input.
            bound: Longest time in seconds, without that in which the server waits for an answer of the client.
            origin: Whom the server may ask meanwhile.

        Raises:
            ToolCallError: Not connected, refused, timed out, or the answer was no result.
        """
        if self._places is None:
            return await self._in_turn(send, name, value, bound, bound, origin)
        server, loop = self._server.name, asyncio.get_running_loop()
        deadline = loop.time() + bound
        try:
            async with asyncio.timeout_at(deadline - bound * LEFT_SHARE):
                await self._places.acquire()
        except TimeoutError:
            raise ToolCallError(
                f"{server} has had its most calls at once for {bound:g} s; {name} was not called.",
                hint=f"Call it less often at once, or raise upstream.max_calls for {server}.",
                certainty=Certainty.NOT_STARTED,
            ) from None
        try:
            left = max(0.0, deadline - loop.time())
            return await self._in_turn(send, name, value, left, bound, origin)
        finally:
            self._places.release()

    async def _in_turn(
        self, send: Send, name: str, value: Any, left: float, bound: float, origin: CallOrigin
    ) -> Any:
        """Makes a call; `left` is what waiting for its turn has left of `bound`."""
        clock, link = asyncio.timeout(left), None

        async def sent(link: Link) -> Any:
            assert link.client is not None
            with self._routing.call(name, value, clock, origin) as call:
                return await send(link.client, call)

        try:
            async with clock:
                link = await self._session.ready(left * (1 - LEFT_SHARE))
                try:
                    result = await sent(link)
                except MCPError as error:
                    if not failures.not_begun(error):
                        raise
                    self._session.lose(link)
                    link = await self._session.ready(left * (1 - LEFT_SHARE))
                    result = await sent(link)
        except MCPError as error:
            raise self._failure(link, name, error) from None
        except TimeoutError:
            noise = link.noise() if link is not None else ""
            raise failures.timed_out(self._server.name, name, bound, noise) from None
        except ValidationError:
            raise failures.no_result(self._server.name, name) from None
        except (UnicodeEncodeError, ValueError, RecursionError) as error:
            # The request could not be written: text that is no UTF-8, or too deep.
            raise ToolCallError(
                f"The input of {name} cannot be sent: {type(error).__name__}.",
                hint="Pass plain, shallow JSON data.",
                certainty=Certainty.NOT_STARTED,
            ) from None
        self._session.served()
        return self._redacted(result) if isinstance(result, ToolResult) and result.is_error else result

    def _redacted(self, result: ToolResult) -> ToolResult:
        """Returns an error result in which the server quotes none of its own secrets."""
        plain = result.plain()
        safe = self._server.redactor.tree(plain)
        return result if safe == plain else ToolResult.of(safe)

    def _failure(self, link: Link | None, name: str, error: MCPError) -> ToolCallError:
        server, redactor = self._server.name, self._server.redactor
        if isinstance(error, SessionForgotten | ConnectionLost) and link is not None:
            # Every later call would be refused too: a new session is needed.
            if isinstance(error, SessionForgotten) or link.ended.is_set() or not error.sent:
                self._session.lose(link)
            if failures.not_begun(error):
                return failures.forgotten(server, name)
            return failures.closed(server, name, link.why_lost(error))
        if isinstance(error, HttpRefused):
            login = self._server.trouble()
            return failures.refused(server, name, error, login, redactor, self._session.needed_login)
        failure = failures.answered(server, name, error, redactor)
        failure.rpc_code = error.code
        return failure
