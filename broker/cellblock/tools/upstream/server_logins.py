"""Says which servers OAuth is for, and gives a session its login."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

from cellblock.base.redaction import Redactor, SecretForms
from cellblock.base.settings.sections import OAuthSettings
from cellblock.base.settings.settings import AuthSettings, ServerConfig
from cellblock.base.store import Store

if TYPE_CHECKING:
    from cellblock.tools.upstream.auth.bearer import Login


def kept_logins(
    settings: AuthSettings,
    store: Store,
    oauth: OAuthSettings | None,
    pages: str | None = None,
    later: SecretForms | None = None,
) -> Callable[[str, ServerConfig, str], Login | None]:
    """Gives the kept logins of servers with a URL and without an `Authorization` header, of a person (`person_of`), who
    logs in at a page whose URL begins so; None: there are no pages. `oauth` knows identities; `later`
    hears of all tokens."""

    def login_of(server: str, config: ServerConfig, person: str) -> Login | None:
        redactor = Redactor(config) if later is None else Redactor(config, partial(later.add, server=server))
        if config.url is not None and config.own_headers:
            from cellblock.tools.upstream.auth.sources import OwnHeaders, OwnSecrets

            return OwnHeaders(server, config, OwnSecrets(store, person), redactor)
        if not can_log_in(config) or config.url is None:
            return None
        from cellblock.tools.upstream.auth.sources import KeptLogin, OwnCredentials
        from cellblock.tools.upstream.auth.store import LoginStore

        own = settings.for_server(server)
        if own.grant == "client_credentials":
            return OwnCredentials(server, config.url, own, redactor)
        page = f"{pages}{quote(server, safe='')}" if pages and person and config.is_personal else None
        if own.goes_by_identity and oauth is not None:
            from cellblock.tools.upstream.auth.asserted import IdentityGrant, KeptIdentity, place_of

            identity = KeptIdentity(server, place_of(store, oauth.issuer, settings, person), redactor, page)
            return IdentityGrant(server, config.url, own, identity, redactor)
        kept = LoginStore(store, server, config.url, settings, person=person, patient=True)
        login = KeptLogin(server, kept, redactor, page)
        if config.headers:
            login.hint += f", or correct {', '.join(config.headers)} in its headers"
        return login

    return login_of


def can_log_in(config: ServerConfig) -> bool:
    """Says whether OAuth is for this server: it has a URL, and no credentials of its own."""
    has_own = config.own_headers or any(name.lower() == "authorization" for name in config.headers)
    return config.url is not None and not has_own
