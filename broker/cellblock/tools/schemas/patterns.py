"""Tells which regular expressions of a schema can be matched in bounded time, and what matching them costs.

Schemas come from upstream servers, so a `pattern` is hostile until shown otherwise. The automaton engine
matches in time proportional to text x states and knows no lookaround or back-reference; a pattern that it
cannot take is left unchecked, as a backtracking engine has no bound that holds (a step limit is per start
position: `(?=a)(a+)+$` with a limit of 10,000 steps still takes 3 s on 100 KB).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

import jsonschema_rs

MAX_CHARS: Final = 1000
"""Sets the longest pattern, in characters."""
MAX_STATES: Final = 4000
"""Sets the most automaton states, as `states` estimates them."""
OPTIONS: Final = jsonschema_rs.RegexOptions(size_limit=256 * 1024)
"""Holds the automaton engine; a compiled pattern takes at most 256 KiB."""

_TOKEN: Final = re.compile(
    r"\\[pP]\{[^}]{0,64}+\}|\\.|\[\^?[^\]\\]*+(?:\\.[^\]\\]*+)*+(?:\]|\\?\Z)|\{\d+(?:,\d*)?\}|.", re.DOTALL
)
_WIDE: Final = 10  # `.` and negated classes are a small automaton over UTF-8 bytes
_UNICODE: Final = 300


def states(pattern: str) -> int:
    """Estimates how many automaton states a pattern needs; repeats with counts multiply."""
    groups: list[int] = [0]
    last = 0
    for token in _TOKEN.findall(pattern):
        if token == "(":
            groups.append(0)
            last = 0
        elif token == ")" and len(groups) > 1:
            last = groups.pop() + 1
            groups[-1] += last
        elif token[0] == "{" and len(token) > 1:
            times = max(int(number) for number in re.findall(r"\d{1,6}", token))
            groups[-1] += last * max(0, times - 1)
            last *= times
        else:
            last = (
                _UNICODE if token[:2] in (r"\p", r"\P") else _WIDE if token == "." or token[:2] == "[^" else 1
            )
            groups[-1] += last
    return sum(groups)


def is_usable(pattern: str) -> bool:
    """Says whether a pattern can be matched in bounded time."""
    return _checker(pattern) is not None


def matches(pattern: str, text: str) -> bool:
    """Says whether a usable pattern is found in a text; False for one that is not usable."""
    checker = _checker(pattern)
    return checker is not None and checker.is_valid(text)


@lru_cache(maxsize=256)
def _checker(pattern: str) -> jsonschema_rs.Validator | None:
    if len(pattern) > MAX_CHARS or states(pattern) > MAX_STATES:
        return None
    try:
        return jsonschema_rs.Draft202012Validator({"pattern": pattern}, pattern_options=OPTIONS, offline=True)
    except ValueError:
        return None
