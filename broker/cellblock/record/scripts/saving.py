"""Makes a kept script of a run that was recorded: its parameters, its schemas, and the tools that it may call."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tree_sitter import Node

from cellblock.base.errors import shorten
from cellblock.base.json import is_array, is_object
from cellblock.base.settings.policy import Grant
from cellblock.base.visible import visible
from cellblock.record.recording import Recording
from cellblock.record.scripts.script_file import OPENING, BadScript, Header, schema_digest
from cellblock.run.policy.grants import effect_of
from cellblock.script.imports import PARSE_BOUND_SECONDS
from cellblock.script.slips import unfenced
from cellblock.script.trees import field, parse
from cellblock.tools.catalog.model import Catalog, ToolEntry

MAX_SHAPE_DEPTH: Final = 6
"""Bounds how deep a schema goes that is made of a value: what is deeper may be anything."""

_SERVERS: Final = "@codemode/servers/"
_COMMENT: Final = re.compile(r"\s*(?://|/\*+)\s*([^\n*]+)")
_LITERALS: Final = frozenset(("string", "number", "true", "false", "null"))
_OWN_INPUT: Final = re.compile(r"(?<![\w$.])input(?![\w$])")


def code_of(recording: Recording) -> str:
    """Returns the script of a recording that can be kept. Raises BadScript."""
    code = unfenced(recording.code)
    if code.startswith(OPENING):
        raise BadScript("The run is one of a kept script.", hint="It is kept already; edit its file.")
    if recording.response is None or any(
        one.get("severity") == "error" for one in recording.response.get("diagnostics", ())
    ):
        raise BadScript("The run did not end well.", hint="Keep one that did.")
    return code


def header_of(
    recording: Recording,
    code: str,
    catalog: Catalog,
    given: Mapping[str, Any],
    description: str = "",
) -> tuple[Header, dict[str, list[Any]]]:
    """Makes the header of a kept script, and the schemas of its tools.

    Args:
        recording: A run of it.
        code: The script.
        catalog: The servers as they are now.
        given: Its input in that run.
        description: Says what it does; empty: its first comment does.

    Raises:
        BadScript: A server that it calls is not connected, or its request's grants cannot be kept.
    """
    entries = {
        name: _entry(catalog, name) for name in sorted({*_called(recording), *_imported(code, catalog)})
    }
    try:
        for call in recording.calls:
            for part in (call.input or b"{}", call.answer) if call.kind == "call" and call.ok else ():
                json.loads(part)
        grants = Grant.model_validate(recording.request.get("grants") or {})
    except (ValueError, RecursionError):
        # It may be a stranger's file.
        raise BadScript("The run has grants, or calls, that cannot be kept.", hint="Keep another.") from None
    grants = grants.model_copy(update={"tools": None})
    if all(effect_of(tool) == "read" for tool in entries.values()):
        grants = grants.model_copy(update={"read_only": True})
    comment = _COMMENT.match(code)
    said = description or (comment[1].strip() if comment else f"Calls {', '.join(entries) or 'no tool'}.")
    header = Header(
        description=shorten(visible(said), 1024),
        input=input_schema(given),
        output=schema_of((recording.response or {}).get("result")),
        tools={name: schema_digest(tool) for name, tool in entries.items()},
        grants=grants,
    )
    return header, {name: [tool.input_schema, tool.output_schema] for name, tool in entries.items()}


def with_parameters(code: str, parameters: Mapping[str, Any]) -> str:
    """Returns a script in which literals are parameters: each stands for every literal of its value.

    Raises:
        BadScript: There is no such literal, a name is none, or the script has an `input` of its own.
    """
    if not parameters:
        return code
    if _OWN_INPUT.search(code):
        raise BadScript(
            "The script has an `input` of its own.", hint="Call that otherwise, run it again, and keep that."
        )
    source = code.encode()
    found = [(node, value) for node in _walk(_tree(code)) if (value := _value(node)) is not _NO_VALUE]
    edits: dict[int, tuple[int, bytes]] = {}
    for name, wanted in parameters.items():
        if re.fullmatch("[A-Za-z_][A-Za-z0-9_]{0,63}", name) is None or name == "__proto__":
            raise BadScript(
                f"{name[:80]!a} cannot be the name of a parameter.", hint="Use a word, such as `since`."
            )
        same = [node for node, value in found if type(value) is type(wanted) and value == wanted]
        if not same:
            raise BadScript(
                f"The script has no literal {json.dumps(wanted)[:80]}.",
                hint="Write it as JSON, as in the script.",
            )
        edits |= {node.start_byte: (node.end_byte, f"input.{name}".encode()) for node in same}
    for start in sorted(edits, reverse=True):
        end, text = edits[start]
        source = source[:start] + text + source[end:]
    return source.decode()


def input_schema(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the schema of inputs like one: with these names, and no others."""
    properties = {name: schema_of(value) for name, value in given.items()}
    named = {"properties": properties, "required": list(given)} if given else {}
    return {"type": "object", **named, "additionalProperties": False}


def schema_of(value: Any, depth: int = 0) -> dict[str, Any]:
    """Returns a schema of values like one, which says no more than one value shows: kinds, and names that may be."""
    if value is None or depth >= MAX_SHAPE_DEPTH:
        return {}
    if isinstance(value, bool):
        return {"type": "boolean"}
    if isinstance(value, int | float):
        return {"type": "number"}
    if isinstance(value, str):
        return {"type": "string"}
    if is_array(value):
        items = [schema_of(one, depth + 1) for one in value]
        same = items and all(one == items[0] for one in items)
        return {"type": "array", "items": items[0]} if same else {"type": "array"}
    return {"type": "object", "properties": {key: schema_of(one, depth + 1) for key, one in value.items()}}


# ---- inside ------------------------------------------------------------------------------------------


def _called(recording: Recording) -> Iterator[str]:
    return (call.name for call in recording.calls if call.kind == "call")


def _imported(code: str, catalog: Catalog) -> Iterator[str]:
    """Yields the tools that a script imports by their names."""
    for statement in _tree(code).children:
        module = field(statement, "source") if statement.type == "import_statement" else None
        server_id = "" if module is None else _text(module)[1:-1].removeprefix(_SERVERS)
        server = catalog.servers.get(server_id)
        if module is None or server is None or _text(module)[1:-1] == server_id:
            continue
        for clause in statement.children:
            for named in clause.children:
                for one in named.children:
                    name = field(one, "name") if one.type == "import_specifier" else None
                    if name is not None and (tool := server.by_export.get(_text(name))) is not None:
                        yield f"{server_id}.{tool.tool_name}"


def _tree(code: str) -> Node:
    until = time.thread_time() + PARSE_BOUND_SECONDS
    return parse(code.encode(), typescript=True, is_late=lambda: time.thread_time() > until)


def _text(node: Node) -> str:
    return node.text.decode() if node.text else ""


def _entry(catalog: Catalog, name: str) -> ToolEntry:
    server_id, _, tool_name = name.partition(".")
    server = catalog.servers.get(server_id)
    known = () if server is None else (*server.tools, *((server.reads,) if server.reads else ()))
    for tool in known:
        if tool.tool_name == tool_name:
            return tool
    raise BadScript(
        f"The script calls {shorten(name)}, which is not there now, so its schema cannot be kept.",
        hint="Keep it while its servers are connected.",
    )


_NO_VALUE: Final = object()


def _walk(root: Node) -> Iterator[Node]:
    nodes = [root]
    while nodes:
        node = nodes.pop()
        yield node
        if node.type not in ("import_statement", "string", "template_string", "literal_type"):
            nodes += node.children


def _value(node: Node) -> Any:
    """Gives the value of a literal that an expression can stand for."""
    parent = node.parent
    if (
        node.type not in _LITERALS
        or parent is None
        or parent.type in ("expression_statement", "literal_type")
    ):
        return _NO_VALUE
    if parent.type in ("pair", "method_definition", "public_field_definition") and node == field(
        parent, "key"
    ):
        return _NO_VALUE
    text = _text(node)
    if text[:1] == "'":
        text = '"' + text[1:-1].replace('"', '\\"').replace("\\'", "'") + '"'
    try:
        value: object = json.loads(text)
    except ValueError:
        return _NO_VALUE
    return value if not is_object(value) else _NO_VALUE
