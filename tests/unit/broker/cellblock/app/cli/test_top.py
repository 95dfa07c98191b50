"""What `cellblock top` prints, from what a daemon says."""

from __future__ import annotations

import io
import re

import pytest

from cellblock.app.cli.top import render
from cellblock.base.terminal import Painter, columns
from support.shown_runs import bare, server, short_run, state


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
        lines = render(shown, width, height, Painter(io.StringIO()))
        assert colours == any("\x1b[" in line for line in lines)
        assert height == 0 or len(lines) <= height
        for line in lines:
            assert columns(bare(line)) <= width
            assert bare(line).isprintable()


def test_what_it_says() -> None:
    text = "\n".join(render(state(), 140, 0, Painter(None)))
    assert (
        "places  1/16    queue 2 of 256    warm 3/4    booting 1    hosts 1    3 parked, waiting for you"
        in text
    )
    assert "7 (1 with an error)    1.5/s    p50 4.2 ms  p95 9.9 ms  p99 120 ms    queue p95 9.9 ms" in text
    assert "waiting: " in text and "RUNNING (1)" in text
    assert text.count("SANDBOX_LIMIT") == 50
    assert "00000001" in text and "http session 01" in text and "29 s ago" in text


def test_a_run_under_way_has_its_call() -> None:
    shown = state(live=[short_run(0, call="files.read_file"), short_run(1, lastLog="half way")])
    lines = render(shown, 140, 0, Painter(None))
    assert any(line.startswith("00000000") and "files.read_file  http" in line for line in lines)
    assert any(line.startswith("00000001") and "half way  http" in line for line in lines)


@pytest.mark.parametrize(("servers", "live"), [(30, 1), (1, 30), (30, 30)])
def test_what_there_is_no_room_for_is_counted(servers: int, live: int) -> None:
    shown = state(
        upstreams=[server(str(number)) for number in range(servers)],
        live=[short_run(number) for number in range(live)],
    )
    text = "\n".join(render(shown, 100, 40, Painter(None)))
    left = sum(map(int, re.findall(r"and (\d+) more", text)))
    seen = text.count("waiting: ") + len(re.findall(r"^000000\d\d running", text, re.M))
    assert seen + left == servers + live and "ENDED" in text and "SANDBOX_LIMIT" in text


def test_an_empty_daemon() -> None:
    nothing = {"count": 0, "p50": None, "p95": None, "p99": None}
    quiet = state(live=[], recent=[], upstreams=[], perSecond=[], latency={"run": nothing, "queue": nothing})
    quiet["pool"] |= {"capacity": 0, "running": 0}
    assert render(quiet, 80, 24, Painter(None))
