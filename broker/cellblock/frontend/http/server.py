"""Server serves MCP over streamable HTTP: the SDK's session manager behind the gate, in uvicorn.

Both generations of the protocol are served at one path: sessions (2025-11-25 and before) and self-contained requests
(2026-07-28).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import mcp_types as types
import uvicorn
from mcp import MCPError
from mcp.server.auth.provider import TokenVerifier
from mcp.server.context import CallNext, HandlerResult
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings

from cellblock.apart.raw import Splices
from cellblock.base.errors import ConfigError
from cellblock.base.tasks import end_tasks
from cellblock.config.http import HttpSettings
from cellblock.frontend.client import Context
from cellblock.frontend.http.address import MCP_PATH, Address, config_mark
from cellblock.frontend.http.certificate import check_certificate
from cellblock.frontend.http.connection import connections_bounded_by
from cellblock.frontend.http.exchange import Broken, Exchange, owner_of
from cellblock.frontend.http.gate import Gate
from cellblock.frontend.http.oauth import JwtVerifier
from cellblock.frontend.http.pages import Pages
from cellblock.frontend.http.places import Places
from cellblock.frontend.http.session_names import SessionNames
from cellblock.frontend.http.spliced import SplicingManager
from cellblock.frontend.http.token import OwnTokens, ensure_tokens
from cellblock.frontend.mcp.list_changes import LISTEN
from cellblock.frontend.mcp.mcp_server import FrontServer
from cellblock.frontend.outputs.kept_outputs import keeping
from cellblock.frontend.service import RunService

logger = logging.getLogger("cellblock.frontend")

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
        ConfigError: That would be unsafe, the token file or the certificate cannot be used, or the address is taken.
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
            named=bool(settings.allowed_hosts),
        )
        if options.tls_cert is not None and options.tls_key is not None:
            check_certificate(options.tls_cert, options.tls_key)
        self._settings = settings
        self._options = options
        self._stopping = asyncio.Event()
        self._hurried = asyncio.Event()
        self._drained = False
        self._gate: Gate | None = None
        self._shared = settings.oauth is not None
        self._places = Places(settings.max_connections, self._share_of(settings.max_connections))
        self._socket = address.bind()
        try:
            self.port: int = self._socket.getsockname()[1]
            scheme = "https" if options.tls_cert else "http"
            self._hosts = [*address.hosts(self.port), *settings.allowed_hosts]
            self._origins = [*(f"{scheme}://{host}" for host in self._hosts), *settings.allowed_origins]
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

    def stop(self) -> None:
        """Begins to drain: nothing new is taken, and what is in flight has its bound to end."""
        self._stopping.set()

    def hurry(self) -> bool:
        """Leaves what is in flight no more time: it ends as at the bound of draining, and its answers go out.

        Returns:
            Whether there was draining to cut short; there is once at most.
        """
        if self._hurried.is_set() or self._drained:
            return False
        self._hurried.set()
        return True

    @property
    def hurried(self) -> bool:
        """Says whether draining was cut short."""
        return self._hurried.is_set()

    @property
    def idle_seconds(self) -> float:
        """Says for how many seconds no client has been here."""
        return 0.0 if self._gate is None else self._gate.idle_seconds

    def close(self) -> None:
        """Gives the address back; for a front-end that does not get to serve."""
        self._socket.close()

    async def serve(
        self,
        service: RunService,
        *,
        version: str,
        ready: Callable[[bool], bool],
        trouble: Callable[[], str | None] = lambda: None,
        on_serving: Callable[[], None] = lambda: None,
        pages: Pages | None = None,
        broker: str = "",
    ) -> bool:
        """Serves until `stop`, then drains.

        Args:
            service: The broker.
            version: Of Cellblock.
            ready: As for `Gate`.
            trouble: Says what is away that scripts run without, for whoever asks whether it is ready.
            on_serving: Called when connections are taken.
            pages: The dashboard and the metrics.
            broker: Names this broker to a balancer; empty where it is alone.

        Returns:
            Whether all that was in flight ended by itself.
        """
        if isinstance(self._verifier, OwnTokens):
            self._verifier.named = service.tokens
            if service.tokens.any:
                self._share()
        splices = Splices()
        server = FrontServer(service, version=version, owner_of=owner_of, splices=splices)
        manager = SplicingManager(
            server,
            splices=splices,
            # The gate has checked the same before; this is the SDK's own lock on the door.
            security_settings=TransportSecuritySettings(
                allowed_hosts=self._hosts, allowed_origins=self._origins
            ),
            session_idle_timeout=self._settings.session_idle_ms / 1000,
            max_request_body_size=self._settings.max_body_bytes,
            max_sessions=self._settings.max_sessions,
        )
        gate = self._gate = Gate(
            SessionNames(manager.handle_request, broker) if broker else manager.handle_request,
            self._settings,
            apart=service.apart,
            places=self._places,
            share_of=self._share_of,
            hosts=self._hosts,
            origins=self._origins,
            verifier=self._verifier,
            ready=ready,
            trouble=trouble,
            pages=pages,
            config=config_mark(self._options.config),
            counts=service.counts if service.shared is not None else None,
        )

        async def bound_to_its_request(ctx: Context, call_next: CallNext) -> HandlerResult:
            if ctx.method not in ("tools/call", LISTEN):
                return await call_next(ctx)
            if gate.draining:
                raise MCPError(types.INTERNAL_ERROR, "The daemon is stopping. Call again in a few seconds.")
            if ctx.method == LISTEN:
                gate.no_longer_awaits(Exchange.from_context(ctx))
            return await Exchange.from_context(ctx).carry(ctx, call_next)

        server.middleware.append(bound_to_its_request)
        config = service.front_config
        async with keeping(config.outputs, config.state_dir, service.shared) as kept:
            web = self._make_web_server(gate, on_serving)
            with cancellations_unsaid():
                return await self._until_drained(server.open(kept), service, manager, gate, web)

    async def _until_drained(
        self,
        server: FrontServer,
        service: RunService,
        manager: StreamableHTTPSessionManager,
        gate: Gate,
        web: _Server,
    ) -> bool:
        serving = asyncio.create_task(web.serve(sockets=[self._socket]))
        fresh = asyncio.create_task(self._keep_keys_fresh())
        try:
            async with manager.run():
                stopping = asyncio.create_task(self._stopping.wait())
                try:
                    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    stopping.cancel()
                if service.shared is not None:
                    # Other brokers take what clients come back for.
                    await service.parked_runs.park(away=True)
                server.end_streams()
                drained = await gate.drain(
                    self._settings.drain_ms / 1000,
                    self._hurried,
                    lambda: service.parked_runs.park(away=False),
                    service.parked_runs.quiet,
                )
                self._drained = True
                if not drained:
                    logger.warning("runs in flight are ended: the time to drain is over")
            # The manager has closed all sessions and with them the streams that would never end by themselves.
            web.should_exit = True
            await serving
        finally:
            web.should_exit = web.force_exit = True
            await end_tasks(serving, fresh)
            await _cancelled(web.server_state.tasks)
            self._socket.close()
        return drained

    # ---- inside ------------------------------------------------------------------------------------------

    def _make_verifier(self) -> TokenVerifier | None:
        if self._settings.oauth is not None:
            return JwtVerifier(self._settings.oauth)
        if self._options.no_auth:
            return None
        return OwnTokens(ensure_tokens(self._options.token_file), self._share)

    async def _keep_keys_fresh(self) -> None:
        if isinstance(self._verifier, JwtVerifier):
            await self._verifier.keys.keep_fresh()

    def _share_of(self, total: int) -> int:
        """Returns the share of one principal: half where there may be several, so that others have the rest."""
        return max(1, total // 2) if self._shared else total

    def _share(self) -> None:
        """Lets one principal have its share alone, now that there are several."""
        if self._shared:
            return
        self._shared = True
        self._places.share = self._share_of(self._settings.max_connections)
        if self._gate is not None:
            self._gate.share_anew()

    def _make_web_server(self, gate: Gate, on_serving: Callable[[], None]) -> _Server:
        options = self._options
        config = uvicorn.Config(
            gate,
            http=connections_bounded_by(self._settings, self._places),
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


class CancellationsUnsaid(logging.Filter):
    """Leaves out of a log that a request was cancelled, or that its answer has broken off: at the end that is our own
    doing, or another broker's end, and no error of this one's."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Says whether a log record is about anything but a cancelled or broken answer."""
        kind = record.exc_info[0] if record.exc_info else None
        if kind is not None:
            return not issubclass(kind, asyncio.CancelledError | Broken)
        return not str(record.msg).startswith(CANCELS)


@contextlib.contextmanager
def cancellations_unsaid() -> Generator[None]:
    """Leaves cancellations out of the web server's log inside the block."""
    said, unsaid = logging.getLogger("uvicorn.error"), CancellationsUnsaid()
    # In front of the filter that makes one line of a record, without its exception.
    said.filters.insert(0, unsaid)
    try:
        yield
    finally:
        said.removeFilter(unsaid)


async def _cancelled(tasks: set[asyncio.Task[None]]) -> None:
    """Cancels requests that are still being answered."""
    left = set(tasks)
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=CLOSE_SECONDS)
