"""A server that exists once, in a registry, with claims on a real PostgreSQL."""

from __future__ import annotations

from pathlib import Path

from cellblock.apart.pool import Apart
from cellblock.base.claims import KIND, MIGRATIONS, Claim, Claims
from cellblock.base.postgresql import PostgresServer
from cellblock.base.presence import Presence
from cellblock.config.settings import ServerConfig, UpstreamSettings
from cellblock.upstream.connecting import State
from cellblock.upstream.registry import Registry
from cellblock.upstream.single import Singles, Way
from support.entries import ledger, plain_server
from support.waits import until


def way_to(server: str, claim: Claim) -> Way:
    raise AssertionError("there is no other broker")


async def test_another_entry_of_it_ends_its_session_at_once(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    """Whatever runs may still use it: the new one could not begin, and runs go on with that one."""
    record = tmp_path / "ledger.jsonl"

    def entry(value: str) -> ServerConfig:
        server = plain_server("--ledger", record, "--alone", tmp_path / "alone", env={"VALUE": value})
        return ServerConfig.model_validate(server)

    presence, apart = Presence(postgres_server, {KIND: MIGRATIONS}), Apart()
    singles = Singles(Claims(presence, ["plain"]), way_to)
    presence.start()
    singles.claims.take("http://here")
    registry = Registry(
        {"plain": entry("1")},
        (),
        UpstreamSettings(),
        max_message_bytes=1 << 20,
        log_dir=tmp_path,
        apart=apart,
        singles=singles,
    )
    registry.start()
    try:
        await until(lambda: registry.sessions["plain"].state is State.READY, "it is connected")
        before = registry.catalog.servers["plain"]
        change = registry.reconfigure({"plain": entry("2")})
        assert change.changed == ["plain"] and change.retired == []
        await until(lambda: registry.sessions["plain"].state is State.READY, "the new one is connected")
        assert registry.catalog.servers["plain"].session == before.session
        events = [event["event"] for event in ledger(record)]
        assert events.count("start") == 2 and "double" not in events
    finally:
        await registry.close()
        await apart.close()
        presence.close()
