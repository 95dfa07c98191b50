"""Login does what `cellblock auth` asks for: logs in to one server with a person in a browser, says how a login
stands, and ends it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2
from mcp import MCPError
from mcp.client.auth.utils import issuers_match
from mcp.client.session import ClientSession
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from pydantic import AnyUrl

from cellblock.base.browser import open_privately
from cellblock.base.budget import Budget
from cellblock.base.errors import ConfigError
from cellblock.base.redaction import Redactor, guard_loggers
from cellblock.base.settings.auth import AuthSettings, ServerAuthSettings
from cellblock.base.settings.sections import ServerBounds
from cellblock.base.settings.server import ServerConfig
from cellblock.base.store import Store
from cellblock.base.threads import start_daemon
from cellblock.tools.upstream import failures
from cellblock.tools.upstream.auth.bearer import Login
from cellblock.tools.upstream.auth.errors import LoginError, LoginStoreError, Refused, login_hint
from cellblock.tools.upstream.auth.exchange import (
    CheckedProvider,
    MemoryStorage,
    drive,
    is_safe,
    reason_of,
    revoke,
    shown_line,
)
from cellblock.tools.upstream.auth.record import LoginRecord
from cellblock.tools.upstream.auth.redirect import RedirectListener
from cellblock.tools.upstream.auth.sources import TOKEN_SECONDS, OwnCredentials, with_scopes
from cellblock.tools.upstream.auth.store import LoginStore
from cellblock.tools.upstream.connecting import Link, ProbeEnded, Upstream
from cellblock.tools.upstream.listing import list_tools
from cellblock.tools.upstream.pace import Holding
from cellblock.tools.upstream.registry import MESSAGE_BYTES
from cellblock.tools.upstream.server_logins import can_log_in
from cellblock.tools.upstream.wire.errors import HttpRefused

PROBE_VERSION: Final = "2025-06-18"
"""Names the revision that the flow of a login goes by; from this one on tokens name their resource."""

CLIENT_NAME: Final = "Cellblock"
"""Names this client to people who agree to the login."""

LOCK_BOUND_SECONDS: Final = 40.0
"""Bounds the wait for another process that is renewing the login that is to be replaced."""


_PAGE: Final = f"login-{os.getpid()}.html"


@dataclass(frozen=True, slots=True)
class LoginTarget:
    """A login target is one server that can be logged in to."""

    name: str
    config: ServerConfig
    auth: AuthSettings
    kept: Store

    @property
    def url(self) -> str:
        """Gives the server's URL."""
        assert self.config.url is not None
        return self.config.url

    def store(self) -> LoginStore:
        """Says where the server's login is kept."""
        return LoginStore(self.kept, self.name, self.url, self.auth)


def target_of(
    server: str, servers: Mapping[str, ServerConfig], auth: AuthSettings, store: Store
) -> LoginTarget:
    """Finds the server of this name.

    Raises:
        ConfigError: There is none, or OAuth is not for it.
    """
    config = servers.get(server)
    if config is None:
        known = ", ".join(servers) or "none"
        raise ConfigError(f"There is no server {server} in mcpServers.", hint=f"Servers: {known}.")
    if config.url is None:
        raise ConfigError(f"{server} is started by a command.", hint="Only servers with a url have a login.")
    if config.missing is not None:
        raise ConfigError(f"{server} cannot be reached: {config.missing}.", hint="Set it, then try again.")
    if not can_log_in(config):
        raise ConfigError(
            f"{server} has an Authorization header of its own.",
            hint="Remove it from the configuration to log in.",
        )
    if not is_safe(config.url):
        raise ConfigError(
            f"{server} is reached without TLS: a token would be sent for all to read.",
            hint="Use its https URL.",
        )
    return LoginTarget(server, config, auth, store)


async def log_in(
    target: LoginTarget, *, browser: Path | None, bound: float, say: Callable[[str], None]
) -> str:
    """Logs in, and returns a sentence that says how it went.

    Args:
        target: The server.
        browser: Holds, for one to open, the file that leads it; None: none is opened. The URL is said in any case.
        bound: For the person, in seconds.
        say: Told what to do.

    Raises:
        LoginError: It did not succeed.
        ConfigError: A client secret cannot be read.
    """
    guard_loggers()
    exchange_bound = TOKEN_SECONDS
    refused = await challenge_of(target, exchange_bound)
    if refused is None:
        return f"{target.name} asks for no login."
    own = target.auth.for_server(target.name)
    if own.grant == "client_credentials":
        source = OwnCredentials(target.name, target.url, own, Redactor(target.config))
        if await source.renewed(None, refused.request, refused) is None:
            raise LoginError(f"{target.name}: {source.problem}.", hint=f"{source.hint}.")
        return f"{target.name}: a token was granted. Nothing is kept: the daemon gets its own."
    store = target.store()
    before: LoginRecord | None = None
    with contextlib.suppress(LoginStoreError):
        before = await store.load()
    kept = _kept_client(own, before)
    wanted = [*own.scopes, *((before.wanted_scope or "").split() if before is not None else ())]
    if kept is not None and own.client_id is None and not _may_ask(kept, wanted):
        # It was registered for less: register anew.
        kept = None
    listener = RedirectListener()
    await _listen(listener, own.redirect_port, kept)
    if kept is not None and _port_of(kept) not in (None, listener.port):
        # Many authorization servers compare the redirect's port, too: register anew.
        kept = None
    try:
        provider, storage = _provider(target, listener, kept, browser=browser, bound=bound, say=say)
        try:
            await drive(provider, with_scopes(refused, wanted), exchange_bound)
        except Refused as error:
            raise LoginError(
                f"The login to {target.name} has failed: {error.message}.", hint=error.hint
            ) from None
    finally:
        await listener.close()
        if browser is not None:
            (browser / _PAGE).unlink(missing_ok=True)
    if storage.tokens is None or storage.client is None:
        raise LoginError(f"{target.name} has granted no token.", hint="Try again.")
    record = LoginRecord(
        server_url=target.url,
        client=storage.client,
        tokens=None,
        since=time.time(),
        resource_metadata=provider.context.protected_resource_metadata,
        server_metadata=provider.context.oauth_metadata,
    ).with_tokens(storage.tokens)
    async with store.locked(LOCK_BOUND_SECONDS):
        await store.save(record)
    missing = [
        scope for scope in wanted if storage.tokens.scope and scope not in storage.tokens.scope.split()
    ]
    less = f" Not granted: {shown_line(' '.join(missing))}." if missing else ""
    return f"Logged in to {target.name}; the login is kept {store.where}.{less}"


async def log_out(target: LoginTarget) -> str:
    """Ends a login at the authorization server, and forgets it.

    Raises:
        LoginStoreError: It cannot be forgotten.
    """
    store = target.store()
    async with store.locked(LOCK_BOUND_SECONDS):
        try:
            record = await store.load()
        except LoginStoreError as error:
            await store.delete()
            said = "is forgotten. It could not be read, and was not revoked"
            return f"The login of {target.name} {said}: {error.message}"
        if record is None:
            await store.delete()
            return f"There is no login of {target.name}."
        try:
            revoked = await revoke(record, TOKEN_SECONDS)
            how = (
                "revoked and forgotten"
                if revoked
                else "forgotten; the authorization server has no way to revoke it"
            )
        except LoginError as error:
            how = f"forgotten, but it could not be revoked: {error.message.rstrip('.')}"
        await store.delete()
    return f"The login of {target.name} is {how}."


async def status_of(target: LoginTarget) -> dict[str, Any]:
    """Says how a login stands, as JSON data without any secret: `state` is `logged in`, `expired`, `ended`, `none`,
    `unreadable` or `client credentials`."""
    found: dict[str, Any] = {"server": target.name, "url": target.url.partition("?")[0].rpartition("@")[2]}
    if target.auth.for_server(target.name).grant == "client_credentials":
        return {**found, "state": "client credentials", "hint": "The daemon gets tokens by itself."}
    store = target.store()
    try:
        record = await store.load()
    except LoginStoreError as error:
        return {**found, "state": "unreadable", "problem": error.message, "hint": error.hint}
    if record is None:
        return {**found, "state": "none", "hint": login_hint(target.name)}
    found |= {"issuer": record.issuer, "client": record.client.client_id, "kept": store.kept_in}
    if record.tokens is None:
        return {**found, "state": "ended", "hint": login_hint(target.name)}
    left = None if record.expires_at is None else int(record.expires_at - time.time())
    renewable = record.tokens.refresh_token is not None
    over = left is not None and left <= 0 and not renewable
    return {
        **found,
        "state": "expired" if over else "logged in",
        "scope": record.tokens.scope,
        "expiresInSeconds": left,
        "renewable": renewable,
        **(
            {"wantedScope": record.wanted_scope, "hint": login_hint(target.name)}
            if record.wanted_scope
            else {}
        ),
        **({"hint": login_hint(target.name)} if over else {}),
    }


class _Asking(Login):
    """Shows no token, and keeps the refusal: of it, only the place and the challenge matter."""

    refused: httpx2.Response | None = None

    async def token(self) -> str | None:
        return None

    async def renewed(
        self, used: str | None, request: httpx2.Request, refused: httpx2.Response
    ) -> str | None:
        place = httpx2.Request("POST", str(request.url), headers={MCP_PROTOCOL_VERSION_HEADER: PROBE_VERSION})
        self.refused = self.refused or httpx2.Response(401, headers=refused.headers, request=place)
        return None


async def challenge_of(target: LoginTarget, bound: float) -> httpx2.Response | None:
    """Connects without a token, as brokers do, and returns the refusal, whose challenge says where a login is to be
    had; None when nothing is refused.

    Args:
        target: The server.
        bound: For all of it, in seconds.

    Raises:
        LoginError: It cannot be reached, or answers something else.
    """
    name, milliseconds = target.name, int(bound * 1000)
    asking = _Asking(name, Redactor(target.config))
    bounds = ServerBounds(milliseconds, milliseconds, None, ())
    holding = Holding(Budget.of_servers(), name)
    server = Upstream(name, target.config, bounds, MESSAGE_BYTES, Path(), asking.redactor, asking, holding)
    try:
        async with asyncio.timeout(bound), contextlib.AsyncExitStack() as stack:
            client, connection = await Link(server, lambda _: None).connected(
                stack, sys.stderr, lambda connection: ClientSession(dispatcher=connection), handshake=False
            )
            # Some servers greet everybody, and refuse who wants to know their tools.
            with contextlib.suppress(MCPError):
                await list_tools(client, connection)
    except (MCPError, ProbeEnded, TimeoutError, httpx2.HTTPError, BaseExceptionGroup) as error:
        found = failures.first_of(error)
        if asking.refused is None:
            answers = isinstance(found, HttpRefused)
            how = f"answers with HTTP {found.status}" if answers else f"cannot be reached{reason_of(found)}"
            raise LoginError(f"{name} {how}.", hint="Check its url.") from None
    return asking.refused


# ---- inside --------------------------------------------------------------------------------------


def _may_ask(client: OAuthClientInformationFull, scopes: list[str]) -> bool:
    """Says whether a registration allows all of these scopes, or says nothing of scopes."""
    return client.scope is None or set(scopes) <= set(client.scope.split())


def _kept_client(own: ServerAuthSettings, record: LoginRecord | None) -> OAuthClientInformationFull | None:
    """Finds the client to log in with, if it is known before: that of the configuration, else the one registered
    last."""
    if own.client_id is not None:
        secret = own.secret()
        return OAuthClientInformationFull(
            client_id=own.client_id,
            client_secret=secret,
            token_endpoint_auth_method=own.client_auth_method if secret else "none",
            issuer=own.issuer,
        )
    if record is None or own.client_metadata_url is not None:
        return None
    # A registration that was just refused is no use; one whose tokens were revoked is.
    return record.client if record.client.redirect_uris else None


def _port_of(client: OAuthClientInformationFull) -> int | None:
    """Returns the port of the redirect that was registered."""
    return client.redirect_uris[0].port if client.redirect_uris else None


async def _listen(
    listener: RedirectListener, port: int | None, kept: OAuthClientInformationFull | None
) -> None:
    if port is not None:
        await listener.start(port)
        return
    before = _port_of(kept) if kept is not None else None
    try:
        await listener.start(before or 0)
    except LoginError:
        await listener.start(0)


def _provider(
    target: LoginTarget,
    listener: RedirectListener,
    kept: OAuthClientInformationFull | None,
    *,
    browser: Path | None,
    bound: float,
    say: Callable[[str], None],
) -> tuple[CheckedProvider, MemoryStorage]:
    own = target.auth.for_server(target.name)
    storage = MemoryStorage(kept)

    async def redirect(url: str) -> None:
        listener.expect(url)
        say(f"Log in to {target.name} in your browser:\n\n  {url}\n")
        if browser is not None:
            _open(browser, url)

    async def callback() -> AuthorizationCodeResult:
        return await listener.answer(bound)

    class Checked(CheckedProvider):
        def _select_authorization_server(self, advertised: list[str]) -> str:
            wanted = [one for one in advertised if own.issuer is not None and issuers_match(one, own.issuer)]
            return super()._select_authorization_server(wanted or advertised)

        async def _perform_authorization(self) -> httpx2.Request:
            metadata = self.context.oauth_metadata
            if own.issuer is not None and (
                metadata is None or not issuers_match(str(metadata.issuer), own.issuer)
            ):
                raise LoginError(
                    f"{target.name} leads to another authorization server than {own.issuer}.",
                    hint=f"Correct cellblock.auth.servers.{target.name}.issuer, or do not log in.",
                )
            methods = metadata.code_challenge_methods_supported if metadata is not None else None
            if methods is not None and "S256" not in methods:
                raise LoginError(
                    "The authorization server does not support PKCE.", hint="Do not log in there."
                )
            return await super()._perform_authorization()

    provider = Checked(
        target.url,
        OAuthClientMetadata(
            redirect_uris=[AnyUrl(listener.url)],
            client_name=CLIENT_NAME,
            token_endpoint_auth_method="none",
        ),
        storage,
        redirect,
        callback,
        client_metadata_url=own.client_metadata_url,
    )
    return provider, storage


def _open(folder: Path, url: str) -> None:
    """Opens a browser where there is a screen or a `BROWSER`: one for terminals would take this one over."""
    if sys.platform != "darwin" and not any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    ):
        return
    start_daemon("browser", open_privately, folder, _PAGE, url)
