"""The screen of `cellblock top`, from what a daemon says."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest

from cellblock.terminal import Painter
from cellblock.terminal_text import columns
from cellblock.top import render

HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\nlive \u202egnp"


def state(**changes: Any) -> dict[str, Any]:
    run: dict[str, Any] = {
        "id": "0123456789abcdef",
        "client": "http session 01",
        "state": "running",
        "outcome": "running",
        "elapsedMs": 1234.5,
        "queueMs": None,
        "calls": 3,
        "lastLog": HOSTILE,
    }
    over = {**run, "state": "ended", "outcome": "SANDBOX_LIMIT", "queueMs": 0.4}
    del over["lastLog"]
    latency = {"count": 7, "p50": 4.2, "p95": 9.9, "p99": 120.0}
    return {
        "version": "1",
        "uptimeSeconds": 61.0,
        "pool": {
            "capacity": 16,
            "running": 1,
            "queued": 2,
            "queueSize": 256,
            "warm": 3,
            "warmWanted": 4,
            "booting": 1,
            "hostCount": 1,
        },
        "runs": {"total": 7, "byOutcome": {"ok": 6, "sandbox_limit": 1}},
        "perSecond": [[0, 0]] * 55 + [[4, 0], [2, 1], [0, 0], [8, 0], [1, 0]],
        "latency": {"run": latency, "queue": latency},
        "live": [run],
        "recent": [over] * 50,
        "upstreams": [
            {"id": "a", "name": HOSTILE, "state": "waiting", "reason": HOSTILE, "tools": 2, "calls": {"ok": 5},
             "latency": latency}
        ],
        "knowledge": [{"id": "a", "tools": 2, "unknown": 1}],
        **changes,
    }  # fmt: skip


@pytest.mark.parametrize("width", [40, 80, 120, 200])
@pytest.mark.parametrize("height", [0, 12, 24, 50])
@pytest.mark.parametrize("colours", [False, True])
def test_it_fits_any_window_and_texts_control_nothing(
    width: int, height: int, colours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1" if colours else "")
    lines = render(state(), width, height, Painter(io.StringIO()))
    assert colours == any("\x1b[" in line for line in lines)
    assert height == 0 or len(lines) <= height
    for line in lines:
        bare = re.sub(r"\x1b\[[0-9;]*m", "", line)
        assert columns(bare) <= width
        assert bare.isprintable()


def test_what_it_says() -> None:
    text = "\n".join(render(state(), 120, 0, Painter(None)))
    assert re.search(r"places +█░+ 1/16", text)
    assert "queue   2 of 256    warm 3/4    booting 1    hosts 1" in text
    assert "p50 4.2 ms  p95 9.9 ms  p99 120 ms" in text
    assert "7 (1 with an error)    1.5/s" in text
    assert "1/2" in text and "waiting: " in text
    assert text.count("SANDBOX_LIMIT") == 50
    assert "01234567" in text and "http session 01" in text


def test_an_empty_daemon() -> None:
    nothing = {"count": 0, "p50": None, "p95": None, "p99": None}
    quiet = state(
        live=[],
        recent=[],
        upstreams=[],
        knowledge=[],
        perSecond=[],
        latency={"run": nothing, "queue": nothing},
    )
    quiet["pool"] |= {"capacity": 0, "running": 0}
    assert render(quiet, 80, 24, Painter(None))
