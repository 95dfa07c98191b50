"""Puts an access token on every request to one upstream server, and gets a new one when it is refused or too narrow."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, Final

import httpx2
from mcp.client.auth.utils import extract_field_from_www_auth, extract_scope_from_www_auth

from cellblock.base.errors import CellblockError
from cellblock.base.redaction import Redactor, safe_text
from cellblock.tools.upstream.auth.authority import shown_line
from cellblock.tools.upstream.auth.errors import LoginEnded, Refused, login_hint
from cellblock.tools.upstream.auth.record import LoginRecord

logger = logging.getLogger("cellblock.tools.upstream.auth")

PAUSE_SECONDS: Final = 5.0
"""Sets the pause after a renewal that failed: until the next attempt the server is asked without."""

_SCOPES: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e][\x20\x21\x23-\x5b\x5d-\x7e]{0,199}")


class Login(httpx2.Auth):
    """Holds one server's login: puts tokens on the requests of an HTTP client that talks to that server only.

    Tokens are got one at a time, in a task of its own: a call that is cancelled must not lose a rotated token. Nothing
    here raises: what is wrong is kept for whoever words the refusal.

    Args:
        server: The server's name.
        redactor: Of the server's session; learns every token before it is used.
        page: The URL at which its person logs in; None for the user of this machine.

    Attributes:
        problem: What is known to be wrong, if anything.
        hint: What to do about it.
        is_given: Whether it is a person who logs in.
    """

    is_given = False

    def __init__(self, server: str, redactor: Redactor, page: str | None = None) -> None:
        self.redactor, self.page = redactor, page
        self.problem: str | None = None
        self.hint = login_hint(server, page)
        self._server = server
        self._record: LoginRecord | None = None
        self._renewing: asyncio.Task[str | None] | None = None
        self._not_before = 0.0

    # ---- where tokens come from ----------------------------------------------------------------------

    async def token(self) -> str | None:
        """Returns a token that is good for now, renewed before its end, or None."""
        record = await self._current()
        if record is None or record.tokens is None:
            return None
        used = record.tokens.access_token
        if not record.is_stale():
            return used
        token = await self._once(lambda: self._renew(used))
        # Near its end and not over it, the old one still does.
        over = record.expires_at is not None and time.time() >= record.expires_at
        return token or (None if over else used)

    async def renewed(self, used: str | None, refused: httpx2.Response) -> str | None:
        """Returns a token to try instead of `used`, which the server has refused with 401; None when there is none."""
        record = await self._current()
        tokens = record.tokens if record is not None and not record.is_stale() else None
        if tokens is not None and tokens.access_token != used:
            return tokens.access_token
        return await self._once(lambda: self._renew(used))

    async def widened(self, used: str, scopes: str | None) -> str | None:
        """Returns a token to try instead of `used`, which does not reach far enough; None when only a person could
        grant it."""
        return None

    async def lacks(self, scopes: str | None) -> None:
        """Notes that, as the server says, the last token does not reach far enough; `scopes` are those that it
        names."""
        what = f": it needs {scopes}" if scopes else ""
        self.problem = f"the login does not reach far enough (insufficient_scope{what})"

    def stamp(self) -> object:
        """Changes when somebody logs in, in any process; None while nobody has."""
        return 0

    async def mark(self) -> str:
        """Returns what names the login that a person has given, over all renewals; empty where there is none."""
        return ""

    # ---- for the session -----------------------------------------------------------------------------

    def trouble(self) -> tuple[str | None, str]:
        """Says, after a refusal, what is known to be wrong with the login, if anything, and what to do. Without
        secrets."""
        return (self.redactor.text(self.problem) if self.problem else None), self.hint

    async def close(self, bound: float) -> None:
        """Lets a renewal under way end, at most `bound` seconds."""
        if self._renewing is not None:
            await asyncio.wait([self._renewing], timeout=bound)

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Sends the request, with another token again if the first is refused, and once more if it is too narrow."""
        token = await self.token()
        if token is not None:
            request.headers["Authorization"] = f"Bearer {token}"
        response = yield request
        if response.status_code == 401:
            token = await self.renewed(token, response)
            if token is None:
                return
            request.headers["Authorization"] = f"Bearer {token}"
            response = yield request
            if response.status_code == 401:
                self.problem = "the server refuses a token that was just made for it"
                return
        if token is not None and _falls_short(response):
            wider = await self.widened(token, _missing(response))
            if wider is not None:
                request.headers["Authorization"] = f"Bearer {wider}"
                response = yield request
        if _falls_short(response):
            await self.lacks(_missing(response))
        elif response.status_code < 400:
            self.problem = None

    # ---- inside --------------------------------------------------------------------------------------

    async def _current(self) -> LoginRecord | None:
        """Returns the login as it is now."""
        return self._record

    def _take(self, record: LoginRecord | None) -> None:
        if record is not None:
            self.redactor.add(record.secrets())
        self._record = record

    async def _renew(self, used: str | None) -> str | None:
        """Returns another token than `used`; None where there is none to be had. May raise."""
        return None

    async def _once(self, work: Callable[[], Coroutine[Any, Any, str | None]]) -> str | None:
        if self._renewing is None:
            if time.monotonic() < self._not_before:
                return None
            self._renewing = asyncio.create_task(self._guarded(work()), name=f"login of {self._server}")
        return await asyncio.shield(self._renewing)

    async def _guarded(self, work: Coroutine[Any, Any, str | None]) -> str | None:
        try:
            return await work
        except LoginEnded as error:
            self.problem = error.message
        except Exception as error:  # noqa: BLE001 - an authorization server may answer whatever it likes
            self.problem = _worded(error)
            self._not_before = time.monotonic() + PAUSE_SECONDS
        finally:
            self._renewing = None
        logger.warning("upstream %s: %s", self._server, self.problem)
        return None


def _worded(error: Exception) -> str:
    if isinstance(error, Refused):
        return f"no token was granted ({error.message})"
    if isinstance(error, CellblockError):
        return error.message.rstrip(".")
    return f"its login could not be renewed ({shown_line(safe_text(str(error)))})"


def _falls_short(response: httpx2.Response) -> bool:
    """Says whether the token is good, and not for this (RFC 6750, section 3.1). The request was not carried out."""
    return (
        response.status_code == 403 and extract_field_from_www_auth(response, "error") == "insufficient_scope"
    )


def _missing(refused: httpx2.Response) -> str | None:
    """Returns the scopes that a refusal asks for, where it names some in their own characters (RFC 6749, section
    3.3)."""
    scopes = extract_scope_from_www_auth(refused) or ""
    return scopes if _SCOPES.fullmatch(scopes) else None
