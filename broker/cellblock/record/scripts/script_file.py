"""A kept script is one file: a comment with JSON that says what it is and may do, and the script behind it.

The file is the unit of review, of approval and of what runs. Its digest is over all its bytes: whatever is changed, by
whomever, is another version. The whole text runs, header and all, so that places in it are those of the file.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from tree_sitter import Node

from cellblock.base.errors import CellblockError, Fault, shorten
from cellblock.base.json import is_array, is_object
from cellblock.base.settings.policy import EXACTLY, MAX_PATTERNS, Grant
from cellblock.base.settings.problems import of_validation
from cellblock.base.visible import DATA, MAPS, TEXTS, visible
from cellblock.script.imports import PARSE_BOUND_SECONDS
from cellblock.script.trees import parse
from cellblock.tools.catalog.model import JsonSchema, ToolEntry
from cellblock.tools.catalog.naming import FURTHER_RESERVED, RESERVED_WORDS, SCRIPT_NAME
from cellblock.tools.upstream.definitions import canonical, digest

SUFFIX: Final = ".ts"

MAX_BYTES: Final = 512 * 1024
"""Bounds a kept script's file: half of what a request may have as code, which the file and its input are."""

MAX_INPUT_BYTES: Final = 256 * 1024
"""Bounds the input of one run of a kept script, as JSON: it becomes part of its code."""

OPENING: Final = (
    "/* A script that Cellblock keeps. It runs when a person has approved it: `cellblock scripts approve`.\n"
)
CLOSING: Final = "\n*/\n"


_NAME: Final = re.compile(rf"(?=.{{1,64}}\Z){SCRIPT_NAME}")


class BadScript(CellblockError):
    """Tells that a text or a name is no kept script's."""

    fault = Fault.CALLER


def check_name(name: str) -> str:
    """Returns the name of a kept script, which is a file's and a function's, as it is. Raises BadScript."""
    if _NAME.fullmatch(name) is None or name in RESERVED_WORDS or name in FURTHER_RESERVED or name == "input":
        raise BadScript(
            f"{shorten(name, 80)!a} cannot be the name of a kept script.",
            hint="Use words of a-z and 0-9 with _ between them, at most 64 characters, and no word of the language.",
        )
    return name


NO_INPUT: Final = {"type": "object", "additionalProperties": False}
"""The JSON Schema of the input of a script that takes none."""

ToolName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*\..", max_length=600)]


class Header(BaseModel):
    """The header of a kept script's file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    description: Annotated[str, Field(min_length=1, max_length=1024)]
    """Says what it does, for people and models."""

    input: dict[str, Any] = NO_INPUT
    """Holds the JSON Schema of its input, an object. The script has it as `input`, unless it can only be empty."""

    output: JsonSchema = True
    """Holds the JSON Schema of its result."""

    tools: Annotated[dict[ToolName, str], Field(max_length=MAX_PATTERNS)] = {}
    """Maps the tools that it may call, as `server.tool`, to the digests of their schemas when it was kept."""

    grants: Grant = Grant()
    """Narrows what it may do with those further, as a grant of the policy does."""

    recording: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    """Names the recording that it is tested with, which is not in the file."""


@dataclass(frozen=True)
class KeptScript:
    """Holds one version of a kept script.

    Args:
        name: Its name.
        text: The whole file.
        header: What its header says.
        body_at: Where the script begins, behind the header.
    """

    name: str
    text: str
    header: Header
    body_at: int

    @cached_property
    def digest(self) -> str:
        """Names this version: any other text has another one."""
        return f"sha256:{sha256(self.text.encode()).hexdigest()}"

    @property
    def code(self) -> str:
        """Gives the script without its header."""
        return self.text[self.body_at :]

    @property
    def grants(self) -> dict[str, Any]:
        """Gives what it may call, as a request has it: its tools by their very names, and what its grants leave of
        them."""
        own = self.header.grants.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        return {**own, "tools": [EXACTLY + tool for tool in self.header.tools]}

    def with_input(self, value: Mapping[str, Any]) -> str:
        """Gives what runs: the file, with its input as a constant behind its first imports, on their line.

        Raises:
            BadScript: The input is too large.
        """
        if self.header.input == NO_INPUT:
            return self.text
        given = json.dumps(value, allow_nan=False)
        if len(given) > MAX_INPUT_BYTES:
            raise BadScript(
                f"The input has {len(given):,} bytes, over {MAX_INPUT_BYTES:,}.",
                hint="Let the script fetch what it needs through tools.",
            )
        # In a literal, this key would set the prototype.
        literal = f"JSON.parse({json.dumps(given)})" if "__proto__" in given else given
        source, at = self.text.encode(), self.body_at - 1
        for node in parsed(self.text).children:
            if node.type == "import_statement":
                at = len(source[: node.end_byte].decode())
            elif node.type != "comment":
                break
        # A statement may end with its line alone.
        return f"{self.text[:at]} const input = {literal};{self.text[at:]}"


def parsed(code: str) -> Node:
    """Returns the tree of a script. Raises ValueError: It takes too long."""
    until = time.thread_time() + PARSE_BOUND_SECONDS
    return parse(code.encode(), typescript=True, is_late=lambda: time.thread_time() > until)


def said_of(tool: ToolEntry) -> list[Any]:
    """Returns what a server says of a tool, as a recording has it: the schemas of its input and output, its words."""
    return [tool.input_schema, tool.output_schema, tool.description]


def schema_digest(tool: ToolEntry) -> str:
    """Names what a tool takes and gives, whatever is said of it."""
    return digest(canonical(pruned({"input": tool.input_schema, "output": tool.output_schema}, _WORDS)))


_WORDS: Final = TEXTS | {"examples", "example", "default", "deprecated"}


def pruned(schema: Any, without: Collection[str], *, closed: bool = False, names: bool = False) -> Any:
    """Returns a JSON Schema without some keywords, at any depth.

    Args:
        schema: The schema.
        without: The keywords.
        closed: Whether objects have those fields alone that they declare.
        names: Whether its keys are no keywords.
    """
    if is_array(schema):
        return [pruned(one, without, closed=closed) for one in schema]
    if not is_object(schema):
        return schema
    made = {
        key: value
        if key in DATA and not names
        else pruned(value, without, closed=closed, names=key in MAPS and not names)
        for key, value in schema.items()
        if names or key not in without
    }
    if closed and not names and "properties" in made and not is_object(made.get("additionalProperties")):
        made["additionalProperties"] = False
    return made


def format_script(name: str, header: Header, code: str) -> KeptScript:
    """Makes the file of a kept script. Raises BadScript: It could not be read again."""
    said = json.dumps(
        header.model_dump(mode="json", by_alias=True, exclude_defaults=True), indent=2, ensure_ascii=False
    )
    # Within JSON it stands in texts alone, where a slash may be escaped. CRLF would be hidden characters.
    text = OPENING + said.replace("*/", "*\\/") + CLOSING + code.replace("\r\n", "\n")
    return read_script(name, text.encode("utf-8", "replace"))


def read_script(name: str, data: bytes) -> KeptScript:
    """Reads the file of a kept script, which may be anybody's. Raises BadScript."""
    check_name(name)
    if len(data) > MAX_BYTES:
        raise _bad(name, f"has {len(data):,} bytes, over {MAX_BYTES:,}")
    # What is no UTF-8 becomes what is no text.
    text = data.decode(errors="surrogateescape")
    if visible(text, keep="\n\t") != text:
        raise _bad(
            name, "has hidden characters, or bytes that are no UTF-8", "Write them as escapes: \\u200b."
        )
    end = text.find(CLOSING)
    if not text.startswith(OPENING) or end < 0:
        raise _bad(name, "does not begin with the header of a kept script", "Make it with `cellblock save`.")
    head = text[len(OPENING) : end]
    if "*/" in head:
        raise _bad(name, "has a header that ends before its JSON does", "Write `*\\/` in its texts.")
    return KeptScript(name, text, _header(name, head), end + len(CLOSING))


def _header(name: str, head: str) -> Header:
    try:
        found = json.loads(head, object_pairs_hook=_once)
        # Half a character, which JSON may name, is none to whoever is told of the script, and NaN is no JSON.
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise _bad(name, f"has a header that is no JSON ({error})") from None
    try:
        header = Header.model_validate(found)
    except ValidationError as error:
        problem = of_validation(error, Header, found)[0]
        raise _bad(
            name,
            f"has a header that cannot be used: {shorten(problem.place, 100) or 'the header'}: {problem.message}",
        ) from None
    if header.input.get("type", "object") != "object":
        raise _bad(name, "has an input that is no object")
    if header.grants.tools is not None:
        raise _bad(name, "lists tools in its grants", "Its `tools` say what it may call.")
    return header


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Makes an object of its members: of two with one name, a reader would see one and we the other."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name comes twice in one object")
    return found


def _bad(name: str, why: str, hint: str = "Correct the file, or keep the script anew.") -> BadScript:
    return BadScript(f"The kept script {name} {why}.", hint=hint)
