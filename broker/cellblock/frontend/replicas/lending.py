"""Lending lets other brokers use the servers that exist once and that this broker has.

Each connection to such a server is lent at a path of the gate, to brokers which show that they have the shared key and
know in which epoch it is this broker's. What they ask in another one is refused, and has not begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, NamedTuple

from starlette.types import Receive, Scope, Send

from cellblock.apart.light import LIGHT_BYTES
from cellblock.apart.raw import Splices
from cellblock.config.http import HttpSettings
from cellblock.frontend.client import Owner
from cellblock.frontend.http.refusal import Refused, busy
from cellblock.frontend.http.spliced import SplicingManager
from cellblock.frontend.replicas.lent_server import LARGE_KEY, LentServer
from cellblock.frontend.replicas.words import LARGE, WAY_HEADER, WAY_PATH, Words
from cellblock.frontend.service import RunService
from cellblock.upstream.session import UpstreamSession
from cellblock.upstream.single import LOOK_SECONDS

START_SECONDS: Final = 5.0
"""Bounds how long another broker waits for a server that is starting, before it asks again."""

RETRY_SECONDS: Final = 1

MAX_SESSIONS: Final = 256
"""Bounds the sessions of one server: each broker has one."""

PRINCIPAL: Final = "brokers"
"""Stands for other brokers where memory and connections are counted."""


class Shown(NamedTuple):
    """A request of another broker has shown which server it is for, who asks, and in which epoch."""

    server: str
    by: str
    epoch: int


class Lent:
    """Serves one connection to a server, in a task of its own, until it is no longer this broker's or another one.

    Args:
        session: This broker's session with the server.
        settings: Bounds of the front-end.
    """

    def __init__(self, session: UpstreamSession, settings: HttpSettings) -> None:
        assert session.client is not None
        self.place: Final = session.place
        splices = Splices()
        self._session, self._server = session, LentServer(session, session.client, splices)
        self._manager = SplicingManager(
            self._server,
            splices=splices,
            session_idle_timeout=settings.session_idle_ms / 1000,
            max_request_body_size=settings.max_body_bytes,
            max_sessions=MAX_SESSIONS,
        )
        self._ready = asyncio.Event()
        self.serving: Final = asyncio.create_task(self._serve(), name=f"lent {session.name}")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request of another broker."""
        await self._ready.wait()
        await self._manager.handle_request(scope, receive, send)

    async def _serve(self) -> None:
        session = self._session
        told = session.facts, session.revision
        async with self._manager.run():
            self._ready.set()
            while session.place is self.place:
                await asyncio.sleep(LOOK_SECONDS)
                before, told = told, (session.facts, session.revision)
                if before[0] is not told[0]:
                    await self._server.tell(beside=False)
                if before[1] != told[1]:
                    await self._server.tell(beside=True)


class Lending:
    """Finds, for the gate, what answers a request of another broker.

    Args:
        service: Has the servers.
        own: This broker.
        words: Reads what is shown.
        settings: Bounds of the front-end.
        max_message_bytes: Caps a large input.
    """

    def __init__(
        self, service: RunService, own: str, words: Words, settings: HttpSettings, max_message_bytes: int
    ) -> None:
        self._service, self._own, self._words = service, own, words
        self.settings: Final = settings.model_copy(update={"max_body_bytes": max_message_bytes + LIGHT_BYTES})
        self._lent: dict[str, Lent] = {}

    async def close(self) -> None:
        """Ends the servers that are lent."""
        serving = [lent.serving for lent in self._lent.values()]
        for task in serving:
            task.cancel()
        if serving:
            await asyncio.wait(serving)

    def shown(self, path: str, headers: Mapping[bytes, bytes]) -> Shown | None:
        """Returns what a request shows; None where that is nothing, or was not made for this broker."""
        if not path.startswith(WAY_PATH):
            return None
        parts = headers.get(WAY_HEADER, b"").split(b" ")
        try:
            tag, by, epoch = parts[0], parts[1].decode(), int(parts[2])
            server = bytes.fromhex(path.removeprefix(WAY_PATH)).decode()
        except (IndexError, ValueError):
            return None
        if not self._words.is_way(tag, self._own, by, server, epoch):
            return None
        return Shown(server, by, epoch)

    async def asked(self, shown: Shown) -> tuple[Lent, Owner]:
        """Returns the lent server that a request is for, and whose the request is.

        Raises:
            Refused: The server is not here in that epoch, or not connected.
        """
        server, by, epoch = shown
        session = self._service.registry.lendable(server)
        if session is None or session.single is None or not session.single.is_here(epoch):
            raise Refused(404)
        if session.client is None:
            await session.first.over(START_SECONDS, at_most=START_SECONDS)
        lent = self._lent.get(server)
        if lent is None or lent.place is not session.place or lent.serving.done():
            if session.client is None:
                if session.is_shut_out:
                    raise Refused(401)
                raise busy(503, RETRY_SECONDS, session.reason or "it is not connected")
            lent = self._lent[server] = Lent(session, self.settings)
        return lent, Owner(PRINCIPAL, f"broker {by}")

    def taken(self, scope: Scope, headers: Mapping[bytes, bytes], raw: bytes) -> bytes:
        """Returns the message of a body, and puts the large input behind it, if there is one, into the scope.

        Raises:
            Refused: It is not as it says, or large without an input.
        """
        message = raw
        if (large := headers.get(LARGE)) is not None:
            token, _, size = large.decode("latin-1").partition(" ")
            if not size.isdigit() or int(size) > len(raw):
                raise Refused(400)
            message = raw[: int(size)]
            scope[LARGE_KEY] = {token: raw[int(size) :]}
        if len(message) > LIGHT_BYTES:
            raise Refused(413)
        return message
