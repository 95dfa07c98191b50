"""What keys and answers do to the screen."""

from __future__ import annotations

import pytest

from cellblock.base.terminal import Painter, columns
from cellblock.cli.top.keys import Key, View
from cellblock.cli.top.model import Top
from support.top_data import bare, ended_run, run_id, short_run, state, whole_run


def screen(top: Top, width: int = 100, height: int = 30) -> str:
    lines = top.lines(width, height, Painter(None))
    assert len(lines) <= height
    assert all(columns(bare(line)) <= width for line in lines)
    return "\n".join(lines)


def press(top: Top, *keys: Key) -> Top:
    for key in keys:
        top.press(key)
        screen(top)
    return top


def opened(logs: int = 3) -> Top:
    top = press(Top(state(live=[], recent=[ended_run(7)])), Key.OPEN)
    top.heard_run(run_id(7), whole_run(logs=logs))
    return top


def test_selecting() -> None:
    top = Top(state())
    assert "> 0" not in screen(top)
    assert press(top, Key.DOWN).selected == run_id(0)
    assert press(top, Key.DOWN, Key.DOWN).selected == run_id(2)
    assert press(top, Key.UP, Key.UP, Key.UP, Key.UP).selected == run_id(0)
    assert press(top, Key.LAST).selected == run_id(50)
    assert "> 00000050" in screen(top)
    assert press(top, Key.DOWN, Key.RECENT).selected == run_id(1)
    assert press(top, Key.PAGE_DOWN).selected == run_id(16)
    assert press(top, Key.FIRST).selected == run_id(0)


def test_the_selected_run_stays_selected_where_it_goes() -> None:
    top = press(Top(state()), Key.DOWN)
    top.heard(state(live=[short_run(60)], recent=[ended_run(number) for number in (61, 0, 1)]))
    assert top.selected == run_id(0)
    top.heard(state(live=[], recent=[ended_run(number) for number in (70, 71, 72, 73)]))
    assert top.selected == run_id(72)
    top.heard(state(live=[], recent=[]))
    assert top.selected is None
    screen(press(top, Key.DOWN, Key.UP, Key.OPEN))
    assert top.view is View.LIST and top.run_id is None


def test_opening_a_run_and_going_back() -> None:
    top = press(Top(state()), Key.DOWN, Key.DOWN, Key.OPEN)
    assert (top.view, top.run_id) == (View.RUN, run_id(1))
    assert "asking the daemon" in screen(top)
    top.heard_run(run_id(2), whole_run())
    assert "asking the daemon" in screen(top), "another run's answer came late"
    top.heard_run(run_id(1), whole_run())
    shown = screen(top)
    assert "TIMELINE" in shown and "DIAGNOSTICS" in shown and "plain.tool1" in shown
    press(top, Key.BACK)
    assert (top.view, top.run_id, top.selected, top.done) == (View.LIST, None, run_id(1), False)
    assert press(top, Key.BACK).done


def test_a_run_that_is_forgotten_stays_as_it_was_seen() -> None:
    top = opened()
    top.heard_run(run_id(7), None)
    assert "no longer remembered" in screen(top) and "TIMELINE" in screen(top)
    gone = press(Top(state()), Key.OPEN)
    gone.heard_run(run_id(0), None)
    assert "no longer remembered" in screen(gone) and "TIMELINE" not in screen(gone)
    assert gone.forgotten and not press(gone, Key.BACK).forgotten


def test_scrolling_a_run() -> None:
    top = opened(logs=100)
    assert "1-28 of" in screen(top)
    assert "2-29 of" in screen(press(top, Key.DOWN))
    assert "1-28 of" in screen(press(top, Key.UP, Key.UP))
    assert "29-56 of" in screen(press(top, Key.PAGE_DOWN))
    assert "entry 99" in screen(press(top, Key.LAST))
    top.heard_run(run_id(7), whole_run(logs=150))
    assert "entry 149" in screen(top), "the end is followed"
    press(top, Key.UP)
    top.heard_run(run_id(7), whole_run(logs=180))
    assert "entry 179" not in screen(top)
    press(top, Key.FIRST, Key.NEXT)
    assert screen(top).split("\n")[1].startswith("TIMELINE")
    assert screen(press(top, Key.NEXT, Key.NEXT)).split("\n")[1].startswith("CONSOLE")
    assert "1-28 of" in screen(press(top, Key.NEXT))


def test_the_next_part_after_the_end_of_the_page_is_the_first() -> None:
    top = opened(logs=12)
    screen(top)
    titles = [screen(press(top, Key.NEXT)).split("\n")[0] for _ in range(5)]
    shown = [int(title.split("  ")[1].split("-")[0]) for title in titles]
    # Its console begins below line 23, from which on all of the rest is to be seen.
    assert "  23-50 of 50" in titles[2]
    assert shown[:3] == sorted({*shown[:3]}) and shown[3:] == [1, shown[0]]


def test_a_page_gets_shorter_or_the_window_higher() -> None:
    top = press(opened(logs=100), Key.LAST, Key.UP)
    top.heard_run(run_id(7), whole_run(logs=1))
    assert "entry 0" in screen(top)
    assert "RUN" in screen(top, height=200)


def test_servers_and_keys() -> None:
    top = press(Top(state()), Key.SERVERS)
    assert "SCHEMA KNOWLEDGE" in screen(top) and "1 observed, 1 unknown" in screen(top)
    assert "select the next run" in screen(press(top, Key.HELP))
    assert press(top, Key.HELP).view is View.SERVERS
    assert press(top, Key.HELP, Key.BACK).view is View.SERVERS
    assert press(top, Key.BACK).view is View.LIST
    assert press(top, Key.NEXT).view is View.SERVERS
    assert press(top, Key.NEXT).view is View.LIST
    top = press(opened(logs=100), Key.DOWN, Key.HELP, Key.BACK)
    assert top.run is not None and "2-29 of" in screen(top), "the run is as it was"
    assert press(top, Key.HELP, Key.QUIT).done


def test_pausing_is_told() -> None:
    top = press(Top(state()), Key.PAUSE)
    assert top.paused and "paused" in screen(top)
    assert "paused" not in screen(press(top, Key.PAUSE))


def test_a_daemon_that_is_slow_to_answer_is_told() -> None:
    top = Top(state())
    top.silent_seconds = 4.2
    assert screen(top).split("\n")[-1].startswith("no answer for 4 s  q: quit")


@pytest.mark.parametrize("width", [1, 2, 10, 40, 300])
@pytest.mark.parametrize("height", [1, 2, 3, 4, 8, 200])
def test_any_window(width: int, height: int) -> None:
    for view in (Key.DOWN, Key.OPEN, Key.SERVERS, Key.HELP):
        top = press(Top(state(live=[], recent=[ended_run(7)])), view)
        top.heard_run(run_id(7), whole_run(logs=50))
        for key in (None, *Key):
            if key is not None:
                top.press(key)
            screen(top, width, height)
