"""Makes other people's text fit to be read: nothing in it is hidden, reorders what stands beside, moves a cursor or
feigns a line. `visible` does it, wherever such text leaves for a model, a terminal, a log or a page.

What a script gets, and its result, is data and not touched.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping
from typing import Any, Final

from cellblock.base.json import is_array, is_object, mapped

UNSEEN: Final = (
    # Unicode's Default_Ignorable_Code_Point (DerivedCoreProperties), assigned or not
    "\u00ad\u034f\u061c\u115f-\u1160\u17b4-\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    # and a pattern of Braille without dots, which is no space to Unicode
    "\u2800"
)
"""Holds, for a class of a regular expression, the characters that take no ink and are not all of category C."""

_UNSEEN: Final = re.compile(f"[{UNSEEN}]")

_PRESENTATION: Final = frozenset("\ufe0e\ufe0f")
"""Holds the characters that say whether the one before is drawn as text or as an emoji."""

_JOINERS: Final = frozenset("\u200c\u200d")

TAKE_NO_COLUMN: Final = _PRESENTATION | _JOINERS


def is_visible(character: str) -> bool:
    """Says whether a character is seen, and does nothing else: a plain space is visible, other white space is not."""
    return character.isprintable() and _UNSEEN.match(character) is None


def visible(text: str, *, instead: str | None = "\ufffd", keep: str = "") -> str:
    """Returns text without what is hidden or does something.

    Of the characters that hide, those stay that letters need: one choice between text and emoji behind a character,
    and one joiner between two characters outside ASCII (emoji, Persian, Indic scripts).

    Args:
        text: Anybody's.
        instead: Stands for each such character, but a space for another kind of space; None: its escape.
        keep: More characters that stay, such as a line break.
    """
    if text.isprintable() and _UNSEEN.search(text) is None:
        return text
    parts: list[str] = []
    before = ""
    for index, character in enumerate(text):
        if is_visible(character):
            parts.append(character)
            before = character
        elif character in keep:
            parts.append(character)
            before = ""
        elif character in _PRESENTATION and before and before not in TAKE_NO_COLUMN:
            parts.append(character)
            before = before if before.isascii() else character
        elif character in _JOINERS and _joins(before, text[index + 1 : index + 2]):
            parts.append(character)
            before = ""
        else:
            parts.append(_replaced(character, instead))
            before = ""
    return "".join(parts)


def _joins(before: str, after: str) -> bool:
    return bool(before and after) and not before.isascii() and not after.isascii() and is_visible(after)


def _replaced(character: str, instead: str | None) -> str:
    if instead is None:
        return escaped(character)
    return " " if unicodedata.category(character) == "Zs" else instead


def escaped(character: str) -> str:
    """Returns a character as an escape of Python's, of which those of two letters are JSON's, too."""
    return character.encode("unicode_escape").decode("ascii")


def json_escape(character: str) -> str:
    """Returns a character as JSON and JavaScript write it in ASCII."""
    return json.dumps(character)[1:-1] if character != "\x7f" else "\\u007f"


def visible_tree(value: Any) -> Any:
    """Returns JSON data with all its texts and names visible, over several lines. Recursive: cap the depth first."""

    def in_lines(text: str) -> str:
        return visible(text.replace("\r\n", "\n"), keep="\n\t")

    return mapped(value, in_lines, keys=visible)


TEXTS: Final = frozenset(("title", "description", "$comment"))
DATA: Final = frozenset(("default", "const", "enum", "examples", "example"))
MAPS: Final = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))


def visible_schema(schema: Any) -> Any:
    """Returns a JSON Schema whose texts are visible, values and names as they are; the same object where nothing in it
    was hidden. Recursive: cap the depth first."""
    if is_array(schema):
        items = [visible_schema(item) for item in schema]
        return items if any(new is not old for new, old in zip(items, schema, strict=True)) else schema
    if not is_object(schema):
        return schema
    made = {key: _visible_member(key, value) for key, value in schema.items()}
    return made if any(made[key] is not value for key, value in schema.items()) else schema


def _visible_member(key: str, value: Any) -> Any:
    if key in DATA:
        return value
    if isinstance(value, str):
        return visible(value, keep="\n\t") if key in TEXTS else value
    if key == "enumNames" and is_array(value):
        return [visible(one) if isinstance(one, str) else one for one in value]
    if key in MAPS and is_object(value):
        return _visible_map(value)
    return visible_schema(value)


def _visible_map(schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    made = {name: visible_schema(schema) for name, schema in schemas.items()}
    return made if any(made[name] is not schema for name, schema in schemas.items()) else schemas
