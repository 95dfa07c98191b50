"""Login does what `cellblock auth` asks for: logs in to one server with a person in a browser, says how a login
stands, and ends it."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cellblock.base.browser import open_privately
from cellblock.base.errors import ConfigError
from cellblock.base.redaction import Redactor
from cellblock.base.settings.server import AuthSettings
from cellblock.base.store import Stamp, Store
from cellblock.base.tasks import start_daemon
from cellblock.tools.upstream.auth.authority import TOKEN_SECONDS, revoke
from cellblock.tools.upstream.auth.errors import LoginError, LoginStoreError, login_hint
from cellblock.tools.upstream.auth.flow import begin, finish, taken
from cellblock.tools.upstream.auth.record import LoginRecord
from cellblock.tools.upstream.auth.sources import OwnCredentials
from cellblock.tools.upstream.auth.store import LOCK_BOUND_SECONDS, LoginStore
from cellblock.tools.upstream.auth.target import LoginTarget, challenge_of

if TYPE_CHECKING:
    from cellblock.tools.upstream.auth.redirect import RedirectListener

_PAGE: Final = f"login-{os.getpid()}.html"


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
    # Not at the top: other commands need no web server.
    from cellblock.tools.upstream.auth.redirect import RedirectListener, code_in

    if target.own.goes_by_identity:
        said = f"{target.name} asks for no login but for who somebody is at http.oauth.issuer."
        raise ConfigError(said, hint=f"Open /login/{target.name} of `cellblock serve --http` in a browser.")
    refused = await challenge_of(target, TOKEN_SECONDS)
    if refused is None:
        return f"{target.name} asks for no login."
    if target.own.grant == "client_credentials":
        source = OwnCredentials(target.name, target.url, target.own, Redactor(target.config))
        if await source.renewed(None, refused) is None:
            raise LoginError(f"{target.name}: {source.problem}.", hint=f"{source.hint}.")
        return f"{target.name}: a token was granted. Nothing is kept: the daemon gets its own."
    before, listener, bound_to = await target.before(), RedirectListener(), secrets.token_urlsafe(32)
    await _listen(listener, target.own.redirect_port, before)
    try:
        url = await begin(target, refused, before, listener.url, bound_to, bound)
        listener.expect(url)
        say(f"Log in to {target.name} in your browser:\n\n  {url}\n")
        if browser is not None:
            _open(browser, url)
        answer = await listener.answer(bound)
    finally:
        await listener.close()
        if browser is not None:
            (browser / _PAGE).unlink(missing_ok=True)
    begun = await taken(target.kept, answer["state"], bound_to, answer.get("iss"))
    where, less = await finish(target, begun, code_in(answer))
    return f"Logged in to {target.name}; the login is kept {where}.{less}"


async def log_out(store: LoginStore, whose: str) -> str:
    """Ends a login at the authorization server, and forgets it.

    Args:
        store: Where it is.
        whose: Names it in the sentence that is returned, as `whose_login` does.

    Raises:
        LoginStoreError: It cannot be forgotten.
    """
    async with store.locked(LOCK_BOUND_SECONDS):
        how = await _revoked(store)
        await store.delete()
    return f"The login of {whose} is {how}." if how else f"There is no login of {whose}."


def whose_login(server: str, person: str) -> str:
    """Names a login for people."""
    return f"{person} to {server}" if person else server


@dataclass(frozen=True, slots=True)
class HeldLogin:
    """Is one of the logins that there are, or the place of one that cannot be read."""

    store: LoginStore
    stamp: Stamp | None
    record: LoginRecord | None
    problem: LoginStoreError | None = None

    @property
    def server(self) -> str:
        return (self.record.server if self.record is not None else "") or self.store.server

    @property
    def person(self) -> str | None:
        return self.record.person if self.record is not None else None

    def status(self) -> dict[str, Any]:
        """Says how it stands, as `status_of`, with the server, whose it is, and since when."""
        record, found = self.record, {"server": self.server, "principal": self.person}
        if self.problem is not None:
            return {
                **found,
                "state": "unreadable",
                "problem": self.problem.message,
                "hint": self.problem.hint,
            }
        if record is None:
            return {**found, "state": "none"}
        times = {"since": record.since or None, "renewedAt": record.renewed or None}
        return {**found, "url": _shown(record.server_url), **_standing(self.store, record), **times}


async def held_logins(store: Store, auth: AuthSettings, known: Sequence[HeldLogin] = ()) -> list[HeldLogin]:
    """Returns all logins that there are, shared ones and everybody's; `known` ones that have not changed are not read
    again. Raises LoginStoreError: They cannot be listed."""
    before = {one.store.name: one for one in known}
    found: list[HeldLogin] = []
    for place in LoginStore.all(store, auth):
        one = before.get(place.name)
        if one is None or one.stamp != place.stamp():
            one = await _held(place)
        # One that is removed meanwhile is none.
        found += [one] if one.record is not None or one.problem is not None else []
    return sorted(found, key=lambda one: (one.server, one.person or ""))


async def status_of(target: LoginTarget) -> dict[str, Any]:
    """Says how a login stands, as JSON data without any secret: `state` is `logged in`, `expired`, `ended`, `none`,
    `unreadable`, `client credentials` or `by identity`."""
    found: dict[str, Any] = {"server": target.name, "url": _shown(target.url)}
    if target.own.grant == "client_credentials":
        return {**found, "state": "client credentials", "hint": "The daemon gets tokens by itself."}
    if target.own.goes_by_identity:
        return {**found, "state": "by identity", "hint": "`cellblock auth list` shows who has logged in."}
    found |= (await _held(target.store())).status()
    is_good = found["state"] == "logged in" and "wantedScope" not in found
    # Whether a server wants a login is seen when it refuses a connection.
    where = "if it asks for one, " if found["state"] == "none" else ""
    return found if is_good else {"hint": where + login_hint(target.name), **found}


# ---- inside --------------------------------------------------------------------------------------


async def _held(place: LoginStore) -> HeldLogin:
    stamp = place.stamp()
    try:
        return HeldLogin(place, stamp, await place.load())
    except LoginStoreError as error:
        return HeldLogin(place, stamp, None, error)


async def _revoked(store: LoginStore) -> str:
    """Ends a login at the authorization server, and says what it is then; nothing where there is none."""
    try:
        record = await store.load()
        if record is None:
            return ""
        revoked = await revoke(record)
    except LoginStoreError as error:
        said = "forgotten. It could not be read, and was not revoked"
        return f"{said}: {error.message.rstrip('.')}"
    except LoginError as error:
        return f"forgotten, but it could not be revoked: {error.message.rstrip('.')}"
    return (
        "revoked and forgotten" if revoked else "forgotten; the authorization server has no way to revoke it"
    )


def _standing(store: LoginStore, record: LoginRecord) -> dict[str, Any]:
    found = {"issuer": record.issuer, "client": record.client.client_id, "kept": store.kept_in}
    if record.tokens is None:
        return {**found, "state": "ended"}
    left = None if record.expires_at is None else int(record.expires_at - time.time())
    renewable = record.tokens.refresh_token is not None
    over = left is not None and left <= 0 and not renewable
    return {
        **found,
        "state": "expired" if over else "logged in",
        "scope": record.tokens.scope,
        "expiresInSeconds": left,
        "renewable": renewable,
        **({"wantedScope": record.wanted_scope} if record.wanted_scope else {}),
    }


def _shown(url: str) -> str:
    return url.partition("?")[0].rpartition("@")[2]


async def _listen(listener: RedirectListener, port: int | None, before: LoginRecord | None) -> None:
    if port is not None:
        await listener.start(port)
        return
    # Many authorization servers compare the port of the redirect that was registered, too.
    redirects = before.client.redirect_uris if before is not None else None
    try:
        await listener.start((redirects[0].port if redirects else None) or 0)
    except LoginError:
        await listener.start(0)


def _open(folder: Path, url: str) -> None:
    """Opens a browser where there is a screen or a `BROWSER`: one for terminals would take this one over."""
    if sys.platform != "darwin" and not any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    ):
        return
    start_daemon("browser", open_privately, folder, _PAGE, url)
