"""Redirect is the end of the browser's way: a listener on the loopback that takes the authorization server's answer
(RFC 8252)."""

from __future__ import annotations

import asyncio
import html
import secrets
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs, urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from cellblock.tools.upstream.auth.errors import LoginError
from cellblock.tools.upstream.definitions import shown

HOST: Final = "127.0.0.1"
PATH: Final = "/callback"

MAX_HEAD_BYTES: Final = 16 * 1024
"""Bounds the head of one request; codes take a few hundred bytes."""

MAX_CONNECTIONS: Final = 16

_HEADERS: Final = {
    # A client would send its next request while the connection is being closed here.
    "connection": "close",
    "content-type": "text/html; charset=utf-8",
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'",
    "x-content-type-options": "nosniff",
}


class RedirectListener:
    """Listens on one port of the loopback; requests with another state than the expected are refused, not obeyed:
    any page in any browser can send them."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._state: str | None = None
        self._answer: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
        self.port = 0

    async def start(self, port: int) -> None:
        """Listens for the browser on a port; 0 takes any free one.

        Raises:
            LoginError: The port is taken.
        """
        config = Config(
            Router([Route(PATH, self._page, methods=["GET"])], redirect_slashes=False),
            http="h11",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=0,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        )
        protocol = partial(H11Protocol, config, ServerState(), {})
        try:
            self._server = await asyncio.get_running_loop().create_server(protocol, HOST, port)
        except OSError as error:
            raise LoginError(
                f"The port {port} for the redirect cannot be used: {error.strerror}.",
                hint="Free it, or change redirect_port to another that the client is registered with.",
            ) from None
        self.port = self._server.sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        """Gives the redirect URI."""
        return f"http://{HOST}:{self.port}{PATH}"

    def expect(self, authorization_url: str) -> None:
        """Takes the answer to this authorization request from now on."""
        self._state = parse_qs(urlsplit(authorization_url).query)["state"][0]

    async def answer(self, bound: float) -> dict[str, str]:
        """Waits for what the redirect with our state brings. Raises LoginError: `bound` seconds went by."""
        try:
            async with asyncio.timeout(bound):
                return await self._answer
        except TimeoutError:
            raise LoginError(
                f"The browser has not come back within {bound:g} s.",
                hint="Try again, or give a longer --timeout.",
            ) from None

    async def close(self) -> None:
        """Stops listening for the browser."""
        if self._server is not None:
            self._server.close()

    # ---- inside --------------------------------------------------------------------------------------

    async def _page(self, request: Request) -> Response:
        status, text = self._taken(request)
        return Response(page(f"<p>{html.escape(text)}"), status, _HEADERS)

    def _taken(self, request: Request) -> tuple[HTTPStatus, str]:
        if request.headers.get("host") != f"{HOST}:{self.port}":
            return HTTPStatus.NOT_FOUND, "There is nothing here."
        values = values_in(request.url.query)
        state = values.get("state", "")
        if self._state is None or not secrets.compare_digest(state.encode(), self._state.encode()):
            return HTTPStatus.BAD_REQUEST, "This answer belongs to no login that is under way."
        if self._answer.done():
            return HTTPStatus.BAD_REQUEST, "This login has its answer already."
        self._answer.set_result(values)
        went = "The login was refused. " if "error" in values else ""
        return HTTPStatus.OK, f"{went}You can close this page and go back to the terminal."


def values_in(query: str) -> dict[str, str]:
    """Returns what is given once in a query, or a form."""
    return {name: given[0] for name, given in parse_qs(query).items() if len(given) == 1}


def code_in(values: Mapping[str, str]) -> str:
    """Returns the code that a redirect brings. Raises LoginError: The authorization server says that there is none."""
    if "code" in values and "error" not in values:
        return values["code"]
    error = values.get("error", "no code")
    if error == "access_denied":
        raise LoginError("The login was denied.", hint="Log in again, and agree.")
    said = f"The authorization server has refused: {shown(error)}."
    raise LoginError(said, hint="Check the login's settings.")


def page(body: str) -> str:
    """Makes a page of a body, for screens of any width."""
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>Cellblock</title>"
        "<meta name=viewport content='width=device-width,initial-scale=1'><style>:root{color-scheme:light dark}"
        "body{font:1.1rem system-ui;margin:15vh auto;padding:0 1rem;max-width:30rem;overflow-wrap:anywhere}"
        "input,button{font:inherit;width:100%;box-sizing:border-box;padding:.5rem;margin:.4rem 0}</style>"
        f"<h1>Cellblock</h1>{body}</html>"
    )
