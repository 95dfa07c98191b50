"""Turns one JSON Schema into one TypeScript type, with every budget and fallback in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cellblock.catalog.model import JsonSchema
from cellblock.catalog.typescript.budget import Budget
from cellblock.catalog.typescript.compiler import Compiler
from cellblock.catalog.typescript.docs import Docs
from cellblock.catalog.typescript.document import Document, Draft
from cellblock.catalog.typescript.limits import MAX_TEXT
from cellblock.catalog.typescript.printer import Printer, TooLong
from cellblock.catalog.typescript.shapes import (
    OPEN_OBJECT,
    UNKNOWN,
    Definitions,
    Object,
    Shape,
    Union,
    Unknown,
    union,
)


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

    def as_text(self, text: str, aliases: Sequence[str] = ()) -> TypeText:
        """Adds the text to what is known of the type."""
        return TypeText(
            text=text,
            aliases=tuple(aliases),
            warnings=tuple(self.budget.warnings),
            root_warnings=tuple(self.budget.take_unplaced()),
            notes=self.notes,
            accepts_empty=self.accepts_empty,
        )


def compiled(schema: JsonSchema, *, draft: Draft | None = None, argument: bool = False) -> Compiled:
    """Gives the shape of a JSON Schema: never narrower than the schema, and as narrow as TypeScript can say.

    `draft` states the rules of a schema without `$schema`. `argument` reads the root as a tool's input: of the kinds of
    values that a schema without `type` allows, only objects can be sent when it describes an object.

    Malformed schemas do not raise: what cannot be read allows everything.
    """
    root: object = dict(schema) if isinstance(schema, Mapping) else schema
    budget = Budget()
    document = Document(root, draft)
    docs = Docs(document)
    compiler = Compiler(document, budget, docs)
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
    indent: int = 0,
    name: str = "Type",
    draft: Draft | None = None,
    argument: bool = False,
    taken: set[str] | None = None,
) -> TypeText:
    """Gives the type of a JSON Schema as the compiler is given it.

    `indent` is the number of blanks in front of every line but the first of `text`. `name` is an ASCII
    identifier that names of aliases begin with. `draft` and `argument` are as in `compiled`. `taken` holds type names
    that are in use already; new ones are added.
    """
    made = compiled(schema, draft=draft, argument=argument)
    printer = Printer(made.definitions, set[str]() if taken is None else taken, prefix=name)
    try:
        text, aliases = printer.print(made.shape)
    except TooLong:
        text, aliases = too_long(made), list[str]()
    return made.as_text(text.replace("\n", "\n" + " " * indent) if indent else text, aliases)


def too_long(made: Compiled) -> str:
    """Gives the type in place of one that would be too long, with a warning."""
    made.budget.warn(f"The type would be longer than {MAX_TEXT} characters, so it is unknown.")
    return "unknown"


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
