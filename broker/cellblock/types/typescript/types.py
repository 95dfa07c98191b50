"""Makes the types of one text of declarations, of either kind: for a compiler, or for agents to read.

For a compiler each schema's type allows all that the schema allows, further keys above all. What agents read leaves out
the index signatures that say only that, and declares once what several tools share. An index signature that allows any
value beside declared keys is how schemas are by default, and a value with further keys is right: the compiler has it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from cellblock.tools.catalog.model import JsonSchema
from cellblock.types.typescript.compiler import Compiler
from cellblock.types.typescript.docs import Docs
from cellblock.types.typescript.document import Document
from cellblock.types.typescript.limits import MAX_TEXT, Budget
from cellblock.types.typescript.printer import Printer, TooLong
from cellblock.types.typescript.shapes import (
    OPEN_OBJECT,
    UNKNOWN,
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
    inline,
    union,
)

UNTYPED: Final = "McpToolOutput"
RESULT: Final = "McpToolResult"
JSON_TEXT: Final = "JsonText"
META: Final = "ServerMeta"
TAKEN: Final = frozenset([UNTYPED, RESULT, JSON_TEXT, META, "Promise", "Array", "Object", "JSON", "jsonOf"])
"""Holds the names that no type of a schema gets."""


@dataclass(frozen=True, slots=True)
class TypeText:
    """Holds a TypeScript type for a JSON Schema (Code Mode specification, section 6.2).

    `text` is a type expression. `aliases` are `type NAME = …;` declarations that have to stand in its scope:
    recursive and repeated definitions. `warnings` are plain sentences about what is wider than the schema,
    safe inside a comment; `root_warnings` are those that no property's doc comment carries. `notes` are doc
    lines with the root's own constraints. `accepts_empty` says whether `{}` fits the type.
    """

    text: str
    aliases: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    root_warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    accepts_empty: bool = True


@dataclass(frozen=True, slots=True)
class Compiled:
    """Holds the shape of a JSON Schema, before it is text. `definitions` is what its `Ref`s mean; `notes` and
    `accepts_empty` are as in `TypeText`."""

    shape: Shape
    definitions: Definitions
    budget: Budget
    notes: tuple[str, ...]
    accepts_empty: bool

    def printed(self, printer: Printer) -> TypeText:
        """Gives the type as text, by a printer that has counted its shape; `unknown` where that would be too long."""
        try:
            text, aliases = printer.print(self.shape)
        except TooLong:
            self.budget.warn(f"The type would be longer than {MAX_TEXT} characters, so it is unknown.")
            text, aliases = "unknown", list[str]()
        return TypeText(
            text=text,
            aliases=tuple(aliases),
            warnings=tuple(self.budget.warnings),
            root_warnings=tuple(self.budget.take_unplaced()),
            notes=self.notes,
            accepts_empty=self.accepts_empty,
        )


def compiled(schema: JsonSchema, *, argument: bool = False, exact: bool = False) -> Compiled:
    """Gives the shape of a JSON Schema: never narrower than the schema, and as narrow as TypeScript can say.

    With `exact`, integers that numbers cannot have are bigints. `argument` reads the root as a tool's input: of the
    kinds of values that a schema without `type` allows, only objects can be sent when it describes an object.

    Malformed schemas do not raise: what cannot be read allows everything.
    """
    root: object = dict(schema) if isinstance(schema, Mapping) else schema
    budget = Budget()
    document = Document(root)
    docs = Docs(document)
    compiler = Compiler(document, budget, docs, exact=exact)
    shape = compiler.compile([document.root])
    if argument:
        shape = _objects_only(compiler.resolved(shape), shape)
    return Compiled(
        shape=shape,
        definitions=compiler.definitions,
        budget=budget,
        notes=docs.of_root(document.root),
        accepts_empty=_accepts_empty(compiler.resolved(shape), compiler),
    )


def schema_to_type(
    schema: JsonSchema,
    *,
    name: str = "Type",
    argument: bool = False,
    exact: bool = False,
    taken: set[str] | None = None,
) -> TypeText:
    """Gives the type of a JSON Schema as the compiler is given it.

    `name` is an ASCII identifier that names of aliases begin with. `argument` and `exact` are as in `compiled`. `taken`
    holds type names that are in use already; new ones are added.
    """
    made = compiled(schema, argument=argument, exact=exact)
    printer = Printer(made.definitions, set[str]() if taken is None else taken, prefix=name)
    printer.count(made.shape)
    return made.printed(printer)


def _objects_only(whole: Shape, shape: Shape) -> Shape:
    if isinstance(whole, Unknown):
        return OPEN_OBJECT
    if not isinstance(whole, Union):
        return shape
    objects = [member for member in whole.members if isinstance(member, Object)]
    described = [member for member in objects if member != OPEN_OBJECT]
    # MCP sends arguments as one object: other kinds stay only where the schema describes no object.
    return union([*objects]) if described else shape


def _accepts_empty(shape: Shape, compiler: Compiler) -> bool:
    if isinstance(shape, Union):
        return any(_accepts_empty(compiler.resolved(member), compiler) for member in shape.members)
    if isinstance(shape, Object):
        return not any(one.required for one in shape.properties)
    return shape is UNKNOWN or isinstance(shape, Unknown)


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

    def __init__(self) -> None:
        self._taken = set(TAKEN)

    def add(self, schema: JsonSchema, name: str, *, argument: bool = False, exact: bool = False) -> Later:
        """Adds the type of a schema; `name` is what a name of it, or names of its parts, are made from."""
        # Another name when a type of the module bears it or begins with it as aliases do.
        free, number = name, 2
        while free in self._taken:
            free, number = f"{name}{number}", number + 1
        made = schema_to_type(schema, name=free, argument=argument, exact=exact, taken=self._taken)
        return lambda: made


class ReadTypes:
    """Makes the types of a text that agents read: all are added, then printed, when it is known which parts are
    shared."""

    reading = True

    def __init__(self) -> None:
        self._definitions: Definitions = {}
        self._shared: _Shared = {}
        self._schemas = 0
        self._printer = Printer(self._definitions, set(TAKEN), reading=True)

    def add(self, schema: JsonSchema, name: str, *, argument: bool = False, exact: bool = False) -> Later:
        """Adds the type of a schema; `name` is for its root, where that is shared."""
        made = compiled(schema, argument=argument, exact=exact)
        self._schemas += 1
        rewriting = _Rewriting(self._schemas, made.definitions, self._definitions, self._shared, name)
        made = replace(made, shape=rewriting.root(made.shape))
        self._printer.count(made.shape)
        return lambda: made.printed(self._printer)


Types: TypeAlias = CompiledTypes | ReadTypes
"""Holds the types of one text."""


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
            Index(self._of(one.shape, hint), self._properties(one.also), ())
            for one in shape.indexes
            if not isinstance(one.shape, Unknown)
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
