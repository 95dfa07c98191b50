"""Makes the types of one text of declarations, of either kind: for a compiler, or for agents to read.

For a compiler each schema's type allows all that the schema allows, further keys above all. What agents read leaves out
the index signatures that say only that, and declares once what several tools share. An index signature that allows any
value beside declared keys is how schemas are by default, and a value with further keys is right: the compiler has it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

from cellblock.catalog.model import JsonSchema
from cellblock.catalog.typescript.convert import TypeText, compiled, schema_to_type, too_long
from cellblock.catalog.typescript.fixed import TAKEN
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

Later = Callable[[], TypeText]
"""Gives the text of a type, once, when all have been added; in the order of the text."""

MAX_NESTING: Final = 64
"""Bounds the definitions that are rewritten inside each other; deeper ones keep a name of their own."""

Key = tuple[object, ...]
_Shared = dict[tuple[Shape, tuple[type, ...]], Ref]

_OBJECT: Final = Keyword("object")


class CompiledTypes:
    """Makes the types of a text that a compiler is given: each schema's stand by themselves."""

    reading = False
    indent = 2

    def __init__(self) -> None:
        self._taken = set(TAKEN)

    def add(self, schema: JsonSchema, name: str, *, argument: bool = False) -> Later:
        """Adds the type of a schema; `name` is what a name of it, or names of its parts, are made from."""
        # Another name when a type of the module bears it or begins with it as aliases do.
        free, number = name, 2
        while free in self._taken:
            free, number = f"{name}{number}", number + 1
        made = schema_to_type(schema, indent=self.indent, name=free, argument=argument, taken=self._taken)
        return lambda: made

    def input_text(self, given: TypeText | None) -> str:
        """Gives the text of a parameter's type; None: the tool takes what it is given."""
        return "{ [key: string]: unknown }" if given is None else given.text


class ReadTypes:
    """Makes the types of a text that agents read: all are added, then printed, when it is known which parts are
    shared."""

    reading = True
    indent = 0

    def __init__(self) -> None:
        self._definitions: Definitions = {}
        self._shared: _Shared = {}
        self._schemas = 0
        self._printer = Printer(self._definitions, set(TAKEN), reading=True)

    def add(self, schema: JsonSchema, name: str, *, argument: bool = False) -> Later:
        """Adds the type of a schema; `name` is for its root, where that is shared."""
        made = compiled(schema, argument=argument)
        self._schemas += 1
        shape = _Rewriting(self._schemas, made.definitions, self._definitions, self._shared, name).root(
            made.shape
        )
        self._printer.count(shape)

        def text() -> TypeText:
            try:
                return made.as_text(*self._printer.print_counted(shape))
            except TooLong:
                return made.as_text(too_long(made))

        return text

    def input_text(self, given: TypeText | None) -> str:
        """Gives the text of a parameter's type; None: the tool takes what it is given."""
        # To the compiler, `object` would be the same here; `{}` says that nothing need be in it.
        return "{}" if given is None or given.text == "object" else given.text


Types: TypeAlias = CompiledTypes | ReadTypes
"""Holds the types of one text, and the blanks that its lines begin with."""


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
        """Gives what a reference becomes: what it means, or a name where that holds the reference itself."""
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
