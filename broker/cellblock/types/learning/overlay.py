"""Reads overlay files: what the user says of a server's tools, one TOML file per server.

TOML, because it has comments, is read by the standard library, and its errors name line and column. Schemas and
examples stand in it as JSON texts (`'''…'''`): that is how they are found in documentation, and TOML has no null.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import jsonschema_rs
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, ValidationError

from cellblock.base.errors import shorten
from cellblock.base.json import is_array, is_object
from cellblock.base.settings.policy import FlowLabel
from cellblock.base.settings.problems import ConfigProblems, Problem, Source, of_validation
from cellblock.base.settings.syntax import Position, SyntaxFault, parse
from cellblock.base.visible import visible
from cellblock.tools.catalog.model import Effect, Example, Given, ToolEntry, ToolOutput

MAX_FILE_BYTES: Final = 4 * 1024 * 1024
"""Sets the largest overlay file; a mistake such as a log in its place is told at once."""

MAX_SHOWN_CHARS: Final = 4_000
"""Bounds the characters of one schema in the comments of a new overlay file."""

_UNSAFE_NAME: Final = re.compile(r"[^A-Za-z0-9_.-]+")


def _json(value: Any) -> Any:
    try:
        return json.loads(value)
    except TypeError:
        raise ValueError("it must be JSON in a text: '''…'''") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON: {error.msg} in line {error.lineno} of it") from None


def _schema(value: object) -> Any:
    schema = _json(value)
    if not isinstance(schema, bool) and not is_object(schema):
        raise ValueError("it is no JSON Schema: it must be an object")
    try:
        jsonschema_rs.validator_for(schema, offline=True)
    except (ValueError, jsonschema_rs.ValidationError) as error:
        raise ValueError(f"it is no JSON Schema: {str(error).partition(chr(10))[0]}") from None
    return schema


def _examples(value: object) -> tuple[Example, ...]:
    examples = _json(value)
    if not is_array(examples):
        raise ValueError('it must be a list of {"input": …, "output": …}')
    for number, one in enumerate(examples, start=1):
        if not is_object(one) or "input" not in one or not one.keys() <= {"input", "output"}:
            raise ValueError(f"example {number} must have input, may have output, and no more")
    return tuple(Example(**one) for one in examples)


class _Tool(BaseModel):
    model_config = ConfigDict(extra="forbid")

    effect: Effect | None = Field(None, alias="class")
    output_schema: Annotated[Any, BeforeValidator(_schema)] = Field(None, alias="output")
    json_text: StrictBool = False
    examples: Annotated[tuple[Any, ...], BeforeValidator(_examples)] = ()
    retry: StrictBool = False
    flow: FlowLabel | None = None


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    tools: dict[str, _Tool] = {}


def overlay_file(folder: Path, server: str) -> Path:
    """Gives the overlay file of a server, by its name in the configuration."""
    return folder / f"{_UNSAFE_NAME.sub('_', server).lstrip('.') or '_'}.toml"


def read_overlay(file: Path) -> OverlayFile:
    """Gives the overlays in a file, and where each stands; none when there is no file.

    Raises:
        ConfigProblems: The file cannot be used; with all places.
    """
    text = _text_of(file)
    source = Source(str(file), text, toml=True)
    try:
        data = parse(text, toml=True)
    except SyntaxFault as error:
        raise _unusable(file, error.message, "Correct the file at that position.", error.position) from None
    try:
        tools = _File.model_validate(data).tools
    except ValidationError as error:
        raise ConfigProblems(source.name, source.placed(of_validation(error, _File, data))) from None
    return OverlayFile(source, {name: Given(**dict(tool)) for name, tool in tools.items()})


def _text_of(file: Path) -> str:
    try:
        if file.exists() and not file.is_file():
            # Reading a pipe could wait for ever.
            raise _unusable(file, "it is no file", "Move it away.")
        raw = file.read_bytes()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise _unusable(file, f"it cannot be read: {error}", "Check its permissions.") from None
    if len(raw) > MAX_FILE_BYTES:
        raise _unusable(file, f"it has {len(raw)} bytes, over {MAX_FILE_BYTES}", "Make it smaller.")
    try:
        return raw.decode()
    except ValueError as error:
        raise _unusable(file, str(error), "Write it in UTF-8.") from None


def _unusable(file: Path, message: str, hint: str, at: Position | None = None) -> ConfigProblems:
    return ConfigProblems(str(file), [Problem((), message, hint, position=at or Position(1, 1))])


@dataclass(slots=True)
class OverlayFile:
    """Holds one overlay file that was read: the overlays of the server's tools, by their MCP names."""

    source: Source
    tools: dict[str, Given]

    def place(self, tool: str, *keys: str) -> Position | None:
        """Gives the place of a tool's table, or of a key in it."""
        positions = self.source.positions()
        return positions and positions.find(("tools", tool, *keys), key=True)


def new_overlay(server: str, tools: Iterable[tuple[ToolEntry, ToolOutput | None]]) -> str:
    """Gives the text of a new overlay file, all of it comments but the tables' headers: of tools, and of what is known
    of their outputs."""
    parts = [
        f"# What you know of the tools of {_comment(server)}. Uncomment and fill in.",
        '#   class     = "read", "write" or "destructive"',
        "#   output    = JSON Schema of what a script gets from the tool",
        "#   json_text = true when that is the JSON in a text, which the script parses itself",
        '#   flow      = {secrecy = "private", trust = "untrusted", sink = "public"}: docs/howto-flows.md',
        "#   examples  = inputs that work, and what came of them",
        "# Cellblock never calls a tool to learn of it: what stands here as observed comes from calls of scripts.",
        "",
    ]
    named = set[str]()
    for tool, known in tools:
        key = json.dumps(tool.tool_name, ensure_ascii=False).replace("\x7f", "\\u007f")
        if not key.isprintable() or key in named:
            continue
        named.add(key)
        parts += [f"[tools.{key}]"]
        if tool.description:
            parts += [f"# {_comment(line)}" for line in tool.description.splitlines()[:5]]
        note = "Nothing is known of its output." if known is None else _comment(known.note)
        parts += [
            f"# input: {shorten(json.dumps(tool.input_schema), MAX_SHOWN_CHARS)}",
            f"# {note}",
            '# class = "read"',
        ]
        parts += ["# output = '''", *_schema_lines(known), "# '''"]
        parts += ["# examples = '''", '# [{"input": {}, "output": null}]', "# '''", ""]
    return "\n".join(parts)


def _schema_lines(known: ToolOutput | None) -> Sequence[str]:
    schema = known and (known.schema if known.document is None else known.document)
    text = json.dumps(schema, indent=2)
    if schema is None or len(text) > MAX_SHOWN_CHARS or "'''" in text:
        text = '{"type": "object"}'
    return [f"# {line}" for line in text.splitlines()]


def _comment(text: str) -> str:
    return visible(text[:300], instead=" ")
