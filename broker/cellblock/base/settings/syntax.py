"""Turns the text of a configuration file into plain data: JSON, JSON with comments as VS Code allows them, or TOML."""

from __future__ import annotations

import json
import re
import tomllib
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
