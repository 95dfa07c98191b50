"""Server serves MCP over streamable HTTP: the SDK's session manager behind the gate, in uvicorn.

Both generations of the protocol are served at one path: sessions (2025-11-25 and before) and self-contained requests
(2026-07-28).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import mcp_types as types
import uvicorn
from mcp.server.auth.provider import TokenVerifier
from mcp.server.context import CallNext, HandlerResult
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from starlette.middleware import Middleware
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from cellblock.base.daemon_socket import ListeningSocket
from cellblock.base.errors import ConfigError
from cellblock.base.settings.sections import MIB, HttpSettings
from cellblock.base.tasks import at_most, end_tasks, in_background
from cellblock.serve.http import login_pages
from cellblock.serve.http.address import MCP_PATH, Address, check_certificate, config_mark
from cellblock.serve.http.bodies import Memory, Spliced, WholeBody
from cellblock.serve.http.caller import Authenticator, JwtVerifier, challenge_of
from cellblock.serve.http.connections import BoundedConnection, Connections
from cellblock.serve.http.guards import (
    SERVER_LOGINS,
    Guarded,
    RateLimit,
    mcp_methods,
    no_named_tokens,
    one_length,
    own_site,
    trusted_hosts,
    trusted_origins,
    uncoded,
)
from cellblock.serve.http.in_flight import Activity, Drained, Exchange, InFlight, Seen, owner_of
from cellblock.serve.http.login_pages import Identity, LoginPages, origin_at
from cellblock.serve.http.pages import Logins, Pages, public_routes, signed_in
from cellblock.serve.http.refusal import Refusals, Refused
from cellblock.serve.http.sessions import SessionLimit, SessionNames, Sessions
from cellblock.serve.http.token import OwnTokens, ensure_tokens
from cellblock.serve.kept_outputs import keeping
from cellblock.serve.mcp.list_changes import LISTEN
from cellblock.serve.mcp.mcp_server import FrontServer
from cellblock.serve.service import Context, RunService
from cellblock.serve.splices import Splices
from cellblock.serve.stdio.socket_front import Answer, SocketFront
from cellblock.tools.upstream.auth.authority import origin_of

logger = logging.getLogger("cellblock.serve")

MAX_HEAD_BYTES: Final = 32 * 1024
"""Bounds the request line and all headers, but for the last piece of them, which has 16 KiB at most; tokens of
authorization servers take a few KiB."""

MAX_BODY_BYTES: Final = 8 * MIB
"""Caps one request's body. The largest script is 1 MiB, and takes six times that if every character is escaped."""

LEAST_HELD_BYTES: Final = 128 * MIB
HELD_BYTES_PER_SESSION: Final = MIB
"""Cap the memory for all requests that are being read, wait or run; a client may have a quarter."""

LEAST_CONNECTIONS: Final = 256
CONNECTIONS_PER_SESSION: Final = 2
"""Cap the open connections. A new one beyond that closes an idle one, first of those that have shown no token; a
quarter of the places is kept for these. A client holds two or three, most of the time one."""

REQUESTS_PER_SECOND: Final = 2_000
"""Caps the requests of one client in the long run, at over twice what two processors can run. A client is an MCP
session; requests without one count for the pair of authenticated principal and address."""

BURST: Final = 4_000
"""Caps the requests of one client at once, after a pause."""

SESSION_IDLE_SECONDS: Final = 30 * 60
"""Bounds how long a session without any request or open stream is kept; a client that comes later begins anew."""

HEADER_SECONDS: Final = 10.0
"""Bounds the time from the start of a connection to the end of a request's headers. Clients need one packet."""

BODY_SECONDS: Final = 30.0
"""Bounds the time for a request's body: 8 MiB at 2.2 Mbit/s."""

STALL_MS: Final = 60_000
"""Bounds how long a client may stop reading an answer."""

KEEP_ALIVE_SECONDS: Final = 75
"""Bounds the time of a connection without a request; clients keep theirs for 5 to 60 s."""

ACCEPTED_AT_ONCE: Final = 16
"""Bounds the connections taken in one turn of the loop: few, so that the requests of those which came before are read
between."""

LISTEN_BACKLOG: Final = 1024
"""Bounds the connections that wait in the kernel for their turn."""

CLOSE_SECONDS: Final = 2
"""Bounds the time for the last bytes of connections after everything in flight has ended."""


CANCELS: Final = "Cancel %s running task(s)"
"""Begins what uvicorn logs when it cancels requests that have not ended with all else."""


@dataclass(frozen=True)
class HttpOptions:
    """Holds what the command line says of the HTTP front-end."""

    address: Address
    token_file: Path
    no_auth: bool = False
    tls_cert: Path | None = None
    tls_key: Path | None = None
    config: str | None = None


class _Server(uvicorn.Server):
    """Runs uvicorn without its hands on this process's signals, which belong to the command line."""

    def __init__(self, config: uvicorn.Config, on_serving: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_serving = on_serving

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or ():
            # What asyncio takes at once is also what it has asked the kernel to keep.
            listening.listen(LISTEN_BACKLOG)
        self._on_serving()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


class HttpFrontend:
    """Serves MCP clients until it is told to stop. Owns the listening socket and all connections.

    Args:
        settings: The bounds.
        options: Where, and what protects it.

    Raises:
        ConfigError: That would be unsafe, the token file or the certificate cannot be used, or the address is not here.
        CellblockError: The address is taken.
    """

    def __init__(self, settings: HttpSettings, options: HttpOptions) -> None:
        address = options.address
        if (options.tls_cert is None) != (options.tls_key is None):
            raise ConfigError("--tls-cert and --tls-key belong together.", hint="Give both, or neither.")
        if options.no_auth and settings.oauth is not None:
            raise ConfigError("--no-auth contradicts cellblock.http.oauth.", hint="Leave one of them out.")
        address.check_safe(
            authenticated=not options.no_auth,
            encrypted=options.tls_cert is not None,
            named=bool(settings.hosts),
        )
        if options.tls_cert is not None and options.tls_key is not None:
            check_certificate(options.tls_cert, options.tls_key)
        self._settings = settings
        self._options = options
        self._stopping = asyncio.Event()
        self.hurried = asyncio.Event()
        self._drained = False
        self._listening: ListeningSocket | None = None
        most = settings.max_sessions
        self._connections = Connections(max(LEAST_CONNECTIONS, CONNECTIONS_PER_SESSION * most))
        self._sessions = Sessions(most, SESSION_IDLE_SECONDS)
        self._memory = Memory(max(LEAST_HELD_BYTES, HELD_BYTES_PER_SESSION * most))
        self.activity, self._in_flight = Activity(), InFlight()
        if settings.oauth is not None:
            self._share()
        self._socket = address.bind()
        try:
            if sys.platform == "linux":
                # A client that takes nothing of its answer for so long is hung up on.
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALL_MS)
            self.port: int = self._socket.getsockname()[1]
            scheme = "https" if options.tls_cert else "http"
            self._hosts = [*address.hosts(self.port), *settings.hosts]
            # A proxy in front has TLS, and browsers its name.
            proxied = [f"https://{host}" for host in settings.hosts]
            proxied += [origin_of(settings.oauth.audience)] if settings.oauth is not None else []
            own = [f"{scheme}://{host}" for host in self._hosts]
            self._origins = [*own, *proxied, *settings.origins]
            self.base_url = f"{scheme}://{address.host}:{self.port}"
            self._verifier = self._make_verifier()
        except BaseException:
            self._socket.close()
            raise

    @property
    def url(self) -> str:
        """Gives the URL of the MCP endpoint."""
        return self.base_url + MCP_PATH

    @property
    def protection(self) -> str:
        """Says what a client has to show, for people."""
        if self._settings.oauth is not None:
            return f"clients need a token of {self._settings.oauth.issuer}"
        if self._verifier is None:
            return "no token is asked for: every program of this machine may run scripts"
        return f"the token is in {self._options.token_file}"

    @property
    def login_pages(self) -> str | None:
        """Gives what the URLs of the pages begin with that lead to the logins of servers; None where people cannot say
        who they are."""
        oauth, hosts = self._settings.oauth, [*self._settings.hosts, *self._hosts]
        if oauth is not None:
            return None if oauth.client_id is None else origin_of(oauth.audience) + SERVER_LOGINS
        return origin_at(hosts[0], secure=self._options.tls_cert is not None) + SERVER_LOGINS

    def stop(self) -> None:
        """Begins to drain: nothing new is taken, and what is in flight has its bound to end."""
        self._stopping.set()

    def hurry(self) -> bool:
        """Leaves what is in flight no more time: it ends as at the bound of draining, and its answers go out.

        Returns:
            Whether there was draining to cut short; there is once at most.
        """
        if self.hurried.is_set() or self._drained:
            return False
        self.hurried.set()
        return True

    @property
    def lost_state(self) -> bool:
        """Says whether the socket in the state directory has been removed below it."""
        return self._listening is not None and not self._listening.is_there()

    def close(self) -> None:
        """Gives the address back; for a front-end that does not get to serve."""
        self._socket.close()

    async def serve(
        self,
        service: RunService,
        *,
        version: str,
        ready: Callable[[bool], bool],
        trouble: Callable[[], str | None],
        on_serving: Callable[[], None],
        pages: Pages,
        broker: str,
        answer: Answer,
    ) -> None:
        """Serves until `stop`, then drains.

        Args:
            service: The broker.
            version: Of Cellblock.
            ready: Whether scripts can run; given whether requests are being answered, which take workers.
            trouble: Says what is away that scripts run without, for whoever asks whether it is ready.
            on_serving: Called when connections are taken.
            pages: The dashboard and the metrics.
            broker: Names this broker to a balancer; empty where it is alone.
            answer: Answers what commands of this user ask.
        """
        if isinstance(self._verifier, OwnTokens):
            self._verifier.named = service.tokens
            if service.tokens.any:
                self._share()
        server = FrontServer(service, version=version, owner_of=owner_of)
        manager = StreamableHTTPSessionManager(
            server,
            # The gate has checked the same before; this is the SDK's own lock on the door.
            security_settings=TransportSecuritySettings(
                allowed_hosts=self._hosts, allowed_origins=self._origins
            ),
            session_idle_timeout=SESSION_IDLE_SECONDS,
            max_request_body_size=MAX_BODY_BYTES,
            max_sessions=self._settings.max_sessions,
        )
        logins = self._login_pages(service)
        app = self._app(manager, server.splices, service, broker, ready, trouble, pages, logins)

        async def bound_to_its_request(ctx: Context, call_next: CallNext) -> HandlerResult:
            if ctx.method not in ("tools/call", LISTEN):
                return await call_next(ctx)
            if self._in_flight.draining:
                raise MCPError(types.INTERNAL_ERROR, "The daemon is stopping. Call again in a few seconds.")
            if ctx.method == LISTEN:
                self._in_flight.await_no_longer(Exchange.from_context(ctx))
            return await Exchange.from_context(ctx).within(call_next(ctx))

        server.middleware.append(bound_to_its_request)
        async with keeping(service.settings.cellblock.frontend.outputs, service.store) as kept:
            web = self._make_web_server(app, on_serving)
            # Before connections are taken at the address, and until after: who reaches it finds the socket.
            async with self._socket_front(server, service, version, answer):
                with cancellations_unsaid():
                    await self._until_drained(server.open(kept), service, manager, web)

    async def _until_drained(
        self,
        server: FrontServer,
        service: RunService,
        manager: StreamableHTTPSessionManager,
        web: _Server,
    ) -> None:
        serving = asyncio.create_task(web.serve(sockets=[self._socket]))
        try:
            async with in_background(self._keep_keys_fresh(), name="issuer's keys"), manager.run():
                stopping = asyncio.create_task(self._stopping.wait())
                try:
                    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    stopping.cancel()
                server.end_streams()
                drained = await self._in_flight.drain(
                    self._settings.drain_ms / 1000,
                    self.hurried,
                    service.parked_runs.park,
                    service.parked_runs.going_on.quiet,
                )
                self._drained = True
                if not drained:
                    logger.warning("runs in flight are ended: the time to drain is over")
            # The manager has closed all sessions and with them the streams that would never end by themselves.
            web.should_exit = True
            await serving
        finally:
            web.should_exit = web.force_exit = True
            await end_tasks(serving)
            async with at_most(CLOSE_SECONDS):
                await end_tasks(*web.server_state.tasks)
            self._socket.close()

    # ---- inside ------------------------------------------------------------------------------------------

    def _socket_front(
        self, server: FrontServer, service: RunService, version: str, answer: Answer
    ) -> contextlib.AbstractAsyncContextManager[object]:
        """Makes what serves `connect` on this machine; nothing where no socket can be made."""
        address = f"{self._options.address.host}:{self.port}"
        try:
            listening = self._listening = ListeningSocket(service.settings.state_dir, address)
        except OSError as error:
            logger.warning("`cellblock connect` cannot use this daemon: no socket can be made: %s", error)
            return contextlib.nullcontext()
        return SocketFront(
            listening,
            server,
            self._in_flight,
            self.activity,
            verifier=self._verifier,
            most=self._settings.max_sessions,
            version=version,
            config=config_mark(self._options.config),
            answer=answer,
        ).serving()

    def _make_verifier(self) -> TokenVerifier | None:
        if self._settings.oauth is not None:
            return JwtVerifier(self._settings.oauth)
        if self._options.no_auth:
            return None
        return OwnTokens(ensure_tokens(self._options.token_file), self._share)

    async def _keep_keys_fresh(self) -> None:
        if isinstance(self._verifier, JwtVerifier):
            await self._verifier.keys.keep_fresh()

    def _share(self) -> None:
        """Leaves one principal half of each, now that there may be several, so that others have the rest."""
        for bounded in (self._connections, self._sessions, self._memory):
            bounded.share = max(1, bounded.total // 2)

    def _app(
        self,
        mcp: StreamableHTTPSessionManager,
        splices: Splices,
        service: RunService,
        broker: str,
        ready: Callable[[bool], bool],
        trouble: Callable[[], str | None],
        pages: Pages,
        logins: list[Route],
    ) -> ASGIApp:
        """Puts together what a request passes before the SDK sees it."""
        oauth = self._settings.oauth
        counts = service.counts if service.store.is_shared else None
        authenticator = Authenticator(self._verifier, challenge_of(oauth), behind_balancer=counts is not None)
        known, connections = authenticator.authenticate, self._connections.check
        rates = RateLimit(REQUESTS_PER_SECOND, BURST, counts).check
        seen = Middleware(Seen, self.activity)

        def browser(logins: Logins) -> list[Middleware]:
            one = signed_in(logins, authenticator)
            return [Middleware(Guarded, own_site, one, no_named_tokens, connections, rates), seen]

        # Whose it is comes before what it may take, and what costs most comes last: the memory for a body is taken for
        # a caller whose connection, session and rate are in order, and only what is whole counts as in flight.
        mcp_guards = [
            Middleware(Guarded, known),
            seen,
            Middleware(Guarded, mcp_methods(config_mark(self._options.config), self._in_flight), connections),
            Middleware(SessionLimit, self._sessions),
            Middleware(Guarded, rates),
            Middleware(WholeBody, MAX_BODY_BYTES, BODY_SECONDS, self._memory),
            Middleware(Drained, self._in_flight),
            *([Middleware(SessionNames, broker)] if broker else []),
            Middleware(Spliced, splices),
        ]
        return Router(
            [
                *(
                    Route(path, StreamableHTTPASGIApp(mcp), middleware=mcp_guards)
                    for path in (MCP_PATH, f"{MCP_PATH}/")
                ),
                *public_routes(self._in_flight, ready, trouble, oauth, [Middleware(Guarded, rates)]),
                *pages.routes(
                    public=[Middleware(Guarded, own_site, rates)],
                    token=[Middleware(Guarded, own_site, known, connections, rates)],
                    owner=[Middleware(Guarded, own_site, known, no_named_tokens, connections, rates), seen],
                    browser=browser,
                    decision=[Middleware(Guarded, self._in_flight.nothing_new)],
                ),
                *logins,
            ],
            redirect_slashes=False,
            # Nobody without a token learns which paths there are.
            default=Guarded(_not_found, known),
            # What can be read in two ways goes before anything is believed, and a hostile page before any answer.
            middleware=[
                Middleware(Refusals),
                Middleware(
                    Guarded, one_length, uncoded, trusted_hosts(self._hosts), trusted_origins(self._origins)
                ),
            ],
        )

    def _login_pages(self, service: RunService) -> list[Route]:
        oauth, verifier = self._settings.oauth, self._verifier
        if self.login_pages is None:
            return []
        identity = Identity(oauth, verifier) if oauth and isinstance(verifier, JwtVerifier) else None
        rates = RateLimit(login_pages.REQUESTS_PER_SECOND, login_pages.BURST).check
        guard = [Middleware(Guarded, own_site, rates), Middleware(Seen, self.activity)]
        origin = None if oauth is None else origin_of(oauth.audience)
        secure = self._options.tls_cert is not None
        return LoginPages(service, verifier, identity, origin, secure=secure).routes(guard)

    def _make_web_server(self, app: ASGIApp, on_serving: Callable[[], None]) -> _Server:
        options = self._options
        connection: Any = partial(BoundedConnection, self._connections, HEADER_SECONDS)
        config = uvicorn.Config(
            app,
            http=connection,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            ws="none",
            lifespan="off",
            interface="asgi3",
            loop="asyncio",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            backlog=ACCEPTED_AT_ONCE,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=CLOSE_SECONDS,
            ssl_certfile=options.tls_cert,
            ssl_keyfile=options.tls_key,
        )
        return _Server(config, on_serving)


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    raise Refused(404, why=f"There is nothing at this path: the MCP endpoint is at {MCP_PATH}.")


@contextlib.contextmanager
def cancellations_unsaid() -> Generator[None]:
    """Leaves out of the web server's log, inside the block, that requests were cancelled: at the end that is our own
    doing."""

    def is_said(record: logging.LogRecord) -> bool:
        kind = record.exc_info[0] if record.exc_info else None
        if kind is not None:
            return not issubclass(kind, asyncio.CancelledError)
        return not str(record.msg).startswith(CANCELS)

    log = logging.getLogger("uvicorn.error")
    # In front of the filter that makes one line of a record, without its exception.
    log.filters.insert(0, is_said)
    try:
        yield
    finally:
        log.removeFilter(is_said)
