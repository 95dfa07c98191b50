"""Env_file reads files of variables as editors have them: `NAME=value` a line, with quotes and comments."""

from __future__ import annotations

import re
from typing import Final

_NAME: Final = re.compile(r"(?:export\s+)?([A-Za-z_][\w.-]*)\s*")
_QUOTED: Final = re.compile(r"""(?:"((?:[^"\\]|\\.)*)"|'([^']*)')\s*(?:#.*)?""", re.S)
_COMMENT: Final = re.compile(r"\s#.*", re.S)
_ESCAPE: Final = re.compile(r"\\(.)", re.S)
_ESCAPED: Final = {"n": "\n", "r": "\r", "t": "\t"}


def variables_of(text: str) -> dict[str, str]:
    """Returns the variables that a file's text sets; of one name the last.

    Raises:
        ValueError: A line is none; the message has its number and no more.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        before, sign, after = line.partition("=")
        name, value = _NAME.fullmatch(before), _value(after)
        if not sign or name is None or value is None:
            raise ValueError(f"line {number} is no NAME=value")
        found[name[1]] = value
    return found


def _value(text: str) -> str | None:
    """Returns the value behind a sign; None where a quote has no end."""
    plain = text.strip()
    if plain[:1] not in ('"', "'"):
        # A `#` within a word is no comment: secrets have them.
        return _COMMENT.sub("", text).strip()
    quoted = _QUOTED.fullmatch(plain)
    if quoted is None:
        return None
    if quoted[1] is None:
        return quoted[2]
    return _ESCAPE.sub(lambda one: _ESCAPED.get(one[1], one[1]), quoted[1])
