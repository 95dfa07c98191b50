"""Answers what a browser and Prometheus read: the dashboard and the metrics.

A browser cannot show a bearer token. So whoever has the token asks for a code (`POST /dashboard/code`), which is good
for one login within a minute. The login gives the browser two secrets. The cookie lets it read: it is of use for the
dashboard's own GET requests and for nothing else, so there is nothing that a forged request could do. Cookies are sent
to every port of this host, so a cookie alone changes nothing. The key stands in the fragment of the address to which
the login leads: no server is sent a fragment, and only the page's own script can read it. The page sends the key in a
header with what it wants to change.

Two things can be changed here. To start an upstream server again takes the token itself. To answer a run that waits for
a person takes the token, or the cookie and the login's key.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Scope

from cellblock.base.database import StoreError
from cellblock.base.errors import CellblockError
from cellblock.base.json import mapped
from cellblock.base.kept import Newest
from cellblock.base.settings.sections import Dashboard, OAuthSettings
from cellblock.base.visible import visible
from cellblock.observe.facts import BrokerFacts, View
from cellblock.observe.metrics import CONTENT_TYPE, Metrics, Tally
from cellblock.serve.http.bodies import read_body
from cellblock.serve.http.caller import Authenticator, caller_with, metadata_path, resource_metadata
from cellblock.serve.http.guards import LOGIN_PATH, Guard
from cellblock.serve.http.in_flight import RETRY_SECONDS, InFlight
from cellblock.serve.http.refusal import Refused, header
from cellblock.serve.http.token import SUBJECT
from cellblock.serve.http.waiting_runs import MAX_BODY_BYTES, NotAnswered, WaitingRuns

if TYPE_CHECKING:
    from cellblock.record.kept import Keeper

logger = logging.getLogger("cellblock.serve")

DASHBOARD_PATH: Final = "/dashboard"
STATE_PATH: Final = "/dashboard/state"
CODE_PATH: Final = "/dashboard/code"
METRICS_PATH: Final = "/metrics"

HTML: Final = "text/html; charset=utf-8"

ASSETS: Final = {
    DASHBOARD_PATH: ("index.html", HTML),
    "/dashboard/app.css": ("app.css", "text/css; charset=utf-8"),
    "/dashboard/app.js": ("app.js", "text/javascript; charset=utf-8"),
}

KEY_HEADER: Final = b"x-cellblock-key"
"""Names the header in which the dashboard's page sends the key of its login."""

DECISION_SECONDS: Final = 30.0
"""Bounds the time for the body of a decision."""

_DECIDER: Final = "cellblock.decider"

STATE_SECONDS: Final = 0.25
"""Sets for how long an answer is given again: those who ask very often do not keep the daemon from its work."""

SIGN_IN: Final = "Run `cellblock dashboard` on the daemon's machine, and open the URL that it prints.\n"

NO_STORE: Final = {"cache-control": "no-store"}

HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}

COOKIE: Final = "cellblock_dashboard"

CODE_SECONDS: Final = 60
MAX_CODES: Final = 16
"""Bounds the codes that wait; the oldest is forgotten."""

COOKIE_SECONDS: Final = 12 * 60 * 60
MAX_COOKIES: Final = 64


def signed_in(logins: Logins, authenticator: Authenticator) -> Guard:
    """Lets a browser that has logged in pass, or a caller with a token; notes who of them may decide."""

    async def guard(scope: Scope) -> None:
        cookies = header(scope, b"cookie") or b""
        by = logins.keyed(cookies, header(scope, KEY_HEADER) or b"")
        if logins.knows(cookies) and header(scope, b"authorization") is None:
            caller_with(None, scope).put(scope)
        elif (await authenticator.authenticate(scope)).principal == SUBJECT:
            by = SUBJECT
        scope[_DECIDER] = by

    return guard


class Pages:
    """Holds what the pages show.

    Args:
        facts: The state of the broker's parts.
        tally: What was counted.
        view: What the dashboard shows; None where there is none.
        keeper: Has the runs that are kept after their end.
        shows: Says what is shown of those.
        redacting: Gives what takes the secrets of the configuration in force out of what is shown.
        open_metrics: Whether the metrics ask for no token.
        secure: Whether browsers reach us over TLS.
        restart: Begins to start a server again, False when there is no such server; None where nobody may.
        parked: The runs that wait for a person; None where nobody may answer them here.
        save: Keeps the script of a run under a name, for a person to approve; None where nobody may.
        clock: Seconds on a clock that never goes back.
    """

    def __init__(
        self,
        facts: BrokerFacts,
        tally: Tally,
        view: View | None,
        keeper: Keeper,
        shows: Dashboard,
        redacting: Callable[[], Callable[[Any], Any]],
        *,
        open_metrics: bool = False,
        secure: bool = False,
        restart: Callable[[str], bool] | None = None,
        parked: WaitingRuns | None = None,
        save: Callable[[str, str], Awaitable[object]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._facts = facts
        self._metrics = Metrics(tally, facts)
        self._view = view
        self._keeper, self._shows, self._redacting = keeper, shows, redacting
        self._open_metrics = open_metrics
        self._restart = restart
        self._parked, self._save = parked, save
        self._clock = clock
        self._logins, self._secure = Logins(clock), secure
        self._state: tuple[float, Response] | None = None

    def routes(
        self,
        *,
        public: list[Middleware],
        token: list[Middleware],
        owner: list[Middleware],
        browser: Callable[[Logins], list[Middleware]],
        decision: list[Middleware],
    ) -> list[Route]:
        """Returns the paths that are there, each behind its guards.

        Args:
            public: Stand before what asks for no token: a login shows its code.
            token: Before what asks for one.
            owner: Before what asks for one that is nobody's alone.
            browser: Gives those before what a browser may read that has logged in.
            decision: Before what changes something that a browser has read.
        """
        found = [Route(METRICS_PATH, self._metrics_page, middleware=public if self._open_metrics else token)]
        if (restart := self._restart) is not None:
            page = partial(self._server_page, restart)
            found.append(Route("/servers/{name:path}", page, methods=["GET", "POST"], middleware=owner))
        if (view := self._view) is None:
            return found
        guard = browser(self._logins)
        found += [
            Route(CODE_PATH, self._code_page, methods=["POST"], middleware=owner),
            Route(LOGIN_PATH, self._login_page, middleware=public),
            *(Route(path, partial(_asset, *asset), middleware=guard) for path, asset in ASSETS.items()),
            Route(STATE_PATH, partial(self._state_page, view), middleware=guard),
            Route("/dashboard/runs/{run:path}", partial(self._run_page, view), middleware=guard),
            Route("/dashboard/kept", self._kept_page, middleware=guard),
            Route("/dashboard/logins", self._logins_page, middleware=guard),
        ]
        if (parked := self._parked) is not None:
            decide = partial(_decide, parked)
            found += [
                Route("/dashboard/parked", partial(_parked_page, parked), middleware=guard),
                Route(
                    "/dashboard/parked/{what:path}",
                    decide,
                    methods=["POST"],
                    middleware=[*guard, *decision],
                ),
            ]
        if (save := self._save) is not None:
            page, guards = partial(_keep, save), [*guard, *decision]
            found.append(Route("/dashboard/scripts/{run}/{name}", page, methods=["POST"], middleware=guards))
        return found

    async def _metrics_page(self, _: Request) -> Response:
        return page_of(self._metrics.page(), CONTENT_TYPE)

    async def _server_page(self, restart: Callable[[str], bool], request: Request) -> Response:
        name: str = request.path_params["name"]
        if request.method != "POST" or restart(name):
            for row in self._facts.upstreams():
                if row["name"] == name:
                    return json_page(row)
        return Response(None, HTTPStatus.NOT_FOUND)

    async def _state_page(self, view: View, _: Request) -> Response:
        now = self._clock()
        if self._state is None or now - self._state[0] >= STATE_SECONDS:
            self._state = (now, json_page(view.state()))
        return self._state[1]

    async def _run_page(self, view: View, request: Request) -> Response:
        run_id: str = request.path_params["run"]
        run = view.board.run(run_id)
        try:
            if run is None or run["state"] == "ended":
                run = await self._kept_run(run_id) or run
        except StoreError as error:
            logger.warning("a kept run cannot be shown: %s", error)
        return Response(None, HTTPStatus.NOT_FOUND) if run is None else json_page(run)

    async def _kept_run(self, run_id: str) -> dict[str, Any] | None:
        """Returns a run that is kept as the dashboard shows all others; None when it is not. Raises StoreError."""
        run = await self._keeper.run(run_id)
        if run is None:
            return None
        if self._shows not in ("logs", "scripts"):
            run["logs"] = []
        if self._shows != "scripts":
            run.pop("script", None)
        return self._redacting()(run)

    async def _kept_page(self, _: Request) -> Response:
        try:
            return json_page({"runs": await self._keeper.recent()})
        except StoreError as error:
            return json_page({"runs": [], "error": str(error)})

    async def _logins_page(self, request: Request) -> Response:
        if request.scope[_DECIDER] is None:
            return json_page({"logins": []})
        try:
            return json_page({"logins": await self._facts.logins()})
        except CellblockError as error:
            return json_page({"logins": [], "error": error.message})

    async def _code_page(self, _: Request) -> Response:
        return json_page({"path": f"{LOGIN_PATH}?code={self._logins.new_code()}", "seconds": CODE_SECONDS})

    async def _login_page(self, request: Request) -> Response:
        login = self._logins.begin(request.query_params.get("code", ""))
        if login is None:
            return text_page(HTTPStatus.FORBIDDEN, "This code was used, or is too old. " + SIGN_IN)
        # A fragment is not sent to any server. No redirect: from another site's page or a file it would have no cookie.
        page = page_of(f'<!doctype html><a href="{DASHBOARD_PATH}#key={login.key}">Dashboard</a>', HTML)
        page.headers["refresh"] = f"0; url={DASHBOARD_PATH}#key={login.key}"
        page.set_cookie(
            COOKIE,
            login.cookie,
            COOKIE_SECONDS,
            path=DASHBOARD_PATH,
            secure=self._secure,
            httponly=True,
            samesite="strict",
        )
        return page


async def _asset(name: str, kind: str, _: Request) -> Response:
    return page_of(files("cellblock.serve.http").joinpath("page", name).read_bytes(), kind)


async def _parked_page(parked: WaitingRuns, request: Request) -> Response:
    return json_page(await parked.listed(request.scope[_DECIDER]))


async def _keep(save: Callable[[str, str], Awaitable[object]], request: Request) -> Response:
    if request.scope[_DECIDER] is None:
        raise Refused(HTTPStatus.FORBIDDEN)
    try:
        await save(request.path_params["run"], request.path_params["name"])
    except CellblockError as error:
        return text_page(HTTPStatus.UNPROCESSABLE_ENTITY, visible(str(error)))
    return json_page({})


async def _decide(parked: WaitingRuns, request: Request) -> Response:
    if (by := request.scope[_DECIDER]) is None:
        # The cookie alone, or a daemon without tokens.
        raise Refused(HTTPStatus.FORBIDDEN)
    body = await read_body(request.scope, request.receive, MAX_BODY_BYTES, DECISION_SECONDS)
    try:
        return json_page(await parked.decided(request.path_params["what"], by, body))
    except NotAnswered as error:
        return text_page(HTTPStatus.UNPROCESSABLE_ENTITY, str(error).encode("utf-8", "replace"))


def page_of(body: bytes | str, kind: str, status: int = HTTPStatus.OK) -> Response:
    """Makes an answer of this content type."""
    return Response(body, status, {**HEADERS, "content-type": kind})


def json_page(value: Any) -> Response:
    """Makes an answer of JSON: every text in it is fit for a page, whoever wrote it."""
    return page_of(json.dumps(mapped(value, partial(visible, keep="\n\t"))), "application/json")


def text_page(status: int, body: bytes | str) -> Response:
    """Makes an answer of plain text."""
    return page_of(body, "text/plain; charset=utf-8", status)


def public_routes(
    in_flight: InFlight,
    ready: Callable[[bool], bool],
    trouble: Callable[[], str | None],
    oauth: OAuthSettings | None,
    guard: list[Middleware],
) -> list[Route]:
    """Returns the public pages.

    Args:
        in_flight: Knows whether the daemon is stopping.
        ready: Whether scripts can run; given whether requests are being answered, which take workers.
        trouble: Says what is wrong with what several brokers share.
        oauth: The authorization server, if there is one.
        guard: Stands in front.
    """

    async def live(_: Request) -> Response:
        return PlainTextResponse("ok\n", headers=NO_STORE)

    async def is_ready(_: Request) -> Response:
        wrong = trouble()
        if in_flight.draining or not ready(in_flight.busy):
            said = "" if wrong is None else f"not ready: {wrong}\n"
            return PlainTextResponse(said, 503, {**NO_STORE, "retry-after": str(RETRY_SECONDS)})
        return PlainTextResponse("ok\n" if wrong is None else f"ok, but {wrong}\n", headers=NO_STORE)

    async def metadata(_: Request) -> Response:
        return JSONResponse(None if oauth is None else resource_metadata(oauth), headers=NO_STORE)

    paths = {"/livez": live, "/readyz": is_ready}
    if oauth is not None:
        paths[metadata_path(oauth.audience)] = metadata
    return [Route(path, page, middleware=guard) for path, page in paths.items()]


@dataclass(frozen=True, slots=True)
class Login:
    """Holds the cookie and the key that a browser was given.

    Args:
        until: When it ends, by the clock of `Logins`.
        cookie: Lets it read.
        key: Lets it change something, with the cookie.
        name: Names it in logs; no secret.
    """

    until: float
    cookie: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    key: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    name: str = field(default_factory=lambda: f"browser {secrets.token_hex(4)}")


class Logins:
    """Keeps the codes and the logins, in memory and bounded.

    Args:
        clock: Seconds on a clock that never goes back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._codes = Newest[str, float](MAX_CODES)
        self._logins = Newest[str, Login](MAX_COOKIES)

    def new_code(self) -> str:
        """Returns a code for one login."""
        code = secrets.token_urlsafe(24)
        self._codes[code] = self._clock() + CODE_SECONDS
        return code

    def begin(self, code: str) -> Login | None:
        """Begins a login; None where the code was used, is too old, or none of ours."""
        # Taken out whatever comes of it: a code that was seen twice opens nothing the second time.
        until = self._codes.pop(code, None)
        if until is None or until < self._clock():
            return None
        login = Login(self._clock() + COOKIE_SECONDS)
        self._logins[login.cookie] = login
        return login

    def knows(self, cookies: bytes) -> bool:
        """Says whether a `Cookie` header is that of a login."""
        return bool(self._of(cookies))

    def keyed(self, cookies: bytes, key: bytes) -> str | None:
        """Returns the name of the login that a `Cookie` header and a key are of; None where they are not of one."""
        for login in self._of(cookies):
            if secrets.compare_digest(login.key.encode(), key):
                return login.name
        return None

    def _of(self, cookies: bytes) -> list[Login]:
        found: list[Login] = []
        for part in cookies.split(b";"):
            name, _, value = part.strip().partition(b"=")
            login = self._logins.get(value.decode("latin-1"))
            if name == COOKIE.encode() and login is not None and login.until >= self._clock():
                found.append(login)
        return found
