"""Answers the discovery requests of one run: answered from its catalog, one in a turn of the loop, and a long list in
several."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Generator
from typing import Final, NamedTuple, cast

from cellblock.base import payload
from cellblock.base.errors import ScriptError
from cellblock.base.json import is_array
from cellblock.run.replies import encode_error
from cellblock.types.discovery import Discovery, Operation
from cellblock_worker.wire.protocol import Query

logger = logging.getLogger("cellblock.run")

MAX_QUERIES: Final = 1_000
"""Bounds the discovery requests of one run."""

MAX_WAITING_BYTES: Final = 8 * cast("int", Query.max_body)
"""Bounds the bytes of the requests that wait, in all: the sandbox has eight under way, and keeps the
others."""


_OVER: Final = object()


class _Query(NamedTuple):
    id: int
    op: Operation
    body: bytes


class Queries:
    """Answers all discovery requests of one run.

    Args:
        discovery: Answers them.
        reply: Sends an answer to the worker: id, ok, JSON bytes.
        max_reply_bytes: Cap of one answer.
        has_room: Whether an answer could be sent now; `go_on` is called when one can be again.
    """

    def __init__(
        self,
        discovery: Discovery,
        reply: Callable[[int, bool, bytes], None],
        max_reply_bytes: int,
        *,
        has_room: Callable[[], bool],
    ) -> None:
        self._discovery = discovery
        self._reply = reply
        self._most = max_reply_bytes
        self._has_room = has_room
        self._waiting: deque[_Query] = deque()
        self._waiting_bytes = 0
        self._count = 0
        self._answered_in_this_turn = False
        self._answering: Generator[None] | None = None
        self._last: tuple[Operation, bytes, bytes] | None = None

    @property
    def at_limit(self) -> bool:
        """Says whether the next query would be over `MAX_QUERIES`."""
        return self._count >= MAX_QUERIES

    def begin(self, query_id: int, op: Operation, body: bytes) -> None:
        """Answers one discovery request, in its turn."""
        self._count += 1
        query = _Query(query_id, op, body)
        if self._waiting and self._waiting_bytes + len(body) > MAX_WAITING_BYTES:
            self._refuse(
                query,
                ScriptError(
                    "Too many long discovery requests are under way.",
                    hint="Await some before you make the next.",
                ),
            )
            return
        self._waiting.append(query)
        self._waiting_bytes += len(body)
        self.go_on()

    def go_on(self) -> None:
        """Answers the next of the discovery requests that wait, unless one was answered in this turn of the loop."""
        if not self._answered_in_this_turn:
            self._next()

    def close(self) -> None:
        """Drops the discovery requests that wait, unanswered."""
        self._waiting.clear()
        self._waiting_bytes = 0
        self._answering = None

    def _next(self) -> None:
        if self._answering is None and self._waiting and self._has_room():
            query = self._waiting.popleft()
            self._waiting_bytes -= len(query.body)
            self._answering = self._answer(query)
        self._answered_in_this_turn = self._answering is not None
        if self._answering is not None:
            # To its next pause, or to its end.
            if next(self._answering, _OVER) is _OVER:
                self._answering = None
                if not self._waiting:
                    # What is known may be more by the time of the next.
                    self._last = None
            asyncio.get_running_loop().call_soon(self._next)

    def _answer(self, query: _Query) -> Generator[None]:
        try:
            self._reply(query.id, True, (yield from self._encoded(query)))
        except ScriptError as error:
            self._refuse(query, error)
        except payload.PayloadError as error:
            self._refuse(query, ScriptError(f"The request is {error}.", hint="Pass plain JSON data."))
        except Exception:
            logger.exception("a discovery request failed inside Cellblock")
            failure = ScriptError(
                f"Cellblock failed while it answered {query.op}.",
                hint="Do without it; report this with the broker's log.",
            )
            self._refuse(query, failure)

    def _encoded(self, query: _Query) -> Generator[None, None, bytes]:
        """Gives the answer to a discovery request; to one that was asked just before, the same bytes."""
        if self._last is not None and self._last[:2] == (query.op, query.body):
            return self._last[2]
        arguments: object = payload.decode(query.body)
        items = arguments if is_array(arguments) else []
        answer = yield from self._discovery.encoded(query.op, items, payload.encode)
        if len(answer) > self._most:
            raise ScriptError("The answer is too large.", hint='Ask with detail: "name", or for one tool.')
        self._last = query.op, query.body, answer
        return answer

    def _refuse(self, query: _Query, error: ScriptError) -> None:
        self._reply(query.id, False, encode_error(error, self._most))
