"""What is known of a parked run, encoded and decoded again."""

from __future__ import annotations

import json

from cellblock.base.questions import ParkedQuestion
from cellblock.record.parked import Parked

QUESTION = ParkedQuestion(call=1, server="s", tool="t", destructive=True, input="{}", bytes=2)
PARKED = Parked(
    questions=(QUESTION,),
    allowed=(3,),
    asked=1,
    waited_ms=7,
    client="c",
    losses=("The run's process was lost.",),
)


def test_it_comes_back_as_it_was() -> None:
    assert Parked.unpack(PARKED.pack()) == PARKED


def test_one_of_another_release_is_read() -> None:
    working = [{"call": 2, "server": "s", "tool": "u"}]
    later = {**json.loads(PARKED.pack()), "mood": "good", "working": working}
    assert Parked.unpack(json.dumps(later).encode()) == PARKED
    assert Parked.unpack(b'{"questions": []}') == Parked(questions=())
