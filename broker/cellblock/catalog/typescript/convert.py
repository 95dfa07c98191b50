"""One JSON Schema to one TypeScript type, with every budget and fallback in place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cellblock.catalog.model import JsonSchema
from cellblock.catalog.typescript.budget import Budget
from cellblock.catalog.typescript.compiler import Compiler
from cellblock.catalog.typescript.docs import Docs
from cellblock.catalog.typescript.document import Document, Draft
from cellblock.catalog.typescript.limits import MAX_TEXT
from cellblock.catalog.typescript.printer import Printer, TooLong
from cellblock.catalog.typescript.shapes import OPEN_OBJECT, UNKNOWN, Object, Shape, Union, Unknown, union


@dataclass(frozen=True, slots=True)
class TypeText:
    """A TypeScript type for a JSON Schema (Code Mode specification, section 6.2).

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


def schema_to_type(
    schema: JsonSchema,
    *,
    indent: int = 0,
    name: str = "Type",
    draft: Draft | None = None,
    argument: bool = False,
    taken: set[str] | None = None,
) -> TypeText:
    """The type of a JSON Schema: never narrower than the schema, and as narrow as TypeScript can say.

    `indent` is the number of blanks in front of every line but the first of `text`. `name` is an ASCII
    identifier that names of aliases begin with. `draft` states the rules of a schema without `$schema`.
    `argument` reads the root as a tool's input: of the kinds of values that a schema without `type` allows,
    only objects can be sent when it describes an object. `taken` holds type names that are in use already;
    new ones are added.

    Malformed schemas do not raise: what cannot be read allows everything.
    """
    root: object = dict(schema) if isinstance(schema, Mapping) else schema
    budget = Budget()
    document = Document(root, draft)
    docs = Docs(document)
    compiler = Compiler(document, budget, docs)
    names = set[str]() if taken is None else taken
    shape = compiler.compile([document.root])
    if argument:
        shape = _objects_only(compiler.resolved(shape), shape)
    notes = docs.of_root(document.root)
    printer = Printer(compiler.definitions, name, names)
    try:
        text, aliases = printer.print(shape)
    except TooLong:
        budget.warn(f"The type would be longer than {MAX_TEXT} characters, so it is unknown.")
        text, aliases = "unknown", list[str]()
    gap = "\n" + " " * indent
    return TypeText(
        text=text.replace("\n", gap) if indent else text,
        aliases=tuple(aliases),
        warnings=tuple(budget.warnings),
        root_warnings=tuple(budget.take_unplaced()),
        notes=notes,
        accepts_empty=_accepts_empty(compiler.resolved(shape), compiler),
    )


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
