"""The state of a broker's parts as plain data; implements `view.Observed`."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from cellblock.catalog.naming import LOCAL_SERVER
from cellblock.catalog.outputs import OutputLookup
from cellblock.config.settings import PoolSettings
from cellblock.upstream.registry import Registry
from cellblock.workers.pool.pool import Pool

MAX_REASON_CHARS: Final = 300

Data = dict[str, Any]


class BrokerFacts:
    """Asks the parts; nothing is kept.

    Args:
        settings: What the pool should have.
        pool: Hosts and places.
        registry: Servers.
        outputs: What is known of tools.
    """

    def __init__(self, settings: PoolSettings, pool: Pool, registry: Registry, outputs: OutputLookup) -> None:
        self._settings = settings
        self._pool = pool
        self._registry = registry
        self._outputs = outputs

    def pool(self) -> Data:
        """Places, queue, workers and hosts."""
        pool = self._pool
        hosts = pool.hosts
        return {
            "capacity": pool.capacity,
            "running": pool.running,
            "queued": pool.queued,
            "queueSize": self._settings.queue_size,
            "warm": pool.warm,
            "warmWanted": pool.warm_wanted,
            "booting": pool.booting,
            "hostCount": len(hosts),
            "hosts": [
                {"deno": host.deno, "capacity": host.capacity, "layers": host.layers} for host in hosts
            ],
        }

    def upstreams(self) -> list[Data]:
        """All servers, in the order of the configuration; the Python tools last."""
        registry = self._registry
        known = registry.catalog.servers
        by_name = {entry.config_name: entry for entry in registry.known_catalog.servers.values()}
        shown = [
            {
                "id": by_name[name].server_id if name in by_name else name,
                "name": name,
                "state": session.state.value,
                "reason": session.reason[:MAX_REASON_CHARS],
                "tools": len(by_name[name].tools) if name in by_name else 0,
                "withheld": len(by_name[name].withheld) if name in by_name else 0,
                "attempts": session.attempts,
            }
            for name, session in registry.sessions.items()
        ]
        local = by_name.get(LOCAL_SERVER)
        if local is not None and local.server_id in known and LOCAL_SERVER not in registry.sessions:
            shown.append(
                {
                    "id": local.server_id,
                    "name": LOCAL_SERVER,
                    "state": "ready",
                    "reason": "",
                    "tools": len(local.tools),
                    "withheld": 0,
                    "attempts": 1,
                }
            )
        return shown

    def knowledge(self) -> list[Data]:
        """For each server, how many of its tools have an output type, and from whom."""
        rows: list[Data] = []
        for server in self._registry.known_catalog.servers.values():
            counts: Counter[str] = Counter()
            samples = disagreeing = 0
            for tool in server.tools:
                output = self._outputs(server, tool)
                counts["unknown" if output is None else output.source] += 1
                if output is not None:
                    samples += output.samples
                    disagreeing += output.disagreement is not None
            rows.append(
                {
                    "id": server.server_id,
                    "tools": len(server.tools),
                    **{source: counts[source] for source in ("given", "declared", "observed", "unknown")},
                    "samples": samples,
                    "disagreeing": disagreeing,
                }
            )
        return rows
