"""Reads overlay files: what the user says of a server's tools, one TOML file per server.

TOML, because it has comments, is read by the standard library, and its errors name line and column. Schemas and
examples stand in it as JSON texts (`'''…'''`): that is how they are found in documentation, and TOML has no null.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jsonschema_rs
from pydantic import ValidationError

from cellblock.base.errors import ConfigError
from cellblock.base.json import is_array, is_object
from cellblock.base.settings.policy import FlowLabel
from cellblock.base.settings.problems import dotted, of_validation
from cellblock.base.settings.syntax import find_positions
from cellblock.base.visible import visible
from cellblock.tools.catalog.model import Example, Given

EFFECTS: Final = ("read", "write", "destructive")
KEYS: Final = ("class", "output", "json_text", "examples", "retry", "flow")
MAX_FILE_BYTES: Final = 4 * 1024 * 1024
"""Sets the largest overlay file; a mistake such as a log in its place is told at once."""

MAX_SHOWN_CHARS: Final = 4_000
"""Bounds the characters of one schema in the comments of a new overlay file."""

_UNSAFE_NAME: Final = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class ToolNotes:
    """Holds what a new overlay file says in comments of one tool."""

    name: str
    description: str | None
    input_schema: Any
    output_schema: Any
    note: str


def overlay_file(folder: Path, server: str) -> Path:
    """Gives the overlay file of a server, by its name in the configuration."""
    return folder / f"{_UNSAFE_NAME.sub('_', server).lstrip('.') or '_'}.toml"


def read_overlay(file: Path) -> OverlayFile:
    """Gives the overlays in a file, and where each stands; none when there is no file.

    Raises:
        ConfigError: The file cannot be used; the message names line and column.
    """
    try:
        if file.exists() and not file.is_file():
            # Reading a pipe could wait for ever.
            raise ConfigError(f"The overlay {file} is no file.", hint="Move it away.")
        raw = file.read_bytes()
    except FileNotFoundError:
        raw = b""
    except OSError as error:
        raise ConfigError(
            f"Cannot read the overlay {file}: {error}.", hint="Check its permissions."
        ) from None
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError(
            f"The overlay {file} has {len(raw)} bytes, over {MAX_FILE_BYTES}.", hint="Make it smaller."
        )
    try:
        text = raw.decode("utf-8")
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: {error}.", hint="Correct the file at that position.") from None
    return OverlayFile(file, text, data)


class OverlayFile:
    """Holds one overlay file that was read.

    Attributes:
        tools: The overlays of the server's tools, by their MCP names.
    """

    def __init__(self, file: Path, text: str, data: Mapping[str, Any]) -> None:
        self._file = file
        self._lines = text.split("\n")
        self._positions = find_positions(text, toml=True)
        self.tools = self._tools(data)

    def place(self, tool: str, key: str = "") -> tuple[int, int]:
        """Gives line and column, from 1, of a tool's table, or of a key in it."""
        return self._find(tool, key)

    def _tools(self, data: Mapping[str, Any]) -> dict[str, Given]:
        for key in data:
            if key != "tools":
                raise self._error(
                    f"unknown key {key!r}; only [tools.NAME] tables are known", self._find(None, key)
                )
        tools: object = data.get("tools", {})
        if not is_object(tools):
            raise self._error("tools is no table", self._find(None, "tools"))
        return {name: self._tool(name, table) for name, table in tools.items()}

    def _tool(self, name: str, table: object) -> Given:
        if not is_object(table):
            raise self._error(f"tools.{name} is no table", self._find(name, ""))
        for key in table:
            if key not in KEYS:
                raise self._error(f"unknown key {key!r}; known are {', '.join(KEYS)}", self._find(name, key))
        effect, json_text = table.get("class"), table.get("json_text", False)
        if effect is not None and effect not in EFFECTS:
            raise self._error(f"class must be one of {', '.join(EFFECTS)}", self._find(name, "class"))
        if not isinstance(json_text, bool):
            raise self._error("json_text must be true or false", self._find(name, "json_text"))
        if not isinstance(retry := table.get("retry", False), bool):
            raise self._error("retry must be true or false", self._find(name, "retry"))
        return Given(
            output_schema=self._schema(name, table["output"]) if "output" in table else None,
            json_text=json_text,
            examples=self._examples(name, table["examples"]) if "examples" in table else (),
            effect=effect,
            retry=retry,
            flow=self._flow(name, table["flow"]) if "flow" in table else None,
        )

    def _flow(self, name: str, value: object) -> FlowLabel:
        try:
            return FlowLabel.model_validate(value)
        except ValidationError as error:
            problem = of_validation(error, FlowLabel, value)[0]
            at = dotted(("flow", *problem.path))
            raise self._error(f"{at}: {problem.message}", self._find(name, "flow")) from None

    def _schema(self, name: str, value: object) -> Any:
        schema = self._json(name, "output", value)
        place = self._find(name, "output")
        if not isinstance(schema, bool) and not is_object(schema):
            raise self._error("output is no JSON Schema: it must be an object", place)
        try:
            jsonschema_rs.validator_for(schema, offline=True)
        except (ValueError, jsonschema_rs.ValidationError) as error:
            summary = str(error).partition("\n")[0]
            raise self._error(f"output is no JSON Schema: {summary}", place) from None
        return schema

    def _examples(self, name: str, value: object) -> tuple[Example, ...]:
        examples = self._json(name, "examples", value)
        place = self._find(name, "examples")
        if not is_array(examples):
            raise self._error('examples must be a list of {"input": …, "output": …}', place)
        found: list[Example] = []
        for number, one in enumerate(examples, start=1):
            if not is_object(one) or "input" not in one or not one.keys() <= {"input", "output"}:
                raise self._error(f"example {number} must have input, may have output, and no more", place)
            found.append(Example(one["input"], one.get("output")))
        return tuple(found)

    def _json(self, name: str, key: str, value: object) -> Any:
        place = self._find(name, key)
        if not isinstance(value, str):
            raise self._error(f"{key} must be JSON in a text: {key} = '''…'''", place)
        try:
            return json.loads(value)
        except RecursionError:
            raise self._error(f"{key} is nested too deeply", place) from None
        except json.JSONDecodeError as error:
            at = f"in line {error.lineno} of it"
            raise self._error(f"{key} is no JSON: {error.msg} {at}", place) from None

    def _find(self, tool: str | None, key: str) -> tuple[int, int]:
        """Gives line and column, from 1, of the line that a key or a tool's table begins in."""
        wanted = (key,) if tool is None else ("tools", tool, *([key] if key else []))
        line, _ = self._positions.find(wanted, key=True)
        text = self._lines[line - 1]
        return line, len(text) - len(text.lstrip()) + 1

    def _error(self, what: str, place: tuple[int, int]) -> ConfigError:
        line, column = place
        return ConfigError(
            f"{self._file}: {what} (at line {line}, column {column}).",
            hint="Correct the overlay at that position.",
        )


def new_overlay(server: str, tools: Iterable[ToolNotes]) -> str:
    """Gives the text of a new overlay file, all of it comments but the tables' headers."""
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
    for tool in tools:
        key = json.dumps(tool.name, ensure_ascii=False).replace("\x7f", "\\u007f")
        if not key.isprintable() or tool.name in named:
            continue
        named.add(tool.name)
        parts += [f"[tools.{key}]"]
        if tool.description:
            parts += [f"# {_comment(line)}" for line in tool.description.splitlines()[:5]]
        parts += [f"# input: {_shown(tool.input_schema)}", f"# {_comment(tool.note)}", '# class = "read"']
        parts += ["# output = '''", *_schema_lines(tool.output_schema), "# '''"]
        parts += ["# examples = '''", '# [{"input": {}, "output": null}]', "# '''", ""]
    return "\n".join(parts)


def _schema_lines(schema: Any) -> Sequence[str]:
    text = json.dumps(schema if schema is not None else {"type": "object"}, indent=2, ensure_ascii=True)
    if len(text) > MAX_SHOWN_CHARS or "'''" in text:
        text = '{"type": "object"}'
    return [f"# {line}" for line in text.splitlines()]


def _shown(schema: Any) -> str:
    text = json.dumps(schema, ensure_ascii=True)
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "…"


def _comment(text: str) -> str:
    return visible(text[:300], instead=" ")
