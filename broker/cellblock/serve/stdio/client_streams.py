"""Carries MCP messages between a client and the SDK's server: lines in, lines out, over stdin and stdout or a socket.

The SDK's own transport drops a line that is no message: a client with that bug would wait for ever. Here it is answered
as JSON-RPC 2.0 has it (section 5.1).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
import mcp_types as types
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from cellblock.serve.misread import (
    AS_IT_IS_BYTES,
    NO_UTF8,
    Misread,
    NotTaken,
    misread_line,
    misread_message,
)
from cellblock.serve.splices import Splices
from cellblock.serve.stdio.lines import ClientLines

LONG: Final = ("tools/call", "subscriptions/listen")
"""Names the requests that take as long as they like, and end with stdin."""


async def _plain(message: types.JSONRPCMessage) -> SessionMessage:
    return SessionMessage(message)


def message_of(line: bytes) -> types.JSONRPCMessage | Misread | None:
    """Reads a line of a client.

    Returns:
        The message, or the error that answers the line; None where nobody is to be told.
    """
    try:
        text = line.decode()
    except UnicodeDecodeError:
        return misread_line(line.decode("utf-8", "replace"), NO_UTF8)
    try:
        return types.jsonrpc_message_adapter.validate_json(text, by_name=False)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
    if first["type"] != "json_invalid":
        # Python refuses numbers with thousands of digits.
        with contextlib.suppress(ValueError, RecursionError):
            return misread_message(json.loads(text))
    return misread_line(text, first["msg"])


class ToClient(ObjectSendStream[SessionMessage]):
    """The stream to the client writes one message at a time, and knows which requests of the client wait for an
    answer.

    Args:
        put: Takes pieces of lines.
        flush: Waits until all are taken, or nobody reads any more.
        splices: Puts large results into what is written.
        sent: Returns a message as the client gets it.
        answered: Called with the id of a request that is answered.
    """

    def __init__(
        self,
        put: Callable[[bytes], object],
        flush: Callable[[], Awaitable[None]],
        splices: Splices,
        sent: Callable[[types.JSONRPCMessage], types.JSONRPCMessage] = lambda message: message,
        answered: Callable[[types.RequestId], object] = lambda _: None,
    ) -> None:
        self._put, self._flush, self._splices = put, flush, splices
        self._sent, self._answered = sent, answered
        self._turn = asyncio.Lock()
        self._due: set[types.RequestId] = set()
        self._changed = asyncio.Event()

    def expect(self, message: types.JSONRPCMessage) -> None:
        """Notes a message of the client: whether it wants an answer, or wants one no more."""
        if isinstance(message, types.JSONRPCRequest) and message.method not in LONG:
            self._due.add(message.id)
        elif isinstance(message, types.JSONRPCNotification) and message.method == "notifications/cancelled":
            # Whether it still gets one is the server's to say.
            self._settle((message.params or {}).get("requestId"))

    async def none_due(self) -> None:
        """Waits until every request is answered. They are only looked up, and nothing starts for them."""
        while self._due:
            self._changed.clear()
            await self._changed.wait()

    async def send(self, item: SessionMessage) -> None:
        """Writes a message, as soon as those before it are in the pipe."""
        message = self._sent(item.message)
        try:
            await self._write(message.model_dump_json(by_alias=True, exclude_unset=True).encode())
        finally:
            if isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
                self._settle(message.id)
                if message.id is not None:
                    self._answered(message.id)

    async def aclose(self) -> None:
        """Does nothing: who has opened what is written to closes it."""

    async def refuse(self, found: Misread) -> None:
        """Answers a line that is no message."""
        await self._write(json.dumps(found.answer(), separators=(",", ":")).encode())

    async def _write(self, line: bytes) -> None:
        async with self._turn:
            await self._flush()
            # Not in pieces with pauses: half a message, of a request that is cancelled, would spoil those that follow.
            for piece in (*self._splices.spliced(line), b"\n"):
                self._put(piece)

    def _settle(self, request_id: object) -> None:
        if isinstance(request_id, int | str):
            self._due.discard(request_id)
            self._changed.set()


class FromClient(ObjectReceiveStream[SessionMessage | Exception]):
    """The stream from the client gives its messages, and ends when all that it has asked is answered.

    Args:
        lines: Gives the client's lines.
        answers: Answers what is no message.
        opened: Waits until the broker runs.
        taken: Returns a message as the server gets it. Raises anyio.EndOfStream: nothing more is taken.
    """

    def __init__(
        self,
        lines: ClientLines,
        answers: ToClient,
        opened: Callable[[], Awaitable[object]],
        taken: Callable[[types.JSONRPCMessage], Awaitable[SessionMessage]] = _plain,
    ) -> None:
        self._lines = lines
        self._answers = answers
        self._opened = opened
        self._taken = taken

    async def receive(self) -> SessionMessage | Exception:
        """Gives the client's next message. Raises anyio.EndOfStream."""
        while True:
            try:
                line = await self._lines.line()
                if not line:
                    # What waits for an answer may wait for the broker.
                    await self._opened()
                    await self._answers.none_due()
                    raise anyio.EndOfStream
                if len(line) > AS_IT_IS_BYTES:
                    # Not before: its import would put off the first answer.
                    from cellblock.serve.intake import take

                    line = (await take(line)).body
                found = message_of(line)
            except NotTaken as refused:
                found = refused.found
            if isinstance(found, Misread):
                await self._answers.refuse(found)
            elif found is not None:
                self._answers.expect(found)
                return await self._taken(found)

    async def aclose(self) -> None:
        """Does nothing: who has opened what is read closes it."""
