"""Typescript declares tools in TypeScript, from their JSON Schemas (Code Mode specification, 4.4, 6.2, 6.3).

In: the catalog's servers and tools. Out: declarations, for a compiler or for agents to read. Start at `modules`, then
`types`.

The rule of the house: a declared type is never narrower than its schema, so whatever a tool accepts
compiles; and it is as narrow as TypeScript can say. Budgets are in `limits`.
"""

from __future__ import annotations

from cellblock.types.typescript.modules import (
    HOW_TO_PARSE,
    ServerText,
    bare,
    declare_all,
    declare_server,
    declare_shared,
    declare_tool,
    gives,
    module_start,
    signature,
    takes,
)
from cellblock.types.typescript.types import JSON_TEXT, TypeText, schema_to_type

__all__ = [
    "HOW_TO_PARSE",
    "JSON_TEXT",
    "ServerText",
    "TypeText",
    "bare",
    "declare_all",
    "declare_server",
    "declare_shared",
    "declare_tool",
    "gives",
    "module_start",
    "schema_to_type",
    "signature",
    "takes",
]
