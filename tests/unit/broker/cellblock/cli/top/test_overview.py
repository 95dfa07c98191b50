"""The first screen of `cellblock top`, from what a daemon says."""

from __future__ import annotations

import io
import re

import pytest

from cellblock.base.terminal import Painter, columns
from cellblock.cli.top.overview import render, runs_of
from support.top_data import bare, run_id, server, short_run, state


@pytest.mark.parametrize("width", [1, 12, 40, 80, 120, 200])
@pytest.mark.parametrize("height", [0, 1, 2, 5, 12, 24, 50])
@pytest.mark.parametrize("colours", [False, True])
def test_it_fits_any_window_and_texts_control_nothing(
    width: int, height: int, colours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1" if colours else "")
    many = state(upstreams=[server(str(number)) for number in range(20)])
    for shown in (state(), many):
        lines = render(shown, width, height, Painter(io.StringIO()), run_id(3))
        assert colours == any("\x1b[" in line for line in lines)
        assert height == 0 or len(lines) <= height
        for line in lines:
            assert columns(bare(line)) <= width
            assert bare(line).isprintable()


def test_what_it_says() -> None:
    text = "\n".join(render(state(), 120, 0, Painter(None)))
    assert re.search(r"places +█░+ 1/16", text)
    assert "queue   2 of 256    warm 3/4    booting 1    hosts 1    3 parked, waiting for you" in text
    assert "p50 4.2 ms  p95 9.9 ms  p99 120 ms" in text
    assert "queue p50 4.2 ms  p95 9.9 ms" in text
    assert "runs    7 (1 with an error)" in text
    assert "7 (1 with an error)    1.5/s, highest 8  " in text
    assert "1/2" in text and "waiting: " in text
    assert text.count("SANDBOX_LIMIT") == 50
    assert "00000001" in text and "http session 01" in text and "29 s ago" in text
    assert "> " not in text


@pytest.mark.slow
@pytest.mark.parametrize("height", [3, 6, 9, 14, 24, 80])
@pytest.mark.parametrize("servers", [0, 3, 30])
def test_the_selected_run_is_always_to_be_seen(height: int, servers: int) -> None:
    shown = state(
        live=[short_run(number) for number in range(100, 120)],
        upstreams=[server(str(number)) for number in range(servers)],
    )
    for selected in runs_of(shown):
        lines = render(shown, 100, height, Painter(None), selected)
        (line,) = [line for line in lines if line.startswith("> ")]
        assert line.startswith(f"> {selected[:8]} ")
        assert len(lines) <= height


def test_the_newest_seconds_are_shown_where_not_all_fit() -> None:
    shown = state(perSecond=[[1, 0]] * 59 + [[8, 0]])
    wide, narrow = (render(shown, width, 0, Painter(None))[4] for width in (140, 60))
    assert wide.endswith("▁" * 59 + "█") or wide.endswith("▂" * 59 + "█")
    assert narrow.endswith("█") and len(narrow) == 60


def test_more_servers_than_there_is_room_for_are_counted() -> None:
    shown = state(upstreams=[server(str(number)) for number in range(30)])
    text = "\n".join(render(shown, 100, 24, Painter(None)))
    assert text.count("waiting: ") + int(re.findall(r"and (\d+) more servers", text)[0]) == 30


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
