"""Gives the credentials of one upstream server: a kept login, the client's own, or, where the server knows no OAuth, a
person's own secrets in headers: API keys."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Sequence
from typing import Final

import httpx2
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken

from cellblock.base.redaction import Redactor
from cellblock.base.settings.server import OWN_SECRET, ServerAuthSettings, ServerConfig
from cellblock.base.store import Stamp, Store
from cellblock.tools.upstream.auth.authority import (
    TOKEN_SECONDS,
    ask,
    authority_of,
    client_of,
    error_code,
    is_safe,
    tokens_in,
    words_of,
)
from cellblock.tools.upstream.auth.bearer import Login
from cellblock.tools.upstream.auth.errors import LoginEnded, LoginError, LoginStoreError, Refused
from cellblock.tools.upstream.auth.record import LoginRecord
from cellblock.tools.upstream.auth.store import LoginStore
from cellblock.tools.upstream.definitions import file_stem

logger = logging.getLogger("cellblock.tools.upstream.auth")

LOCK_GRACE_SECONDS: Final = 10.0
"""Extends an exchange's own bound for another process that is renewing the same login."""

SCOPE_BOUND_SECONDS: Final = 5.0
"""Bounds the time for noting which scopes are missing, while a call waits to fail."""

MAX_STEP_UP_SCOPES: Final = 32
"""Bounds the scopes that one server's refusals may add to a token: it could name others without end."""

OVER: Final = frozenset({"invalid_grant", "invalid_client", "unauthorized_client"})
"""Names errors of a renewal after which no renewal can succeed."""

PASSING_ERRORS: Final = (None, "server_error", "temporarily_unavailable")
"""Lists the errors of an authorization server that may grant the same another time."""

_ALGORITHMS: Final = ("RS256", "ES256", "ES384", "ES512", "EdDSA")
"""Lists what keys sign with (RFC 7518, section 3.1; RFC 8037): of one kind each, which no other takes."""

KIND: Final = "own-secrets"

MAX_BYTES: Final = 64 * 1024
HASH_CHARS: Final = 32


class KeptLogin(Login):
    """Gives the tokens of `cellblock auth login`, shared with every other process that uses them.

    Args:
        server: The server's name.
        store: Where its login is kept.
        redactor: As for `Login`.
        page: As for `Login`.
    """

    is_given = True
    names_resource = True

    def __init__(self, server: str, store: LoginStore, redactor: Redactor, page: str | None = None) -> None:
        super().__init__(server, redactor, page)
        self._store = store
        self._stamp: Stamp | None = None
        self._wanting: asyncio.Task[None] | None = None

    def stamp(self) -> Stamp | None:
        """Changes when somebody logs in, in any process."""
        return self._store.stamp()

    async def mark(self) -> str:
        """Returns what names the login that a person has given, over all renewals; empty where there is none."""
        record = await self._current()
        return "" if record is None or record.tokens is None else str(record.since)

    async def renewed(self, used: str | None, refused: httpx2.Response) -> str | None:
        """Returns another token than the one that was refused."""
        record = await self._current()
        if record is None or record.tokens is None:
            if record is not None and self.problem is None:
                self.problem = "the login has ended"
            return None
        return await super().renewed(used, refused)

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
        """Renews a login (RFC 6749, section 6).

        Raises:
            LoginEnded: It cannot be renewed, now or later.
            LoginError: The authorization server cannot be reached, or fails.
        """
        if record.tokens is None or not record.tokens.refresh_token:
            why = "the login has expired, and there is nothing to renew it with"
            raise LoginEnded(why, hint="Log in again.")
        form = {"grant_type": "refresh_token", "refresh_token": record.tokens.refresh_token}
        response = await ask(record, form, names_resource=self.names_resource)
        if (code := error_code(response)) in OVER:
            why = f"the authorization server has ended the login ({words_of(response)})"
            ended = LoginEnded(why, hint="Log in again.")
            ended.forgotten = code != "invalid_grant"
            raise ended
        try:
            return record.with_tokens(self._granted(response, record))
        except Refused as error:
            why = f"the login could not be renewed ({error.message})"
            raise LoginError(why, hint="It is tried again.") from None

    def _granted(self, response: httpx2.Response, _record: LoginRecord) -> OAuthToken:
        return tokens_in(response)

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
        token = await self.token()
        return None if token == used else token

    async def lacks(self, scopes: str | None) -> None:
        """Says in the hint who can grant the scopes that the server wants."""
        await super().lacks(scopes)
        self.hint = (
            f"have {self._client.issuer} grant {scopes or 'more'} to the client {self._client.client_id}"
        )

    async def renewed(self, used: str | None, refused: httpx2.Response) -> str | None:
        """Returns another token than the one that was refused."""
        # Without its body: only the challenge matters.
        self._challenge = httpx2.Response(401, headers=refused.headers)
        return await super().renewed(used, refused)

    async def _step_up(self, more: list[str]) -> str | None:
        try:
            token = await self._renew(None, more)
        except Refused as error:
            if error.code in PASSING_ERRORS:
                raise
            # The token that there is stays as good as it was.
            token = None
        self._tried.update(more)
        return token

    async def _renew(self, used: str | None, more: Sequence[str] = ()) -> str | None:
        assert self._challenge is not None
        if not is_safe(self._url):
            raise LoginError("the server is reached without TLS, and no token is sent so", hint=self.hint)
        # There is one: without, the grant is no configuration.
        secret = self._client.secret() or ""
        self.redactor.add([secret])
        scopes = [*self._client.scopes, *self._more, *more]
        record, answer = await self._asked(self._challenge, client_of(self._client, secret), secret, scopes)
        tokens = tokens_in(answer)
        self._take(record.with_tokens(tokens))
        self._more += more
        self.problem = None
        return tokens.access_token

    async def _asked(
        self, refused: httpx2.Response, client: OAuthClientInformationFull, secret: str, scopes: list[str]
    ) -> tuple[LoginRecord, httpx2.Response]:
        """Asks for tokens; returns the login without them, and the answer."""
        asks = OAuthClientMetadata(redirect_uris=None, grant_types=["client_credentials"])
        issuer = self._client.issuer
        record, scope = await authority_of(self._url, refused, asks, client, issuer, scopes)
        form = {"grant_type": "client_credentials", **({"scope": scope} if scope else {})}
        if self._client.client_auth_method == "private_key_jwt":
            form["client_assertion_type"] = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
            whom = record.issuer or ""
            form["client_assertion"] = await _assertion(client.client_id, secret, whom, self.hint)
        return record, await ask(record, form, names_resource=True)


async def _assertion(client_id: str, key: str, issuer: str, hint: str) -> str:
    """Returns a JWT by which a client shows an issuer that it has a private key (PEM; RFC 7523, section 2.2). Raises
    LoginError: It cannot sign."""
    # Not at the top: few clients sign.
    from mcp.client.auth.extensions.client_credentials import SignedJWTParameters

    for algorithm in _ALGORITHMS:
        # Nothing is told of why a key does not fit: a library may quote it.
        with contextlib.suppress(Exception):
            signing = SignedJWTParameters(
                issuer=client_id, subject=client_id, signing_key=key, signing_algorithm=algorithm
            )
            return await signing.create_assertion_provider()(issuer)
    raise LoginError("the client's private key cannot sign", hint=hint)


class OwnSecrets:
    """Keeps the secrets of one person by their names; of all brokers that share a `Store`. Everything blocks.

    Args:
        store: Where.
        person: Whose, as `person_of` has it.
    """

    def __init__(self, store: Store, person: str) -> None:
        self._shelf = store.shelf(KIND, MAX_BYTES)
        self._prefix = f"{file_stem('of', person, HASH_CHARS)}-"

    def stamp(self, name: str) -> Stamp | None:
        """Changes when the secret does; None without one."""
        return self._shelf.stamp(self._key(name))

    def get(self, name: str) -> str | None:
        """Returns a secret; None when there is none that can be read."""
        with contextlib.suppress(OSError, ValueError):
            return self._shelf.read(self._key(name)).decode("utf-8", "surrogatepass")
        return None

    def put(self, name: str, value: str) -> None:
        """Keeps a secret, in the place of an older one. Raises OSError."""
        self._shelf.write(self._key(name), value.encode("utf-8", "surrogatepass"), replace=True)

    def remove(self, name: str) -> bool:
        """Forgets a secret, and says whether there was one. Raises OSError."""
        return self._removed(self._key(name))

    def remove_all(self) -> int:
        """Forgets all secrets of the person, and says how many there were. Raises OSError."""
        own = [key for key in self._shelf.names() if key.startswith(self._prefix)]
        return sum(map(self._removed, own))

    def _removed(self, key: str) -> bool:
        with contextlib.suppress(FileNotFoundError):
            self._shelf.remove(key)
            return True
        return False

    def _key(self, name: str) -> str:
        return f"{self._prefix}{file_stem(name, name, HASH_CHARS)}"


class OwnHeaders(Login):
    """Sends headers with a person's own secrets, as they are now.

    Args:
        server: The server's name.
        config: Its entry, whose headers name the secrets.
        secrets: The person's.
        redactor: As for `Login`.
    """

    def __init__(self, server: str, config: ServerConfig, secrets: OwnSecrets, redactor: Redactor) -> None:
        super().__init__(server, redactor)
        self._headers, self._secrets = config.own_headers, secrets
        self._names = sorted({name for text in self._headers.values() for name in OWN_SECRET.findall(text)})
        self.hint = f"ask whoever runs Cellblock to set your own {', '.join(self._names)}"

    def stamp(self) -> tuple[Stamp, ...] | None:
        """Changes when a secret does; None where one is not there."""
        stamps = [self._secrets.stamp(name) for name in self._names]
        known = [one for one in stamps if one is not None]
        return tuple(known) if len(known) == len(stamps) else None

    async def mark(self) -> str:
        """Returns what names the secrets that there are; empty where one is not there."""
        stamp = self.stamp()
        return "" if stamp is None else str(stamp)

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Puts the headers on a request, and none whose secret is not there."""
        found = {name: self._secrets.get(name) for name in self._names}
        self.redactor.add(value for value in found.values() if value is not None)
        for header, text in self._headers.items():
            if any(found[name] is None for name in OWN_SECRET.findall(text)):
                request.headers.pop(header, None)
            else:
                request.headers[header] = OWN_SECRET.sub(lambda one: found[one[1]] or "", text)
        yield request
