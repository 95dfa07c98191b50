"""Tells which characters people see: other people's text could otherwise hide a part of itself, or push it off the
screen.
"""

from __future__ import annotations

import re
from typing import Final

_UNSEEN: Final = frozenset(
    chr(point)
    for first, last in (
        # Unicode's Default_Ignorable_Code_Point (DerivedCoreProperties), assigned or not
        (0x00AD, 0x00AD),
        (0x034F, 0x034F),
        (0x061C, 0x061C),
        (0x115F, 0x1160),
        (0x17B4, 0x17B5),
        (0x180B, 0x180F),
        (0x200B, 0x200F),
        (0x202A, 0x202E),
        (0x2060, 0x206F),
        (0x3164, 0x3164),
        (0xFE00, 0xFE0F),
        (0xFEFF, 0xFEFF),
        (0xFFA0, 0xFFA0),
        (0xFFF0, 0xFFF8),
        (0x1BCA0, 0x1BCA3),
        (0x1D173, 0x1D17A),
        (0xE0000, 0xE0FFF),
        # and a pattern of Braille without dots, which is no space to Unicode
        (0x2800, 0x2800),
    )
    for point in range(first, last + 1)
)

_PRESENTATION: Final = frozenset("\ufe0e\ufe0f")
"""Holds the characters that say whether the one before is drawn as text or as an emoji."""


def is_visible(character: str) -> bool:
    """Says whether a character is seen, and does nothing else: a plain space is visible, other white space is not."""
    return character.isprintable() and character not in _UNSEEN


_GAP: Final = re.compile(" {17,}")
"""Finds more spaces than a text has in a row by itself: what follows would stand where nobody looks."""


def spelled_out(text: str) -> str:
    """Returns text for who has to judge it: invisible characters as escapes, wide gaps as their width."""
    shown = "".join(
        character if is_visible(character) else character.encode("unicode_escape").decode("ascii")
        for character in text
    )
    return _GAP.sub(lambda found: f"\\x20{{{len(found[0])}}}", shown)


def legible(text: str) -> str:
    """Returns text for reading, with U+FFFD for what is invisible; one choice between text and emoji stays behind each
    character that can be seen.
    """
    kept: list[str] = []
    chosen = True
    for character in text:
        if character in _PRESENTATION and not chosen:
            kept.append(character)
            chosen = True
        else:
            chosen = not is_visible(character)
            kept.append("\ufffd" if chosen else character)
    return "".join(kept)
