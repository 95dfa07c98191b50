"""What brokers have together, judged by the ledger: each breach is found, and nothing else is one."""

from __future__ import annotations

from collections import Counter
from typing import Any

from soak.fleet.shared import COUNTED, breaches, script


def call(run: int, number: int) -> dict[str, Any]:
    return {"event": "call", "tool": "echo", "arguments": {"id": f"{run}/{number}"}}


GOOD = [{"event": "start", "pid": 1}, call(1, 0), *(call(1, COUNTED + n) for n in range(3))]


def test_what_is_as_it_should_be_is_counted_and_is_no_breach() -> None:
    counts = Counter[str]()
    assert breaches(GOOD, 3, counts) == []
    assert counts == {"quota_calls": 3}


def test_each_breach_is_found() -> None:
    (found,) = breaches([*GOOD, call(3, COUNTED)], 3, Counter())
    assert "4 calls were made of a quota of 3" in found


def test_a_script_makes_as_many_counted_calls_as_it_is_told() -> None:
    text = script(7, times=4)
    assert f"n < {COUNTED} + 4" in text and '"7/" + n' in text
    assert not {"RUN", "TIMES", "COUNTED"} & set(text.split())
