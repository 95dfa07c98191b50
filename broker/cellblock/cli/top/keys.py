"""Keys says in one table what each key of `cellblock top` does, and makes keys of the bytes that a terminal sends."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple

from cellblock.base.terminal import cell, plain

MAX_HELD_BYTES: Final = 32
"""Bounds an escape sequence that is not whole yet; a longer one is none."""

View = Enum("View", "LIST RUN SERVERS KEYS")
"""Names what the screen shows."""

Key = Enum(
    "Key",
    "QUIT HELP OPEN BACK UP DOWN PAGE_UP PAGE_DOWN FIRST LAST NEXT SERVERS RECENT PAUSE",
)
"""Names what somebody wants by pressing a key."""


class Binding(NamedTuple):
    """A binding has what terminals send for a key, its name, what it does, and its hint in the last line of views."""

    key: Key
    sent: tuple[bytes, ...]
    shown: str
    does: str
    hints: Mapping[View, str] = MappingProxyType({})


_PAGES: Final = (View.RUN, View.SERVERS, View.KEYS)

_DOWN: Final = {View.LIST: "select", **dict.fromkeys(_PAGES, "scroll")}
_PAUSE: Final = {View.LIST: "pause", View.RUN: "pause"}

BINDINGS: Final = (
    Binding(Key.QUIT, (b"q", b"Q", b"\x03", b"\x04"), "q", "quit", dict.fromkeys(View, "quit")),
    Binding(Key.BACK, (b"\x1b",), "Esc", "back; from the list: quit", dict.fromkeys(_PAGES, "back")),
    Binding(Key.HELP, (b"?", b"h"), "?", "these keys", dict.fromkeys((View.LIST, *_PAGES[:2]), "keys")),
    Binding(Key.OPEN, (b"\r", b"\n", b"\x1bOM"), "Enter", "open the selected run", {View.LIST: "open"}),
    Binding(Key.DOWN, (b"j", b"\x1b[B", b"\x1bOB"), "↓ j", "select the next run, or scroll down", _DOWN),
    Binding(Key.UP, (b"k", b"\x1b[A", b"\x1bOA"), "↑ k", "select the run before, or scroll up"),
    Binding(Key.PAGE_DOWN, (b" ", b"\x1b[6~"), "PgDn", "a screen down"),
    Binding(Key.PAGE_UP, (b"b", b"\x1b[5~"), "PgUp", "a screen up"),
    Binding(Key.FIRST, (b"g", b"\x1b[H", b"\x1bOH", b"\x1b[1~", b"\x1b[7~"), "Home g", "to the start"),
    Binding(
        Key.LAST,
        (b"G", b"\x1b[F", b"\x1bOF", b"\x1b[4~", b"\x1b[8~"),
        "End G",
        "to the end, and stay there while more comes",
    ),
    Binding(
        Key.NEXT,
        (b"\t",),
        "Tab",
        "to the next part of a run; from the list: servers and schemas",
        {View.RUN: "next part"},
    ),
    Binding(
        Key.SERVERS,
        (b"s",),
        "s",
        "servers, and what is known of their tools' outputs",
        {View.LIST: "servers and schemas"},
    ),
    Binding(Key.RECENT, (b"r",), "r", "to the recent runs"),
    Binding(Key.PAUSE, (b"p",), "p", "pause the updates, or go on", _PAUSE),
)

_BY_BYTES: Final = {sent: binding.key for binding in BINDINGS for sent in binding.sent}

_ONE: Final = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1bO[@-~]|[\x80-\xff]+|.", re.S)
_UNFINISHED: Final = re.compile(rb"\x1b(?:O|\[[0-?]*[ -/]*)?\Z")


class Keyboard:
    """Takes bytes as they come, several keys or a part of one at a time. Unknown keys say nothing."""

    def __init__(self) -> None:
        self._held = b""

    @property
    def waiting(self) -> bool:
        """Says whether the last bytes are Esc, or the start of what another key sends."""
        return bool(self._held)

    def typed(self, data: bytes) -> list[Key]:
        """Returns the keys that are certain now."""
        data, self._held = self._held + data, b""
        unfinished = _UNFINISHED.search(data)
        if unfinished is not None and len(unfinished[0]) <= MAX_HELD_BYTES:
            data, self._held = data[: unfinished.start()], unfinished[0]
        return [_BY_BYTES[one] for one in _ONE.findall(data) if one in _BY_BYTES]

    def nothing_came(self) -> list[Key]:
        """Takes held bytes for Esc itself, and perhaps a key after it."""
        data, self._held = self._held, b""
        return [_BY_BYTES[data[at : at + 1]] for at in range(len(data)) if data[at : at + 1] in _BY_BYTES]


def hints(view: View, width: int) -> str:
    """Returns the last line of a view: the keys that matter there, the most needed first."""
    shown = [
        f"{'↑↓' if binding.key is Key.DOWN else binding.shown}: {binding.hints[view]}"
        for binding in BINDINGS
        if view in binding.hints
    ]
    return plain("  ".join(shown), width)


def help_lines(width: int) -> list[str]:
    """Returns a line for each key."""
    return [plain(f"  {cell(binding.shown, 9)} {binding.does}", width) for binding in BINDINGS]
