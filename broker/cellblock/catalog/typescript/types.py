"""The types of one text of declarations, of either kind: for a compiler, or for agents to read.

For a compiler each schema's type allows all that the schema allows, further keys above all. What agents read leaves out
the index signatures that say only that, and declares once what several tools share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from cellblock.catalog.model import JsonSchema
from cellblock.catalog.typescript.convert import TypeText, compiled, schema_to_type
from cellblock.catalog.typescript.fixed import TAKEN
from cellblock.catalog.typescript.shared import SharedTypes

Later = Callable[[], TypeText]
"""Gives the text of a type, once, when all have been added; in the order of the text."""


class Types(Protocol):
    """The types of one text, and the blanks that its lines begin with."""

    reading: bool
    indent: int

    def add(self, schema: JsonSchema, name: str, *, argument: bool = False) -> Later:
        """The type of a schema; `name` is what a name of it, or names of its parts, are made from."""
        ...

    def input_text(self, given: TypeText | None) -> str:
        """The text of a parameter's type; None: the tool takes what it is given."""
        ...


def types_for(*, reading: bool) -> Types:
    """Types for agents to read, or for a compiler."""
    return _ReadTypes() if reading else _CompiledTypes()


class _CompiledTypes:
    reading = False
    indent = 2

    def __init__(self) -> None:
        self._taken = set(TAKEN)

    def add(self, schema: JsonSchema, name: str, *, argument: bool = False) -> Later:
        # Another name when a type of the module bears it or begins with it as aliases do.
        free, number = name, 2
        while free in self._taken:
            free, number = f"{name}{number}", number + 1
        made = schema_to_type(schema, indent=self.indent, name=free, argument=argument, taken=self._taken)
        return lambda: made

    def input_text(self, given: TypeText | None) -> str:
        return "{ [key: string]: unknown }" if given is None else given.text


class _ReadTypes:
    reading = True
    indent = 0

    def __init__(self) -> None:
        self._shared = SharedTypes(set(TAKEN))

    def add(self, schema: JsonSchema, name: str, *, argument: bool = False) -> Later:
        made = compiled(schema, argument=argument)
        shape = self._shared.add(made, name)
        return lambda: self._shared.text(made, shape)

    def input_text(self, given: TypeText | None) -> str:
        # To the compiler, `object` would be the same here; `{}` says that nothing need be in it.
        return "{}" if given is None or given.text == "object" else given.text
