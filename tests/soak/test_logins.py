"""Everybody's own logins, with an authorization server that is not ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak.logins import Campaign


@pytest.mark.servers
@pytest.mark.timeout(600)
async def test_nobody_calls_as_another_and_every_park_ends(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, 60, seed=1)
    await campaign.run(kills=1)
    assert not campaign.wrong, campaign.wrong[:5]
    assert campaign.counts["ended well"] > 20 and campaign.counts["kills"] == 1, campaign.counts
