"""What is kept of checks beside runs is bounded, also in the definitions of servers that it holds."""

from __future__ import annotations

import gc
import weakref

from cellblock.catalog.model import ServerEntry, ToolEntry
from cellblock.execution.side_checks import MAX_TOOLS, Kept, SideChecks
from cellblock.typecheck.checker import Checked


class Entry(ServerEntry):
    """One that can be watched."""


def test_a_server_that_changes_for_every_run_is_not_held_a_thousand_times() -> None:
    checks = SideChecks(None)
    watched: list[weakref.ref[Entry]] = []
    each = MAX_TOOLS // 20

    def keep(number: int) -> None:
        tools = tuple(ToolEntry(f"t{tool}", f"t{tool}", None, None, {}, None) for tool in range(each))
        server = Entry("changes", "changes", "changes", version=str(number), tools=tools)
        watched.append(weakref.ref(server))
        key = (b"%d" % number, (id(server),), frozenset[tuple[str, str]]())
        checks.keep(key, Kept((server,), [], 0, Checked(())))
        # Again is no second one.
        checks.keep(key, Kept((server,), [], 0, Checked(())))

    for number in range(60):
        keep(number)
    gc.collect()
    alive = [number for number, one in enumerate(watched) if one() is not None]
    assert alive == list(range(40, 60))


def test_sessions_that_share_their_definitions_count_once() -> None:
    checks = SideChecks(None)
    tools = tuple(ToolEntry(f"t{tool}", f"t{tool}", None, None, {}, None) for tool in range(MAX_TOOLS))
    servers = [Entry("same", "same", "same", tools=tools, session=number) for number in range(30)]
    keys = [
        (b"%d" % number, (id(server),), frozenset[tuple[str, str]]()) for number, server in enumerate(servers)
    ]
    for key, server in zip(keys, servers, strict=True):
        checks.keep(key, Kept((server,), [], 0, Checked(())))
    assert list(checks._kept) == keys
