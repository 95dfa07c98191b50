"""`declare module` texts: one for each server, and all of a catalog together.

Every server's module stands on its own, so that one server's declarations can be shown without the rest.
The text depends on the catalog alone: the same catalog gives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from importlib import resources
from typing import Any

from cellblock.catalog.model import Catalog, Example, JsonSchema, ServerEntry, ToolEntry
from cellblock.catalog.outputs import OutputLookup, ToolOutput, stated_output
from cellblock.catalog.typescript.convert import TypeText, schema_to_type
from cellblock.catalog.typescript.limits import (
    MAX_DOC_VALUE,
    MAX_EXAMPLES,
    MAX_PROPERTY_DESCRIPTION,
    MAX_TOOL_DESCRIPTION,
)
from cellblock.catalog.typescript.text import (
    IDENTIFIER,
    RESERVED_BINDINGS,
    comment_lines,
    doc_comment,
    one_line,
    pascal_case,
    string_literal,
)

_UNTYPED = "McpToolOutput"
_RESULT = "McpToolResult"
_JSON_TEXT = "JsonText"
_TAKEN = frozenset(
    [_UNTYPED, _RESULT, _JSON_TEXT, "ServerMeta", "Promise", "Array", "Object", "JSON", "jsonOf"]
)
_EMPTY_INPUT = "{ [key: string]: unknown }"
_MAX_ANNOTATIONS = 20

_META_FIELDS = """\
{
    readonly serverId: string;
    readonly serverName: string;
    readonly serverVersion?: string;
    readonly tools: readonly {
      readonly toolName: string;
      readonly exportName: string;
      readonly description?: string;
    }[];
  };
"""

_META = f"""\
  /** The server and its tools: names in MCP and names of exports. */
  export const __meta__: {_META_FIELDS}"""

_META_TYPE = f"""\
  /** The server and its tools: names in MCP and names of exports. */
  type ServerMeta = {_META_FIELDS}"""

_SHARED_META = "  export const __meta__: ServerMeta;\n"

# What section 5.3.2 leaves for a tool without an output schema; structured content may come all the same.
_UNTYPED_OUTPUT = """\
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
"""


# The mark of a JsonText is a symbol that no script can name, so that it is a string in every other respect.
_JSON_TEXT_TYPE = """\
  /** A text that is JSON of a T: JSON.parse gives a T. */
  type JsonText<T> = string & { readonly [jsonOf]: T };
  const jsonOf: unique symbol;
  global {
    interface JSON {
      parse<T>(text: JsonText<T>): T;
    }
  }
"""


@lru_cache(maxsize=1)
def fixed_declarations() -> str:
    """The declarations of `@codemode/discovery` and `@codemode/errors` (sections 4 and 7)."""
    return resources.files("cellblock.catalog.typescript").joinpath("codemode.d.ts").read_text("utf-8")


def declare_all(catalog: Catalog, outputs: OutputLookup = stated_output) -> str:
    """The declarations of every module a script can import, for the agent's context (section 4.4)."""
    parts = [fixed_declarations()]
    parts.extend(declare_server(server, outputs=outputs) for server in catalog.servers.values())
    absent = [
        f"// Not connected: {one_line(server_id, MAX_DOC_VALUE)}: {one_line(reason, MAX_DOC_VALUE)}\n"
        for server_id, reason in catalog.unavailable.items()
    ]
    if absent:
        parts.append("".join(absent))
    return "\n".join(parts)


def declare_shared() -> str:
    """What `declare_server(…, shared=True)` leaves out, as global types, declared once for all servers."""
    return _dedented(_META_TYPE.replace("  type ", "  declare type ", 1)) + _dedented(
        _UNTYPED_OUTPUT.replace("  type ", "  declare type ", 1)
    )


def _dedented(text: str) -> str:
    return "".join(line.removeprefix("  ") for line in text.splitlines(keepends=True))


def declare_server(
    server: ServerEntry,
    *,
    shared: bool = False,
    outputs: OutputLookup = stated_output,
    typed: Collection[str] | None = None,
) -> str:
    """`declare module "@codemode/servers/<id>"` with one function for each tool and `__meta__` (section 5).

    The text compiles by itself under `strict`; with `shared`, which is shorter, together with `declare_shared()`.
    A tool whose export name is no legal binding is declared under another name and exported under its own. Of two
    tools with one export name the first is declared. `outputs` says what is known of the tools' outputs; by
    default what is given or declared. With `typed`, functions of other export names take and give `any`.
    """
    members = [_SHARED_META if shared else _META, *_functions(server, server.tools, outputs, typed)]
    return _module(server, members, shared=shared)


def declare_tools(
    server: ServerEntry, tools: Iterable[ToolEntry], outputs: OutputLookup = stated_output
) -> str:
    """The same for some of a server's tools and without `__meta__`: the reply to a question about them."""
    return _module(server, _functions(server, tools, outputs), shared=False)


def _functions(
    server: ServerEntry,
    tools: Iterable[ToolEntry],
    outputs: OutputLookup,
    typed: Collection[str] | None = None,
) -> list[str]:
    taken = set(_TAKEN)
    members: list[str] = []
    seen = {"__meta__"}
    for number, tool in enumerate(tools):
        if tool.export_name not in seen:
            seen.add(tool.export_name)
            if typed is None or tool.export_name in typed:
                members.append(_tool(tool, number, taken, outputs(server, tool)))
            else:
                members.append(_function(tool, number, "(input?: any): Promise<any>;\n"))
    return members


def _module(server: ServerEntry, members: list[str], *, shared: bool) -> str:
    body = "\n".join(members)
    if not shared and (f"Promise<{_UNTYPED}>;" in body or _RESULT in body):
        body += "\n" + _UNTYPED_OUTPUT
    if f"{_JSON_TEXT}<" in body:
        body += "\n" + _JSON_TEXT_TYPE
    about = [
        *one_or_none(f"{server.server_name}{f' {server.version}' if server.version else ''}"),
        *comment_lines(server.description or "", MAX_TOOL_DESCRIPTION),
    ]
    # Without this an ambient module exports every name in it, helper types included.
    footer = "\n  export {};\n"
    name = string_literal(f"@codemode/servers/{server.server_id}")
    return f"{doc_comment(about)}declare module {name} {{\n{body}{footer}}}\n"


def one_or_none(text: str) -> list[str]:
    """The text as a list of one safe line, or of none when nothing is left of it."""
    line = one_line(text, MAX_DOC_VALUE)
    return [line] if line else []


def declare_tool(tool: ToolEntry, output: ToolOutput | None) -> str:
    """The declaration of one tool's function, with the types that it needs, for the reply to one question."""
    text = _dedented(_tool(tool, 0, set(_TAKEN), output))
    return f"// JSON.parse(text: JsonText<T>) gives a T.\n{text}" if f"{_JSON_TEXT}<" in text else text


def _tool(tool: ToolEntry, number: int, taken: set[str], output: ToolOutput | None) -> str:
    base = pascal_case(tool.export_name) or f"Tool{number + 1}"
    parameter, given = _parameter(tool.input_schema, _unused(f"{base}Input", taken), taken)
    result = None if output is None else _output(output, _unused(f"{base}Output", taken), taken)
    aliases = [*(given.aliases if given else ()), *(result.aliases if result else ())]
    lines = "".join("  " + alias.replace("\n", "\n  ") + "\n" for alias in aliases)
    doc = doc_comment(_tool_doc(tool, given, result, output), "  ")
    signature = f"({parameter}): Promise<{result.text if result else _UNTYPED}>;\n"
    return f"{lines}{doc}{_function(tool, number, signature)}"


def _function(tool: ToolEntry, number: int, signature: str) -> str:
    name = tool.export_name
    if IDENTIFIER.match(name) and name not in RESERVED_BINDINGS:
        return f"  export function {name}{signature}"
    local = f"__tool_{number + 1}"
    exported = name if IDENTIFIER.match(name) else string_literal(name)
    return f"  function {local}{signature}  export {{ {local} as {exported} }};\n"


def _output(output: ToolOutput, name: str, taken: set[str]) -> TypeText:
    """The union of all that a script can get."""
    texts: list[str] = []
    plain = document = None
    if output.schema is not None:
        plain = schema_to_type(output.schema, indent=2, name=name, taken=taken)
        texts.append(plain.text)
    if output.document is not None:
        document = schema_to_type(output.document, indent=2, name=_unused(f"{name}Json", taken), taken=taken)
        texts.append(f"{_JSON_TEXT}<{document.text}>")
    if output.text:
        texts.append("string")
    if output.result:
        texts.append(_RESULT)
    made = [one for one in (plain, document) if one is not None]
    return TypeText(
        text="unknown" if "unknown" in texts else " | ".join(texts),
        aliases=tuple(alias for one in made for alias in one.aliases),
        warnings=tuple(warning for one in made for warning in one.warnings),
        root_warnings=tuple(warning for one in made for warning in one.root_warnings),
        notes=tuple(note for one in made for note in one.notes),
    )


def _parameter(schema: JsonSchema | None, name: str, taken: set[str]) -> tuple[str, TypeText | None]:
    """The parameter list by section 5.3.1, and the type it was made from, if there is one."""
    if schema is None or schema is True or schema == {}:
        return f"input?: {_EMPTY_INPUT}", None
    given = schema_to_type(schema, indent=2, name=name, argument=True, taken=taken)
    return f"input{'?' if given.accepts_empty else ''}: {given.text}", given


def _unused(name: str, taken: set[str]) -> str:
    """The name, numbered when a type of the module bears it or begins with it as aliases do."""
    candidate, number = name, 2
    while candidate in taken:
        candidate, number = f"{name}{number}", number + 1
    return candidate


def _tool_doc(
    tool: ToolEntry, given: TypeText | None, result: TypeText | None, output: ToolOutput | None
) -> list[str]:
    lines = comment_lines(tool.description or "", MAX_TOOL_DESCRIPTION)
    facts: list[str] = []
    if tool.tool_name != tool.export_name:
        facts.append(
            f"MCP tool name: {one_line(json.dumps(tool.tool_name, ensure_ascii=False), MAX_DOC_VALUE)}"
        )
    facts.extend(_annotations(tool.annotations))
    if given is not None:
        facts.extend(f"Input: {note}" for note in given.notes)
        facts.extend(f"Warning (input): {warning}" for warning in given.root_warnings)
    if result is not None:
        facts.extend(f"Output: {note}" for note in result.notes)
        facts.extend(f"Warning (output): {warning}" for warning in result.root_warnings)
    if output is not None and (output.source != "declared" or output.disagreement is not None):
        facts.append(f"Output: {one_line(output.note, MAX_TOOL_DESCRIPTION)}")
    if tool.given is not None:
        if tool.given.effect is not None:
            facts.append(f"Effect, as the user says: {tool.given.effect}")
        facts.extend(f"@example {_example(example)}" for example in tool.given.examples[:MAX_EXAMPLES])
    return [*lines, *([""] if lines and facts else []), *facts]


def _example(example: Example) -> str:
    shown = json.dumps(example.input, ensure_ascii=False)
    if example.output is not None:
        shown += f" → {json.dumps(example.output, ensure_ascii=False)}"
    return one_line(shown, MAX_PROPERTY_DESCRIPTION)


def _annotations(annotations: Mapping[str, Any] | None) -> list[str]:
    """One line for each annotation of the tool (section 6.3)."""
    lines: list[str] = []
    for key, value in list((annotations or {}).items())[:_MAX_ANNOTATIONS]:
        if value is None:
            continue
        try:
            shown = json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError):
            shown = "(not shown)"
        lines.append(one_line(f"Annotation {key}: {shown}", MAX_DOC_VALUE))
    return lines
