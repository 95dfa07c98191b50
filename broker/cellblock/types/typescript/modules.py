"""Writes `declare module` texts: one for each server, and all of a catalog together.

There are two kinds of them, from one renderer: what agents read is short, and what a compiler is given allows all that
the schemas allow (see `types`). Every server's module stands on its own, so that one server's declarations can be shown
without the rest. The text depends on the catalog alone: the same catalog gives the same bytes.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib import resources
from typing import Final

from cellblock.base.errors import shorten
from cellblock.tools.catalog.model import (
    Catalog,
    Example,
    OutputLookup,
    ServerEntry,
    ToolEntry,
    ToolOutput,
    stated_output,
)
from cellblock.tools.catalog.naming import is_identifier
from cellblock.types.typescript.limits import (
    MAX_DOC_VALUE,
    MAX_EXAMPLES,
    MAX_PROPERTY_DESCRIPTION,
    MAX_TOOL_DESCRIPTION,
)
from cellblock.types.typescript.text import (
    RESERVED_BINDINGS,
    comment_lines,
    json_line,
    letters,
    one_line,
    pascal_case,
    short_comment,
    string_literal,
)
from cellblock.types.typescript.types import (
    JSON_TEXT,
    META,
    RESULT,
    UNTYPED,
    Later,
    Types,
    TypeText,
)

_MAX_ANNOTATIONS: Final = 20
_ILLEGAL: Final = re.compile(r"[^A-Za-z0-9_$]")
_COMMENT: Final = re.compile(r"/\*\*.*?(?:\*/|\Z)", re.S)
_STATEMENT: Final = re.compile(r"\n(?=(?:type|function) )")


META_TYPE: Final = (
    "{ serverId: string; serverName: string; serverVersion?: string; "
    "tools: { toolName: string; exportName: string; description?: string }[] }"
)


@dataclass(frozen=True, slots=True)
class Fixed:
    """Holds declarations for the inside of a module: the types `McpToolOutput` and `McpToolResult`, and `JsonText`."""

    untyped: str
    json_text: str


COMPILED: Final = Fixed(
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
    # A string in every respect but these: its mark is a symbol that no script can name, and its characters are never
    # what a script wants of it. The compiler says so where they are iterated, or where they are listed by the overload
    # of a function that is marked as deprecated; `any` fits the one for `never`, too.
    json_text="""\
/** A text that is JSON of a T: JSON.parse gives a T. */
type JsonText<T> = string & { readonly [jsonOf]: T; readonly [Symbol.iterator]: never };
const jsonOf: unique symbol;
global {
  interface ObjectConstructor {
    keys(value: never): any[];
    /** @deprecated */
    keys<T extends JsonText<any>>(text: T): any[];
    values(value: never): any[];
    /** @deprecated */
    values<T extends JsonText<any>>(text: T): any[];
    entries(value: never): any[];
    /** @deprecated */
    entries<T extends JsonText<any>>(text: T): any[];
  }
  interface ArrayConstructor {
    from(value: never, map?: any): any[];
    /** @deprecated */
    from<T extends JsonText<any>>(text: T, map?: any): any[];
  }
  interface JSON {
    parse<T>(text: JsonText<T>): T;
  }
}
""",
)

READ: Final = Fixed(
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


HOW_TO_PARSE: Final = "// JSON.parse(text: JsonText<T>) gives a T."


@lru_cache(maxsize=1)
def fixed_declarations() -> str:
    """Gives the declarations of `@codemode/discovery` and `@codemode/errors` (sections 4 and 7)."""
    return resources.files("cellblock.types.typescript").joinpath("codemode.d.ts").read_text("utf-8")


def declare_shared(*, reading: bool = True) -> str:
    """Declares what `declare_server(…, shared=True)` leaves out, as global types, declared once for all servers."""
    text = f"type {META} = {META_TYPE};\n{(READ if reading else COMPILED).untyped}"
    return re.sub(r"^(?=type )", "declare ", text, flags=re.M)


def declare_all(catalog: Catalog, outputs: OutputLookup = stated_output, *, reading: bool = True) -> str:
    """Gives the declarations of every module a script can import (section 4.4); `outputs` and `reading` are as in
    `ServerText`."""
    servers = [
        declare_server(server, shared=True, outputs=outputs, reading=reading)
        for server in catalog.servers.values()
    ]
    absent = "".join(
        f"// Not connected: {one_line(server_id, MAX_DOC_VALUE)}: {one_line(reason, MAX_DOC_VALUE)}\n"
        for server_id, reason in catalog.unavailable.items()
    )
    parts = [fixed_declarations(), declare_shared(reading=reading), *servers, *filter(None, [absent])]
    return "\n".join(parts)


def declare_server(
    server: ServerEntry,
    *,
    shared: bool = False,
    outputs: OutputLookup = stated_output,
    typed: Collection[str] | None = None,
    reading: bool = True,
) -> str:
    """Writes `declare module "@codemode/servers/<id>"` with one function for each tool and `__meta__` (section 5).

    The text compiles by itself under `strict`; with `shared`, which is shorter, together with `declare_shared()`.
    Everything else is as in `ServerText`.
    """
    return ServerText(server, server.tools, outputs, typed=typed, reading=reading).whole(shared=shared)


def declare_tool(tool: ToolEntry, output: ToolOutput | None) -> str:
    """Declares the function of one tool, with the types that it needs, for the reply to one question."""
    text = _planned(tool, 0, output, Types(reading=True), (), "export ")()
    return f"{HOW_TO_PARSE}\n{text}" if f"{JSON_TEXT}<" in text else text


def bare(tool: ToolEntry, output: ToolOutput | None) -> list[str]:
    """Declares the function of one tool in a line, after a line for each type that it names, without comments."""
    text = _COMMENT.sub("", _planned(tool, 0, output, Types(reading=True), (), "")())
    return [" ".join(one.split()).replace("; }", " }") for one in _STATEMENT.split(text.strip())]


def signature(tool: ToolEntry, output: ToolOutput | None, room: int) -> str:
    """Returns a tool's function in one line of at most `room` characters, without the types that it names."""
    return shorten(bare(tool, output)[-1], room)


def takes(tool: ToolEntry, room: int) -> str:
    """Returns a tool's function with what it takes, and the types that this names, in one line of at most `room`
    characters."""
    *types, function = bare(tool, None)
    given = function.partition("(")[2].partition("): Promise<")[0]
    return shorten("; ".join([f"{tool.export_name}({given})", *types]), room)


def gives(server: ServerEntry, tool: ToolEntry, output: ToolOutput | None) -> str:
    """Returns what a tool's function gives in a line, after a line for each type that it names, for a reader who knows
    what it takes."""
    *types, function = bare(replace(tool, input_schema=None), output)
    result = function.partition("(input?: {}): ")[2]
    # Behind the type may stand under which name the function is exported.
    return "\n".join(
        [*types, f"{server.server_id}.{tool.export_name}(…): {result[: result.rindex('>') + 1]}"]
    )


class ServerText:
    """Holds the declarations of one server: every function is rendered once.

    A tool whose export name is no legal binding is declared under another name and exported under its own. Of two
    tools with one export name the first is declared.

    Args:
        server: The server.
        tools: Those to declare; by default all of the server's.
        outputs: What is known of the tools' outputs; by default what is given or declared.
        typed: Export names of the functions that get types, by default all; others take and give `any`.
        reading: Whether agents read it; else it is for a compiler.
        meta: Whether the server is described and `__meta__` is declared.
    """

    def __init__(
        self,
        server: ServerEntry,
        tools: Iterable[ToolEntry] | None = None,
        outputs: OutputLookup = stated_output,
        *,
        typed: Collection[str] | None = None,
        reading: bool = True,
        meta: bool = True,
    ) -> None:
        self._server = server
        self._with_meta = meta
        self._fixed = READ if reading else COMPILED
        exported = {"__meta__"}
        self._tools: list[tuple[int, ToolEntry]] = []
        for number, tool in enumerate(server.tools if tools is None else tools):
            if tool.export_name not in exported:
                exported.add(tool.export_name)
                self._tools.append((number, tool))
        self._common = common_annotations(tool for _, tool in self._tools)
        # Without an `export` of its own an ambient module exports every name in it, helper types included: what
        # agents read is shorter so, unless a function is exported under another name.
        implied = reading and all(map(_is_binding, exported))
        self._export = "" if implied else "export "
        self._footer = "" if implied else "\nexport {};\n"
        types = Types(reading=reading)
        # All are planned before the first is printed: only then is it known which types are shared.
        planned = [
            _planned(tool, number, outputs(server, tool), types, self._common, self._export)
            if typed is None or tool.export_name in typed
            else partial(_function, tool, number, "(input?: any): Promise<any>;\n", self._export)
            for number, tool in self._tools
        ]
        self._functions = [text() for text in planned]

    def whole(self, *, shared: bool = False) -> str:
        """Gives the module with all functions; `shared` is as in `declare_server`."""
        return self._first(len(self._functions), shared=shared)

    def within(self, room: int, *, shared: bool = False) -> tuple[str, list[str]]:
        """Gives the module with as many functions as `room` characters hold, and the export names of the others."""
        # One that is left out may have brought a type that a later one needs: so the first ones it is.
        low, high = 0, len(self._functions)
        while low < high:
            middle = (low + high + 1) // 2
            fits = len(self._first(middle, shared=shared)) <= room
            low, high = (middle, high) if fits else (low, middle - 1)
        rest = [tool.export_name for _, tool in self._tools[low:]]
        return self._first(low, shared=shared) if low else "", rest

    def _first(self, count: int, *, shared: bool) -> str:
        """Gives the module with its first functions."""
        server, common, fixed = self._server, self._common, self._fixed
        head = f"{self._export}const __meta__: {META if shared else META_TYPE};\n"
        body = "\n".join([head, *self._functions[:count]] if self._with_meta else self._functions[:count])
        if not shared and (f"Promise<{UNTYPED}>;" in body or RESULT in body):
            body += "\n" + fixed.untyped
        if f"{JSON_TEXT}<" in body:
            body += "\n" + fixed.json_text
        facts = [f"Annotations, unless a function has its own: [{', '.join(common)}]"] if common else []
        return f"{module_start(server, facts, about=self._with_meta)}{body}{self._footer}}}\n"


def module_start(server: ServerEntry, facts: Iterable[str] = (), *, about: bool = True) -> str:
    """Opens the module of a server, with facts about its functions, and what is known about the server."""
    # Without its version, which every release changes, and which pins do not have.
    lines = [
        *filter(None, [one_line(server.server_name, MAX_DOC_VALUE)]),
        *comment_lines(server.description or "", MAX_TOOL_DESCRIPTION),
    ]
    name = string_literal(f"@codemode/servers/{server.server_id}")
    return f"{short_comment(lines if about else [], [*facts])}declare module {name} {{\n"


_NO_TYPE: Final = partial(TypeText, "")


def _planned(
    tool: ToolEntry,
    number: int,
    output: ToolOutput | None,
    types: Types,
    elsewhere: Collection[str],
    export: str,
) -> Callable[[], str]:
    """Adds a tool's types, and returns what makes the text of the tool's function, with the types that it needs first.
    Annotations that stand `elsewhere` are left out of its comment."""
    base = pascal_case(tool.export_name) or f"Tool{number + 1}"
    schema = tool.input_schema
    # By section 5.3.1, a tool without an input schema takes nothing or an empty object.
    later_given = (
        _NO_TYPE
        if schema in (None, True, {})
        else types.add(schema, f"{base}Input", argument=True, exact=tool.exact)
    )
    later_result = _NO_TYPE if output is None else _output(output, f"{base}Output", types, exact=tool.exact)

    def text() -> str:
        given, result = later_given(), later_result()
        facts = _facts(tool, given, result, output, elsewhere)
        doc = short_comment(comment_lines(tool.description or "", MAX_TOOL_DESCRIPTION), facts)
        aliases = "".join(f"{alias}\n" for alias in (*given.aliases, *result.aliases))
        mark = "?" if given.accepts_empty else ""
        parameter = _parameter(given, reading=types.reading)
        signature = f"(input{mark}: {parameter}): Promise<{result.text or UNTYPED}>;\n"
        return f"{aliases}{doc}{_function(tool, number, signature, export)}"

    return text


def _parameter(given: TypeText, *, reading: bool) -> str:
    """Gives the text of a parameter's type; without any, the tool takes what it is given."""
    if not reading:
        return given.text or "{ [key: string]: unknown }"
    # To the compiler, `object` would be the same here; `{}` says that nothing need be in it.
    return "{}" if given.text in ("", "object") else given.text


def _is_binding(name: str) -> bool:
    return is_identifier(name) and name not in RESERVED_BINDINGS


def _function(tool: ToolEntry, number: int, signature: str, export: str) -> str:
    name = tool.export_name
    if _is_binding(name):
        return f"{export}function {name}{signature}"
    local = f"__tool_{number + 1}"
    exported = name if is_identifier(name) else string_literal(name)
    return f"function {local}{signature}export {{ {local} as {exported} }};\n"


def _output(output: ToolOutput, name: str, types: Types, *, exact: bool) -> Later:
    """Gives the union of all that a script can get."""
    plain = _NO_TYPE if output.schema is None else types.add(output.schema, name, exact=exact)
    document = _NO_TYPE if output.document is None else types.add(output.document, f"{name}Json")

    def text() -> TypeText:
        value, parsed = plain(), document()
        in_text = f"{JSON_TEXT}<{parsed.text}>" if parsed.text else ""
        texts = [*filter(None, [value.text, in_text, "string" * output.text, RESULT * output.result])]
        return TypeText(
            text="unknown" if "unknown" in texts else " | ".join(texts),
            aliases=value.aliases + parsed.aliases,
            root_warnings=value.root_warnings + parsed.root_warnings,
            notes=value.notes + parsed.notes,
        )

    return text


def _facts(
    tool: ToolEntry,
    given: TypeText,
    result: TypeText,
    output: ToolOutput | None,
    elsewhere: Collection[str],
) -> list[str]:
    """Gives facts of a tool that its types do not say (section 6.3), each a line that is safe for a comment."""
    facts: list[str] = []
    if _ILLEGAL.sub("_", tool.tool_name) != tool.export_name != tool.tool_name:
        facts.append(f"MCP tool name: {json_line(tool.tool_name, MAX_DOC_VALUE)}")
    own = [one for one in annotations_of(tool) if one not in elsewhere]
    facts.extend([f"[{', '.join(own)}]"] if own else [])
    for name, one in (("Input", given), ("Output", result)):
        facts.extend(f"{name}: {note}" for note in one.notes)
        facts.extend(f"Warning ({name.lower()}): {warning}" for warning in one.root_warnings)
    if output is not None and (output.source != "declared" or output.disagreement is not None):
        facts.append(f"Output: {one_line(output.note, MAX_TOOL_DESCRIPTION)}")
    if tool.given is not None:
        if tool.given.effect is not None:
            facts.append(f"Effect, as the user says: {tool.given.effect}")
        facts.extend(f"@example {_example(example)}" for example in tool.given.examples[:MAX_EXAMPLES])
    return facts


def annotations_of(tool: ToolEntry) -> list[str]:
    """Gives a tool's annotations as agents read them, safe for a comment: `readOnlyHint`, `!openWorldHint`,
    `key: value`; no title that only says the tool's name again."""
    found: list[str] = []
    for name, value in list((tool.annotations or {}).items())[:_MAX_ANNOTATIONS]:
        key, shown = one_line(str(name), MAX_DOC_VALUE), json_line(value, MAX_DOC_VALUE)
        if value is not None and not (key == "title" and letters(shown) in letters(tool.tool_name)):
            found.append({"true": key, "false": f"!{key}"}.get(shown, f"{key}: {shown}"))
    return found


def common_annotations(tools: Iterable[ToolEntry]) -> list[str]:
    """Gives what to say once for several tools: of the annotations that all have, the more common ones. A tool with
    another one has to say so itself."""
    each = [annotations_of(tool) for tool in tools]
    counted = Counter(one for own in each for one in own)
    having = Counter(one.removeprefix("!") for one in counted.elements())
    return [
        one
        for one, count in sorted(counted.items(), key=lambda item: -item[1])
        if len(each) > 1 and having[one.removeprefix("!")] == len(each)
        # Of as many with as without, those with.
        if 2 * count > len(each) - (not one.startswith("!"))
    ]


def _example(example: Example) -> str:
    shown = json.dumps(example.input, ensure_ascii=False)
    if example.output is not None:
        shown += f" → {json.dumps(example.output, ensure_ascii=False)}"
    return one_line(shown, MAX_PROPERTY_DESCRIPTION)
