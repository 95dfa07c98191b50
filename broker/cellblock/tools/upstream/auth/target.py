"""Target is the server that somebody logs in to, and the challenge with which it refuses who has no login."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx2
from mcp.shared.exceptions import MCPError

from cellblock.base.budget import Budget
from cellblock.base.errors import ConfigError
from cellblock.base.redaction import Redactor
from cellblock.base.settings.sections import ServerBounds
from cellblock.base.settings.server import AuthSettings, ServerAuthSettings, ServerConfig
from cellblock.base.store import Store
from cellblock.tools.upstream import failures
from cellblock.tools.upstream.auth.authority import is_safe, reason_of
from cellblock.tools.upstream.auth.bearer import Login
from cellblock.tools.upstream.auth.errors import LoginError, LoginStoreError
from cellblock.tools.upstream.auth.record import LoginRecord
from cellblock.tools.upstream.auth.store import LoginStore
from cellblock.tools.upstream.connecting import Link, Upstream
from cellblock.tools.upstream.failures import HttpRefused
from cellblock.tools.upstream.listing import list_tools
from cellblock.tools.upstream.pace import Holding
from cellblock.tools.upstream.registry import MESSAGE_BYTES
from cellblock.tools.upstream.server_logins import can_log_in


@dataclass(frozen=True, slots=True)
class LoginTarget:
    """A login target is one server that can be logged in to, and who does: `person_of` somebody."""

    name: str
    config: ServerConfig
    auth: AuthSettings
    kept: Store
    person: str = ""

    @property
    def own(self) -> ServerAuthSettings:
        """Gives the server's section of the configuration."""
        return self.auth.for_server(self.name)

    @property
    def url(self) -> str:
        """Gives the server's URL."""
        assert self.config.url is not None
        return self.config.url

    def store(self) -> LoginStore:
        """Says where the person's login to the server is kept."""
        return LoginStore(self.kept, self.name, self.url, self.auth, person=self.person)

    async def before(self) -> LoginRecord | None:
        """Returns the login that there is, if it can be read."""
        with contextlib.suppress(LoginStoreError):
            return await self.store().load()
        return None


def target_of(
    server: str, servers: Mapping[str, ServerConfig], auth: AuthSettings, store: Store, person: str = ""
) -> LoginTarget:
    """Finds the server of this name, for a person as `person_of` has it.

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
            f"{server} has credentials in its headers.",
            hint="Remove them from the configuration to log in.",
        )
    if not is_safe(config.url):
        raise ConfigError(
            f"{server} is reached without TLS: a token would be sent for all to read.",
            hint="Use its https URL.",
        )
    return LoginTarget(server, config, auth, store, person)


class _Asking(Login):
    """Shows no token, and keeps the refusal: of it, only the challenge matters."""

    refused: httpx2.Response | None = None

    async def renewed(self, used: str | None, refused: httpx2.Response) -> str | None:
        self.refused = self.refused or httpx2.Response(401, headers=refused.headers)
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
            session = await Link(server, lambda _: None).connected(stack, handshake=False)
            # Some servers greet everybody, and refuse who wants to know their tools.
            with contextlib.suppress(MCPError):
                await list_tools(session)
    except (MCPError, TimeoutError, BaseExceptionGroup) as error:
        found = failures.first_of(error)
        if asking.refused is None:
            answers = isinstance(found, HttpRefused)
            how = f"answers with HTTP {found.status}" if answers else f"cannot be reached{reason_of(found)}"
            raise LoginError(f"{name} {how}.", hint="Check its url.") from None
    return asking.refused
