"""The types of a text that agents read: those that several tools share are named once, what says nothing is left out.

An index signature that allows any value beside declared keys is such a thing: it is how schemas are by default. What
the compiler checks keeps it (see `convert.schema_to_type`), since a value with further keys is right.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from cellblock.catalog.typescript.convert import Compiled, TypeText, too_long
from cellblock.catalog.typescript.inherited import inline
from cellblock.catalog.typescript.printer import Printer, TooLong
from cellblock.catalog.typescript.shapes import (
    Array,
    Definition,
    Definitions,
    Index,
    Keyword,
    Literal,
    Object,
    Property,
    Ref,
    Shape,
    Union,
    Unknown,
    union,
)

MAX_NESTING: Final = 64
"""Definitions that are rewritten inside each other; deeper ones keep a name of their own."""

Key = tuple[object, ...]
_Shared = dict[tuple[Shape, tuple[type, ...]], Ref]

_OBJECT: Final = Keyword("object")


class SharedTypes:
    """All schemas of one text: first added, then printed, when it is known which parts are used more than once.

    Args:
        taken: Type names in use.
    """

    def __init__(self, taken: set[str]) -> None:
        self._definitions: Definitions = {}
        self._shared: _Shared = {}
        self._schemas = 0
        self._printer = Printer(self._definitions, taken, reading=True)

    def add(self, made: Compiled, name: str) -> Shape:
        """The shape to print for a schema; `name` is for its root, where that is shared."""
        self._schemas += 1
        rewriting = _Rewriting(self._schemas, made.definitions, self._definitions, self._shared, name)
        shape = rewriting.root(made.shape)
        self._printer.count(shape)
        return shape

    def text(self, made: Compiled, shape: Shape) -> TypeText:
        """The text of what `add` gave, with the aliases that no text before has brought."""
        try:
            return made.as_text(*self._printer.print_counted(shape))
        except TooLong:
            return made.as_text(too_long(made))


class _Rewriting:
    """Carries the shapes of one schema over to the definitions of all. There its keys have its `number` in front: those
    of other schemas can be the same."""

    def __init__(self, number: int, own: Definitions, all_: Definitions, shared: _Shared, name: str) -> None:
        self._number = number
        self._own = own
        self._all = all_
        self._shared = shared
        self._name = name
        self._done: dict[Key, Shape] = {}
        self._open: set[Key] = set()
        self._named: set[Key] = set()
        self._late: deque[Key] = deque()

    def root(self, shape: Shape) -> Shape:
        made = self._of(shape, self._name)
        while self._late:
            self._target(self._late.popleft())
        return made

    def _of(self, shape: Shape, hint: str) -> Shape:
        if isinstance(shape, Ref):
            return self._target(shape.key)
        if isinstance(shape, Array):
            rest = None if shape.rest is None else self._of(shape.rest, hint)
            return Array(tuple(self._of(one, hint) for one in shape.prefix), shape.required, rest)
        if isinstance(shape, Union):
            made = union([self._of(one, hint) for one in shape.members])
            return self._share(made, hint) if isinstance(made, Union) else made
        return self._object(shape, hint) if isinstance(shape, Object) else shape

    def _object(self, shape: Object, hint: str) -> Shape:
        indexes = tuple(
            Index(one.template, self._of(one.shape, hint), self._properties(one.also), ())
            for one in shape.indexes
            if one.template is not None or not isinstance(one.shape, Unknown)
        )
        if not shape.properties and not indexes and shape.indexes:
            return _OBJECT
        return self._share(Object(self._properties(shape.properties), indexes), hint)

    def _properties(self, properties: tuple[Property, ...]) -> tuple[Property, ...]:
        return tuple(
            Property(one.key, self._of(one.shape, ""), one.required, one.doc, one.prose) for one in properties
        )

    def _share(self, shape: Shape, hint: str) -> Ref:
        # To Python, `true` equals 1 and 1.0.
        literals = tuple(type(one.value) for one in inline(shape) if isinstance(one, Literal))
        known = self._shared.get((shape, literals))
        if known is None:
            known = self._shared[shape, literals] = Ref(("shared", len(self._shared)))
            self._all[known.key] = Definition(shape, hint)
        return known

    def _target(self, key: Key) -> Shape:
        """What a reference becomes: what it means, or a name where that holds the reference itself."""
        if key in self._done:
            return self._done[key]
        named = Ref((self._number, key))
        if key not in self._open and len(self._open) < MAX_NESTING:
            self._open.add(key)
            definition = self._own[key]
            hint = definition.name_hint or self._name
            shape = self._of(definition.shape, hint)
            self._open.discard(key)
            if key in self._named:
                self._all[named.key] = Definition(shape, hint)
                shape = named
            self._done[key] = shape
            return shape
        if key not in self._open:
            self._late.append(key)
        self._named.add(key)
        return named
