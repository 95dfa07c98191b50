"""Writes tool definitions as others want them: MCP clients, OpenAI's and Anthropic's APIs, and readers of JSON Schema.

What is known of outputs goes with them, marked as declared, given or observed. Only what a server declares is a
promise: the rest is said so that nothing is refused because of it (docs/decisions, 104).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any, Final, NamedTuple

from cellblock.base.json import is_array, is_object
from cellblock.tools.catalog.model import (
    Catalog,
    JsonSchema,
    OutputLookup,
    ServerEntry,
    ToolEntry,
    ToolOutput,
    nothing_observed,
)
from cellblock.tools.schemas.boxing import without_definitions
from cellblock.types.lookup import NAMESPACE
from cellblock.types.typescript import schema_to_type

MAX_NAME_CHARS: Final = 64
"""Bounds a name as OpenAI's and Anthropic's APIs do."""

OUTPUT_KEY: Final = "cellblock/output"
"""Names what is known of an output, in a definition's `_meta`."""

BOX: Final = "result"
"""Names the property of learnt structured content that holds what is no object."""

_NOT_NAME: Final = re.compile(r"[^A-Za-z0-9_-]")
_REFERRING: Final = ("$ref", "$dynamicRef", "$id", "$anchor", "$dynamicAnchor")
_COMBINED: Final = ("anyOf", "oneOf", "allOf")
_HASH_CHARS: Final = 8


class Published(NamedTuple):
    """Holds a tool under the one name that it has among those of all servers."""

    name: str
    server: ServerEntry
    tool: ToolEntry


def published(catalog: Catalog, *, plain: bool = False) -> dict[str, Published]:
    """Returns all tools by the names `mcp__SERVER__TOOL`, as letters, digits, `_` and `-`, 64 at most.

    A name that had to be changed ends in a hash of what it was, so that it depends on its own tool alone. With `plain`,
    the tools of the only server that is configured have their own names.
    """
    found: dict[str, Published] = {}
    if plain and has_one_server(catalog):
        return {
            tool.tool_name: Published(tool.tool_name, server, tool)
            for server in catalog.servers.values()
            for tool in server.tools
        }
    for server in catalog.servers.values():
        for tool in server.tools:
            name = long_name(server.server_id, tool.tool_name, found)
            found[name] = Published(name, server, tool)
    return found


def has_one_server(catalog: Catalog) -> bool:
    """Says whether one server alone is configured: what it has needs no other names."""
    return len({*catalog.ids.values(), *catalog.servers}) == 1


def long_name(server_id: str, own: str, taken: Container[str] = ()) -> str:
    """Returns the name among those of all servers of what a server calls so."""
    whole = f"{NAMESPACE}{server_id}__{own}"
    name = _NOT_NAME.sub("_", whole)
    if name == whole and len(name) <= MAX_NAME_CHARS and name not in taken:
        return name
    digest = hashlib.sha256(f"{server_id}\0{own}".encode("utf-8", "surrogatepass")).hexdigest()
    return f"{name[: MAX_NAME_CHARS - _HASH_CHARS - 1]}_{digest[:_HASH_CHARS]}"


def mcp_definition(
    one: Published, outputs: OutputLookup, observed: OutputLookup = nothing_observed
) -> dict[str, Any]:
    """Writes a definition for MCP clients, who refuse results that do not fit `outputSchema`: what is not declared is
    there in a form that every object fits."""
    tool, known = one.tool, outputs(one.server, one.tool)
    seen = observed(one.server, tool)
    declared = declared_schema(tool)
    found: dict[str, Any] = {
        "name": one.name,
        **tool.listed,
        "description": tool.description,
        "inputSchema": _object_schema(tool.input_schema),
        "outputSchema": learnt_schema(known) if declared is None else declared,
        "annotations": None if tool.annotations is None else dict(tool.annotations),
        "_meta": {
            **tool.listed.get("_meta", {}),
            OUTPUT_KEY: {
                **mark(one, known),
                **({} if known is None else {"schema": known.as_schema()}),
                **({} if seen is None or seen == known else {"observedSchema": seen.as_schema()}),
            },
        },
    }
    return {key: value for key, value in found.items() if value is not None}


def openai_definition(one: Published, known: ToolOutput | None) -> dict[str, Any]:
    """Writes a function tool of OpenAI's Responses API; `output_schema` is of the JSON that a string output holds."""
    schema = json_schema(known)
    return {
        "type": "function",
        "name": one.name,
        "description": one.tool.description or "",
        "parameters": _plain_root(_object_schema(one.tool.input_schema)),
        "strict": False,
        **({} if schema is None else {"output_schema": schema}),
    }


def anthropic_definition(one: Published, known: ToolOutput | None) -> dict[str, Any]:
    """Writes a tool of Anthropic's Messages API, which has no place for an output but the description."""
    description = one.tool.description or ""
    if known is not None:
        parsed = json_schema(known)
        made = schema_to_type(known.as_schema() if parsed is None else parsed)
        is_json = "" if parsed is None else " JSON of this type:"
        types = "\n".join([*made.aliases, f"type Output = {made.text};"])
        description = f"{description}\n\nOutput ({known.source}): {known.note}{is_json}\n{types}".strip()
    examples = one.tool.given.examples if one.tool.given is not None else ()
    inputs = [example.input for example in examples if is_object(example.input)]
    return {
        "name": one.name,
        "description": description,
        "input_schema": _plain_root(_object_schema(one.tool.input_schema)),
        **({"input_examples": inputs} if inputs else {}),
    }


def schema_document(tools: Mapping[str, Published], outputs: OutputLookup) -> dict[str, Any]:
    """Writes one JSON Schema with all inputs and outputs under `$defs`, each a resource of its own: a reference in it
    leads nowhere else."""

    def resource(schema: JsonSchema, name: str, said: str) -> dict[str, Any]:
        whole = dict(schema) if isinstance(schema, Mapping) else {"allOf": [schema]}
        return {"$id": f"urn:cellblock:{name}", **whole, "$comment": said}

    definitions: dict[str, Any] = {}
    for name, one in tools.items():
        whose = f"{one.server.server_id}.{one.tool.tool_name}"
        definitions[f"{name}.input"] = resource(
            _object_schema(one.tool.input_schema), f"{name}.input", f"The input of {whose}."
        )
        known = outputs(one.server, one.tool)
        if known is not None:
            said = f"The output of {whose}, {known.source}: {known.note}"
            definitions[f"{name}.output"] = resource(known.as_schema(), f"{name}.output", said)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$defs": definitions}


def mark(one: Published, known: ToolOutput | None) -> dict[str, Any]:
    """Says which server a tool is of, and who says what its output is: `declared`, `given`, `observed` or `unknown`."""
    said = {"source": "unknown"} if known is None else known.as_json()
    return {"server": one.server.server_id, "tool": one.tool.tool_name, **said}


def declared_schema(tool: ToolEntry) -> dict[str, Any] | None:
    """Returns what the server declares of structured content, as it does; None where that is nothing, or no object."""
    schema = tool.output_schema
    if not isinstance(schema, Mapping):
        return None
    if tool.box is not None:
        # It was taken out for scripts.
        inside = _inside(schema)
        if inside is None:
            return None
        return {"type": "object", "properties": {tool.box: inside[0]}, "required": [tool.box], **inside[1]}
    return dict(schema) if schema.get("type") == "object" else None


def learnt_schema(known: ToolOutput | None) -> dict[str, Any] | None:
    """Returns what is known of a tool that declares nothing, as the schema of structured content that every object
    fits; None where results are not always JSON."""
    schema = json_schema(known)
    if known is None or schema is None:
        return None
    inside = _inside(schema)
    if inside is None:
        return None
    # With the open alternative, a result of another shape is no error of the call.
    either = {"anyOf": [inside[0], {}]}
    value = either if schema.get("type") == "object" else {"properties": {BOX: either}}
    return {"type": "object", "description": known.note, **value, **inside[1]}


def json_schema(known: ToolOutput | None) -> dict[str, Any] | None:
    """Returns the schema of the JSON that a tool's results always are, as values or in a text; None where they are
    not."""
    if known is None or known.text or known.result or (known.schema is None) == (known.document is None):
        return None
    schema = known.schema if known.document is None else known.document
    if not isinstance(schema, Mapping):
        return None
    if known.source == "declared":
        return dict(schema)
    return {"description": known.note, **schema}


def structured(value: Any) -> dict[str, Any]:
    """Returns a JSON value as structured content that fits `learnt_schema`, whatever it is."""
    return value if is_object(value) else {BOX: value}


EXPORTS: Final[Mapping[str, Callable[[Published, OutputLookup, OutputLookup], dict[str, Any]]]] = {
    "mcp": mcp_definition,
    "openai": lambda one, outputs, _: openai_definition(one, outputs(one.server, one.tool)),
    "anthropic": lambda one, outputs, _: anthropic_definition(one, outputs(one.server, one.tool)),
}
"""Writes one tool, by the name of a format."""


def definitions_in(
    tools: Mapping[str, Published], form: str, outputs: OutputLookup, observed: OutputLookup
) -> dict[str, Any]:
    """Writes tools in one of the `EXPORTS`: under `tools` as they are sent, under `outputs` who says what of each."""
    return {
        "tools": [EXPORTS[form](one, outputs, observed) for one in tools.values()],
        "outputs": {name: mark(one, outputs(one.server, one.tool)) for name, one in tools.items()},
    }


def marks_in_comments(tools: Mapping[str, Published], outputs: OutputLookup) -> Iterator[str]:
    """Yields a line of TypeScript for each tool that says where its output type comes from."""
    for one in tools.values():
        known = outputs(one.server, one.tool)
        said = "unknown" if known is None else f"{known.source}. {known.note}"
        yield f"// {json.dumps(f'{one.server.server_id}.{one.tool.tool_name}')}: {said}"


def _inside(schema: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Returns a schema as it can stand within another, and what moves to the root for it; None where it cannot."""
    if not all(reference.startswith("#/$defs/") for reference in _references(schema)):
        return None
    return without_definitions(schema)


def _references(schema: object) -> Iterator[str]:
    if is_object(schema):
        for key, part in schema.items():
            if key in _REFERRING:
                # One that is relative to an identifier leads elsewhere within another schema, too.
                yield str(part)
            yield from _references(part)
    elif is_array(schema):
        for part in schema:
            yield from _references(part)


def _object_schema(schema: JsonSchema | None) -> dict[str, Any]:
    """Returns an input schema with the root that MCP and the APIs want."""
    return {**schema, "type": "object"} if isinstance(schema, Mapping) else {"type": "object"}


def _plain_root(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns a schema with the root that the APIs take; it may allow more, and a call is checked by the server, and by
    Cellblock."""
    return {"properties": {}, **{key: value for key, value in schema.items() if key not in _COMBINED}}
