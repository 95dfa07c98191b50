"""Brokers with state directories of their own share a PostgreSQL: what one leaves, another goes on with."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cellblock import Broker, CellblockError, ConfigError, tool
from cellblock.app.config.load import parse_settings
from cellblock.record import going_on
from cellblock.record.rows import Head
from support.cellblock_zygote import forked_python, started
from support.entries import for_tests
from support.haproxy import KEY
from support.local_tools import IMPORTS, LIGHT, MADE, broker_on as broker_with_tools, read, write
from support.opened_journals import heads_of
from support.parked_runs import response_of
from support.postgresql import Postgres
from support.waits import until, until_found, within

SCRIPT = (
    IMPORTS
    + "const first = await read({ n: 1 });\n"
    + "globalThis.__codemode_result__ = [first.result, (await write({ n: 2 })).result];"
)
READS = IMPORTS + "globalThis.__codemode_result__ = (await read({ n: 7 })).result;"
DYING = """
import asyncio, json, sys
from pathlib import Path
from cellblock import Broker, tool
from cellblock.app.config.load import parse_settings

@tool()
def read(n: int) -> int:
    "Reads."
    return n

@tool()
async def write(n: int) -> int:
    "Writes."
    Path(sys.argv[2]).touch()
    await asyncio.sleep(3600)
    return n

async def main():
    settings = parse_settings(json.loads(sys.argv[1]))
    async with Broker(settings, tools=[read, write], state_dir=Path(sys.argv[3])) as broker:
        await broker.run(sys.argv[4], durable=True, client="test")

asyncio.run(main())
"""
"""Is a broker of another machine, as far as one machine can be another: it shares nothing but PostgreSQL."""


@tool()
async def hold(n: int) -> int:
    "Never answers."
    MADE[f"hold {n}"] += 1
    await asyncio.Event().wait()
    return n


def settings_of(url: str, **section: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "state": {"url": url, "key": KEY},
        "policy": {"default": {"approve": ["local.write"]}},
        **LIGHT,
        **section,
    }
    return {"cellblock": for_tests(made)}


def broker_on(url: str, folder: Path, **section: Any) -> Broker:
    return Broker(parse_settings(settings_of(url, **section)), tools=[read, write, hold], state_dir=folder)


@pytest.fixture(autouse=True)
def nothing_made() -> None:
    MADE.clear()


@pytest.fixture
async def brokers(postgres_url: str, tmp_path: Path) -> AsyncIterator[tuple[Broker, Broker]]:
    async with (
        broker_on(postgres_url, tmp_path / "a") as one,
        broker_on(postgres_url, tmp_path / "b") as other,
    ):
        yield one, other


async def test_what_one_broker_has_seen_of_a_tool_another_knows(brokers: tuple[Broker, Broker]) -> None:
    one, other = brokers
    server = other.catalog.servers["local"]
    tool = next(found for found in server.tools if found.tool_name == "read")
    assert other.observed_of(server, tool) is None
    await within(one.run(READS))
    await one.learnt()
    await until(lambda: other.observed_of(server, tool) is not None, "the other has read it")


async def test_a_run_that_is_cancelled_elsewhere_ends_when_its_broker_hears_it(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a look at what others have written."""
    monkeypatch.setattr(going_on, "POLL_SECONDS", 600.0)
    script = SCRIPT + "\nimport { hold } from '@codemode/servers/local';\nawait hold({ n: 3 });"
    async with (
        broker_on(postgres_url, tmp_path / "a") as one,
        broker_on(postgres_url, tmp_path / "b") as other,
    ):
        run_id = str((await within(one.run(script, durable=True))).usage.run_id)
        await within(one.parked_runs.answer(run_id, "accepted"))
        await until(lambda: MADE["hold 3"], "it goes on, and makes its call")
        assert await within(other.parked_runs.stop(run_id, (await kept_as(other, "running")).principal))
        assert (await kept_as(other, "ended")).outcome == "CANCELLED"


async def kept_as(broker: Broker, state: str) -> Head:
    """The only run, as soon as it is written down in this state."""

    async def look() -> Head | None:
        return next((one for one in await heads_of(broker.parked_runs._journals) if one.state == state), None)

    return await until_found(look, f"it is {state}")


@pytest.mark.thorough
async def test_a_run_whose_broker_is_killed_goes_on_in_another(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellblock.fleet.presence.GRACE_SECONDS", 0.5)
    monkeypatch.setattr(going_on, "POLL_SECONDS", 0.1)
    script = (
        IMPORTS
        + "const first = await read({ n: 1 });\n"
        + "let said; try { said = (await write({ n: 2 })).result; } catch (error) { said = error.certainty; }\n"
        + "globalThis.__codemode_result__ = [first.result, said];"
    )
    there, free = tmp_path / "there", json.dumps(settings_of(postgres_url, policy={}))
    async with broker_on(postgres_url, tmp_path / "b", policy={}) as broker:
        words = ("-c", DYING, free, there, tmp_path / "a", script)
        process = await started(*words, program=forked_python())
        await until(there.exists, "the call is under way")
        await kept_as(broker, "running")
        await asyncio.sleep(5 * going_on.POLL_SECONDS)
        assert (await kept_as(broker, "running")).resumed == 0, "it was taken from a broker that lives"
        head = await kept_as(broker, "running")
        process.kill()
        await process.wait()
        response = await response_of(broker, head.id, head.principal)
    assert response.decoded().result == [1, "may_have_run"], response
    assert MADE == {}, "a call was made that may have run, or that was answered"


async def test_without_postgresql_runs_go_on_and_approvals_are_refused(
    brokers: tuple[Broker, Broker], postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = brokers
    run_id = str((await within(one.run(SCRIPT, durable=True))).usage.run_id)
    with caplog.at_level("WARNING"):
        postgres.stop()
        try:
            await until(lambda: one.presence.trouble is not None, "it is seen")
            assert (await within(one.run(READS))).result == 7
            with pytest.raises(CellblockError, match="PostgreSQL"):
                await other.resume(run_id, "accepted")
            # A durable run's call is not made where a later owner would not know of it.
            response = await within(one.run(READS, durable=True))
            assert "could not be written down" in response.diagnostics[0].message, response
            assert MADE["read 7"] == 1
        finally:
            postgres.start()
        await until(lambda: one.presence.trouble is None, "it is back")
    assert "PostgreSQL is away" in caplog.text and "PostgreSQL is there again" in caplog.text
    await until(lambda: other.presence.trouble is None, "the other has it back, too")
    response = await within(other.resume(run_id, "accepted"))
    assert response.result == [1, 20] and MADE["write 2"] == 1


CALLS = (
    IMPORTS.replace("write", "hold")
    + "const seen = [];\n"
    + "for (const n of [1, 2, 3]) {\n"
    + "  seen.push(await read({ n }).then(() => 'made', (error) => error.code));\n"
    + "}\n"
    + "globalThis.__codemode_result__ = seen;"
)
DAY = 86_400_000


async def test_a_client_has_one_quota_at_all_brokers(
    postgres_url: str, postgres: Postgres, tmp_path: Path
) -> None:
    quotas = {
        "team:strict": {"local.read": {"calls": 4, "per_ms": DAY, "strict": True}},
        "default": {"local.*": {"calls": 7, "per_ms": DAY}, "nobody.*": {"calls": 0, "per_ms": DAY}},
    }
    policy = {"policy": {"quotas": quotas, "clients": {"team:strict": {"tools": ["local.*"]}}}}
    # The pattern of a server that is not there would hold for nobody.
    with pytest.raises(ConfigError, match="names no server"):
        broker_on(postgres_url, tmp_path / "none", **policy)
    del quotas["default"]["nobody.*"]
    async with (
        broker_on(postgres_url, tmp_path / "a", **policy) as one,
        broker_on(postgres_url, tmp_path / "b", **policy) as other,
    ):
        runs = [await within(broker.run(CALLS, client="team:strict")) for broker in (one, other)]
        assert [run.result for run in runs] == [["made"] * 3, ["made", "QUOTA_USED_UP", "QUOTA_USED_UP"]]
        assert MADE == {"read 1": 2, "read 2": 1, "read 3": 1}
        assert (await within(one.run(CALLS))).result == ["made"] * 3
        # It knows what the first one has told since.
        await until(
            lambda: one.counts._known and not any(c.added for c in one.counts._known.values()), "told"
        )
        assert (await within(other.run(CALLS))).result == ["made"] * 3
        postgres.stop()
        try:
            await until(lambda: other.presence.trouble is not None, "it is seen")
            assert (await within(other.run(CALLS, client="team:strict"))).result == ["QUOTA_UNKNOWN"] * 3
            made = MADE["read 1"]
            assert (await within(other.run(CALLS))).result == ["made", "QUOTA_USED_UP", "QUOTA_USED_UP"]
            assert MADE["read 1"] == made + 1
        finally:
            postgres.start()
        await until(lambda: other.presence.trouble is None, "it is back")

        async def settled() -> bool:
            return (await one.run(CALLS)).result == ["QUOTA_USED_UP"] * 3

        await until_found(settled, "it is settled")


@pytest.mark.thorough
async def test_a_quota_without_a_postgresql_is_of_all_brokers_of_a_state_directory(tmp_path: Path) -> None:
    policy = {"quotas": {"embedding": {"*": {"calls": 5, "per_ms": DAY, "strict": True}}}}
    for expected in (["made"] * 3, ["made", "made", "QUOTA_USED_UP"]):
        async with broker_with_tools(tmp_path, [read, hold], policy=policy) as broker:
            assert (await within(broker.run(CALLS))).result == expected
