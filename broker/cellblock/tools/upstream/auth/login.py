"""Login does what `cellblock auth` asks for: logs in to one server with a person in a browser, says how a login
stands, and ends it."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from cellblock.base.browser import open_privately
from cellblock.base.redaction import Redactor
from cellblock.base.threads import start_daemon
from cellblock.tools.upstream.auth.errors import LoginError, LoginStoreError, login_hint
from cellblock.tools.upstream.auth.exchange import TOKEN_SECONDS, revoke
from cellblock.tools.upstream.auth.flow import begin, finish, taken
from cellblock.tools.upstream.auth.record import LoginRecord
from cellblock.tools.upstream.auth.redirect import RedirectListener
from cellblock.tools.upstream.auth.sources import OwnCredentials
from cellblock.tools.upstream.auth.store import LOCK_BOUND_SECONDS
from cellblock.tools.upstream.auth.target import LoginTarget, challenge_of

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
    refused = await challenge_of(target, TOKEN_SECONDS)
    if refused is None:
        return f"{target.name} asks for no login."
    own = target.auth.for_server(target.name)
    if own.grant == "client_credentials":
        source = OwnCredentials(target.name, target.url, own, Redactor(target.config))
        if await source.renewed(None, refused.request, refused) is None:
            raise LoginError(f"{target.name}: {source.problem}.", hint=f"{source.hint}.")
        return f"{target.name}: a token was granted. Nothing is kept: the daemon gets its own."
    before, listener, bound_to = await target.before(), RedirectListener(), secrets.token_urlsafe(32)
    await _listen(listener, own.redirect_port, before)
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
    begun = await taken(target.kept, answer.state or "", bound_to, answer.iss)
    where, less = await finish(target, begun, answer.code)
    return f"Logged in to {target.name}; the login is kept {where}.{less}"


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


# ---- inside --------------------------------------------------------------------------------------


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
