"""Answers what a browser, `cellblock top` and Prometheus read: the dashboard and the metrics. All that is read-only.

A browser cannot show a bearer token. So whoever has the token asks for a code (`POST /dashboard/code`), which is good
for one login within a minute; the login sets a cookie that is of use for the dashboard's own GET requests and for
nothing else. With it nothing can be changed, so there is nothing that a forged request could do. The one thing that can
be done here, to start an upstream server again, takes the token itself.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from importlib.resources import files
from typing import Any, Final, Protocol
from urllib.parse import parse_qs

from cellblock.telemetry.metrics import CONTENT_TYPE, Metrics
from cellblock.telemetry.view import View

DASHBOARD_PATH: Final = "/dashboard"
STATE_PATH: Final = "/dashboard/state"
RUNS_PREFIX: Final = "/dashboard/runs/"
CODE_PATH: Final = "/dashboard/code"
LOGIN_PATH: Final = "/dashboard/login"
METRICS_PATH: Final = "/metrics"
SERVERS_PREFIX: Final = "/servers/"

ASSETS: Final = {
    DASHBOARD_PATH: ("index.html", "text/html; charset=utf-8"),
    "/dashboard/app.css": ("app.css", "text/css; charset=utf-8"),
    "/dashboard/app.js": ("app.js", "text/javascript; charset=utf-8"),
}

COOKIE: Final = "cellblock_dashboard"

CODE_SECONDS: Final = 60
MAX_CODES: Final = 16
"""Bounds the codes that wait; the oldest is forgotten."""

COOKIE_SECONDS: Final = 12 * 60 * 60
MAX_COOKIES: Final = 64

STATE_SECONDS: Final = 0.25
"""Sets for how long an answer is given again: those who ask very often do not keep the daemon from its work."""

HEADERS: Final = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)

SIGN_IN: Final = b"Run `cellblock dashboard` on the daemon's machine, and open the URL that it prints.\n"

Header = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Page:
    """Holds an answer."""

    status: int
    body: bytes = b""
    headers: tuple[Header, ...] = ()


class Servers(Protocol):
    """Knows the upstream servers, and starts one again."""

    def row(self, name: str) -> dict[str, Any] | None:
        """Returns a server's state; None when there is no such server."""
        ...

    def restart(self, name: str) -> bool:
        """Begins to start a server again; False when there is no such server."""
        ...


class Pages:
    """Answers by path; who may ask is the gate's to decide, with `is_open` and `knows`.

    Args:
        view: What the dashboard shows; None where there is none.
        metrics: None where there are none.
        open_metrics: Whether the metrics ask for no token.
        secure: Whether browsers reach us over TLS.
        servers: For `cellblock restart`; None where nobody may.
        clock: Seconds on a clock that never goes back.
    """

    def __init__(
        self,
        view: View | None,
        metrics: Metrics | None,
        *,
        open_metrics: bool = False,
        secure: bool = False,
        servers: Servers | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._servers = servers
        self._view = view
        self._metrics = metrics
        self._open_metrics = open_metrics
        self._secure = secure
        self._clock = clock
        self._codes: OrderedDict[str, float] = OrderedDict()
        self._cookies: OrderedDict[str, float] = OrderedDict()
        self._state: tuple[float, Page] | None = None

    def has(self, path: str) -> bool:
        """Says whether a path is one of these pages."""
        if path == METRICS_PATH:
            return self._metrics is not None
        if path.startswith(SERVERS_PREFIX):
            return self._servers is not None
        return self._view is not None and (path == DASHBOARD_PATH or path.startswith(DASHBOARD_PATH + "/"))

    def is_open(self, path: str) -> bool:
        """Says whether a page asks for no token: a login shows its code."""
        return path == LOGIN_PATH or (path == METRICS_PATH and self._open_metrics)

    def knows(self, path: str, cookies: bytes) -> bool:
        """Says whether a `Cookie` header lets a browser read this path."""
        if path in (METRICS_PATH, CODE_PATH) or path.startswith(SERVERS_PREFIX):
            return False
        for part in cookies.split(b";"):
            name, _, value = part.strip().partition(b"=")
            until = self._cookies.get(value.decode("latin-1"), float("-inf"))
            if name == COOKIE.encode() and until >= self._clock():
                return True
        return False

    def answer(self, method: str, path: str, query: bytes) -> Page:
        """Answers whoever may ask."""
        if path.startswith(SERVERS_PREFIX) and self._servers is not None:
            return _server_page(self._servers, method, path.removeprefix(SERVERS_PREFIX))
        wanted = "POST" if path == CODE_PATH else "GET"
        if method != wanted and not (method == "HEAD" and wanted == "GET"):
            return Page(HTTPStatus.METHOD_NOT_ALLOWED, headers=((b"allow", wanted.encode()),))
        if path == METRICS_PATH and self._metrics is not None:
            return _page(self._metrics.page(), CONTENT_TYPE)
        if self._view is None:
            return Page(HTTPStatus.NOT_FOUND)
        if path in ASSETS:
            name, kind = ASSETS[path]
            return _page(files("cellblock.frontend.http").joinpath("page", name).read_bytes(), kind)
        if path == STATE_PATH:
            return self._state_page(self._view)
        if path.startswith(RUNS_PREFIX):
            run = self._view.board.run(path.removeprefix(RUNS_PREFIX))
            return Page(HTTPStatus.NOT_FOUND) if run is None else _json(run)
        if path == CODE_PATH:
            return _json({"path": f"{LOGIN_PATH}?code={self._new_code()}", "seconds": CODE_SECONDS})
        if path == LOGIN_PATH:
            return self._login(query)
        return Page(HTTPStatus.NOT_FOUND)

    # ---- inside ----------------------------------------------------------------------------------------

    def _state_page(self, view: View) -> Page:
        now = self._clock()
        if self._state is None or now - self._state[0] >= STATE_SECONDS:
            self._state = (now, _json(view.state()))
        return self._state[1]

    def _new_code(self) -> str:
        code = secrets.token_urlsafe(24)
        self._codes[code] = self._clock() + CODE_SECONDS
        if len(self._codes) > MAX_CODES:
            self._codes.popitem(last=False)
        return code

    def _login(self, query: bytes) -> Page:
        given = parse_qs(query.decode("latin-1")).get("code", [""])
        # Taken out whatever comes of it: a code that was seen twice opens nothing the second time.
        until = self._codes.pop(given[0], None)
        if until is None or until < self._clock():
            return Page(
                HTTPStatus.FORBIDDEN, b"This code was used, or is too old. " + SIGN_IN, _text_headers()
            )
        value = secrets.token_urlsafe(32)
        self._cookies[value] = self._clock() + COOKIE_SECONDS
        if len(self._cookies) > MAX_COOKIES:
            self._cookies.popitem(last=False)
        secure = "; Secure" if self._secure else ""
        cookie = (
            f"{COOKIE}={value}; HttpOnly; SameSite=Strict; Path={DASHBOARD_PATH}; "
            f"Max-Age={COOKIE_SECONDS}{secure}"
        )
        headers = ((b"location", DASHBOARD_PATH.encode()), (b"set-cookie", cookie.encode()), *HEADERS)
        return Page(HTTPStatus.SEE_OTHER, headers=headers)


def _server_page(servers: Servers, method: str, name: str) -> Page:
    if method not in ("GET", "POST"):
        return Page(HTTPStatus.METHOD_NOT_ALLOWED, headers=((b"allow", b"GET, POST"),))
    if method == "POST" and not servers.restart(name):
        return Page(HTTPStatus.NOT_FOUND)
    row = servers.row(name)
    return Page(HTTPStatus.NOT_FOUND) if row is None else _json(row)


def sign_in_page() -> Page:
    """Makes the page that a browser without a cookie sees."""
    return Page(HTTPStatus.UNAUTHORIZED, SIGN_IN, _text_headers())


def _text_headers() -> tuple[Header, ...]:
    return ((b"content-type", b"text/plain; charset=utf-8"), *HEADERS)


def _page(body: bytes, kind: str) -> Page:
    return Page(HTTPStatus.OK, body, ((b"content-type", kind.encode()), *HEADERS))


def _json(value: Any) -> Page:
    # Lone surrogates can come in a script's log; they have no UTF-8, but they have a JSON escape.
    return _page(json.dumps(value).encode(), "application/json")
