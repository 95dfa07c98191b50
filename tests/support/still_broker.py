"""A broker whose facts do not change."""

from typing import Any

COUNTS = ("capacity", "running", "queued", "warm", "booting", "hostCount")


class StillBroker:
    """What the metrics and the dashboard ask a broker."""

    def __init__(self, upstreams: list[dict[str, Any]] | None = None, **counts: int) -> None:
        self._upstreams = upstreams or []
        self._counts = {**dict.fromkeys(COUNTS, 0), **counts}

    def pool(self) -> dict[str, Any]:
        return self._counts

    def upstreams(self) -> list[dict[str, Any]]:
        return self._upstreams

    def knowledge(self) -> list[dict[str, Any]]:
        return []
