"""Redirect is the end of the browser's way: a listener on the loopback that takes the authorization server's answer
(RFC 8252)."""

from __future__ import annotations

import asyncio
import contextlib
import html
import secrets
from typing import Final
from urllib.parse import parse_qs, urlsplit

from mcp.shared.auth import AuthorizationCodeResult

from cellblock.tools.upstream.auth.errors import LoginError
from cellblock.tools.upstream.definitions import shown

HOST: Final = "127.0.0.1"
PATH: Final = "/callback"

MAX_HEAD_BYTES: Final = 16 * 1024
"""Bounds the head of one request; codes take a few hundred bytes."""

HEAD_BOUND_SECONDS: Final = 10.0
"""Bounds the time for one request's head."""

MAX_CONNECTIONS: Final = 16

_HEADERS: Final = (
    "Content-Type: text/html; charset=utf-8\r\nCache-Control: no-store\r\nReferrer-Policy: no-referrer\r\n"
    "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'\r\nX-Content-Type-Options: nosniff\r\n"
    "Connection: close\r\n"
)


class RedirectListener:
    """Listens on one port of the loopback; requests with another state than the expected are refused, not obeyed:
    any page in any browser can send them."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._state: str | None = None
        self._answer: asyncio.Future[AuthorizationCodeResult] | None = None
        self._open = 0
        self.port = 0

    async def start(self, port: int) -> None:
        """Listens for the browser on a port; 0 takes any free one.

        Raises:
            LoginError: The port is taken.
        """
        try:
            self._server = await asyncio.start_server(self._serve, HOST, port, limit=MAX_HEAD_BYTES)
        except OSError as error:
            raise LoginError(
                f"The port {port} for the redirect cannot be used: {error.strerror}.",
                hint="Free it, or change redirect_port to another that the client is registered with.",
            ) from None
        self.port = self._server.sockets[0].getsockname()[1]
        self._answer = asyncio.get_running_loop().create_future()

    @property
    def url(self) -> str:
        """Gives the redirect URI."""
        return f"http://{HOST}:{self.port}{PATH}"

    def expect(self, authorization_url: str) -> None:
        """Takes the answer to this authorization request from now on."""
        self._state = parse_qs(urlsplit(authorization_url).query)["state"][0]

    async def answer(self, bound: float) -> AuthorizationCodeResult:
        """Waits for the code with its state.

        Raises:
            LoginError: The authorization server says that there is none, or `bound` seconds went by.
        """
        assert self._answer is not None
        try:
            async with asyncio.timeout(bound):
                return await asyncio.shield(self._answer)
        except TimeoutError:
            raise LoginError(
                f"The browser has not come back within {bound:g} s.",
                hint="Try again, or give a longer --timeout.",
            ) from None

    async def close(self) -> None:
        """Stops listening for the browser."""
        if self._server is not None:
            self._server.close()
        if self._answer is not None and not (self._answer.cancel() or self._answer.cancelled()):
            # Retrieved, whether or not somebody has waited for it.
            self._answer.exception()

    # ---- inside --------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open > MAX_CONNECTIONS:
                return
            async with asyncio.timeout(HEAD_BOUND_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            status, text = self._take(head.decode("latin-1"))
            body = page(f"<p>{html.escape(text)}").encode()
            writer.write(
                f"HTTP/1.1 {status}\r\n{_HEADERS}Content-Length: {len(body)}\r\n\r\n".encode() + body
            )
            async with asyncio.timeout(HEAD_BOUND_SECONDS):
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            return
        finally:
            self._open -= 1
            with contextlib.suppress(Exception):
                writer.close()

    def _take(self, head: str) -> tuple[str, str]:
        lines = head.split("\r\n")
        method, _, rest = lines[0].partition(" ")
        target = urlsplit(rest.partition(" ")[0])
        hosts = [line.partition(":")[2].strip() for line in lines[1:] if line.lower().startswith("host:")]
        if hosts != [f"{HOST}:{self.port}"] or target.path != PATH:
            return "404 Not Found", "There is nothing here."
        if method != "GET":
            return "405 Method Not Allowed", "There is nothing here."
        values = values_in(target.query)
        state = values.get("state", "")
        if self._state is None or not secrets.compare_digest(state.encode(), self._state.encode()):
            return "400 Bad Request", "This answer belongs to no login that is under way."
        assert self._answer is not None
        if self._answer.done():
            return "400 Bad Request", "This login has its answer already."
        if "code" in values and "error" not in values:
            result = AuthorizationCodeResult(code=values["code"], state=state, iss=values.get("iss"))
            self._answer.set_result(result)
            return "200 OK", "You can close this page and go back to the terminal."
        self._answer.set_exception(refusal(values.get("error", "no code")))
        return "200 OK", "The login was refused. You can close this page."


def values_in(query: str) -> dict[str, str]:
    """Returns what is given once in a query, or a form."""
    return {name: given[0] for name, given in parse_qs(query).items() if len(given) == 1}


def refusal(error: str) -> LoginError:
    """Words the error with which an authorization server has answered."""
    if error == "access_denied":
        return LoginError("The login was denied.", hint="Log in again, and agree.")
    return LoginError(
        f"The authorization server has refused: {shown(error)}.", hint="Check the login's settings."
    )


def page(body: str) -> str:
    """Makes a page of a body, for screens of any width."""
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>Cellblock</title>"
        "<meta name=viewport content='width=device-width,initial-scale=1'><style>:root{color-scheme:light dark}"
        "body{font:1.1rem system-ui;margin:15vh auto;padding:0 1rem;max-width:30rem;overflow-wrap:anywhere}"
        "input,button{font:inherit;width:100%;box-sizing:border-box;padding:.5rem;margin:.4rem 0}</style>"
        f"<h1>Cellblock</h1>{body}</html>"
    )
