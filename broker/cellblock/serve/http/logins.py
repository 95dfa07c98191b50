"""Logins knows the browsers that may open the dashboard: by a code once, then by a cookie, and by a key beside it. A
browser cannot show a bearer token. So whoever has the token asks for a code, which is good for one login within a
minute. The login gives the browser two secrets. The cookie lets it read. Cookies are sent to every port of this host,
so a cookie alone changes nothing. The key stands in the fragment of the address to which the login leads: no server is
sent a fragment, and only the page's own script can read it. The page sends the key in a header with what it wants to
change.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from cellblock.base.kept import Newest

COOKIE: Final = "cellblock_dashboard"

LOGIN_PATH: Final = "/dashboard/login"

SERVER_LOGINS: Final = "/login/"
"""Begins the paths of the pages that lead to the logins of servers."""

CODE_SECONDS: Final = 60
MAX_CODES: Final = 16
"""Bounds the codes that wait; the oldest is forgotten."""

COOKIE_SECONDS: Final = 12 * 60 * 60
MAX_COOKIES: Final = 64


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
