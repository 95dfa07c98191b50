"""Removes what a principal has: token, secrets, logins, kept outputs and runs, and what its own servers have taught."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Final

from pydantic import ValidationError

from cellblock.app.cli.loading import opened, store_to_read
from cellblock.base.errors import ConfigError, counted
from cellblock.base.settings.policy import NAMED
from cellblock.base.settings.settings import Settings
from cellblock.base.store import Store
from cellblock.record.journals import open_store
from cellblock.record.store import JOURNAL_TABLES, JournalStore
from cellblock.run.policy.named_tokens import NamedTokens
from cellblock.serve import kept_outputs
from cellblock.tools.catalog.model import learnt_as
from cellblock.tools.upstream.auth import flow
from cellblock.tools.upstream.auth.login import held_logins, log_out, whose_login
from cellblock.tools.upstream.auth.own_headers import OwnSecrets
from cellblock.types.learning import store as learning
from cellblock.types.learning.store import Observations

END_SECONDS: Final = 10.0
"""Bounds the wait for brokers to end runs that go on."""

SETTLE_SECONDS: Final = 2.0
"""Passes from then until brokers have written down what they know of them."""


async def remove_all_of(settings: Settings, principal: str) -> str:
    """Removes it, and returns lines that say what there was. What fails can be done again.

    Raises:
        LoginError, ConfigError: Something cannot be removed.
    """
    store, auth = store_to_read(settings), settings.cellblock.auth
    tokens, name = NamedTokens(store), principal.removeprefix(NAMED)
    if name != principal and any(one.name == name for one in tokens.all()):
        tokens.revoke(name)
    _forget_begun(store, principal)
    try:
        secrets = OwnSecrets(store, principal).remove_all()
    except OSError as error:
        why = f"The secrets of {principal} cannot be removed: {error.strerror}."
        raise ConfigError(why, hint="Try again.") from None
    logins = [one for one in await held_logins(store, auth) if one.person == principal]
    said = [await log_out(one.store, whose_login(one.server, principal)) for one in logins]
    runs = outputs = tools = 0
    if store.exists(JOURNAL_TABLES):
        journal = settings.cellblock.journal
        with opened(settings, "The kept runs", lambda: open_store(store, auth, journal)) as journals:
            runs = await _ended(journals, principal)
    if store.exists(kept_outputs.TABLES):
        with opened(
            settings, "The kept outputs", lambda: store.database(kept_outputs.TABLES, checked=False)
        ) as database:
            outputs = kept_outputs.forget(database, principal)
    if store.exists(learning.TABLES):
        with opened(
            settings, "What was observed", lambda: Observations(store.database(learning.TABLES))
        ) as seen:
            own = {key.server for key in seen.load() if key.server.endswith(learnt_as("", principal))}
            tools = sum(map(seen.clear, own))
    counts = (
        f"{counted(secrets, 'secret')}, {counted(runs, 'kept run')}, {counted(outputs, 'kept output')}, and what was "
        f"learnt of {counted(tools, 'tool')}"
    )
    return "".join(f"{line}\n" for line in [*said, f"Removed of {principal}: {counts}."])


async def _ended(journals: JournalStore, principal: str) -> int:
    """Has the brokers end the runs of a principal that go on, and deletes all that it has."""
    deadline = time.monotonic() + END_SECONDS
    went_on = False
    while time.monotonic() < deadline and (running := journals.heads(principal, state="running")):
        went_on = True
        for head in running:
            journals.ask_to_end(head.id)
        await asyncio.sleep(0.2)
    await asyncio.sleep(SETTLE_SECONDS if went_on else 0)
    return journals.delete_all_of(principal)


def _forget_begun(store: Store, principal: str) -> None:
    """Removes the logins that somebody has begun: they would be finished behind this."""
    shelf = store.shelf(flow.KIND, flow.MAX_BYTES)
    for name in shelf.names():
        with contextlib.suppress(FileNotFoundError, ValidationError):
            if flow.BegunLogin.model_validate_json(shelf.read(name)).login.person == principal:
                shelf.remove(name)
