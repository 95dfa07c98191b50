"""The gate is everything that a request must pass before the SDK sees it. What is refused is refused with a bare
status: no body of the request, no version, nothing about the inside is in the answer.

The order: who it was meant for (`Host`), which page sent it (`Origin`, `Sec-Fetch-Site`), who sends it (bearer token),
how often, how much. The first two are what stops a hostile web page: its `Origin` is not ours, and after DNS rebinding
its `Host` is not ours either (MCP specification, transports, security warning).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Collection, Generator, MutableMapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken, TokenVerifier
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cellblock.apart.pool import Apart
from cellblock.base.tasks import at_most
from cellblock.config.http import HttpSettings
from cellblock.config.policy import NAMED
from cellblock.frontend.client import Owner
from cellblock.frontend.http.address import CONFIG_HEADER, MCP_PATH
from cellblock.frontend.http.bodies import Charge, Memory, decodable, giving, read_body
from cellblock.frontend.http.exchange import SCOPE_KEY, Exchange
from cellblock.frontend.http.oauth import metadata_path, metadata_url, resource_metadata
from cellblock.frontend.http.page_parts import Page, text_page
from cellblock.frontend.http.pages import DASHBOARD_PATH, METRICS_PATH, SIGN_IN, Pages
from cellblock.frontend.http.parked_pages import MAX_BODY_BYTES
from cellblock.frontend.http.places import Client, Places, network_of
from cellblock.frontend.http.rates import Rates
from cellblock.frontend.http.refusal import NO_TOKEN, Refused, busy, refuse, respond
from cellblock.frontend.http.sessions import Program, Sessions
from cellblock.frontend.http.token import SUBJECT as TOKEN_HOLDER

if TYPE_CHECKING:
    from cellblock.policy.counts import Counts

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

KEY_HEADER: Final = b"x-cellblock-key"
"""Names the header in which the dashboard's page sends the key of its login."""

READ: Final = frozenset(
    (
        b"host",
        b"accept",
        b"origin",
        b"authorization",
        b"content-length",
        b"cookie",
        b"expect",
        SESSION_HEADER,
        VERSION_HEADER,
        FETCH_SITE_HEADER,
        KEY_HEADER,
    )
)

DRAIN_RETRY_SECONDS: Final = 5
"""Says when to ask again while the daemon is stopping; by then its successor runs, or nothing does."""

FAREWELL_SECONDS: Final = 2.0
"""Bounds the time for the answers to calls that draining has ended."""

SESSION_RETRY_SECONDS: Final = 30
"""Says after how many seconds a client may ask again for a session; sessions that nobody uses end by themselves."""

CONNECTION_RETRY_SECONDS: Final = 1
"""Says after how many seconds a client may ask again on another connection; most are in use for milliseconds."""

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
    """A gate is an ASGI application in front of the SDK's.

    Args:
        app: The SDK's session manager.
        settings: The bounds.
        apart: Where large messages are read.
        places: What connections take.
        share_of: Says how many of so many one principal may have.
        hosts: `Host` headers that are right.
        origins: `Origin` headers that are right; a request without one comes from no web page.
        verifier: Knows the tokens; None where none is asked for.
        ready: Whether scripts can run; given whether requests are being answered, which take workers.
        trouble: Says what is wrong with what several brokers share.
        pages: The dashboard and the metrics; None where there are none.
        config: Stands for the configuration, for relays that have one of their own.
        counts: Counts how often clients ask, with the brokers that share it; None where this one is alone.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: HttpSettings,
        *,
        apart: Apart,
        places: Places,
        share_of: Callable[[int], int],
        hosts: Collection[str],
        origins: Collection[str],
        verifier: TokenVerifier | None,
        ready: Callable[[bool], bool],
        trouble: Callable[[], str | None] = lambda: None,
        pages: Pages | None,
        config: str = "",
        counts: Counts | None = None,
    ) -> None:
        self._app = app
        self._counts = counts
        self._settings = settings
        self._apart = apart
        self._places = places
        self._share_of = share_of
        total = settings.max_sessions
        self._sessions = Sessions(share_of(total), total, settings.session_idle_ms / 1000)
        self._memory = Memory(settings.max_held_bytes, share_of(settings.max_held_bytes))
        self._hosts = frozenset(name.encode("latin-1") for name in hosts)
        self._origins = frozenset(name.encode("latin-1") for name in origins)
        self._verifier = verifier
        self._challenge = b"Bearer"
        self._ready = ready
        self._trouble = trouble
        self._public: dict[str, bytes] = {}
        """Maps paths that need no token to answers in JSON."""
        if (oauth := settings.oauth) is not None:
            self._challenge = f'Bearer resource_metadata="{metadata_url(oauth.audience)}"'.encode("latin-1")
            self._public[metadata_path(oauth.audience)] = json.dumps(resource_metadata(oauth)).encode()
        self._pages = pages
        self._config = config.encode()
        self._carried = 0
        self._seen_at = asyncio.get_running_loop().time()
        self._rates = Rates(settings.requests_per_second, settings.burst)
        self._posts: set[Exchange] = set()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self.draining = False
        """Says whether the gate takes nothing new any more."""

        self.closed = False
        """Says whether the gate takes nothing at all, of sessions neither: what would answer is about to end."""

    @property
    def busy(self) -> bool:
        """Says whether an MCP message is being answered."""
        return bool(self._posts)

    @property
    def idle_seconds(self) -> float:
        """Says for how long nobody with a token has asked for anything, or has a stream open."""
        return 0.0 if self._carried else asyncio.get_running_loop().time() - self._seen_at

    def share_anew(self) -> None:
        """Asks again how much one principal may have."""
        self._sessions.share = self._share_of(self._settings.max_sessions)
        self._memory.share = self._share_of(self._settings.max_held_bytes)

    def no_longer_awaits(self, exchange: Exchange) -> None:
        """Leaves out of draining and readiness an exchange that is over, or lasts for as long as its client likes:
        draining and readiness look at it no more."""
        self._posts.discard(exchange)
        if not self._posts:
            self._quiet.set()

    async def drain(
        self,
        bound: float,
        hurried: asyncio.Event,
        park: Callable[[], Awaitable[bool]] | None = None,
        beside: Callable[[], Awaitable[object]] | None = None,
    ) -> bool:
        """Takes nothing new, waits for what is in flight until `bound` seconds are over or `hurried` is set, and ends
        the rest; where nobody hurries, behind what `park` does.

        Args:
            bound: In seconds.
            hurried: Cuts the wait short.
            park: Hands on what can be, and says whether it has ended anything.
            beside: Waits for what is in flight without a request, as long as for the rest.

        Returns:
            Whether all ended by itself.
        """
        self.draining = True
        ends = [asyncio.create_task(wait) for wait in (self._quiet_with(beside), hurried.wait())]
        try:
            await asyncio.wait(ends, timeout=bound, return_when=asyncio.FIRST_COMPLETED)
            is_quiet = ends[0].done()
        finally:
            for end in ends:
                end.cancel()
        if not is_quiet:
            if park is not None and not hurried.is_set() and await park():
                await self._quiet_soon()
            for exchange in self._posts:
                exchange.end(
                    "The daemon is stopping, and the time that runs had to end by themselves is over."
                )
        self.closed = True
        # For what has just been ended, and for a session's request that has come since the rest was over.
        await self._quiet_soon()
        return is_quiet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            return
        headers, path = _headers_of(scope), scope["path"]
        try:
            origin, site = headers.get(b"origin"), headers.get(FETCH_SITE_HEADER)
            # An image or a script of a page brings no Origin, and would learn whether a daemon is here.
            is_ours = site in OWN_SITES if origin is None else origin in self._origins
            if headers.get(b"host") not in self._hosts or not is_ours:
                raise Refused(403)
            if path in (LIVE_PATH, READY_PATH) or path in self._public:
                page = self._public_page(scope)
            elif self._pages is not None and self._pages.has(path):
                page = await self._page(self._pages, scope, headers, receive)
            else:
                access = await self._authenticate(headers)
                if path != MCP_PATH:
                    raise Refused(404)
                self._seen_at = asyncio.get_running_loop().time()
                if scope["method"] not in METHODS:
                    if self.draining:
                        raise busy(503, DRAIN_RETRY_SECONDS)
                    allow = (b"allow", b", ".join(name.encode() for name in METHODS))
                    raise Refused(405, allow, (CONFIG_HEADER.encode(), self._config))
                await self._admit(scope, headers, access, receive, send)
                return
            await respond(send, page.status, page.body, *page.headers)
        except Refused as refused:
            await refuse(refused, headers, receive, send)

    # ---- inside ------------------------------------------------------------------------------------------

    async def _quiet_with(self, beside: Callable[[], Awaitable[object]] | None) -> None:
        """Waits until no request is in flight, and what is waited for beside it is done."""
        other = None if beside is None else asyncio.ensure_future(beside())
        try:
            await self._quiet.wait()
            if other is not None:
                await other
        finally:
            if other is not None:
                other.cancel()

    async def _quiet_soon(self) -> None:
        """Waits for the answers to the requests that were ended just now."""
        async with at_most(FAREWELL_SECONDS):
            await self._quiet.wait()

    def _public_page(self, scope: Scope) -> Page:
        path, method = scope["path"], scope["method"]
        self._take(f"stranger {network_of(scope.get('client'))}")
        if method not in ("GET", "HEAD"):
            raise Refused(405, (b"allow", b"GET, HEAD"))
        kind = b"application/json" if path in self._public else b"text/plain"
        headers = ((b"content-type", kind), (b"cache-control", b"no-store"))
        trouble = self._trouble() if path == READY_PATH else None
        if path == READY_PATH and (self.draining or not self._ready(self.busy)):
            said = b"" if trouble is None else f"not ready: {trouble}\n".encode()
            return Page(503, said, (*headers, (b"retry-after", b"%d" % DRAIN_RETRY_SECONDS)))
        said = b"ok\n" if trouble is None else f"ok, but {trouble}\n".encode()
        return Page(200, self._public.get(path, said), headers)

    async def _page(self, pages: Pages, scope: Scope, headers: dict[bytes, bytes], receive: Receive) -> Page:
        path, method = scope["path"], scope["method"]
        if headers.get(FETCH_SITE_HEADER) not in OWN_SITES:
            raise Refused(403)
        by, body = None, b""
        if pages.is_open(path):
            self._take(f"stranger {network_of(scope.get('client'))}")
        else:
            cookies, access = headers.get(b"cookie", b""), None
            by = pages.decider(cookies, headers.get(KEY_HEADER, b""))
            is_parked, has_token = pages.is_parked(path), b"authorization" in headers
            if not pages.knows(path, cookies) or (is_parked and by is None and has_token):
                if path == DASHBOARD_PATH and not has_token and self._verifier is not None:
                    return text_page(401, SIGN_IN)
                access = await self._authenticate(headers)
            if path != METRICS_PATH and _principal(access).startswith(NAMED):
                # It shows the runs of all.
                raise Refused(403)
            if access is not None and _principal(access) == TOKEN_HOLDER:
                by = TOKEN_HOLDER
            self._prove(scope, access)
            self._take(self._client(scope, access))
            if path != METRICS_PATH:
                self._seen_at = asyncio.get_running_loop().time()
            if is_parked and method == "POST":
                if by is None:
                    # The cookie alone, or a daemon without tokens.
                    raise Refused(403)
                if self.draining:
                    raise busy(503, DRAIN_RETRY_SECONDS)
                body = await read_body(headers, receive, self._settings, bound=MAX_BODY_BYTES)
        return await pages.answer(method, path, scope["query_string"], by=by, body=body)

    async def _authenticate(self, headers: dict[bytes, bytes]) -> AccessToken | None:
        if self._verifier is None:
            return None
        kind, _, token = headers.get(b"authorization", b"").partition(b" ")
        if kind.lower() == b"bearer" and token:
            access = await self._verifier.verify_token(token.strip().decode("latin-1"))
            if access is not None:
                return access
        raise Refused(401, (b"www-authenticate", self._challenge), why=NO_TOKEN)

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
        opener = Program(_principal(access), "" if access is None else access.client_id)
        name = None if session is None else self._sessions.begin(session, opener)
        now, place = asyncio.get_running_loop().time, None

        async def follow(message: Message) -> None:
            """Sends, and follows which sessions the SDK opens and forgets."""
            if message["type"] == "http.response.start":
                ended = scope["method"] == "DELETE" and message["status"] < 400
                if session is not None and (ended or message["status"] == 404):
                    self._sessions.forget(session)
                elif place is not None and message["status"] < 400:
                    for key, value in message.get("headers", ()):
                        if key.lower() == SESSION_HEADER:
                            self._sessions.opened(place, value, opener, now())
            await send(message)

        try:
            if self.closed:
                # It has not begun; a session ends with its daemon, and its client begins a new one.
                raise busy(503, DRAIN_RETRY_SECONDS) if session is None else Refused(404)
            client = name or self._client(scope, access)
            # A session is at one broker.
            self._take(client, elsewhere=name is None)
            # Who is here already may still ask, cancel and say goodbye; a call is refused behind us.
            if self.draining and session is None and version is None:
                raise busy(503, DRAIN_RETRY_SECONDS)
            if access is not None:
                scope["user"] = AuthenticatedUser(access)
            is_old = version is None or version.decode("latin-1") in SESSION_VERSIONS
            if session is None and is_old:
                place = self._sessions.reserve(opener, now())
                if place is None:
                    raise busy(503, SESSION_RETRY_SECONDS, TOO_MANY_SESSIONS)
            owner = Owner(opener.principal, client)
            await self._carry(scope, headers, owner, receive, send, follow)
        finally:
            self._sessions.forget(place)
            if session is not None:
                self._sessions.end(session, now())

    async def _carry(
        self,
        scope: Scope,
        headers: dict[bytes, bytes],
        owner: Owner,
        receive: Receive,
        send: Send,
        follow: Send,
    ) -> None:
        is_post = scope["method"] == "POST"
        with self._in_flight(scope, owner) as (exchange, charge):
            if is_post:
                raw = await read_body(headers, receive, self._settings, charge)
                self._posts.add(exchange)
                self._quiet.clear()
                receive = giving(await decodable(raw, charge, owner.client, self._apart), receive)
                del raw
            await self._app(scope, receive, follow)

    @contextlib.contextmanager
    def _in_flight(self, scope: Scope, owner: Owner) -> Generator[tuple[Exchange, Charge]]:
        """Follows a request inside the block, and counts what it holds."""
        exchange = scope[SCOPE_KEY] = Exchange(owner)
        charge = self._memory.charge(owner.client, owner.principal)
        self._carried += 1
        try:
            yield exchange, charge
        finally:
            exchange.end("The client has hung up.")
            charge.end()
            self._carried -= 1
            self._seen_at = asyncio.get_running_loop().time()
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

    def _take(self, client: str, *, elsewhere: bool = False) -> None:
        """Counts a request of a client, who may ask other brokers, too."""
        wait = self._rates.take(client, asyncio.get_running_loop().time())
        if wait:
            raise busy(429, wait)
        if elsewhere and self._counts is not None:
            self._counts.note(f"requests {client}", partial(self._rates.charge, client))

    def _client(self, scope: Scope, access: AccessToken | None) -> str:
        # Only a session that we have opened is a client of its own: another name could be made up for each request.
        who = NO_ONE if access is None else access.subject or access.client_id
        address = scope.get("client")
        if self._counts is not None and access is not None and access.subject is not None:
            # Of several brokers, addresses are the balancer's, and whichever it comes to knows it by its token.
            return f"http {who}"
        return f"http {who} {address[0] if address else ''}"


def _principal(access: AccessToken | None) -> str:
    """Says for whom a request is (`cellblock.policy.clients`): what the token proves, and nothing that the client
    says."""
    if access is None:
        return NO_ONE
    return access.subject or TOKEN_HOLDER


def _headers_of(scope: MutableMapping[str, Any]) -> dict[bytes, bytes]:
    """Picks the headers that decide; one that is given twice decides for nobody."""
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in READ:
            found[name] = b"%b, %b" % (found[name], value) if name in found else value
    return found
