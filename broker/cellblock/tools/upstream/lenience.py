"""Lets servers through that the SDK's typed messages would refuse whole for one unusual tool.

The SDK validates a `tools/list` answer as one piece: a single tool without `inputSchema`, or with a root type other
than object, would cost a server all its tools. Schemas that it would refuse travel past it in the tool's `_meta`, and
inputs that are no objects (Code Mode specification, section 5.3.1) in an object of our own, both undone at the ends.
What it would refuse of a result (structured content that is no object, which a server of any revision may send, and
blocks of types that it does not know) travels in the result's `_meta`. Of other lists, items that it would refuse are
left out. A server that does not say its version is given an empty one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import mcp_types as types
from pydantic import BaseModel, ValidationError

from cellblock.base.json import is_array, is_object

if TYPE_CHECKING:
    from mcp.shared.message import SessionMessage

_STASHED: Final = {"inputSchema": "cellblock/inputSchema", "outputSchema": "cellblock/outputSchema"}
_ABSENT: Final = "absent"
_ARGUMENT: Final = "cellblock/argument"
_MALFORMED: Final = "cellblock/malformed"
_BYTES: Final = "cellblock/bytes"
_KEPT: Final = "cellblock/kept"
_STUB_NAME_CHARS: Final = 512
_LISTED: Final[Mapping[str, type[BaseModel]]] = {
    "resources": types.Resource,
    "resourceTemplates": types.ResourceTemplate,
    "prompts": types.Prompt,
}

BLOCKS: Final = frozenset({"text", "image", "audio", "resource_link", "resource"})
"""Lists the types of content that the SDK knows."""

MAX_MALFORMED: Final = 50
"""Bounds the malformed items of one page that are told of."""


def soften(item: SessionMessage | Exception) -> SessionMessage | Exception:
    """Prepares an incoming message for the SDK: tool lists and their results are changed in place, no other message."""
    if isinstance(item, Exception) or not isinstance(item.message, types.JSONRPCResponse):
        return item
    soften_result(item.message.result)
    return item


def soften_result(result: dict[str, Any]) -> None:
    """Prepares the result of an incoming message for the SDK, in place."""
    if is_array(result.get("tools")):
        _soften_list(result, "tools", _softened)
    elif is_object(info := result.get("serverInfo")):
        info.setdefault("version", "")
    else:
        _soften_answer(result)
        for key, model in _LISTED.items():
            # What has content is the result of a call, whatever else is in it.
            if "content" not in result and is_array(result.get(key)):
                _soften_list(result, key, partial(_checked, model))


def _soften_list(
    result: dict[str, Any], key: str, soften_item: Callable[[object], dict[str, Any] | str]
) -> None:
    softened = [soften_item(item) for item in result[key]]
    result[key] = [item for item in softened if not isinstance(item, str)]
    why = [item for item in softened if isinstance(item, str)]
    meta: object = result.get("_meta")
    if why or (is_object(meta) and _MALFORMED in meta):
        kept = meta if is_object(meta) else {}
        result["_meta"] = {**kept, _MALFORMED: why[:MAX_MALFORMED]}


def _soften_answer(result: dict[str, Any]) -> None:
    kept: dict[str, Any] = {}
    if "structuredContent" in result:
        # The text beside it is for clients that know no structured content; some servers leave it out.
        result.setdefault("content", [])
        if not is_object(result["structuredContent"]):
            kept["structuredContent"] = result.pop("structuredContent")
    content: object = result.get("content")
    if is_array(content):
        known = [block for block in content if not _is_unknown(block)]
        if len(known) < len(content):
            kept["content"], result["content"] = content, known
    meta: object = result.get("_meta")
    if kept or (is_object(meta) and _KEPT in meta):
        result["_meta"] = {**(meta if is_object(meta) else {}), _KEPT: kept}


def _is_unknown(block: object) -> bool:
    kind: object = block.get("type") if is_object(block) else None
    return isinstance(kind, str) and kind not in BLOCKS


def kept_of(result: types.CallToolResult) -> Mapping[str, Any]:
    """Returns what the SDK has no place for, by the names of MCP: `structuredContent`, and `content` with all its
    blocks."""
    return (result.meta or {}).get(_KEPT, {})


def as_sent(result: types.CallToolResult) -> dict[str, Any]:
    """Returns a result as its server sent it."""
    plain = result.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"result_type"})
    kept: dict[str, Any] = plain.get("_meta", {}).pop(_KEPT, {})
    if plain.get("_meta") == {}:
        del plain["_meta"]
    return {**plain, **kept}


def too_large_tool(name: object, size: int) -> dict[str, Any]:
    """Makes what a tool list has in place of a tool that is too large to be read on the loop."""
    known = name[:_STUB_NAME_CHARS] if isinstance(name, str) else ""
    return {"name": known, "inputSchema": {"type": "object"}, "_meta": {_BYTES: size}}


def stubbed_bytes(tool: types.Tool) -> int | None:
    """Returns the size of the tool in whose place `too_large_tool` has put a stub; a server that says it itself has its
    own tool left out."""
    size: object = (tool.meta or {}).get(_BYTES)
    return size if isinstance(size, int) else None


def malformed_of(page: types.Result) -> list[str]:
    """Says why items of a page were left out as malformed, one sentence without a full stop for each."""
    return list((page.meta or {}).get(_MALFORMED, ()))


def schemas_of(tool: types.Tool) -> tuple[Any, Any]:
    """Returns the input and output schema as the server sent them; None where it sent none."""
    meta = tool.meta or {}
    input_schema: Any = meta.get(_STASHED["inputSchema"], tool.input_schema)
    return None if input_schema == _ABSENT else input_schema, meta.get(
        _STASHED["outputSchema"], tool.output_schema
    )


def as_arguments(value: Any) -> dict[str, Any]:
    """Returns an input in the form that the SDK takes."""
    return value if is_object(value) else {_ARGUMENT: value}


def restore(item: SessionMessage) -> SessionMessage:
    """Prepares an outgoing message for the wire: undoes `as_arguments`."""
    message = item.message
    if isinstance(message, types.JSONRPCRequest) and message.method == "tools/call" and message.params:
        arguments: object = message.params.get("arguments")
        if is_object(arguments) and _ARGUMENT in arguments:
            message.params["arguments"] = arguments[_ARGUMENT]
    return item


def _softened(tool: object) -> dict[str, Any] | str:
    if not is_object(tool):
        return "it is no object"
    softened = dict(tool)
    stash: dict[str, Any] = {}
    for key, name in _STASHED.items():
        schema: object = softened.get(key)
        if is_object(schema) and schema.get("type") == "object":
            continue
        if key == "inputSchema":
            stash[name] = schema if isinstance(schema, dict | bool) else _ABSENT
            softened[key] = {"type": "object"}
        elif key in softened:
            if isinstance(schema, dict | bool):
                stash[name] = schema
            del softened[key]
    if stash:
        meta: object = softened.get("_meta")
        softened["_meta"] = {**(meta if is_object(meta) else {}), **stash}
    return _checked(types.Tool, softened)


def _checked(model: type[BaseModel], item: object) -> dict[str, Any] | str:
    """Returns an item of a list as it is, or why it does not fit its model."""
    if not is_object(item):
        return "it is no object"
    try:
        model.model_validate(item, by_name=False)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])[:100]
        return f"its {where}: {first['msg'][:100]}"
    return item if item["name"] else "its name is empty"
