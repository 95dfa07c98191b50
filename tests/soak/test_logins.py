"""Everybody's own logins, with an authorization server that is not ours."""

import base64
from pathlib import Path

import pytest

from cellblock.fleet.postgresql import PostgresServer
from soak.logins import Campaign
from support.shared_rows import KEY, state_of

pytestmark = [pytest.mark.servers, pytest.mark.timeout(1200)]


async def held(campaign: Campaign, kills: int) -> None:
    runs = campaign.left
    await campaign.run(kills)
    assert not campaign.wrong, campaign.wrong[:5]
    counts = campaign.counts
    assert counts["kills"] == kills and counts["logins"] >= 3 and counts["ended well"] > runs / 3, counts
    if runs >= 200:
        # Where there are many, all kinds come.
        assert min(counts["parked runs that went on"], counts["logouts"], counts["renewals"]) > 3, counts


async def test_nobody_calls_as_another_and_every_park_ends(tmp_path: Path) -> None:
    await held(Campaign(tmp_path, 60, seed=1), kills=1)


@pytest.mark.thorough
async def test_a_thousand_runs(tmp_path: Path) -> None:
    await held(Campaign(tmp_path, 1000, seed=2), kills=4)


@pytest.mark.thorough
async def test_where_brokers_share_a_postgresql(tmp_path: Path, postgres_url: str) -> None:
    state = state_of(PostgresServer(postgres_url))
    section = {"url": postgres_url, "key": base64.b64encode(KEY).decode()}
    try:
        await held(Campaign(tmp_path, 200, seed=3, state=(section, state)), kills=2)
    finally:
        state.close()
