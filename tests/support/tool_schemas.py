"""What tests of tool schemas share: the tool of a function, parts of its schemas, and what a call of it gives."""

from collections.abc import Callable
from typing import Any

import jsonschema
from mcp_types import CallToolResult

from cellblock.base.raw_json import RawJson
from cellblock.tools.python.python_calls import PythonCalls
from cellblock.tools.python.python_tools import PythonTool, read_tool

BOXED_STRING = {
    "type": "object",
    "properties": {"result": {"type": "string"}},
    "required": ["result"],
    "x-dedalus-box": {"field": "result"},
}

MOST = 16 * 1024 * 1024


def data_of(result: RawJson | CallToolResult) -> Any:
    """What a script gets of a Python tool's result, as data; MCP content as it is."""
    return result.decoded() if isinstance(result, RawJson) else result


def made(function: Callable[..., Any]) -> PythonTool:
    """The tool, whose schemas must be valid ones."""
    python_tool = read_tool(function)
    for schema in (python_tool.input.schema, python_tool.result.schema):
        if schema is not None:
            jsonschema.Draft202012Validator.check_schema(schema)
    return python_tool


def properties(function: Callable[..., Any]) -> dict[str, Any]:
    """The properties of an input without descriptions, as most examples show them."""
    shown = made(function).input.schema["properties"]
    return {name: {key: part[key] for key in part if key != "description"} for name, part in shown.items()}


def output(function: Callable[..., Any]) -> Any:
    """The output schema without `required`, as the examples of objects show it."""
    return _without_required(made(function).result.schema)


def _without_required(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_required(part) for part in schema]
    if isinstance(schema, dict):
        return {key: _without_required(part) for key, part in schema.items() if key != "required"}
    return schema


async def gives(function: Callable[..., Any], /, **arguments: Any) -> Any:
    """The structured content of a call, which must fit the output schema."""
    calls = PythonCalls(bound=20, threads=1, most=MOST)
    python_tool = made(function)
    try:
        value = data_of(await calls.call(python_tool, arguments))
    finally:
        await calls.close()
    if python_tool.result.schema is not None:
        jsonschema.Draft202012Validator(python_tool.result.schema).validate(value)
    return value
