"""Facts of a broker's parts as plain JSON data: its pool, its servers, and what is known of their tools; and with
queue, latencies and runs, the one object that the dashboard shows."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from cellblock.base.settings.settings import CellblockSettings
from cellblock.base.store import Store
from cellblock.pool.pool import Pool
from cellblock.tools.catalog.model import OutputLookup
from cellblock.tools.catalog.naming import LOCAL_SERVER
from cellblock.tools.upstream.registry import Registry
from cellblock.tools.upstream.server_logins import can_log_in

if TYPE_CHECKING:
    from cellblock.observe.metrics import Histogram, Tally
    from cellblock.run.board import Board
    from cellblock.tools.upstream.auth.login import HeldLogin

MAX_REASON_CHARS: Final = 300

MAX_LOGINS: Final = 1_000
"""Bounds the logins that are shown."""

NOT_STARTED: Final = "not started"
"""Names the state of a server whose entry has a reference that stands for nothing."""

Data = dict[str, Any]

SERIES_SECONDS: Final = 60

KNOWLEDGE_SECONDS: Final = 5.0
"""Passes before what is known of the tools is counted anew."""


class BrokerFacts:
    """Asks a broker's parts for their state as plain JSON data; nothing is kept."""

    def __init__(
        self,
        settings: CellblockSettings,
        pool: Pool,
        registry: Registry,
        outputs: OutputLookup,
        store: Store,
    ) -> None:
        self._settings, self._store = settings, store
        self._logins: list[HeldLogin] = []
        self._pool = pool
        self._registry = registry
        self._outputs = outputs

    def pool(self) -> Data:
        pool, hosts = self._pool, self._pool.hosts
        return {
            "capacity": pool.capacity,
            "running": pool.running,
            "queued": pool.queued,
            "queueSize": self._settings.pool.queue_size,
            "warm": pool.warm,
            "warmWanted": pool.warm_wanted,
            "booting": pool.booting,
            "hostCount": len(hosts),
            "hosts": [
                {
                    "deno": host.deno,
                    "capacity": host.capacity,
                    "layers": host.layers,
                    "missing": host.missing,
                }
                for host in hosts
            ],
        }

    def upstreams(self) -> list[Data]:
        """Returns all servers, in the order of the configuration; the Python tools last. `reason` is safe text."""
        registry = self._registry
        by_name = {entry.config_name: entry for entry in registry.known_catalog.servers.values()}
        states: dict[str, tuple[str, str, int]] = {}
        for name, config in registry.servers.items():
            if session := registry.sessions.get(name):
                states[name] = (
                    session.life.state.value,
                    session.life.reason[:MAX_REASON_CHARS],
                    session.life.attempts,
                )
            elif name in registry.personal:
                known, connected = registry.counts(name)
                reason = f"one session for each user: {known}, of which {connected} are connected"
                states[name] = ("ready", reason, known)
            elif config.missing is not None and not config.disabled:
                states[name] = (NOT_STARTED, config.missing[:MAX_REASON_CHARS], 0)
        local = by_name.get(LOCAL_SERVER)
        if local is not None and local.server_id in registry.catalog.servers:
            states.setdefault(LOCAL_SERVER, ("ready", "", 1))
        rows: list[Data] = []
        for name, (state, reason, attempts) in states.items():
            entry = by_name.get(name)
            rows.append(
                {
                    "id": entry.server_id if entry else name,
                    "name": name,
                    "state": state,
                    "reason": reason,
                    "tools": len(entry.tools) if entry else 0,
                    "withheld": entry.left_out if entry else 0,
                    "attempts": attempts,
                }
            )
        return rows

    async def logins(self) -> list[Data]:
        """Returns who is logged in where, without anything that is secret. Raises LoginStoreError."""
        # It imports what logging in needs.
        from cellblock.tools.upstream.auth.login import held_logins

        self._logins = await held_logins(self._store, self._settings.auth, self._logins)
        personal = self._registry.personal
        rows = [one.status() for one in self._logins[:MAX_LOGINS]]
        known = {one.server for one in self._logins if one.person == ""}
        # One's own is shown before it is there, too: with the way to its page.
        rows += [{"server": name, "principal": "", "state": "none"} for name in personal if name not in known]
        return [
            {
                **row,
                "isShared": not row["principal"] and row["server"] not in personal,
                "hasPage": row["server"] in personal and can_log_in(personal[row["server"]]),
            }
            for row in rows
        ]

    def knowledge(self) -> list[Data]:
        """Returns, for each server, how many of its tools have an output type, and from whom."""
        rows: list[Data] = []
        for server in self._registry.known_catalog.servers.values():
            outputs = [self._outputs(server, tool) for tool in server.tools]
            known = [output for output in outputs if output is not None]
            counts = Counter[str](output.source for output in known)
            counts["unknown"] = len(outputs) - len(known)
            rows.append(
                {
                    "id": server.server_id,
                    "tools": len(outputs),
                    **{source: counts[source] for source in ("given", "declared", "observed", "unknown")},
                    "samples": sum(output.samples for output in known),
                    "disagreeing": sum(output.disagreement is not None for output in known),
                }
            )
        return rows


class View:
    """Makes the JSON object that the dashboard shows.

    Args:
        facts: The state of the broker's parts.
        tally: What was counted.
        board: The runs.
        version: Of Cellblock.
        waiting: Counts the runs that wait for a person.
    """

    def __init__(
        self,
        facts: BrokerFacts,
        tally: Tally,
        board: Board,
        version: str,
        waiting: Callable[[], int] = lambda: 0,
    ) -> None:
        self._waiting = waiting
        self._facts = facts
        self._tally = tally
        self.board = board
        self._version = version
        self._since = time.monotonic()
        self._knowledge: tuple[float, list[Data]] = (-KNOWLEDGE_SECONDS, [])

    def state(self) -> Data:
        """Returns everything but the details of single runs."""
        tally = self._tally
        return {
            "version": self._version,
            "time": time.time(),
            "uptimeSeconds": round(time.monotonic() - self._since, 1),
            "pool": self._facts.pool(),
            "runs": {"total": tally.runs.total(), "byOutcome": dict(tally.runs)},
            "perSecond": self.board.per_second(SERIES_SECONDS),
            "latency": {"run": _latency(tally.run_seconds), "queue": _latency(tally.queue_seconds)},
            "workerEnds": dict(tally.worker_ends),
            "parked": self._waiting(),
            "live": self.board.live(),
            "recent": self.board.recent(),
            "upstreams": self._upstreams(),
            "knowledge": self._known(),
        }

    def _upstreams(self) -> list[Data]:
        calls: dict[str, Counter[str]] = {}
        for (server, _, outcome), count in self._tally.calls.items():
            calls.setdefault(server, Counter())[outcome] += count
        return [
            {
                **upstream,
                "calls": calls.get(upstream["id"], Counter()),
                "latency": _latency(self._tally.call_seconds.get(upstream["id"])),
            }
            for upstream in self._facts.upstreams()
        ]

    def _known(self) -> list[Data]:
        now = time.monotonic()
        if now - self._knowledge[0] >= KNOWLEDGE_SECONDS:
            self._knowledge = (now, self._facts.knowledge())
        return self._knowledge[1]


def _latency(histogram: Histogram | None) -> Data:
    found = [None] * 3 if histogram is None else histogram.percentiles(0.5, 0.95, 0.99)
    p50, p95, p99 = (None if value is None else round(value * 1000, 2) for value in found)
    return {"count": 0 if histogram is None else histogram.count, "p50": p50, "p95": p95, "p99": p99}
