"""Holds what declarations say whatever the servers are: as a compiler is given it, and as agents read it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Final

UNTYPED: Final = "McpToolOutput"
RESULT: Final = "McpToolResult"
JSON_TEXT: Final = "JsonText"
META: Final = "ServerMeta"
TAKEN: Final = frozenset([UNTYPED, RESULT, JSON_TEXT, META, "Promise", "Array", "Object", "JSON", "jsonOf"])
"""Holds the names that no type of a schema gets."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Holds declarations for the inside of a module.

    Attributes:
        meta_doc: A comment on `__meta__`.
        meta_type: Its type, as an expression.
        untyped: The types `McpToolOutput` and `McpToolResult`.
        json_text: The type `JsonText`.
    """

    meta_doc: str
    meta_type: str
    untyped: str
    json_text: str


COMPILED: Final = Fixed(
    meta_doc="  /** The server and its tools: names in MCP and names of exports. */\n",
    meta_type="""\
{
    readonly serverId: string;
    readonly serverName: string;
    readonly serverVersion?: string;
    readonly tools: readonly {
      readonly toolName: string;
      readonly exportName: string;
      readonly description?: string;
    }[];
  }""",
    # What section 5.3.2 leaves for a tool without an output schema; structured content may come all the same.
    untyped="""\
  /** What a tool that declares no output returns: the text of a result that is one text block; else the
   * structured content, if the server sent any; else the whole MCP result. */
  type McpToolOutput = string | McpToolResult | { [key: string]: unknown };
  interface McpToolResult {
    content: (
      | { type: "text"; text: string; [key: string]: unknown }
      | { type: "image" | "audio"; data: string; mimeType: string; [key: string]: unknown }
      | { type: "resource_link"; uri: string; name: string; [key: string]: unknown }
      | { type: "resource"; resource: { uri: string; text?: string; blob?: string; [key: string]: unknown } }
    )[];
    structuredContent?: unknown;
    [key: string]: unknown;
  }
""",
    # The mark of a JsonText is a symbol that no script can name, so that it is a string in every other respect.
    json_text="""\
  /** A text that is JSON of a T: JSON.parse gives a T. */
  type JsonText<T> = string & { readonly [jsonOf]: T };
  const jsonOf: unique symbol;
  global {
    interface JSON {
      parse<T>(text: JsonText<T>): T;
    }
  }
""",
)

READ: Final = Fixed(
    meta_doc="",
    meta_type="{ serverId: string; serverName: string; serverVersion?: string; "
    "tools: { toolName: string; exportName: string; description?: string }[] }",
    untyped="""\
/** Of a tool that declares no output: the text of a single text block, else structured content, else the MCP result */
type McpToolOutput = string | McpToolResult | { [key: string]: unknown };
type McpToolResult = { content: ({ type: "text"; text: string } | { type: "image" | "audio"; data: string; \
mimeType: string } | { type: "resource_link"; uri: string; name: string } | { type: "resource"; resource: \
{ uri: string; text?: string; blob?: string } })[]; structuredContent?: unknown };
""",
    json_text="""\
/** A text that is JSON of a T: JSON.parse gives a T */
type JsonText<T> = string;
""",
)


@lru_cache(maxsize=1)
def fixed_declarations() -> str:
    """Gives the declarations of `@codemode/discovery` and `@codemode/errors` (sections 4 and 7)."""
    return resources.files("cellblock.types.typescript").joinpath("codemode.d.ts").read_text("utf-8")


def declare_shared(*, reading: bool = True) -> str:
    """Declares what `declare_server(…, shared=True)` leaves out, as global types, declared once for all servers."""
    fixed = READ if reading else COMPILED
    text = f"{fixed.meta_doc}type {META} = {fixed.meta_type};\n{fixed.untyped}"
    lines = (line if reading else line.removeprefix("  ") for line in text.splitlines(keepends=True))
    return "".join(f"declare {line}" if line.startswith("type ") else line for line in lines)
