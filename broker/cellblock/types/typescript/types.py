"""Makes the types of one text of declarations, of either kind: for a compiler, or for agents to read.

For a compiler each schema's type allows all that the schema allows, further keys above all. What agents read leaves out
the index signatures that say only that, and declares once what several tools share. An index signature that allows any
value beside declared keys is how schemas are by default, and a value with further keys is right: the compiler has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from cellblock.tools.catalog.model import JsonSchema
from cellblock.tools.schemas.document import Document
from cellblock.types.typescript.compiler import Compiler
from cellblock.types.typescript.limits import MAX_TEXT
from cellblock.types.typescript.printer import Printer, TooLong
from cellblock.types.typescript.shapes import (
    OPEN_OBJECT,
    Definitions,
    Object,
    Ref,
    Shape,
    Union,
    Unknown,
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
    recursive and repeated definitions. `root_warnings` are plain sentences about what is wider than the schema,
    safe inside a comment, that no property's doc comment carries. `notes` are doc lines with the root's own
    constraints. `accepts_empty` says whether `{}` fits the type.
    """

    text: str
    aliases: tuple[str, ...] = ()
    root_warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    accepts_empty: bool = True


Later = Callable[[], TypeText]
"""Gives the text of a type, once, when all have been added; in the order of the text."""


class Types:
    """Makes the types of one text: all are added, then printed, when it is known which parts are shared.

    Args:
        reading: Whether agents read the text; else it is for a compiler.
    """

    def __init__(self, *, reading: bool) -> None:
        self.reading = reading
        self._definitions: Definitions = {}
        self._shared: dict[Shape, Ref] = {}
        self._recursive: set[Ref] = set()
        self._printer = Printer(self._definitions, self._recursive, set(TAKEN), reading=reading)

    def add(self, schema: JsonSchema, name: str, *, argument: bool = False, exact: bool = False) -> Later:
        """Adds the type of a schema: never narrower than the schema, and as narrow as TypeScript can say.

        Malformed schemas do not raise: what cannot be read allows everything.

        Args:
            schema: The JSON Schema.
            name: An ASCII identifier for its root, where that is shared.
            argument: Whether the root is a tool's input: of the kinds of values that a schema without `type` allows,
                only objects can be sent when it describes an object.
            exact: Whether integers that numbers cannot have are bigints.
        """
        document = Document(dict(schema) if isinstance(schema, Mapping) else schema)
        compiler = Compiler(
            document,
            self._definitions,
            self._shared,
            self._recursive,
            name,
            reading=self.reading,
            exact=exact,
        )
        shape = compiler.compile([document.root])
        if argument:
            shape = _objects_only(compiler.resolved(shape), shape)
        notes = compiler.docs.of_root(document.root)
        accepts_empty = _accepts_empty(shape, compiler)
        self._printer.count(shape)

        def printed() -> TypeText:
            budget = compiler.budget
            try:
                text, aliases = self._printer.print(shape)
            except TooLong:
                budget.warn(f"The type would be longer than {MAX_TEXT} characters, so it is unknown.")
                text, aliases = "unknown", list[str]()
            return TypeText(text, tuple(aliases), tuple(budget.take_unplaced()), notes, accepts_empty)

        return printed


def schema_to_type(
    schema: JsonSchema, *, name: str = "Type", argument: bool = False, exact: bool = False
) -> TypeText:
    """Gives the type of a JSON Schema as the compiler is given it; everything is as in `Types.add`."""
    return Types(reading=False).add(schema, name, argument=argument, exact=exact)()


def _objects_only(whole: Shape, shape: Shape) -> Shape:
    if isinstance(whole, Unknown):
        return OPEN_OBJECT
    if not isinstance(whole, Union):
        return shape
    objects = [member for member in whole.members if isinstance(member, Object)]
    # MCP sends arguments as one object: other kinds stay only where the schema describes no object.
    return union([*objects]) if any(member != OPEN_OBJECT for member in objects) else shape


def _accepts_empty(shape: Shape, compiler: Compiler) -> bool:
    shape = compiler.resolved(shape)
    if isinstance(shape, Union):
        return any(_accepts_empty(member, compiler) for member in shape.members)
    if isinstance(shape, Object):
        return not any(one.required for one in shape.properties)
    return isinstance(shape, Unknown)
