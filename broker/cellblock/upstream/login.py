"""Gives a session what it needs of its server's OAuth login: credentials for requests, words for refusals, news of a
login."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cellblock.config.secrets.redaction import Redactor
from cellblock.config.settings import AuthSettings, ServerConfig

if TYPE_CHECKING:
    import httpx2

    from cellblock.upstream.auth.sources import KeptLogin, OwnCredentials

LOOK_SECONDS: Final = 1.0
"""Sets how soon a waiting session sees that somebody has logged in: one `stat`."""


class Login:
    """One server's.

    Args:
        redactor: Of the session; learns every token before it is used.
        source: Where tokens come from.
        auth: Puts them on requests.
    """

    def __init__(self, redactor: Redactor, source: KeptLogin | OwnCredentials, auth: httpx2.Auth) -> None:
        self.redactor = redactor
        self.auth = auth
        self._source = source

    def trouble(self) -> tuple[str | None, str]:
        """Says, after a refusal, what is known to be wrong, if anything, and what to do: what is known to be wrong, if
        anything, and what to do. Without secrets."""
        problem = self._source.problem
        return (self.redactor.text(problem) if problem else None), self._source.hint

    async def changed(self, bound: float) -> None:
        """Waits until somebody logs in or out, at most `bound` seconds."""
        loop = asyncio.get_running_loop()
        deadline, before = loop.time() + bound, self._source.stamp()
        while (left := deadline - loop.time()) > 0:
            await asyncio.sleep(min(left, LOOK_SECONDS))
            if self._source.stamp() != before:
                return

    async def close(self, bound: float) -> None:
        """Lets a renewal under way end, at most `bound` seconds."""
        await self._source.close(bound)


def no_logins(_server: str, _config: ServerConfig) -> Login | None:
    """Gives no login, for sessions that never log in."""
    return None


def kept_logins(settings: AuthSettings, state_dir: Path) -> Callable[[str, ServerConfig], Login | None]:
    """Logins that are kept in a state directory, for servers with a URL and without an `Authorization` header."""

    def login_of(server: str, config: ServerConfig) -> Login | None:
        if not can_log_in(config) or config.url is None:
            return None
        from cellblock.upstream.auth.bearer import BearerAuth
        from cellblock.upstream.auth.sources import KeptLogin, OwnCredentials
        from cellblock.upstream.auth.store import LoginStore

        redactor = Redactor(config)
        own = settings.of(server)
        if own.grant == "client_credentials":
            source = OwnCredentials(server, config.url, own, settings, redactor.add)
        else:
            store = LoginStore(state_dir, server, config.url, settings)
            source = KeptLogin(server, store, settings, redactor.add)
        return Login(redactor, source, BearerAuth(source))

    return login_of


def can_log_in(config: ServerConfig) -> bool:
    """Says whether OAuth is for this server: it has a URL, and no credentials of its own."""
    return config.url is not None and not any(name.lower() == "authorization" for name in config.headers)
