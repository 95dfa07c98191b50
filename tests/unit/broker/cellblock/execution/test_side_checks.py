"""What is kept of checks beside runs is bounded, also in the definitions of servers that it holds."""

from __future__ import annotations

import gc
import weakref

from cellblock.catalog.model import ServerEntry
from cellblock.execution.side_checks import MAX_SERVERS, Kept, SideChecks
from cellblock.typecheck.checker import Checked


class Entry(ServerEntry):
    """One that can be watched."""


def test_a_server_that_changes_for_every_run_is_not_held_a_thousand_times() -> None:
    checks = SideChecks(None)
    watched: list[weakref.ref[Entry]] = []

    def keep(number: int) -> None:
        server = Entry("changes", "changes", "changes", version=str(number))
        watched.append(weakref.ref(server))
        key = (b"%d" % number, (id(server),), frozenset[tuple[str, str]]())
        checks.keep(key, Kept((server,), [], 0, Checked(())))
        # Again is no second one.
        checks.keep(key, Kept((server,), [], 0, Checked(())))

    for number in range(3 * MAX_SERVERS):
        keep(number)
    gc.collect()
    alive = [number for number, one in enumerate(watched) if one() is not None]
    assert alive == list(range(2 * MAX_SERVERS, 3 * MAX_SERVERS))
