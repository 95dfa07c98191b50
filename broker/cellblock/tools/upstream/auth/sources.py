"""Gives the tokens of one upstream server: a kept login, or the client's own credentials."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

import httpx2
from mcp.client.auth.utils import extract_resource_metadata_from_www_auth, extract_scope_from_www_auth

from cellblock.base.redaction import Redactor
from cellblock.base.settings.auth import ServerAuthSettings
from cellblock.base.store import Stamp
from cellblock.tools.upstream.auth.bearer import Login
from cellblock.tools.upstream.auth.errors import LoginEnded, LoginError, LoginStoreError, Refused
from cellblock.tools.upstream.auth.exchange import (
    TOKEN_SECONDS,
    Driven,
    MemoryStorage,
    drive,
    is_safe,
    renew,
)
from cellblock.tools.upstream.auth.record import LoginRecord
from cellblock.tools.upstream.auth.store import LoginStore

logger = logging.getLogger("cellblock.tools.upstream.auth")

LOCK_GRACE_SECONDS: Final = 10.0
"""Extends an exchange's own bound for another process that is renewing the same login."""

SCOPE_BOUND_SECONDS: Final = 5.0
"""Bounds the time for noting which scopes are missing, while a call waits to fail."""

MAX_STEP_UP_SCOPES: Final = 32
"""Bounds the scopes that one server's refusals may add to a token: it could name others without end."""

PASSING_ERRORS: Final = (None, "server_error", "temporarily_unavailable")
"""Lists the errors of an authorization server that may grant the same another time."""


class KeptLogin(Login):
    """Gives the tokens of `cellblock auth login`, shared with every other process that uses them.

    Args:
        server: The server's name.
        store: Where its login is kept.
        redactor: As for `Login`.
        page: As for `Login`.
    """

    is_given = True

    def __init__(self, server: str, store: LoginStore, redactor: Redactor, page: str | None = None) -> None:
        super().__init__(server, redactor, page)
        self._store = store
        self._record: LoginRecord | None = None
        self._stamp: Stamp | None = None
        self._wanting: asyncio.Task[None] | None = None

    def stamp(self) -> Stamp | None:
        """Changes when somebody logs in, in any process."""
        return self._store.stamp()

    async def mark(self) -> str:
        """Returns what names the login that a person has given, over all renewals; empty where there is none."""
        record = await self._current()
        return "" if record is None or record.tokens is None else str(record.since)

    async def token(self) -> str | None:
        """Returns the access token, renewed before its end."""
        record = await self._current()
        if record is None or record.tokens is None:
            return None
        if record.is_stale():
            used = record.tokens.access_token
            token = await self._once(lambda: self._renew(used))
            # Near its end and not over it, the old one still does.
            over = record.expires_at is not None and time.time() >= record.expires_at
            return token or (None if over else used)
        return record.tokens.access_token

    async def renewed(
        self, used: str | None, request: httpx2.Request, refused: httpx2.Response
    ) -> str | None:
        """Returns another token than the one that was refused."""
        record = await self._current()
        if record is None or record.tokens is None:
            if record is not None and self.problem is None:
                self.problem = "the login has ended"
            return None
        if record.tokens.access_token != used and not record.is_stale():
            return record.tokens.access_token
        return await self._once(lambda: self._renew(used))

    async def lacks(self, scopes: str | None) -> None:
        """Has the next login ask for these scopes, too: only a person can grant more."""
        await super().lacks(scopes)
        record = await self._current()
        if scopes is None or record is None or record.wanting(scopes) == record:
            return
        # In a task of its own, as renewals: a call that is cancelled must not cut a write short.
        self._wanting = asyncio.create_task(self._want(scopes), name=f"scopes of {self._server}")
        await asyncio.shield(self._wanting)

    async def _want(self, scopes: str) -> None:
        try:
            async with self._store.locked(SCOPE_BOUND_SECONDS):
                record = await self._store.load()
                if record is not None:
                    await self._keep(record.wanting(scopes))
        except LoginStoreError as error:
            self.hint = f"add {scopes} to cellblock.auth.servers.{self._server}.scopes, and {self.hint}"
            logger.warning("upstream %s: missing scopes cannot be noted: %s", self._server, error)

    async def _current(self) -> LoginRecord | None:
        stamp = self._store.stamp()
        if stamp != self._stamp:
            try:
                self._take(await self._store.load())
                self._stamp = stamp
            except LoginStoreError as error:
                self.problem = f"{error.message} {error.hint}".rstrip(".")
                logger.warning("upstream %s: %s", self._server, error)
                return None
        return self._record

    def _take(self, record: LoginRecord | None) -> None:
        if record is not None:
            self.redactor.add(record.secrets())
        self._record = record

    async def _renew(self, used: str | None) -> str | None:
        async with self._store.locked(TOKEN_SECONDS + LOCK_GRACE_SECONDS):
            record = await self._store.load()
            self._take(record)
            self._stamp = self._store.stamp()
            if record is None or record.tokens is None:
                raise LoginEnded("the login has ended", hint="Log in again.")
            if record.tokens.access_token != used and not record.is_stale():
                # Another process was faster; its rotated token is the only one that is still good.
                return record.tokens.access_token
            try:
                record = await self._again(record)
            except LoginEnded as error:
                # Said once, and not asked again by every process at every start.
                if error.forgotten:
                    await self._store.delete()
                else:
                    await self._keep(record.with_tokens(None))
                raise
            await self._keep(record)
        logger.info("upstream %s: its login was renewed", self._server)
        self.problem = None
        return record.tokens.access_token if record.tokens is not None else None

    async def _again(self, record: LoginRecord) -> LoginRecord:
        return await renew(record, TOKEN_SECONDS)

    async def _keep(self, record: LoginRecord) -> None:
        self._take(record)
        await self._store.save(record)
        self._stamp = self._store.stamp()


class OwnCredentials(Login):
    """Gives tokens that Cellblock gets with the client's secret (RFC 6749, section 4.4); kept in memory only.

    Args:
        server: The server's name.
        url: Its URL.
        client: Its section of the configuration.
        redactor: As for `Login`.
    """

    def __init__(
        self,
        server: str,
        url: str,
        client: ServerAuthSettings,
        redactor: Redactor,
    ) -> None:
        super().__init__(server, redactor)
        self.hint = f"correct cellblock.auth.servers.{server} in the configuration"
        self._url = url
        self._client = client
        self._record: LoginRecord | None = None
        self._challenge: httpx2.Response | None = None
        self._more: list[str] = []
        self._tried: set[str] = set()

    async def widened(self, used: str, scopes: str | None) -> str | None:
        """Returns a token with these scopes, too, asked for once: what this client may have is for its authorization
        server to say, and no person's consent."""
        if scopes is None or self._challenge is None:
            return None
        if self._renewing is not None:
            await asyncio.shield(self._renewing)
        more = [scope for scope in scopes.split() if scope not in self._tried]
        if more and len(self._tried) + len(more) <= MAX_STEP_UP_SCOPES:
            return await self._once(lambda: self._step_up(more))
        # Another call may have got it meanwhile.
        return None if self._token == used else self._token

    async def lacks(self, scopes: str | None) -> None:
        """Says in the hint who can grant the scopes that the server wants."""
        await super().lacks(scopes)
        self.hint = (
            f"have {self._client.issuer} grant {scopes or 'more'} to the client {self._client.client_id}"
        )

    async def token(self) -> str | None:
        """Returns the access token, renewed before its end."""
        refused = self._challenge
        if self._record is not None and self._record.is_stale() and refused is not None:
            return await self._once(lambda: self._grant(refused))
        return self._token

    async def renewed(
        self, used: str | None, request: httpx2.Request, refused: httpx2.Response
    ) -> str | None:
        """Returns another token than the one that was refused."""
        # Not one that could not be renewed.
        if self._record is not None and self._token != used and not self._record.is_stale():
            return self._token
        # Without its body and headers: only the place and the challenge matter.
        place = httpx2.Request("POST", str(request.url), headers={"MCP-Protocol-Version": "2025-06-18"})
        asked = {name: value for name, value in refused.headers.items() if name == "www-authenticate"}
        challenge = self._challenge = httpx2.Response(401, headers=asked, request=place)
        return await self._once(lambda: self._grant(challenge))

    async def _step_up(self, more: list[str]) -> str | None:
        assert self._challenge is not None
        before = self._more
        self._more = [*before, *more]
        try:
            token = await self._grant(self._challenge)
        except BaseException as error:
            self._more = before
            if not isinstance(error, Refused) or error.code in PASSING_ERRORS:
                raise
            # Refused: the token that there is stays as good as it was.
            self._tried.update(more)
            return None
        self._tried.update(more)
        logger.info("upstream %s: a token with more scopes was granted", self._server)
        return token

    async def _grant(self, refused: httpx2.Response) -> str | None:
        if not is_safe(self._url):
            raise LoginError("the server is reached without TLS, and no token is sent so", hint=self.hint)
        secret = self._client.secret()
        if secret is None:
            raise LoginError("the configuration holds no client credentials", hint=self.hint)
        self.redactor.add([secret])
        storage, scopes = MemoryStorage(), [*self._client.scopes, *self._more]
        provider = self._provider(storage, secret, scopes)
        await drive(provider, with_scopes(refused, scopes), TOKEN_SECONDS)
        if storage.tokens is None:
            raise LoginError("no token was granted", hint=self.hint)
        self._record = provider.begun().with_tokens(storage.tokens)
        self.redactor.add(self._record.secrets())
        self.problem = None
        return self._token

    @property
    def _token(self) -> str | None:
        tokens = self._record and self._record.tokens
        return tokens.access_token if tokens else None

    def _provider(self, storage: MemoryStorage, secret: str, scopes: list[str]) -> Driven:
        """Makes what asks for the tokens; these scopes are in the challenge that it goes by, too."""
        from cellblock.tools.upstream.auth.own_client import own_provider

        return own_provider(self._url, storage, self._client, secret, self.hint)


def with_scopes(refused: httpx2.Response, scopes: list[str]) -> httpx2.Response:
    """Returns a refusal whose challenge asks for these scopes, too: the SDK asks for those of the challenge."""
    if not scopes:
        return refused
    asked = (extract_scope_from_www_auth(refused) or "").split()
    parts = [f'scope="{" ".join(dict.fromkeys([*asked, *scopes]))}"']
    metadata = extract_resource_metadata_from_www_auth(refused)
    if metadata is not None:
        parts.append(f'resource_metadata="{metadata}"')
    return httpx2.Response(
        401, headers={"WWW-Authenticate": f"Bearer {', '.join(parts)}"}, request=refused.request
    )
