"""Answers what a browser, `cellblock top` and Prometheus read: the dashboard and the metrics.

A browser signs in with a code that whoever has the token asks for (`POST /dashboard/code`; see `logins`). Its cookie
is of use for the dashboard's own GET requests and for nothing else, so there is nothing that a forged request could do.
Two things can be changed here. To start an upstream server again takes the token itself. To answer a run that waits for
a person takes the token, or the cookie and the login's key.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from http import HTTPStatus
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

from cellblock.base.database import StoreError
from cellblock.config.observe import DashboardSettings
from cellblock.frontend.http.logins import CODE_SECONDS, Logins
from cellblock.frontend.http.page_parts import HEADERS, Page, json_page, page_of, text_page
from cellblock.frontend.http.parked_pages import ParkedPages
from cellblock.telemetry.metrics import CONTENT_TYPE, Metrics
from cellblock.telemetry.view import NOT_STARTED, BrokerFacts, View

if TYPE_CHECKING:
    from cellblock.durable.keeper import Keeper

logger = logging.getLogger("cellblock.frontend")

DASHBOARD_PATH: Final = "/dashboard"
STATE_PATH: Final = "/dashboard/state"
RUNS_PREFIX: Final = "/dashboard/runs/"
KEPT_PATH: Final = "/dashboard/kept"
PARKED_PATH: Final = "/dashboard/parked"
PARKED_PREFIX: Final = PARKED_PATH + "/"
CODE_PATH: Final = "/dashboard/code"
LOGIN_PATH: Final = "/dashboard/login"
METRICS_PATH: Final = "/metrics"
SERVERS_PREFIX: Final = "/servers/"

ASSETS: Final = {
    DASHBOARD_PATH: ("index.html", "text/html; charset=utf-8"),
    "/dashboard/app.css": ("app.css", "text/css; charset=utf-8"),
    "/dashboard/app.js": ("app.js", "text/javascript; charset=utf-8"),
}

STATE_SECONDS: Final = 0.25
"""Sets for how long an answer is given again: those who ask very often do not keep the daemon from its work."""

SIGN_IN: Final = b"Run `cellblock dashboard` on the daemon's machine, and open the URL that it prints.\n"


class KeptRuns:
    """Shows the runs that are kept after their end as the dashboard shows all others, without secrets.

    Args:
        keeper: Has the runs.
        settings: Says whether logs and scripts are shown.
        redacting: Gives what takes the secrets of the configuration in force out of what is shown.
    """

    def __init__(
        self, keeper: Keeper, settings: DashboardSettings, redacting: Callable[[], Callable[[Any], Any]]
    ) -> None:
        self._keeper, self._settings, self._redacting = keeper, settings, redacting
        self.recent = keeper.recent

    async def run(self, run_id: str) -> dict[str, Any] | None:
        """Returns the whole of one kept run; None when it is not kept. Raises StoreError."""
        run = await self._keeper.run(run_id)
        if run is None:
            return None
        if not self._settings.logs:
            run["logs"] = []
        if not self._settings.show_scripts:
            run.pop("script", None)
        return self._redacting()(run)


class Servers:
    """Shows the upstream servers, for `cellblock restart`.

    Args:
        facts: Knows their state.
        restart: Begins to start a server again; False when there is no such server.
    """

    def __init__(self, facts: BrokerFacts, restart: Callable[[str], bool]) -> None:
        self._facts, self.restart = facts, restart

    def not_started(self) -> dict[str, str]:
        """Returns the servers whose entries refer to what is not there, each with why."""
        return {row["name"]: row["reason"] for row in self._facts.upstreams() if row["state"] == NOT_STARTED}

    def row(self, name: str) -> dict[str, Any] | None:
        """Returns a server's state; None when there is no such server."""
        return next((row for row in self._facts.upstreams() if row["name"] == name), None)


class Pages:
    """Answers by path; who may ask is the gate's to decide, with `is_open` and `knows`.

    Args:
        view: What the dashboard shows; None where there is none.
        metrics: None where there are none.
        open_metrics: Whether the metrics ask for no token.
        secure: Whether browsers reach us over TLS.
        servers: For `cellblock restart`; None where nobody may.
        kept: The runs that are kept after their end; None where they are not shown.
        parked: The runs that wait for a person; None where nobody may answer them here.
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
        kept: KeptRuns | None = None,
        parked: ParkedPages | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._servers = servers
        self._kept = kept
        self._view = view
        self._metrics = metrics
        self._open_metrics = open_metrics
        self._parked = parked
        self._clock = clock
        self._logins = Logins(DASHBOARD_PATH, secure=secure, clock=clock)
        self._state: tuple[float, Page] | None = None

    def has(self, path: str) -> bool:
        """Says whether a path is one of these pages."""
        if path == METRICS_PATH:
            return self._metrics is not None
        if path.startswith(SERVERS_PREFIX):
            return self._servers is not None
        return self._view is not None and (path == DASHBOARD_PATH or path.startswith(DASHBOARD_PATH + "/"))

    def not_started(self) -> dict[str, str]:
        """Returns the servers that are not started, each with why; none where nobody may start one again."""
        return {} if self._servers is None else self._servers.not_started()

    def is_open(self, path: str) -> bool:
        """Says whether a page asks for no token: a login shows its code."""
        return path == LOGIN_PATH or (path == METRICS_PATH and self._open_metrics)

    def knows(self, path: str, cookies: bytes) -> bool:
        """Says whether a `Cookie` header lets a browser read this path."""
        if path in (METRICS_PATH, CODE_PATH) or path.startswith(SERVERS_PREFIX):
            return False
        return self._logins.knows(cookies)

    def is_parked(self, path: str) -> bool:
        """Says whether a page is about runs that wait: the cookie is not enough for all of it."""
        return path == PARKED_PATH or path.startswith(PARKED_PREFIX)

    def decider(self, cookies: bytes, key: bytes) -> str | None:
        """Returns which login a `Cookie` header and a key prove, which may decide; None where they prove none."""
        return self._logins.keyed(cookies, key)

    async def answer(
        self, method: str, path: str, query: bytes, *, by: str | None = None, body: bytes = b""
    ) -> Page:
        """Answers a request for a page of the dashboard.

        Args:
            method: Of HTTP.
            path: One that it `has`.
            query: Behind the path.
            by: Who it is, of those who may decide about runs that wait; None: somebody who may look.
            body: Of a request about runs that wait.
        """
        if path.startswith(SERVERS_PREFIX) and self._servers is not None:
            return _server_page(self._servers, method, path.removeprefix(SERVERS_PREFIX))
        wanted = "POST" if path == CODE_PATH or path.startswith(PARKED_PREFIX) else "GET"
        if method != wanted and not (method == "HEAD" and wanted == "GET"):
            return Page(HTTPStatus.METHOD_NOT_ALLOWED, headers=((b"allow", wanted.encode()),))
        if path == METRICS_PATH and self._metrics is not None:
            return page_of(self._metrics.page(), CONTENT_TYPE)
        if self._view is None:
            return Page(HTTPStatus.NOT_FOUND)
        if path in ASSETS:
            name, kind = ASSETS[path]
            return page_of(files("cellblock.frontend.http").joinpath("page", name).read_bytes(), kind)
        if path == STATE_PATH:
            return self._state_page(self._view)
        if path.startswith(RUNS_PREFIX):
            return await self._run_page(self._view, path.removeprefix(RUNS_PREFIX))
        if path == KEPT_PATH:
            return await self._kept_page()
        if path == PARKED_PATH and self._parked is not None:
            return await self._parked.listed(by)
        if path.startswith(PARKED_PREFIX) and self._parked is not None:
            return await self._parked.decided(path.removeprefix(PARKED_PREFIX), by, body)
        if path == CODE_PATH:
            return json_page(
                {"path": f"{LOGIN_PATH}?code={self._logins.new_code()}", "seconds": CODE_SECONDS}
            )
        if path == LOGIN_PATH:
            return self._login(query)
        return Page(HTTPStatus.NOT_FOUND)

    # ---- inside ----------------------------------------------------------------------------------------

    def _state_page(self, view: View) -> Page:
        now = self._clock()
        if self._state is None or now - self._state[0] >= STATE_SECONDS:
            self._state = (now, json_page(view.state()))
        return self._state[1]

    async def _run_page(self, view: View, run_id: str) -> Page:
        run = view.board.run(run_id)
        try:
            if self._kept is not None and (run is None or run["state"] == "ended"):
                run = await self._kept.run(run_id) or run
        except StoreError as error:
            logger.warning("a kept run cannot be shown: %s", error)
        return Page(HTTPStatus.NOT_FOUND) if run is None else json_page(run)

    async def _kept_page(self) -> Page:
        try:
            return json_page({"runs": [] if self._kept is None else await self._kept.recent()})
        except StoreError as error:
            return json_page({"runs": [], "error": str(error)})

    def _login(self, query: bytes) -> Page:
        given = parse_qs(query.decode("latin-1")).get("code", [""])
        login = self._logins.begin(given[0])
        if login is None:
            return text_page(HTTPStatus.FORBIDDEN, b"This code was used, or is too old. " + SIGN_IN)
        # A fragment is not sent to any server.
        location = f"{DASHBOARD_PATH}#key={login.key}".encode()
        headers = ((b"location", location), (b"set-cookie", self._logins.set_cookie(login)), *HEADERS)
        return Page(HTTPStatus.SEE_OTHER, headers=headers)


def _server_page(servers: Servers, method: str, name: str) -> Page:
    if method not in ("GET", "POST"):
        return Page(HTTPStatus.METHOD_NOT_ALLOWED, headers=((b"allow", b"GET, POST"),))
    if method == "POST" and not servers.restart(name):
        return Page(HTTPStatus.NOT_FOUND)
    if not name:
        return json_page({"not_started": servers.not_started()})
    row = servers.row(name)
    return Page(HTTPStatus.NOT_FOUND) if row is None else json_page(row)
