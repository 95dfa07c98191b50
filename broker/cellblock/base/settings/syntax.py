"""Turns the text of a configuration file into plain data: JSON, JSON with comments as VS Code allows them, or TOML; and
finds where each key and value stands, which is only asked once something is wrong.

Both scanners take text that its parser has accepted, so they look at structure alone.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

JSON_STRING: Final = r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)'
"""Matches a JSON string, with `re.S`; to the end of the text where none ends it, else each quote in it would be tried
as a beginning."""

_IN_JSONC: Final = re.compile(JSON_STRING + r"|//[^\n]*|/\*.*?(?:\*/|\Z)", re.S)
_LAST_COMMA: Final = re.compile(JSON_STRING + r"|,(?=\s*[}\]])", re.S)
_TOML_AT: Final = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")

TOML_SUFFIX: Final = ".toml"


class Position(NamedTuple):
    """A position is a place in a text: line and column, both from 1; columns are characters."""

    line: int
    column: int


class SyntaxFault(Exception):
    """Tells that a text is no JSON or TOML. `position` is where it stops being any."""

    def __init__(self, message: str, position: Position) -> None:
        super().__init__(message)
        self.message = message
        self.position = position


def parse(text: str, *, toml: bool) -> Any:
    """Returns the data that a text says.

    Raises:
        SyntaxFault: It is not valid.
    """
    try:
        return tomllib.loads(text) if toml else _parse_json(text)
    except json.JSONDecodeError as error:
        raise SyntaxFault(error.msg, Position(error.lineno, error.colno)) from None
    except tomllib.TOMLDecodeError as error:
        raise _toml_fault(str(error), text) from None
    except RecursionError:
        raise SyntaxFault("it is nested too deeply", Position(1, 1)) from None
    except ValueError as error:
        # A number that Python does not read, of thousands of digits.
        raise SyntaxFault(str(error), Position(1, 1)) from None


def without_comments(text: str) -> str:
    """Returns the text with white space for comments and last commas; every other character keeps its place."""
    return _LAST_COMMA.sub(lambda found: found[0] if found[0][0] == '"' else " ", blank_comments(text))


def blank_comments(text: str) -> str:
    """Returns the text with white space for comments; every other character keeps its place."""
    return _IN_JSONC.sub(lambda found: found[0] if found[0][0] == '"' else _blank(found[0]), text)


def position_at(text: str, offset: int) -> Position:
    start = text.rfind("\n", 0, offset) + 1
    return Position(text.count("\n", 0, offset) + 1, offset - start + 1)


# ---- inside ------------------------------------------------------------------------------------------


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        # Looked for only now: nearly every file has neither comments nor last commas.
        return json.loads(without_comments(text))


def _blank(comment: str) -> str:
    return "".join(char if char in "\r\n" else " " for char in comment)


def _toml_fault(message: str, text: str) -> SyntaxFault:
    found = _TOML_AT.search(message)
    if found is None:
        return SyntaxFault(message, Position(1, 1))
    where = Position(int(found[1]), int(found[2])) if found[1] else position_at(text, len(text))
    return SyntaxFault(message[: found.start()], where)


Path = tuple[str | int, ...]
"""Gives keys and indexes from the top of a document to a value."""

_JSON_TOKEN: Final = re.compile(JSON_STRING + r'|[{}\[\]:,]|[^\s{}\[\]:,"]+', re.S)

# What has no end goes to the end of its line or of the text: tried and given up, it would be read once for each quote.
_TOML_TOKEN: Final = re.compile(
    r"""\"{3}(?>(?:[^"\\]++|\\.|"{1,2}(?!"))*)(?:"{3,5}|\\?\Z)|'{3}(?>(?:[^']++|'{1,2}(?!'))*)(?:'{3,5}|\Z)"""
    r"""|"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"?|'[^'\n]*+'?|#[^\n]*+""",
    re.S,
)
_TOML_LONG: Final = re.compile(r"\"\"\"|'''|#")
_NO_END: Final = re.compile(r"[^\r\n]")
_BRACKETS: Final = re.compile(rf"{_TOML_TOKEN.pattern}|[\[\]{{}}]", re.S)
_TOML_KEY: Final = re.compile(r"""\"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"?|'[^'\n]*+'?|[A-Za-z0-9_-]++""")
_KEYS: Final = rf"(?:{_TOML_KEY.pattern})(?:[ \t]*\.[ \t]*(?:{_TOML_KEY.pattern}))*"
_TOML_LINE: Final = re.compile(rf"^[ \t]*(?:(\[\[?)[ \t]*({_KEYS})[ \t]*\]|({_KEYS})[ \t]*=[ \t]*)", re.M)


@dataclass(slots=True)
class Positions:
    """Holds offsets of keys and values in `text`; `duplicates` are JSON keys that stand a second time in one object."""

    text: str
    keys: dict[Path, int] = field(default_factory=dict[Path, int])
    values: dict[Path, int] = field(default_factory=dict[Path, int])
    duplicates: list[tuple[Path, int]] = field(default_factory=list[tuple[Path, int]])

    def at(self, offset: int) -> Position:
        """Returns the line and column of a character of the text."""
        return position_at(self.text, offset)

    def find(self, path: Sequence[str | int], *, key: bool) -> Position:
        """Returns where a key or a value is; of one that is not there, the innermost value that would hold it."""
        wanted = tuple(path)
        if key and wanted in self.keys:
            return position_at(self.text, self.keys[wanted])
        while wanted and wanted not in self.values:
            wanted = wanted[:-1]
        return position_at(self.text, self.values.get(wanted, 0))


def find_positions(text: str, *, toml: bool) -> Positions:
    """Returns the positions of everything in a text that `syntax.parse` has accepted."""
    found = Positions(text)
    if toml:
        _scan_toml(found)
    else:
        _scan_json(found)
    return found


def _scan_json(found: Positions) -> None:
    path: list[str | int | None] = []  # None: a key is to come
    for token in _JSON_TOKEN.finditer(without_comments(found.text)):
        what = token[0]
        if what in ("}", "]"):
            path.pop()
        elif what == ",":
            last = path[-1]
            path[-1] = last + 1 if isinstance(last, int) else None
        elif what != ":":
            if path and path[-1] is None:
                path[-1] = json.loads(what)
                here = _whole(path)
                if here in found.keys:
                    found.duplicates.append((here, token.start()))
                    _forget(found, here)
                found.keys[here] = token.start()
                continue
            found.values[_whole(path)] = token.start()
            if what in ("{", "["):
                path.append(None if what == "{" else 0)


def _forget(found: Positions, path: Path) -> None:
    """Takes out what stood under a key that is there again: the last one counts."""
    for known in (found.keys, found.values):
        for below in [one for one in known if one[: len(path)] == path]:
            del known[below]


def _whole(path: Sequence[str | int | None]) -> Path:
    return tuple(part for part in path if part is not None)


def _value_end(text: str, start: int) -> int:
    """Finds where a value ends, which goes on over lines where it has a list."""
    depth = 0
    for token in _BRACKETS.finditer(text, start) if text[start : start + 1] in ("[", "{") else ():
        depth += (token[0] in "[{") - (token[0] in "]}")
        if depth == 0:
            return token.end()
    return start


def _scan_toml(found: Positions) -> None:
    """Finds tables and the keys that begin lines; what is within a value stands where that does."""
    plain = _TOML_TOKEN.sub(
        lambda token: _NO_END.sub("~", token[0]) if _TOML_LONG.match(token[0]) else token[0], found.text
    )
    found.values[()] = 0
    table: Path = ()
    arrays: Counter[Path] = Counter()
    at = 0
    while line := _TOML_LINE.search(plain, at):
        at = line.end() if line[1] else _value_end(plain, line.end())
        path = () if line[1] else table
        for word in _TOML_KEY.finditer(plain, *line.span(2 if line[1] else 3)):
            if path in arrays:
                path = (*path, arrays[path] - 1)
            name = word[0]
            path = (*path, tomllib.loads(f"k = {name}")["k"] if name[0] in "\"'" else name)
            found.keys.setdefault(path, word.start())
            found.values.setdefault(path, line.start(1) if line[1] else word.start())
        if line[1]:
            arrays.update([path] if line[1] == "[[" else [])
            table = (*path, arrays[path] - 1) if path in arrays else path
        # A table may be opened implicitly first, by one inside it.
        found.values[table if line[1] else path] = line.start(1) if line[1] else line.end()
