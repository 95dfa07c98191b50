"""Everything that a request must pass before the SDK sees it. What is refused is refused with a bare status: no body
of the request, no version, nothing about the inside is in the answer.

The order: who it was meant for (`Host`), which page sent it (`Origin`, `Sec-Fetch-Site`), who sends it (bearer token),
how often, how much. The first two are what stops a hostile web page: its `Origin` is not ours, and after DNS rebinding
its `Host` is not ours either (MCP specification, transports, security warning).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, MutableMapping
from typing import Any, Final

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken, TokenVerifier
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cellblock.config.http import HttpSettings
from cellblock.config.policy import PROVEN
from cellblock.frontend.http.address import MCP_PATH
from cellblock.frontend.http.bodies import Bodies, giving
from cellblock.frontend.http.exchange import SCOPE_KEY, Exchange
from cellblock.frontend.http.pages import DASHBOARD_PATH, Page, Pages, sign_in_page
from cellblock.frontend.http.places import Client, Places, network_of
from cellblock.frontend.http.rates import Rates
from cellblock.frontend.http.refusal import Refused, busy, refuse, respond
from cellblock.frontend.http.sessions import NotOwner, Owner, Sessions
from cellblock.frontend.http.token import SUBJECT as TOKEN_HOLDER
from cellblock.frontend.memory import Memory

LIVE_PATH: Final = "/livez"
READY_PATH: Final = "/readyz"

METHODS: Final = ("GET", "POST", "DELETE")

SESSION_HEADER: Final = b"mcp-session-id"

VERSION_HEADER: Final = b"mcp-protocol-version"
"""Names the header with the protocol version, which a request that opens a session does not have."""

FETCH_SITE_HEADER: Final = b"sec-fetch-site"
OWN_SITES: Final = (None, b"same-origin", b"none")
"""Lists who may have something fetched without an Origin, as browsers say it: our own page, or the person; nobody
else's page. The dashboard is for these alone, whatever their Origin."""

READ: Final = frozenset(
    (
        b"host",
        b"origin",
        b"authorization",
        b"content-length",
        b"cookie",
        b"expect",
        SESSION_HEADER,
        VERSION_HEADER,
        FETCH_SITE_HEADER,
    )
)

DRAIN_RETRY_SECONDS: Final = 5
"""Says when to ask again while the daemon is stopping; by then its successor runs, or nothing does."""

FAREWELL_SECONDS: Final = 2.0
"""Bounds the time for the answers to calls that draining has ended."""

SESSION_RETRY_SECONDS: Final = 30
"""Says when to ask again for a session; those that nobody uses end by themselves."""

CONNECTION_RETRY_SECONDS: Final = 1
"""Says when to ask again on another connection; most are in use for milliseconds."""

TOO_MANY_SESSIONS: Final = (
    "You have as many MCP sessions open as one may have here. End those that you do not use with DELETE, or wait until "
    "they have been idle for long enough."
)
TOO_MANY_CONNECTIONS: Final = (
    "All connections that you may have here have requests under way. Wait for an answer, then ask again."
)

NO_ONE: Final = "anybody"
"""Names the subject where no token is asked for."""

SESSION_VERSIONS: Final = frozenset(HANDSHAKE_PROTOCOL_VERSIONS)
"""Lists the protocol versions with which, as with none, a request without a session opens one."""


class Gate:
    """An ASGI application in front of the SDK's.

    Args:
        app: The SDK's session manager.
        settings: The bounds.
        places: What connections take.
        sessions: Those that are open.
        bodies: Reads what is posted.
        memory: For what requests hold.
        hosts: `Host` headers that are right.
        origins: `Origin` headers that are right; a request without one comes from no web page.
        verifier: Knows the tokens; None where none is asked for.
        challenge: The value of `WWW-Authenticate`.
        ready: Whether scripts can run.
        public: Answers by path that need no token, as JSON.
        pages: The dashboard and the metrics; None where there are none.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: HttpSettings,
        *,
        places: Places,
        sessions: Sessions,
        bodies: Bodies,
        memory: Memory,
        hosts: Collection[str],
        origins: Collection[str],
        verifier: TokenVerifier | None,
        challenge: str = "Bearer",
        ready: Callable[[], bool],
        public: dict[str, bytes] | None = None,
        pages: Pages | None = None,
    ) -> None:
        self._app = app
        self._places = places
        self._sessions = sessions
        self._bodies = bodies
        self._memory = memory
        self._hosts = frozenset(name.encode("latin-1") for name in hosts)
        self._origins = frozenset(name.encode("latin-1") for name in origins)
        self._verifier = verifier
        self._challenge = challenge.encode("latin-1")
        self._ready = ready
        self._public = public or {}
        self._pages = pages
        self._rates = Rates(settings.requests_per_second, settings.burst)
        self._posts: set[Exchange] = set()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._draining = False

    @property
    def draining(self) -> bool:
        """Says whether the gate takes nothing new any more."""
        return self._draining

    @property
    def busy(self) -> bool:
        """Says whether an MCP message is being answered."""
        return bool(self._posts)

    def no_longer_awaits(self, exchange: Exchange) -> None:
        """Leaves out of draining and readiness an exchange that is over, or lasts for as long as its client likes:
        draining and readiness look at it no more."""
        self._posts.discard(exchange)
        if not self._posts:
            self._quiet.set()

    async def drain(self, bound: float, hurried: asyncio.Event) -> bool:
        """Takes nothing new, waits for what is in flight until `bound` seconds are over or `hurried` is set, and ends
        the rest.

        Returns:
            Whether all ended by itself.
        """
        self._draining = True
        ends = [asyncio.create_task(event.wait()) for event in (self._quiet, hurried)]
        try:
            await asyncio.wait(ends, timeout=bound, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()
        if not self._quiet.is_set():
            for exchange in self._posts:
                exchange.end(
                    "The daemon is stopping, and the time that runs had to end by themselves is over."
                )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FAREWELL_SECONDS):
                    await self._quiet.wait()
            return False
        return True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            return
        try:
            headers = _headers_of(scope)
            if headers.get(b"host") not in self._hosts:
                raise Refused(403)
            origin = headers.get(b"origin")
            if origin is not None and origin not in self._origins:
                raise Refused(403)
            # An image or a script of a page brings no Origin, and would learn whether a daemon is here.
            if origin is None and headers.get(FETCH_SITE_HEADER) not in OWN_SITES:
                raise Refused(403)
            path = scope["path"]
            if path in (LIVE_PATH, READY_PATH) or path in self._public:
                await self._answer_public(scope, send)
                return
            if self._pages is not None and self._pages.has(path):
                page = await self._page(self._pages, scope, headers)
                body = b"" if scope["method"] == "HEAD" else page.body
                await respond(send, page.status, body, *page.headers)
                return
            access = await self._authenticate(headers)
            if path != MCP_PATH:
                raise Refused(404)
            if scope["method"] not in METHODS:
                raise Refused(405, (b"allow", b", ".join(name.encode() for name in METHODS)))
            await self._admit(scope, headers, access, receive, send)
        except Refused as refused:
            await refuse(refused, _headers_of(scope), receive, send)

    # ---- inside ------------------------------------------------------------------------------------------

    async def _answer_public(self, scope: Scope, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        self._take(f"stranger {network_of(scope.get('client'))}")
        if method not in ("GET", "HEAD"):
            raise Refused(405, (b"allow", b"GET, HEAD"))
        if path == READY_PATH and (self._draining or not (self.busy or self._ready())):
            raise busy(503, DRAIN_RETRY_SECONDS)
        body, kind = self._public.get(path, b"ok\n"), b"text/plain"
        if path in self._public:
            kind = b"application/json"
        await respond(send, 200, body, (b"content-type", kind), (b"cache-control", b"no-store"))

    async def _page(self, pages: Pages, scope: Scope, headers: dict[bytes, bytes]) -> Page:
        path, method = scope["path"], scope["method"]
        if headers.get(FETCH_SITE_HEADER) not in OWN_SITES:
            raise Refused(403)
        access: AccessToken | None = None
        if not pages.is_open(path) and not pages.knows(path, headers.get(b"cookie", b"")):
            if path == DASHBOARD_PATH and b"authorization" not in headers and self._verifier is not None:
                return sign_in_page()
            access = await self._authenticate(headers)
        if pages.is_open(path):
            self._take(f"stranger {network_of(scope.get('client'))}")
        else:
            self._prove(scope, access)
            self._take(self._client(scope, access))
        return pages.answer(method, path, scope["query_string"])

    async def _authenticate(self, headers: dict[bytes, bytes]) -> AccessToken | None:
        if self._verifier is None:
            return None
        kind, _, token = headers.get(b"authorization", b"").partition(b" ")
        if kind.lower() == b"bearer" and token:
            access = await self._verifier.verify_token(token.strip().decode("latin-1"))
            if access is not None:
                return access
        raise Refused(401, (b"www-authenticate", self._challenge))

    async def _admit(
        self,
        scope: Scope,
        headers: dict[bytes, bytes],
        access: AccessToken | None,
        receive: Receive,
        send: Send,
    ) -> None:
        session, version = headers.get(SESSION_HEADER), headers.get(VERSION_HEADER)
        if b"," in (session or b"") + (version or b""):
            # The SDK would take the first of two.
            raise Refused(400)
        self._prove(scope, access)
        owner = Owner(_principal(access), "" if access is None else access.client_id)
        try:
            name = None if session is None else self._sessions.begin(session, owner)
        except NotOwner:
            raise Refused(404) from None
        try:
            client = name or self._client(scope, access)
            self._take(client)
            # Who is here already may still ask, cancel and say goodbye; a call is refused behind us.
            if self._draining and session is None and version is None:
                raise busy(503, DRAIN_RETRY_SECONDS)
            if access is not None:
                scope["user"] = AuthenticatedUser(access)
            exchange = scope[SCOPE_KEY] = Exchange(client, owner.principal)
            if session is None and (version is None or version.decode("latin-1") in SESSION_VERSIONS):
                await self._open(scope, headers, exchange, owner, receive, send)
            else:
                await self._carry(
                    scope, headers, exchange, receive, self._noticing_the_end(scope, session, send)
                )
        finally:
            if session is not None and name is not None:
                self._sessions.end(session, asyncio.get_running_loop().time())

    async def _open(
        self,
        scope: Scope,
        headers: dict[bytes, bytes],
        exchange: Exchange,
        owner: Owner,
        receive: Receive,
        send: Send,
    ) -> None:
        """Carries a request that opens a session, if the SDK finds that it does."""
        now = asyncio.get_running_loop().time
        if not self._sessions.reserve(owner.principal, now()):
            raise busy(503, SESSION_RETRY_SECONDS, TOO_MANY_SESSIONS)
        opened = False

        async def watch(message: Message) -> None:
            nonlocal opened
            if message["type"] == "http.response.start" and message["status"] < 400:
                for name, value in message.get("headers", ()):
                    if name.lower() == SESSION_HEADER and not opened:
                        opened = True
                        self._sessions.opened(value, owner, now())
            await send(message)

        try:
            await self._carry(scope, headers, exchange, receive, watch)
        finally:
            if not opened:
                self._sessions.release(owner.principal)

    def _noticing_the_end(self, scope: Scope, session: bytes | None, send: Send) -> Send:
        """Sends, and forgets a session that the SDK has forgotten."""

        async def watch(message: Message) -> None:
            if session is not None and message["type"] == "http.response.start":
                ended = scope["method"] == "DELETE" and message["status"] < 400
                if ended or message["status"] == 404:
                    self._sessions.forget(session)
            await send(message)

        return watch

    async def _carry(
        self, scope: Scope, headers: dict[bytes, bytes], exchange: Exchange, receive: Receive, send: Send
    ) -> None:
        is_post = scope["method"] == "POST"
        charge = self._memory.charge(exchange.client, exchange.principal)
        try:
            if is_post:
                receive = giving(await self._bodies.body(headers, charge, receive, exchange.client), receive)
                self._posts.add(exchange)
                self._quiet.clear()
            await self._app(scope, receive, send)
        finally:
            exchange.end("The client has hung up.")
            charge.end()
            if is_post:
                self.no_longer_awaits(exchange)

    def _prove(self, scope: Scope, access: AccessToken | None) -> None:
        """Notes that the connection of a request is no stranger's any more."""
        client: Client | None = scope.get("client")
        holder = _principal(access)
        if access is None or access.subject is None:
            # One token, or none, for everybody: then addresses are who there is.
            holder = f"{holder} {network_of(client)}"
        if not self._places.prove(client, holder):
            raise busy(503, CONNECTION_RETRY_SECONDS, TOO_MANY_CONNECTIONS)

    def _take(self, client: str) -> None:
        """Counts a request of a client."""
        wait = self._rates.take(client, asyncio.get_running_loop().time())
        if wait:
            raise busy(429, wait)

    def _client(self, scope: Scope, access: AccessToken | None) -> str:
        # Only a session that we have opened is a client of its own: another name could be made up for each request.
        who = NO_ONE if access is None else access.subject or access.client_id
        address = scope.get("client")
        return f"http {who} {address[0] if address else ''}"


def _principal(access: AccessToken | None) -> str:
    """Says for whom a request is (`cellblock.policy.clients`): what the token proves, and nothing that the client
    says."""
    if access is None:
        return NO_ONE
    return TOKEN_HOLDER if access.subject is None else PROVEN + access.subject


def _headers_of(scope: MutableMapping[str, Any]) -> dict[bytes, bytes]:
    """Picks the headers that decide; one that is given twice decides for nobody."""
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in READ:
            found[name] = b"%b, %b" % (found[name], value) if name in found else value
    return found
