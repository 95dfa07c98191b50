"""Says which servers OAuth is for, and gives a session its server's login."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cellblock.base.redaction import Redactor
from cellblock.base.settings.settings import AuthSettings, ServerConfig
from cellblock.base.store import Store

if TYPE_CHECKING:
    from cellblock.tools.upstream.auth.bearer import Login


def kept_logins(settings: AuthSettings, store: Store) -> Callable[[str, ServerConfig], Login | None]:
    """Gives the kept logins of servers with a URL and without an `Authorization` header."""

    def login_of(server: str, config: ServerConfig) -> Login | None:
        if not can_log_in(config) or config.url is None:
            return None
        from cellblock.tools.upstream.auth.sources import KeptLogin, OwnCredentials
        from cellblock.tools.upstream.auth.store import LoginStore

        redactor, own = Redactor(config), settings.for_server(server)
        if own.grant == "client_credentials":
            return OwnCredentials(server, config.url, own, settings, redactor)
        kept = LoginStore(store, server, config.url, settings, patient=True)
        return KeptLogin(server, kept, settings, redactor)

    return login_of


def can_log_in(config: ServerConfig) -> bool:
    """Says whether OAuth is for this server: it has a URL, and no credentials of its own."""
    return config.url is not None and not any(name.lower() == "authorization" for name in config.headers)
