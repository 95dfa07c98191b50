"""Everything that a request must pass before the SDK sees it. What is refused is refused with a bare status: no body
of the request, no version, nothing about the inside is in the answer.

The order: who it was meant for (`Host`), which page sent it (`Origin`, `Sec-Fetch-Site`), who sends it (bearer token),
how often, how much. The first two are what stops a hostile web page: its `Origin` is not ours, and after DNS rebinding
its `Host` is not ours either (MCP specification, transports, security warning).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Collection, MutableMapping
from typing import Any, Final

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken, TokenVerifier
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cellblock.config_http import HttpSettings
from cellblock.config_policy import PROVEN
from cellblock.frontend.http.address import MCP_PATH
from cellblock.frontend.http.exchange import SCOPE_KEY, Exchange
from cellblock.frontend.http.pages import DASHBOARD_PATH, Page, Pages, sign_in_page
from cellblock.frontend.http.rates import Rates
from cellblock.frontend.http.token import SUBJECT as TOKEN_HOLDER

LIVE_PATH: Final = "/livez"
READY_PATH: Final = "/readyz"

METHODS: Final = ("GET", "POST", "DELETE")

SESSION_HEADER: Final = b"mcp-session-id"

VERSION_HEADER: Final = b"mcp-protocol-version"
"""In a request that opens a session, it is not."""

FETCH_SITE_HEADER: Final = b"sec-fetch-site"
OWN_SITES: Final = (None, b"same-origin", b"none")
"""Who may have something fetched without an Origin, as browsers say it: our own page, or the person; nobody else's
page. The dashboard is for these alone, whatever their Origin."""

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

DISCARD_BYTES: Final = 64 * 1024
DISCARD_SECONDS: Final = 1.0
"""What is read of a refused request's body, so that a client that is still sending it gets to read the refusal."""

DISCARD_LARGE_BYTES: Final = 32 * 1024 * 1024
"""The same of a body that is too large, from somebody with a token; most clients read nothing before all is sent."""

DRAIN_RETRY_SECONDS: Final = 5
"""When to ask again while the daemon is stopping; by then its successor runs, or nothing does."""

FAREWELL_SECONDS: Final = 2.0
"""For the answers to calls that draining has ended."""

NO_ONE: Final = "anybody"
"""The subject where no token is asked for."""

Header = tuple[bytes, bytes]


class Refused(Exception):
    """The request ends with this status and nothing else."""

    def __init__(self, status: int, *headers: Header) -> None:
        super().__init__(status)
        self.status = status
        self.headers = headers


class Gate:
    """An ASGI application in front of the SDK's.

    Args:
        app: The SDK's session manager.
        settings: The bounds.
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
        hosts: Collection[str],
        origins: Collection[str],
        verifier: TokenVerifier | None,
        challenge: str = "Bearer",
        ready: Callable[[], bool],
        public: dict[str, bytes] | None = None,
        pages: Pages | None = None,
    ) -> None:
        self._app = app
        self._settings = settings
        self._hosts = frozenset(name.encode("latin-1") for name in hosts)
        self._origins = frozenset(name.encode("latin-1") for name in origins)
        self._verifier = verifier
        self._challenge = challenge.encode("latin-1")
        self._ready = ready
        self._public = public or {}
        self._pages = pages
        self._rates = Rates(settings.requests_per_second, settings.burst)
        self._sessions: OrderedDict[bytes, str] = OrderedDict()
        self._posts: set[Exchange] = set()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._draining = False

    @property
    def draining(self) -> bool:
        """Whether nothing new is taken any more."""
        return self._draining

    @property
    def busy(self) -> bool:
        """Whether an MCP message is being answered."""
        return bool(self._posts)

    def no_longer_awaits(self, exchange: Exchange) -> None:
        """An exchange is over, or lasts for as long as its client likes: draining and readiness look at it no more."""
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
        """One request."""
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
                await _respond(send, page.status, body, *page.headers)
                return
            access = await self._authenticate(headers)
            if path != MCP_PATH:
                raise Refused(404)
            if scope["method"] not in METHODS:
                raise Refused(405, (b"allow", b", ".join(name.encode() for name in METHODS)))
            await self._admit(scope, headers, access, receive, send)
        except Refused as refused:
            await _refuse(refused, _headers_of(scope), receive, send)

    # ---- inside ------------------------------------------------------------------------------------------

    async def _answer_public(self, scope: Scope, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        if method not in ("GET", "HEAD"):
            raise Refused(405, (b"allow", b"GET, HEAD"))
        if path == READY_PATH and (self._draining or not (self.busy or self._ready())):
            raise Refused(503, (b"retry-after", b"%d" % DRAIN_RETRY_SECONDS))
        body, kind = self._public.get(path, b"ok\n"), b"text/plain"
        if path in self._public:
            kind = b"application/json"
        await _respond(send, 200, body, (b"content-type", kind), (b"cache-control", b"no-store"))

    async def _page(self, pages: Pages, scope: Scope, headers: dict[bytes, bytes]) -> Page:
        path, method = scope["path"], scope["method"]
        if headers.get(FETCH_SITE_HEADER) not in OWN_SITES:
            raise Refused(403)
        access: AccessToken | None = None
        if not pages.is_open(path) and not pages.knows(path, headers.get(b"cookie", b"")):
            if path == DASHBOARD_PATH and b"authorization" not in headers and self._verifier is not None:
                return sign_in_page()
            access = await self._authenticate(headers)
        wait = self._rates.take(self._client(scope, None, access), asyncio.get_running_loop().time())
        if wait:
            raise Refused(429, (b"retry-after", b"%d" % wait))
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
        session = headers.get(SESSION_HEADER)
        client = self._client(scope, session, access)
        wait = self._rates.take(client, asyncio.get_running_loop().time())
        if wait:
            raise Refused(429, (b"retry-after", b"%d" % wait))
        # Who is here already may still ask, cancel and say goodbye; a call is refused behind us.
        if self._draining and session is None and VERSION_HEADER not in headers:
            raise Refused(503, (b"retry-after", b"%d" % DRAIN_RETRY_SECONDS))
        if access is not None:
            scope["user"] = AuthenticatedUser(access)
        exchange = scope[SCOPE_KEY] = Exchange(client, _principal(access))
        is_post = scope["method"] == "POST"
        if is_post:
            receive = await self._with_body(headers, receive)
            self._posts.add(exchange)
            self._quiet.clear()
        try:
            await self._app(scope, receive, self._remembering(send) if session is None else send)
        finally:
            exchange.end("The client has hung up.")
            if is_post:
                self.no_longer_awaits(exchange)

    def _client(self, scope: Scope, session: bytes | None, access: AccessToken | None) -> str:
        # Only a session that we have opened is a client of its own: another name could be made up for each request.
        if session is not None and session in self._sessions:
            self._sessions.move_to_end(session)
            return self._sessions[session]
        who = NO_ONE if access is None else access.subject or access.client_id
        address = scope.get("client")
        return f"http {who} {address[0] if address else ''}"

    def _remembering(self, send: Send) -> Send:
        """Sends, and takes down the session that a response opens."""

        async def watch(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 400:
                for name, value in message.get("headers", ()):
                    if name.lower() == SESSION_HEADER:
                        # The id lets its holder into the session: logs and the dashboard get another name for it.
                        self._sessions[value] = f"http session {hashlib.sha256(value).hexdigest()[:16]}"
                        if len(self._sessions) > self._settings.max_sessions:
                            self._sessions.popitem(last=False)
            await send(message)

        return watch

    async def _with_body(self, headers: dict[bytes, bytes], receive: Receive) -> Receive:
        """Reads the whole body within its bounds; then a `receive` that gives it, and goes on."""
        bound = self._settings.max_body_bytes
        declared = headers.get(b"content-length", b"0")
        if not declared.isdigit() or int(declared[:20]) > bound:
            raise Refused(413)
        body = bytearray()
        more = True
        try:
            async with asyncio.timeout(self._settings.body_timeout_ms / 1000):
                while more:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise Refused(400)
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > bound:
                        raise Refused(413)
        except TimeoutError:
            raise Refused(408) from None
        first: Message | None = {"type": "http.request", "body": bytes(body), "more_body": False}

        async def replay() -> Message:
            nonlocal first
            if first is not None:
                message, first = first, None
                return message
            return await receive()

        return replay


def _principal(access: AccessToken | None) -> str:
    """Whom a request is for (`cellblock.policy.clients`): what the token proves, and nothing that the client says."""
    if access is None:
        return NO_ONE
    return TOKEN_HOLDER if access.subject is None else PROVEN + access.subject


def _headers_of(scope: MutableMapping[str, Any]) -> dict[bytes, bytes]:
    """The headers that decide; one that is given twice decides for nobody."""
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in READ:
            found[name] = b"%b, %b" % (found[name], value) if name in found else value
    return found


async def _refuse(refused: Refused, headers: dict[bytes, bytes], receive: Receive, send: Send) -> None:
    left = DISCARD_LARGE_BYTES if refused.status == 413 else DISCARD_BYTES
    if b"expect" in headers:
        # It asks before it sends the body, and looking for that would be our yes.
        left = 0
    try:
        async with asyncio.timeout(DISCARD_SECONDS):
            while left > 0:
                message = await receive()
                if not message.get("more_body", False):
                    break
                left -= len(message.get("body", b""))
    except TimeoutError:
        pass
    # Whoever is refused may still be sending: the connection is not used again.
    await _respond(send, refused.status, b"", *refused.headers, (b"connection", b"close"))


async def _respond(send: Send, status: int, body: bytes, *headers: Header) -> None:
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [length, *headers]})
    await send({"type": "http.response.body", "body": body})
