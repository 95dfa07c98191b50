"""Reads the shape of values: all values of one place are looked at together, column by column.

A list of ten thousand objects with eight keys is read as eight columns, each by one call that runs in C; that is what
keeps inference cheap.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, Final, cast

from cellblock.types.learning.shape import (
    ANYTHING,
    MAX_DEPTH,
    MAX_NAMES,
    NAME,
    NOTHING,
    Fields,
    Property,
    Shape,
)

MAX_VALUES: Final = 250_000
"""Bounds the values looked at in one sample: a result of several MiB. What is past it counts as `ANYTHING`."""

FORMATS: Final = {
    "date-time": re.compile(
        r"\d{4}-(?:0\d|1[0-2])-(?:[0-2]\d|3[01])[Tt](?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,9})?"
        r"(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)",
        re.ASCII,
    ),
    "date": re.compile(r"\d{4}-(?:0\d|1[0-2])-(?:[0-2]\d|3[01])", re.ASCII),
    "uuid": re.compile(r"[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}"),
    "email": re.compile(r"[A-Za-z0-9_.+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,8}"),
    "uri": re.compile(r"https?://[!#-;=?-\[\]_a-z~%]{1,2000}"),
}
"""Holds the formats that a string's text shows, by their names in JSON Schema; stated when all samples have one."""

_ENVIRONMENT: Final = frozenset({"PATH", "HOME", "USER", "SHELL", "LANG", "PWD"})
"""Holds names of variables, by which an environment is known: another machine's has others."""

_KNOWN: Final = frozenset({dict, list, str, int, float, bool, type(None)})


def shape_of(values: Sequence[Any], *, by: str = "", max_values: int = MAX_VALUES) -> Shape:
    """Gives the shape of JSON values that were seen in one place; equal to the join of their shapes.

    Args:
        values: Plain JSON data as Python has it.
        by: Whose they are, as in `shape.Property`.
        max_values: Values looked at, containers included; past them the shape is `ANYTHING`.
    """
    return _Reader(max_values, by).column(values, 0)


class _Reader:
    def __init__(self, left: int, by: str) -> None:
        self._left = left
        self._by = by

    def column(self, values: Sequence[Any], depth: int) -> Shape:
        """Gives the shape of all values of one place."""
        if not values:
            return NOTHING
        self._left -= len(values)
        kinds = set(map(type, values))
        if self._left < 0 or not kinds <= _KNOWN:
            return ANYTHING
        floats = _only(float, values, kinds)
        finite = all(map(math.isfinite, floats))
        integers = int in kinds
        strings = _only(str, values, kinds)
        lists = cast("list[list[Any]]", _only(list, values, kinds))
        dicts = cast("list[dict[str, Any]]", _only(dict, values, kinds))
        if depth >= MAX_DEPTH and (lists or dicts):
            return ANYTHING
        if not finite:
            # Scripts get null for what is no JSON number.
            floats = [number for number in floats if math.isfinite(number)]
        return Shape(
            null=type(None) in kinds or not finite,
            boolean=bool in kinds,
            number="number" if floats else "integer" if integers else "",
            formats=_formats(strings) if strings else None,
            items=self.column(list(chain.from_iterable(lists)), depth + 1) if lists else None,
            objects=self._fields(dicts, depth) if dicts else None,
        )

    def _fields(self, rows: Sequence[dict[str, Any]], depth: int) -> Fields:
        names = dict.fromkeys(chain.from_iterable(rows))
        kept = [name for name in names if type(name) is str and NAME.match(name)]
        if len(kept) > MAX_NAMES or (_ENVIRONMENT.intersection(kept) and all(map(str.isupper, kept))):
            everything = list(chain.from_iterable(row.values() for row in rows))
            return Fields({}, self.column(everything, depth + 1), is_map=True, by=self._by)
        other = NOTHING
        if len(kept) < len(names):
            known = frozenset(kept)
            other = self.column(
                [value for row in rows for name, value in row.items() if name not in known], depth + 1
            )
        properties: dict[str, Property] = {}
        for name in kept:
            try:
                column = list(map(itemgetter(name), rows))
            except KeyError:
                column = [row[name] for row in rows if name in row]
            properties[name] = Property(self.column(column, depth + 1), len(column) == len(rows), self._by)
        return Fields(properties, other, by=self._by)


def _only(kind: type, values: Sequence[Any], kinds: set[type]) -> Sequence[Any]:
    if kind not in kinds:
        return ()
    return values if len(kinds) == 1 else [value for value in values if type(value) is kind]


def _formats(strings: Sequence[str]) -> frozenset[str]:
    return frozenset(name for name, pattern in FORMATS.items() if all(map(pattern.fullmatch, strings)))
