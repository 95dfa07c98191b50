"""Flow is a login in two halves: `begin` leads a person from a server that has refused a request to the authorization
server, and `finish` takes what its redirect brings. What is between them lies in the `Store`: any broker of it finishes
what another one began, be that one gone or not.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import time
from collections.abc import Callable, Generator, Mapping
from typing import Final, TypeVar
from urllib.parse import urlencode, urljoin

import httpx2
from mcp.client.auth import OAuthFlowError, PKCEParameters
from mcp.client.auth.utils import validate_authorization_response_iss
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata
from pydantic import AnyUrl, BaseModel, ConfigDict, Field, ValidationError

from cellblock.base.store import Shelf, Store
from cellblock.tools.upstream.auth.authority import (
    authority_of,
    client_of,
    exchange,
    shown_line,
    tokens_in,
)
from cellblock.tools.upstream.auth.errors import LoginError, LoginStoreError, Refused
from cellblock.tools.upstream.auth.record import LoginRecord
from cellblock.tools.upstream.auth.store import LOCK_BOUND_SECONDS
from cellblock.tools.upstream.auth.target import LoginTarget

KIND: Final = "begun-logins"

CLIENT_NAME: Final = "Cellblock"
"""Names this client to people who agree to the login."""

BEGUN_SECONDS: Final = 600.0
"""Bounds the time between the two halves."""

MAX_BEGUN: Final = 2_000
"""Bounds the logins under way: whoever begins one may be a stranger, and keeps nobody from beginning another."""

MAX_BYTES: Final = 256 * 1024

NOT_OURS: Final = "This answer belongs to no login that is under way."

T = TypeVar("T")


class BegunLogin(BaseModel):
    """Holds what is between the two halves of a login."""

    model_config = ConfigDict(frozen=True)

    server: str
    login: LoginRecord = Field(repr=False)
    """Is the login that it becomes: without tokens yet."""

    redirect_uri: str
    scope: str | None = None
    wanted: list[str] = []
    """Lists the scopes of the configuration, and those that calls were refused for."""

    verifier: str = Field(default="", repr=False)
    bound_to: str = ""
    """Is the hash of a secret of whoever began it."""

    until: float = 0.0
    nonce: str | None = Field(default=None, repr=False)
    """Is that of the ID token which says who the person is, where that is what the redirect brings."""


async def begin(
    target: LoginTarget,
    refused: httpx2.Response,
    before: LoginRecord | None,
    redirect_uri: str,
    bound_to: str,
    bound: float = BEGUN_SECONDS,
) -> str:
    """Finds the authorization server, and gets a client there. Returns the URL that a person logs in at.

    Args:
        target: The server, and whose login it becomes.
        refused: As `challenge_of` gives it.
        before: The login that there is.
        redirect_uri: Where the authorization server sends the browser.
        bound_to: A secret of whoever began it.
        bound: The seconds for the person.

    Raises:
        LoginError: There is no login to be had, or it would not be safe.
        ConfigError: A client secret cannot be read.
    """
    wanted = [*target.own.scopes, *((before.wanted_scope or "").split() if before is not None else ())]
    asks = OAuthClientMetadata(
        redirect_uris=[AnyUrl(redirect_uri)],
        client_name=CLIENT_NAME,
        token_endpoint_auth_method="none",
        application_type="web" if redirect_uri.startswith("https:") else "native",
    )
    client = _client_for(target, before, redirect_uri, wanted)
    with failing(target.name):
        login, scope = await authority_of(target.url, refused, asks, client, target.own.issuer, wanted)
    methods = login.server_metadata and login.server_metadata.code_challenge_methods_supported
    if methods is not None and "S256" not in methods:
        raise LoginError("The authorization server does not support PKCE.", hint="Do not log in there.")
    begun = BegunLogin(
        server=target.name,
        login=login.model_copy(update={"person": target.person}),
        redirect_uri=redirect_uri,
        scope=scope,
        wanted=wanted,
    )
    asked = {"resource": login.context.get_resource_url()}
    if "offline_access" in (scope or "").split():
        # OpenID Connect Core, section 11.
        asked["prompt"] = "consent"
    return await leading(target.kept, begun, bound_to, bound, asked)


async def leading(
    store: Store, begun: BegunLogin, bound_to: str, bound: float, asked: Mapping[str, str]
) -> str:
    """Writes a first half down, and returns the URL of its authorization request, with what else is asked.

    Raises:
        LoginStoreError: It cannot be written down.
        LoginError: Too many are under way.
    """
    pkce, until, login = PKCEParameters.generate(), time.time() + bound, begun.login
    state = secrets.token_urlsafe(32)
    whole = begun.model_copy(
        update={"verifier": pkce.code_verifier, "bound_to": _hash(bound_to), "until": until}
    )
    text = whole.model_dump_json(exclude_none=True)
    await _beside(_put, store.shelf(KIND, MAX_BYTES), f"{int(until):x}-{_hash(state)}", text.encode())
    metadata = login.server_metadata
    endpoint = (
        urljoin(login.server_url, "/authorize") if metadata is None else str(metadata.authorization_endpoint)
    )
    query = {
        "response_type": "code",
        "client_id": login.client.client_id,
        "redirect_uri": begun.redirect_uri,
        "state": state,
        "code_challenge": pkce.code_challenge,
        "code_challenge_method": "S256",
        **({"scope": begun.scope} if begun.scope else {}),
        **asked,
    }
    return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}"


async def taken(store: Store, state: str, bound_to: str, iss: str | None) -> BegunLogin:
    """Takes the first half of a login out of the store: whoever comes again finds nothing.

    Args:
        store: Where it is.
        state: As the redirect brings it.
        bound_to: The secret of whoever brings it.
        iss: Who says to have sent it (RFC 9207).

    Raises:
        LoginError: There is none, it is somebody else's, too old, or another authorization server has answered.
    """
    try:
        text = await _beside(_take, store.shelf(KIND, MAX_BYTES), _hash(state))
        begun = BegunLogin.model_validate_json(text)
    except ValidationError:
        raise LoginError(NOT_OURS, hint="Begin anew.") from None
    if not secrets.compare_digest(_hash(bound_to), begun.bound_to):
        raise LoginError("This login was begun in another browser.", hint="Begin it in this one.")
    if time.time() > begun.until:
        raise LoginError("This login was begun too long ago.", hint="Begin anew.")
    try:
        validate_authorization_response_iss(iss, begun.login.server_metadata)
    except OAuthFlowError as error:
        raise LoginError(f"{shown_line(str(error))}.", hint="Do not log in there.") from None
    return begun


async def finish(target: LoginTarget, begun: BegunLogin, code: str) -> tuple[str, str]:
    """Exchanges the code of a login that was taken out, and keeps the tokens. Returns where, and a sentence that names
    the wanted scopes that were not granted, or nothing.

    Raises:
        LoginError: It did not succeed.
    """
    if begun.login.server_url != target.url:
        raise LoginError(f"{target.name} has another URL by now.", hint="Begin anew.")
    with failing(target.name):
        tokens = tokens_in(await exchange(begun.login, code, begun.verifier, begun.redirect_uri))
    if tokens.scope is None:
        tokens = tokens.model_copy(update={"scope": begun.scope})
    store, record = target.store(), begun.login.model_copy(update={"since": time.time()})
    async with store.locked(LOCK_BOUND_SECONDS):
        await store.save(record.with_tokens(tokens))
    missing = [scope for scope in begun.wanted if tokens.scope and scope not in tokens.scope.split()]
    return store.where, f" Not granted: {shown_line(' '.join(missing))}." if missing else ""


@contextlib.contextmanager
def failing(server: str) -> Generator[None]:
    """Words what an authorization server, or the identity provider, has said instead of granting a login."""
    try:
        yield
    except Refused as error:
        raise LoginError(f"The login to {server} has failed: {error.message}.", hint=error.hint) from None


# ---- inside --------------------------------------------------------------------------------------


def _client_for(
    target: LoginTarget, before: LoginRecord | None, redirect_uri: str, wanted: list[str]
) -> OAuthClientInformationFull | None:
    """Finds the client to log in with, if it is known before: that of the configuration, else the one registered last,
    if it was registered for these scopes and this redirect."""
    if target.own.client_id is not None:
        return client_of(target.own, target.own.secret())
    if before is None:
        return None
    client = before.client
    may_ask = client.scope is None or set(wanted) <= set(client.scope.split())
    return client if may_ask and redirect_uri in map(str, client.redirect_uris or ()) else None


async def _beside(work: Callable[..., T], *args: object) -> T:
    """Has a thread use the store."""
    try:
        return await asyncio.to_thread(work, *args)
    except OSError as error:
        text = f"What is between the two halves of a login cannot be kept: {error.strerror or error}."
        raise LoginStoreError(text, hint="Try again in a moment.") from None


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _put(shelf: Shelf, name: str, data: bytes) -> None:
    """Writes one down, and removes those that nobody has finished in time, and the oldest of too many; blocks."""
    shelf.refresh()
    # They begin with their ends.
    names, now = sorted(shelf.names()), f"{int(time.time()):x}"
    most = len(names) - MAX_BEGUN
    for one in [one for nth, one in enumerate(names) if one < now or nth <= most]:
        with contextlib.suppress(FileNotFoundError):
            shelf.remove(one)
    shelf.write(name, data, replace=False)


def _take(shelf: Shelf, state: str) -> bytes:
    """Returns what is kept for the hash of a state, and removes it; nothing where there is none; blocks."""
    shelf.refresh()
    for name in shelf.names():
        if name.endswith(f"-{state}"):
            # One of two that came at once finds nothing to remove.
            with contextlib.suppress(FileNotFoundError):
                data = shelf.read(name)
                shelf.remove(name)
                return data
    return b""
