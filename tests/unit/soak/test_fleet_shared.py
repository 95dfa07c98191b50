"""What brokers have together, judged by the ledger: each breach is found, and nothing else is one."""

from __future__ import annotations

from collections import Counter
from typing import Any

from soak.fleet.shared import CALLED, COUNTED, breaches, script


def call(run: int, number: int) -> dict[str, Any]:
    return {"event": "call", "tool": "echo", "arguments": {"id": f"{run}/{number}"}}


GOOD = [
    {"event": "start", "pid": 1},
    call(1, 0),
    call(1, CALLED),
    *(call(1, COUNTED + n) for n in range(3)),
    {"event": "start", "pid": 2},
]


def test_what_is_as_it_should_be_is_counted_and_is_no_breach() -> None:
    counts = Counter[str]()
    assert breaches(GOOD, 3, {2}, counts) == []
    assert counts == {"single_calls": 1, "quota_calls": 3}


def test_each_breach_is_found() -> None:
    def found(*more: dict[str, Any], most: int = 3) -> list[str]:
        return breaches([*GOOD, *more], most, {2}, Counter())

    assert "4 calls were made of a quota of 3" in found(call(3, COUNTED))[0]
    assert "two processes" in found({"event": "double", "pid": 3})[0]
    assert "had no server" in found(call(2, CALLED))[0]
    assert len(found(call(2, COUNTED), {"event": "double", "pid": 3})) == 3


def test_a_script_makes_as_many_counted_calls_as_it_is_told() -> None:
    text = script(7, times=4)
    assert f"n < {COUNTED} + 4" in text and '"7/" + n' in text and f"call(single, {CALLED})" in text
    assert not {"RUN", "TIMES", "CALLED", "COUNTED"} & set(text.split())
