"""Says which servers OAuth is for, and gives a session its server's login."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cellblock.base.shared_rows import SharedRows
from cellblock.config.secrets.redaction import Redactor
from cellblock.config.settings import AuthSettings, ServerConfig

if TYPE_CHECKING:
    from cellblock.upstream.auth.bearer import Login
    from cellblock.upstream.auth.store import LoginPlace


def kept_logins(
    settings: AuthSettings, where: Path | SharedRows
) -> Callable[[str, ServerConfig], Login | None]:
    """Lists the logins that are kept in a state directory, or where brokers share them, for servers with a URL and
    without an `Authorization` header."""

    def login_of(server: str, config: ServerConfig) -> Login | None:
        if not can_log_in(config) or config.url is None:
            return None
        from cellblock.upstream.auth.sources import KeptLogin, OwnCredentials

        redactor, own = Redactor(config), settings.for_server(server)
        if own.grant == "client_credentials":
            return OwnCredentials(server, config.url, own, settings, redactor)
        place = login_place(where, server, config.url, settings, patient=True)
        return KeptLogin(server, place, settings, redactor)

    return login_of


def login_place(
    where: Path | SharedRows, server: str, url: str, settings: AuthSettings, *, patient: bool = False
) -> LoginPlace:
    """Returns where the login of a server is kept; the rest is as for `LoginStore` and `SharedLogin`."""
    from cellblock.upstream.auth.shared_logins import SharedLogin
    from cellblock.upstream.auth.store import LoginStore

    if isinstance(where, SharedRows):
        return SharedLogin(where, server, url, patient=patient)
    return LoginStore(where, server, url, settings)


def can_log_in(config: ServerConfig) -> bool:
    """Says whether OAuth is for this server: it has a URL, and no credentials of its own."""
    return config.url is not None and not any(name.lower() == "authorization" for name in config.headers)
