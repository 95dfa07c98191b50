"""Names the runs that may have one process: those of one principal, with the same grants, catalog and configuration."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final

from cellblock.base.kept import Newest
from cellblock.base.settings.policy import Reuse
from cellblock.run.policy.grants import Grants
from cellblock.tools.catalog.model import Catalog

KEPT_KEYS: Final = 1024
"""Bounds the keys that are known; who comes back after it gets another one, and with it another process."""

NOBODY_IN_PARTICULAR: Final = frozenset({"embedding", "anybody"})
"""Names principals that may be several: of those, only the runs of one client have one process."""


SESSION_CLIENT: Final = "http session "
"""Begins the name of a client that is known by a session alone (`serve/http/sessions.py`)."""


class ReuseKeys:
    """Gives the keys by which runs may have one process. What a key stands for is held, so that it can never stand for
    something else.

    Args:
        on_renewed: Told how all keys begin from now on, where others were given.
    """

    def __init__(self, on_renewed: Callable[[str], None] = lambda _: None) -> None:
        self._keys = Newest[tuple[str, str, int, int, int], tuple[str, Any]](KEPT_KEYS)
        self._on_renewed = on_renewed
        self._prefix = secrets.token_hex(8)
        self._latest = (0, 0)

    def renew(self) -> None:
        """Forgets all keys: no run will have one of them."""
        if self._keys:
            self._keys.clear()
            self._prefix = secrets.token_hex(8)
            self._on_renewed(self._prefix)

    def key(
        self, principal: str, client: str, grants: Grants | None, catalog: Catalog, generation: int
    ) -> str:
        """Gives the key of a run: it tells nothing, and nobody can guess it. The catalog is the newest, or a part of
        it."""
        latest = (generation, catalog.version)
        if latest != self._latest:
            self._latest = latest
            self.renew()
        name = client if principal in NOBODY_IN_PARTICULAR else ""
        about = (principal, name, id(grants), id(catalog), generation)
        held = self._keys.get(about) or (self._prefix + secrets.token_hex(16), (grants, catalog))
        self._keys[about] = held
        return held[0]


def is_reused(principal: str, client: str, default: Reuse, clients: Mapping[str, Reuse]) -> bool:
    """Says whether a principal's runs may have one process, by what is set for all and for it.

    Without a session nobody in particular is known by an address, which may be a proxy's: there they may not.
    """
    if principal == "anybody" and not client.startswith(SESSION_CLIENT):
        return False
    return clients.get(principal, default) == "principal"
