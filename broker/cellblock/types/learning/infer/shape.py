"""Shapes are the data model of inference: a lattice of shapes, from `NOTHING` (no value seen) to `ANYTHING`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

MAX_DEPTH: Final = 24
"""Bounds the levels described; what is deeper is `ANYTHING`. The declaration generator goes to 32."""

MAX_NAMES: Final = 128
"""Bounds the property names kept for one kind of object; with more it is a map, and only its values are described."""

MAX_VARIANTS: Final = 12
"""Bounds the tags that one union is split by; with more its members are one shape."""

MAX_SHAPES: Final = 1_000
"""Bounds the shapes in one merged shape: about 40 KiB of declaration. Past it the deepest levels become `ANYTHING`."""

NAME: Final = re.compile(r"(?!__proto__\Z)[A-Za-z_$][A-Za-z0-9_$]{0,63}\Z")
"""Holds the property names that are kept, of at most 64 characters. A server chooses its names freely, and they are
shown to an agent: a name that is no identifier can be a sentence. `__proto__` is a key that JavaScript gives its own
meaning."""

TAGS: Final = (
    "type",
    "kind",
    "__typename",
    "_type",
    "object",
    "variant",
    "event",
    "action",
    "op",
    "status",
    "state",
    "role",
)
"""Holds the properties that tell the members of a union apart, by convention; the first one that an object has counts.
Values of no other property are ever kept."""

TAG: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/-]{0,39}\Z")
"""Holds the values that can be a tag: names of kinds, not texts."""

Number = Literal["", "integer", "number"]


@dataclass(frozen=True, slots=True)
class Property:
    """Holds one key of objects; `required` when every object had it."""

    shape: Shape
    required: bool


@dataclass(frozen=True, slots=True)
class Fields:
    """Holds what objects held: kept names, and under `other` all values whose names are not kept.

    `is_map`: the names were too many to be fields; all values are under `other`.
    """

    properties: Mapping[str, Property]
    other: Shape
    is_map: bool = False


@dataclass(frozen=True, slots=True)
class Objects:
    """Holds objects split by the value of their property `tag`, or all under `""` when `tag` is None."""

    tag: str | None
    variants: Mapping[str, Fields]


@dataclass(frozen=True, slots=True)
class Shape:
    """Holds what values looked like. Equal shapes say the same; the order of names and variants does not count.

    Attributes:
        anything: Nothing is known about some of the values: they can be anything.
        number: `"integer"` when all numbers were written without a fraction.
        formats: The formats that all strings have; None when there was no string.
        items: What the arrays held, `NOTHING` when all were empty; None when there was no array.
    """

    anything: bool = False
    null: bool = False
    boolean: bool = False
    number: Number = ""
    formats: frozenset[str] | None = None
    items: Shape | None = None
    objects: Objects | None = field(default=None)

    def children(self) -> Iterator[Shape]:
        """Gives the shapes directly inside."""
        if self.items is not None:
            yield self.items
        if self.objects is not None:
            for fields in self.objects.variants.values():
                for one in fields.properties.values():
                    yield one.shape
                yield fields.other


NOTHING: Final = Shape()
ANYTHING: Final = Shape(anything=True)
