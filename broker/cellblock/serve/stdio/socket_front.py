"""Serves the clients that `connect` brings over the daemon's Unix socket: each connection is one client's session, in
the protocol of `serve --stdio`.

Both sides write one line first (`hello`): `connect` says which token it shows if it was given one, the daemon says what
it is, or why it takes nobody. Without a token the client is this user, who has the token file.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, Protocol

import anyio
import mcp_types as types
from mcp.server.auth.provider import TokenVerifier
from mcp.server.runner import serve_dual_era_loop
from mcp.shared.message import ServerMessageMetadata, SessionMessage

from cellblock.base.daemon_socket import (
    HELLO_SECONDS,
    KEY,
    REFUSES_TOKEN,
    STOPPING,
    TOO_MANY,
    ListeningSocket,
    hello,
    refuse_strangers,
)
from cellblock.base.json import is_object
from cellblock.base.settings.policy import NAMED
from cellblock.base.tasks import TaskSet, at_most
from cellblock.serve.http.caller import NO_ONE
from cellblock.serve.http.in_flight import SCOPE_KEY, Activity, Exchange, InFlight
from cellblock.serve.http.token import SUBJECT, OwnTokens
from cellblock.serve.mcp.mcp_server import FrontServer
from cellblock.serve.misread import as_id
from cellblock.serve.service import Owner
from cellblock.serve.stdio.client_streams import FromClient, ToClient
from cellblock.serve.stdio.lines import MAX_LINE_BYTES, ClientLines, flushed

logger = logging.getLogger("cellblock.serve")

FAREWELL_SECONDS: Final = 2.0
"""Bounds the time for the last answers to a client when the daemon ends."""

QUESTION_BITS: Final = 30
"""Bounds where a session begins to count its questions: the late answer to a question of a daemon that has ended is not
taken for one to another question of the next daemon. Ids have 32 bits in some clients."""


class Answer(Protocol):
    """Answers the commands of this user."""

    async def warnings(self) -> list[str]:
        """Returns what each is to tell its user of the daemon, a sentence each."""
        ...

    async def __call__(
        self, asked: Mapping[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter, /
    ) -> None:
        """Answers what a command asks in its first line, until it hangs up."""


class SocketFront:
    """Serves clients on the daemon's socket. Owns the socket.

    Args:
        listening: The socket.
        server: Answers all clients.
        in_flight: Has what clients ask.
        activity: Notes that clients are here.
        verifier: Knows the tokens; None where none is asked for.
        most: Bounds the sessions.
        version: Of Cellblock.
        config: As `config_mark` gives it.
        answer: Answers what commands ask.
    """

    def __init__(
        self,
        listening: ListeningSocket,
        server: FrontServer,
        in_flight: InFlight,
        activity: Activity,
        *,
        verifier: TokenVerifier | None,
        most: int,
        version: str,
        config: str,
        answer: Answer,
    ) -> None:
        self._answer = answer
        self._listening, self._server = listening, server
        self._in_flight, self._activity = in_flight, activity
        self._verifier, self._most = verifier, most
        self._version, self._config = version, config
        self._sessions = TaskSet()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        """Takes clients inside the block; then ends all sessions, behind the answers that are under way."""
        serving = await asyncio.start_unix_server(
            self._connected, sock=self._listening.socket, limit=MAX_LINE_BYTES
        )
        try:
            yield
        finally:
            serving.close()
            self._sessions.cancel()
            await self._sessions.ended()
            self._listening.close()

    # ---- inside ------------------------------------------------------------------------------------------

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._sessions.start(self._serve(reader, writer), name="socket session")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(high=0)
        try:
            refuse_strangers(writer.get_extra_info("socket"))
            async with asyncio.timeout(HELLO_SECONDS):
                asked = json.loads(await reader.readuntil(b"\n"))[KEY]
            token: Any = asked.get("token")
            principal = await self._principal(token)
            refusal = self._refusal(principal)
            if principal is None or refusal is not None:
                writer.write(hello(version=self._version, refused=refusal))
                return
            known = {"config": self._config, "answers": token is None}
            warnings = await self._answer.warnings() if principal == SUBJECT else []
            writer.write(hello(version=self._version, warnings=warnings, **known))
            with self._activity.one():
                if (asked := asked.get("ask")) is None:
                    await self._session(reader, writer, token, principal)
                elif token is None:
                    # Whoever reaches the socket is the user.
                    with self._in_flight.one(Owner(principal, "command"), is_awaited=True) as exchange:
                        await exchange.within(self._answer(asked, reader, writer))
        except (
            OSError,
            EOFError,
            ValueError,
            LookupError,
            AttributeError,
            asyncio.LimitOverrunError,
        ) as error:
            logger.warning("a connection on the daemon's socket is closed: %s", error or type(error).__name__)
        finally:
            async with at_most(FAREWELL_SECONDS):
                await flushed(writer)
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()

    def _refusal(self, principal: str | None) -> str | None:
        if self._in_flight.draining:
            return STOPPING
        if principal is None:
            return REFUSES_TOKEN
        return TOO_MANY if len(self._sessions) > self._most else None

    async def _principal(self, token: object) -> str | None:
        """Returns for whom a client asks; None for one that is not let in."""
        if self._verifier is None:
            return NO_ONE
        if token is None:
            return SUBJECT if isinstance(self._verifier, OwnTokens) else None
        access = await self._verifier.verify_token(token) if isinstance(token, str) else None
        return None if access is None else access.subject or SUBJECT

    async def _session(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: object, principal: str
    ) -> None:
        whose = f"{principal} " if principal.startswith(NAMED) else ""
        client = f"http {whose}session {secrets.token_hex(8)}"

        async def is_let_in() -> bool:
            # A named token may be taken back.
            return token is None or await self._principal(token) == principal

        session = _Session(self._in_flight, Owner(principal, client), is_let_in)
        splices = self._server.splices
        answers = ToClient(writer.write, partial(flushed, writer), splices, session.sent, session.answered)
        messages = FromClient(
            ClientLines(reader, writer.transport),
            answers,
            self._server.opened,
            session.taken,
        )
        options = self._server.create_initialization_options()
        try:
            await serve_dual_era_loop(
                self._server, messages, answers, lifespan_state={}, init_options=options
            )
        finally:
            session.end()


class _Session:
    """Follows the requests of one client."""

    def __init__(self, in_flight: InFlight, owner: Owner, is_let_in: Callable[[], Awaitable[bool]]) -> None:
        self._in_flight, self._owner, self._is_let_in = in_flight, owner, is_let_in
        self._base = secrets.randbits(QUESTION_BITS)
        self._open: dict[types.RequestId, tuple[Exchange, contextlib.ExitStack]] = {}

    async def taken(self, message: types.JSONRPCMessage) -> SessionMessage:
        """Returns a client's message as the server gets it. Raises anyio.EndOfStream."""
        if not await self._is_let_in():
            raise anyio.EndOfStream
        exchange = Exchange(self._owner)
        if isinstance(message, types.JSONRPCRequest):
            self.answered(message.id)
            stack = contextlib.ExitStack()
            exchange = stack.enter_context(self._in_flight.one(self._owner, is_awaited=True))
            self._open[message.id] = exchange, stack
        elif isinstance(message, types.JSONRPCNotification):
            if message.method == "notifications/cancelled":
                key = as_id((message.params or {}).get("requestId"))
                if key is not None and key in self._open:
                    self._in_flight.await_no_longer(self._open[key][0])
        elif isinstance(message.id, int):
            message = message.model_copy(update={"id": message.id - self._base})
        # In the place of the HTTP request, where the front-end looks for what it came in.
        request = SimpleNamespace(scope={SCOPE_KEY: exchange})
        return SessionMessage(message, ServerMessageMetadata(request_context=request))

    def sent(self, message: types.JSONRPCMessage) -> types.JSONRPCMessage:
        """Returns a message of the server as the client gets it."""
        if isinstance(message, types.JSONRPCRequest) and isinstance(message.id, int):
            return message.model_copy(update={"id": self._base + message.id})
        if isinstance(message, types.JSONRPCNotification) and message.method == "notifications/cancelled":
            params = message.params or {}
            if is_object(params) and isinstance(key := params.get("requestId"), int):
                return message.model_copy(update={"params": {**params, "requestId": self._base + key}})
        return message

    def answered(self, request_id: types.RequestId) -> None:
        """Notes that a request is over."""
        if (opened := self._open.pop(request_id, None)) is not None:
            opened[1].close()

    def end(self) -> None:
        """Ends what the client has asked for: it has hung up, or the daemon ends."""
        for key in list(self._open):
            self.answered(key)
