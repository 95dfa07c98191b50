"""Writes `declare module` texts: one for each server, and all of a catalog together.

There are two kinds of them, from one renderer: what agents read is short, and what a compiler is given allows all that
the schemas allow (see `types`). Every server's module stands on its own, so that one server's declarations can be shown
without the rest. The text depends on the catalog alone: the same catalog gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from cellblock.catalog.model import Catalog, ServerEntry, ToolEntry
from cellblock.catalog.outputs import OutputLookup, ToolOutput, stated_output
from cellblock.catalog.typescript.convert import TypeText
from cellblock.catalog.typescript.fixed import (
    COMPILED,
    JSON_TEXT,
    META,
    READ,
    RESULT,
    UNTYPED,
    declare_shared,
    fixed_declarations,
)
from cellblock.catalog.typescript.limits import MAX_DOC_VALUE, MAX_TOOL_DESCRIPTION
from cellblock.catalog.typescript.text import (
    IDENTIFIER,
    RESERVED_BINDINGS,
    comment_lines,
    doc_comment,
    one_line,
    pascal_case,
    short_comment,
    string_literal,
)
from cellblock.catalog.typescript.tool_docs import common_annotations, tool_doc
from cellblock.catalog.typescript.types import CompiledTypes, Later, ReadTypes, Types


def declare_all(catalog: Catalog, outputs: OutputLookup = stated_output, *, reading: bool = True) -> str:
    """Gives the declarations of every module a script can import (section 4.4).

    Args:
        catalog: The servers.
        outputs: What is known of the tools' outputs; by default what is given or declared.
        reading: Whether agents read it; else it is for a compiler.
    """
    parts = [fixed_declarations(), declare_shared(reading=reading)]
    parts.extend(
        declare_server(server, shared=True, outputs=outputs, reading=reading)
        for server in catalog.servers.values()
    )
    absent = [
        f"// Not connected: {one_line(server_id, MAX_DOC_VALUE)}: {one_line(reason, MAX_DOC_VALUE)}\n"
        for server_id, reason in catalog.unavailable.items()
    ]
    if absent:
        parts.append("".join(absent))
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
    A tool whose export name is no legal binding is declared under another name and exported under its own. Of two
    tools with one export name the first is declared. `outputs` says what is known of the tools' outputs; by
    default what is given or declared. With `typed`, functions of other export names take and give `any`. `reading`
    says whether agents read it; else it is for a compiler.
    """
    return ServerText(server, server.tools, outputs, typed=typed, reading=reading).whole(shared=shared)


def declare_tools(
    server: ServerEntry, tools: Iterable[ToolEntry], outputs: OutputLookup = stated_output
) -> str:
    """Declares some of a server's tools, without `__meta__`: the reply to a question about them."""
    return ServerText(server, tools, outputs, meta=False).whole(shared=False)


def declare_tool(tool: ToolEntry, output: ToolOutput | None) -> str:
    """Declares the function of one tool, with the types that it needs, for the reply to one question."""
    text = _planned(tool, 0, output, ReadTypes(), (), "export ")()
    return f"// JSON.parse(text: JsonText<T>) gives a T.\n{text}" if f"{JSON_TEXT}<" in text else text


def declare_within(
    server: ServerEntry,
    room: int,
    *,
    shared: bool = False,
    outputs: OutputLookup = stated_output,
    first: Collection[str] = (),
) -> tuple[str, list[str]]:
    """Declares as many functions of a server as there is room for, for agents to read, and names the others.

    Args:
        server: The server.
        room: Characters.
        shared: As for `declare_server`.
        outputs: As for `declare_server`.
        first: Export names that come before all others.
    """
    ordered = sorted(server.tools, key=lambda tool: tool.export_name not in first)
    return ServerText(server, ordered, outputs).within(room, shared=shared)


class ServerText:
    """Holds the declarations of one server: every function is rendered once.

    Args:
        server: The server.
        tools: Those to declare; by default all of the server's.
        outputs: What is known of the tools' outputs; by default what is given or declared.
        typed: Export names of the functions that get types, by default all; others take and give `any`.
        reading: Whether agents read it; else it is for a compiler.
        meta: Whether `__meta__` is declared.
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
        self._reading = reading
        self._with_meta = meta
        self._fixed = READ if reading else COMPILED
        exported = {"__meta__"}
        self._tools: list[tuple[int, ToolEntry]] = []
        for number, tool in enumerate(server.tools if tools is None else tools):
            if tool.export_name not in exported:
                exported.add(tool.export_name)
                self._tools.append((number, tool))
        self._common = common_annotations(tool for _, tool in self._tools) if reading else []
        # Without an `export` of its own an ambient module exports every name in it, helper types included: what
        # agents read is shorter so, unless a function is exported under another name.
        implied = reading and all(map(_is_binding, exported))
        pad = "" if reading else "  "
        self._export = "" if implied else f"{pad}export "
        self._footer = "" if implied else f"\n{pad}export {{}};\n"
        types = ReadTypes() if reading else CompiledTypes()
        # All are planned before the first is printed: only then is it known which types are shared.
        planned = [
            _planned(tool, number, outputs(server, tool), types, self._common, self._export)
            if typed is None or tool.export_name in typed
            else _untyped(tool, number, self._export)
            for number, tool in self._tools
        ]
        self._functions = [text() for text in planned]

    def whole(self, *, shared: bool) -> str:
        """Gives the module with all functions, as `declare_server` gives it."""
        return self._first(len(self._functions), shared=shared)

    def within(self, room: int, *, shared: bool) -> tuple[str, list[str]]:
        """Gives as many functions as there is room for, and the names of the others, as `declare_within` gives them."""
        # One that is left out may have brought a type that a later one needs: so the first ones it is.
        low, high = 0, len(self._functions)
        while low < high:
            middle = (low + high + 1) // 2
            fits = len(self._first(middle, shared=shared)) <= room
            low, high = (middle, high) if fits else (low, middle - 1)
        return self._first(low, shared=shared) if low else "", [
            tool.export_name for _, tool in self._tools[low:]
        ]

    def _first(self, count: int, *, shared: bool) -> str:
        """Gives the module with its first functions."""
        server, common, fixed = self._server, self._common, self._fixed
        meta = META if shared else fixed.meta_type
        head = f"{'' if shared else fixed.meta_doc}{self._export}const __meta__: {meta};\n"
        body = "\n".join([head, *self._functions[:count]] if self._with_meta else self._functions[:count])
        if not shared and (f"Promise<{UNTYPED}>;" in body or RESULT in body):
            body += "\n" + fixed.untyped
        if f"{JSON_TEXT}<" in body:
            body += "\n" + fixed.json_text
        name = string_literal(f"@codemode/servers/{server.server_id}")
        version = f" {server.version}" if server.version else ""
        about = [
            *filter(None, [one_line(f"{server.server_name}{version}", MAX_DOC_VALUE)]),
            *comment_lines(server.description or "", MAX_TOOL_DESCRIPTION),
        ]
        facts = [f"Functions, unless they say otherwise: [{', '.join(common)}]"] if common else []
        doc = short_comment(about, facts) if self._reading else doc_comment(about)
        return f"{doc}declare module {name} {{\n{body}{self._footer}}}\n"


def _planned(
    tool: ToolEntry,
    number: int,
    output: ToolOutput | None,
    types: Types,
    told: Collection[str],
    export: str,
) -> Callable[[], str]:
    """Adds a tool's types; what this gives makes the text of its function, with the types that it needs first."""
    base = pascal_case(tool.export_name) or f"Tool{number + 1}"
    schema = tool.input_schema
    # By section 5.3.1, a tool without an input schema takes nothing or an empty object.
    given_later = None
    if schema is not None and schema is not True and schema != {}:
        given_later = types.add(schema, f"{base}Input", argument=True)
    result_later = None if output is None else _output(output, f"{base}Output", types)
    pad = " " * types.indent

    def text() -> str:
        given = None if given_later is None else given_later()
        result = None if result_later is None else result_later()
        prose, facts = tool_doc(tool, given, result, output, reading=types.reading, told=told)
        aliases = [*(given.aliases if given else ()), *(result.aliases if result else ())]
        lines = "".join(pad + alias.replace("\n", f"\n{pad}") + "\n" for alias in aliases)
        if types.reading:
            doc = short_comment(prose, facts)
        else:
            doc = doc_comment([*prose, *([""] if prose and facts else []), *facts], pad)
        parameter = f"input{'?' if given is None or given.accepts_empty else ''}: {types.input_text(given)}"
        signature = f"({parameter}): Promise<{result.text if result else UNTYPED}>;\n"
        return f"{lines}{doc}{_function(tool, number, signature, export)}"

    return text


def _untyped(tool: ToolEntry, number: int, export: str) -> Callable[[], str]:
    return lambda: _function(tool, number, "(input?: any): Promise<any>;\n", export)


def _is_binding(name: str) -> bool:
    return bool(IDENTIFIER.match(name)) and name not in RESERVED_BINDINGS


def _function(tool: ToolEntry, number: int, signature: str, export: str) -> str:
    name = tool.export_name
    if _is_binding(name):
        return f"{export}function {name}{signature}"
    local = f"__tool_{number + 1}"
    exported = name if IDENTIFIER.match(name) else string_literal(name)
    pad = export.removesuffix("export ")
    return f"{pad}function {local}{signature}{pad}export {{ {local} as {exported} }};\n"


def _output(output: ToolOutput, name: str, types: Types) -> Later:
    """Gives the union of all that a script can get."""
    plain = None if output.schema is None else types.add(output.schema, name)
    document = None if output.document is None else types.add(output.document, f"{name}Json")

    def text() -> TypeText:
        made = [one() for one in (plain, document) if one is not None]
        texts = [] if plain is None else [made[0].text]
        if document is not None:
            texts.append(f"{JSON_TEXT}<{made[-1].text}>")
        if output.text:
            texts.append("string")
        if output.result:
            texts.append(RESULT)
        return TypeText(
            text="unknown" if "unknown" in texts else " | ".join(texts),
            aliases=tuple(alias for one in made for alias in one.aliases),
            warnings=tuple(warning for one in made for warning in one.warnings),
            root_warnings=tuple(warning for one in made for warning in one.root_warnings),
            notes=tuple(note for one in made for note in one.notes),
        )

    return text
