"""Shapes are the generator's own picture of types, between JSON Schema and TypeScript text.

Shapes hold no schema and no text of an upstream, apart from literals, keys and finished doc lines.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Unknown:
    """Stands for any JSON value."""


@dataclass(frozen=True, slots=True)
class Never:
    """Stands for no value at all."""


@dataclass(frozen=True, slots=True)
class Keyword:
    """Stands for a kind of value named by one TypeScript word: `string`, `number`, `boolean` or `null`."""

    word: str


@dataclass(frozen=True, slots=True)
class Literal:
    """Stands for one string, number or boolean: its TypeScript text, and the keyword of its kind."""

    text: str
    word: str


@dataclass(frozen=True, slots=True)
class Union:
    """Stands for a value of at least one of the members."""

    members: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Array:
    """Stands for an array: `prefix` types the first positions, of which the first `required` must be there; `rest` the
    others."""

    prefix: tuple[Shape, ...] = ()
    required: int = 0
    rest: Shape | None = None


@dataclass(frozen=True, slots=True)
class Property:
    """Describes one key of an object. `doc` is safe for a comment already; its first `prose` lines are a description,
    the others say one fact each."""

    key: str
    shape: Shape
    required: bool
    doc: tuple[str, ...] = ()
    prose: int = 0


INHERITED = (
    "constructor",
    "toString",
    "toLocaleString",
    "valueOf",
    "hasOwnProperty",
    "isPrototypeOf",
    "propertyIsEnumerable",
)
"""Holds the keys that every object has without being given them."""


@dataclass(frozen=True, slots=True)
class Object:
    """Stands for an object; `rest` is of the keys that are no property, None where there are none of these."""

    properties: tuple[Property, ...] = ()
    rest: Shape | None = None

    @property
    def covered(self) -> tuple[Property, ...]:
        """Gives the properties whose types TypeScript wants inside that of the index signature."""
        return () if self.rest is None or isinstance(self.rest, Unknown) else self.properties


@dataclass(frozen=True, slots=True)
class Ref:
    """Refers to a shape that `Definitions` holds under `key`: shared or recursive. `name_hint` is ASCII or empty."""

    key: int
    name_hint: str


Shape: TypeAlias = Unknown | Never | Keyword | Literal | Union | Array | Object | Ref

UNKNOWN = Unknown()
NEVER = Never()
OPEN_OBJECT = Object(rest=UNKNOWN)
ANY_ARRAY = Array(rest=UNKNOWN)


Definitions: TypeAlias = dict[int, Shape]
"""Holds what each `Ref` means, by its key."""


def union(members: list[Shape]) -> Shape:
    """Gives the union of shapes, flat, without duplicates and without literals that a keyword covers."""
    flat: list[Shape] = []
    for member in members:
        flat.extend(member.members if isinstance(member, Union) else (member,))
    if UNKNOWN in flat:
        return UNKNOWN
    words = {member.word for member in flat if isinstance(member, Keyword)}
    kept = [
        member
        for member in dict.fromkeys(flat)
        if not (isinstance(member, Never) or (isinstance(member, Literal) and member.word in words))
    ]
    if {"null", "boolean", "number", "string"} <= words and ANY_ARRAY in kept and OPEN_OBJECT in kept:
        return UNKNOWN
    return Union(tuple(kept)) if len(kept) > 1 else kept[0] if kept else NEVER


def parts_of(shape: Shape) -> Iterable[Shape]:
    """Gives the shapes directly inside one; what a `Ref` means is not inside it."""
    match shape:
        case Union():
            return shape.members
        case Array():
            return shape.prefix if shape.rest is None else (*shape.prefix, shape.rest)
        case Object():
            rest = () if shape.rest is None else (shape.rest,)
            return (*(one.shape for one in (*shape.properties, *shape.covered)), *rest)
        case _:
            return ()


def inline(root: Shape) -> Iterable[Shape]:
    """Gives the shape and all inside it; what a `Ref` means is not inside it."""
    stack = [root]
    while stack:
        shape = stack.pop()
        yield shape
        stack.extend(parts_of(shape))
