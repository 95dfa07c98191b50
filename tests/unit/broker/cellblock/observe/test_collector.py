"""A program's own registry has the broker's metrics, whoever asks and whether it runs or not."""

from __future__ import annotations

import asyncio
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, generate_latest

from cellblock import Broker
from support.entries import settings
from support.waits import within


async def test_a_programs_registry_has_them(tmp_path: Path) -> None:
    registry = CollectorRegistry(auto_describe=True)
    Counter("orders", "The program's own.", registry=registry).inc()
    broker = Broker(settings(tmp_path, {}, pool={"warm": 1, "capacity": 3}), tools=[])
    registry.register(broker.metrics_collector())
    other = CollectorRegistry()
    other.register(broker.metrics_collector())

    def page(registry: CollectorRegistry = registry) -> str:
        return generate_latest(registry).decode()

    before = page()
    assert "orders_total 1.0" in before and "cellblock_pool_places" not in before
    async with broker:
        assert (await within(broker.run("globalThis.__codemode_result__ = 1;"), 60)).ok
        here = page()
        beside = await within(asyncio.to_thread(page), 60)
        for text in (here, beside, page(other)):
            assert 'cellblock_runs_total{outcome="ok"} 1.0' in text
            assert "cellblock_pool_places 3.0" in text
    after = page()
    assert 'cellblock_runs_total{outcome="ok"} 1.0' in after and "cellblock_pool_places" not in after
