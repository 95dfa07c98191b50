"""`scripts/bench kills` finds what it looks for: a measurement that says "nothing was lost" has looked."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kills import Campaign, Kills


@pytest.fixture
def campaign(tmp_path: Path) -> Campaign:
    return Kills(tmp_path, 1)


def ended(told: dict[str, str] | None = None, *codes: str) -> dict[str, Any]:
    return {
        "result": None if told is None else {"run": 7, "told": told},
        "diagnostics": [{"severity": "error", "code": code} for code in codes],
        "usage": {"runId": "r"},
    }


RIGHT = ended({"0": "made", "1": "may_have_run", "2": "may_have_run", "3": "not_started"})
LEDGER = Counter({"7/0": 1, "7/1": 1})


@pytest.mark.parametrize(
    ("response", "made", "said"),
    [
        (RIGHT, LEDGER, None),
        (ended(None, "HOST_LOST"), LEDGER, None),
        (RIGHT, LEDGER + Counter({"7/0": 1}), "told made of call 7/0, which was made 2 times"),
        (RIGHT, Counter({"7/1": 1}), "told made of call 7/0, which was made 0 times"),
        (RIGHT, LEDGER + Counter({"7/2": 2}), "told may_have_run of call 7/2, which was made 2 times"),
        (RIGHT, LEDGER + Counter({"7/3": 1}), "told not_started of call 7/3, which was made 1 times"),
        (ended({"0": "completed", "1": "made"}), LEDGER, "told completed of call 7/0"),
        (RIGHT, LEDGER + Counter({"7/4": 1}), "call 7/4 was made, and its script knows nothing of it"),
        (ended(None, "REPLAY_DIVERGED"), LEDGER, "it has ended so"),
        (ended(None), LEDGER, "it has ended so"),
    ],
)
def test_what_scripts_were_told_is_held_against_the_ledger(
    campaign: Campaign, response: dict[str, Any], made: Counter[str], said: str | None
) -> None:
    campaign.judge(response, made)
    assert [line.startswith(said or "") for line in campaign.wrong] == ([] if said is None else [True])


def test_a_second_answer_and_an_unknown_error_are_told(campaign: Campaign) -> None:
    answer = {"result": {"structuredContent": RIGHT}}
    campaign.take(answer)
    refused = (
        "There is no run that waits for this answer: it came too late, or came twice. Run the script again."
    )
    campaign.take({"error": {"message": refused}})
    assert campaign.wrong == []
    campaign.take(answer)
    campaign.take({"error": {"message": "Internal error"}})
    assert [line.split(":")[0] for line in campaign.wrong] == ["two answers for run r", "an answer"]
