"""Model holds what `cellblock top` shows, and how keys change it; it asks nobody and writes nowhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cellblock.base.terminal import Painter, cell, plain
from cellblock.cli.top import overview, run_page
from cellblock.cli.top.keys import Key, View, help_lines, hints

Data = Mapping[str, Any]


@dataclass(slots=True)
class Scroll:
    """A scroll says where in a page one is. `marks` are the first lines of the page's parts."""

    offset: int = 0
    at_end: bool = False
    room: int = 1
    most: int = 0
    marks: tuple[int, ...] = ()

    def press(self, key: Key) -> None:
        """Moves the selection; `fit` puts right what is too far."""
        moved = {
            Key.UP: self.offset - 1,
            Key.DOWN: self.offset + 1,
            Key.PAGE_UP: self.offset - self.room,
            Key.PAGE_DOWN: self.offset + self.room,
            Key.FIRST: 0,
            Key.LAST: self.most,
            # From the end of the page on, where the last parts stand together, to its start again.
            Key.NEXT: next((mark for mark in self.marks if self.offset < min(mark, self.most)), 0),
        }
        if key in moved:
            self.at_end = key is Key.LAST
            self.offset = max(0, moved[key])

    def fit(self, lines: int, room: int) -> None:
        """Fits the place to a page of so many lines, of which there is room for some."""
        self.room, self.most = max(1, room), max(0, lines - max(1, room))
        self.offset = self.most if self.at_end else min(self.offset, self.most)


class Top:
    """Top is the screen's state; `state` is what `/dashboard/state` gives."""

    def __init__(self, state: Data) -> None:
        self.state = state
        self.view = View.LIST
        self.selected: str | None = None
        """Names the run that is marked in the list."""
        self.run_id: str | None = None
        """Names the run whose page is open, which has to be asked for."""
        self.run: Data | None = None
        self.forgotten = False
        self.paused = False
        self.asked: float | None = None
        """Holds when the daemon was asked what it has not answered yet, by `time.monotonic`."""
        self.silent_seconds: float | None = None
        """Holds how long the daemon has been silent, when that is worth a word."""
        self.done = False
        self._before = (View.LIST, Scroll())
        self._row = 0
        self._scroll = Scroll()

    # ---- what the daemon says --------------------------------------------------------------------------

    def heard(self, state: Data) -> None:
        """Takes the newest state. The selected run stays selected where it goes; of a forgotten one, its place does."""
        self.state = state
        ids = overview.runs_of(state)
        if self.selected is None:
            return
        if self.selected in ids:
            self._row = ids.index(self.selected)
        else:
            self._select(ids, self._row)

    def heard_run(self, run_id: str, run: Data | None) -> None:
        """Takes one run, or that it is no longer remembered; another than the open one is not wanted any more."""
        if run_id != self.run_id:
            return
        self.forgotten = run is None
        self.run = run or self.run

    # ---- keys ------------------------------------------------------------------------------------------

    def press(self, key: Key) -> None:
        """Does what the table of keys says of a key."""
        in_list = self.view is View.LIST
        if key is Key.QUIT or (key is Key.BACK and in_list):
            self.done = True
        elif key is Key.PAUSE:
            self.paused = not self.paused
        elif self.view is View.KEYS and key in (Key.BACK, Key.HELP):
            self.view, self._scroll = self._before
        elif key is Key.HELP:
            self._before = (self.view, self._scroll)
            self.view, self._scroll = View.KEYS, Scroll()
        elif key is Key.BACK:
            self._show(View.LIST)
        elif key is Key.SERVERS or (key is Key.NEXT and self.view in (View.LIST, View.SERVERS)):
            self._show(View.SERVERS if in_list or key is Key.SERVERS else View.LIST)
        elif in_list:
            self._press_in_list(key)
        else:
            self._scroll.press(key)

    def _press_in_list(self, key: Key) -> None:
        ids = overview.runs_of(self.state)
        if self.selected is None and key in _STEPS:
            self._select(ids, 0)
        elif key in _STEPS:
            self._select(ids, self._row + _STEPS[key](self._scroll.room))
        elif key in (Key.FIRST, Key.LAST, Key.RECENT):
            rows = {Key.FIRST: 0, Key.LAST: len(ids) - 1, Key.RECENT: len(self.state["live"])}
            self._select(ids, rows[key])
        elif key is Key.OPEN:
            if self.selected is None:
                self._select(ids, 0)
            if self.selected is not None:
                self._show(View.RUN)
                self.run_id = self.selected

    def _select(self, ids: list[str], row: int) -> None:
        self._row = max(0, min(row, len(ids) - 1))
        self.selected = ids[self._row] if ids else None

    def _show(self, view: View) -> None:
        self.view, self._scroll = view, Scroll()
        self.run_id, self.run, self.forgotten = None, None, False

    # ---- the screen ------------------------------------------------------------------------------------

    def lines(self, width: int, height: int, paint: Painter) -> list[str]:
        """Draws the whole screen, in so many columns and lines, at least one."""
        last = ("paused  " if self.paused else "") + hints(self.view, width)
        if self.silent_seconds is not None:
            last = f"no answer for {self.silent_seconds:.0f} s  {last}"
        bottom = paint(plain(last, width), "dim")
        if self.view is View.LIST:
            self._scroll.room = max(1, height // 2)
            shown = overview.render(self.state, width, height - 1, paint, self.selected) if height > 1 else []
            return [*shown, bottom]
        title, parts = self._page(width, paint)
        page: list[str] = []
        marks: list[int] = []
        for part in parts:
            page += [""] if page else []
            marks.append(len(page))
            page += [paint(plain(part.heading, width), "bold"), *part.lines]
        room = height - 2
        self._scroll.fit(len(page), room)
        self._scroll.marks = tuple(marks)
        start = self._scroll.offset
        end = start + max(0, room)
        where = f"  {start + 1}-{min(end, len(page))} of {len(page)}" if len(page) > room else ""
        shown = [paint(cell(title + where, width), "reverse"), *page[start:end]]
        return [*shown[: max(0, height - 1)], bottom]

    def _page(self, width: int, paint: Painter) -> tuple[str, list[run_page.Part]]:
        if self.view is View.RUN and self.run_id is not None:
            title = run_page.title(self.run_id, self.run, self.forgotten)
            return title, [] if self.run is None else run_page.parts(self.run, width, paint)
        if self.view is View.SERVERS:
            return "servers, and what is known of their tools' outputs", [
                run_page.Part("UPSTREAM SERVERS", overview.servers(self.state, width, paint)),
                run_page.Part("SCHEMA KNOWLEDGE", overview.knowledge(self.state, width, paint)),
            ]
        return "keys", [run_page.Part("KEYS", help_lines(width))]


_STEPS: Final[Mapping[Key, Callable[[int], int]]] = {
    Key.UP: lambda room: -1,
    Key.DOWN: lambda room: 1,
    Key.PAGE_UP: lambda room: -room,
    Key.PAGE_DOWN: lambda room: room,
}
