"""Finds the imports of a script and points them at the modules of its run.

Only the text of the specifiers is replaced or wrapped, so that everything else stays what and where the agent wrote
it, and positions that the sandbox reports are mapped back over those few edits.

A script that is JavaScript is sent as JavaScript. Only one that is not is sent as TypeScript, for Deno to strip the
types: for that Deno insists on writing to its cache, which no worker has, and loses 150 ms in retries.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import tree_sitter_javascript
import tree_sitter_typescript
from tree_sitter import Language, Node, Parser

SCRIPT_NAME: Final = "script.js"

IMPORT_FUNCTION: Final = "__codemode_import__"

MAX_IMPORTS: Final = 1_000
"""Imports of one script, static and dynamic; each costs the broker some work on its only thread."""

PARSE_BOUND_SECONDS: Final = 2.0
"""Parsing 1 MiB of ordinary code takes 0.5 s; text made for it takes minutes."""

_PARSE_CHUNK_BYTES: Final = 64 * 1024

JAVASCRIPT: Final = "application/javascript"
TYPESCRIPT: Final = "application/typescript"

_KEYWORD: Final = re.compile(rb"import|export")

_PHASE: Final = re.compile(rb"(?<=import)\s*\.\s*(?:defer|source)(?=\s*\()")
"""The part of `import.defer(…)` and `import.source(…)` that no grammar knows yet, but the engine does."""


class TooComplex(ValueError):
    """The imports of a script cannot be found at a reasonable cost; the text says why."""


@dataclass(frozen=True, slots=True)
class StaticImport:
    """One `import … from` or `export … from`; line and column count from 1, columns in UTF-16 units."""

    specifier: str
    line: int
    column: int


@dataclass(slots=True)
class _Edit:
    line: int
    column: int
    old: int
    new: int


@dataclass(frozen=True, slots=True)
class _Replacement:
    """What stands for the bytes from `start` to `end`; `point` is the parser's row and byte column of `start`."""

    start: int
    point: tuple[int, int]
    end: int
    text: str


@dataclass(slots=True)
class Script:
    """A script whose imports point at `data:` URLs.

    `static` are its static imports; `dynamic` are the literal specifiers of `import(…)`, and `computed` says
    whether there is an `import(…)` of anything else.
    """

    text: str
    media_type: str = JAVASCRIPT
    static: list[StaticImport] = field(default_factory=list[StaticImport])
    dynamic: list[str] = field(default_factory=list[str])
    computed: bool = False
    _edits: dict[int, list[_Edit]] = field(default_factory=dict[int, list[_Edit]])

    def original_column(self, line: int, column: int) -> int:
        """The column in the agent's own source of a position in `text`."""
        shift = 0
        for edit in self._edits.get(line, ()):
            start = edit.column + shift
            if column < start:
                break
            if column < start + edit.new:
                return edit.column
            shift += edit.new - edit.old
        return column - shift


@lru_cache(maxsize=2)
def _parser(media_type: str) -> Parser:
    raw = (
        tree_sitter_javascript.language()
        if media_type == JAVASCRIPT
        else tree_sitter_typescript.language_typescript()
    )
    return Parser(Language(raw))


def prepare(code: str, resolve: Callable[[str], str | None], import_url: str) -> Script:
    """Rewrites a script's imports.

    Static specifiers that `resolve` knows are replaced by its answer; others stay, for the caller to refuse.
    In every `import(x)` the `x` is wrapped into a call of the sandbox's own function, which knows the same
    specifiers. The expression stays an `import`, with the engine's own syntax errors, order of evaluation and
    promise.

    Args:
        code: The agent's source.
        resolve: From a specifier to a module URL, or None.
        import_url: The module that exports `importable`.

    Raises:
        TooComplex: Over `MAX_IMPORTS`, or over `PARSE_BOUND_SECONDS` of parsing.
    """
    source = code.encode("utf-8", "replace")
    deadline = time.monotonic() + PARSE_BOUND_SECONDS
    parsed = _PHASE.sub(lambda match: re.sub(rb"\S", b" ", match[0]), source)
    media_type = JAVASCRIPT
    root = _parse(parsed, media_type, deadline)
    if root.has_error:
        media_type = TYPESCRIPT
        root = _parse(parsed, media_type, deadline)
        if root.has_error and source.rfind(b"/*") > source.rfind(b"*/"):
            # Deno's type stripping takes a comment without end for an empty rest; V8 calls it a syntax error.
            media_type = JAVASCRIPT
    if b"import" not in source and b"export" not in source:
        return Script(source.decode(), media_type)
    statics, dynamics = _imports(root, source, deadline)
    script = Script("", media_type)
    edits: list[_Replacement] = []
    columns = _Columns(source)
    for node in statics:
        specifier = _literal(source, node)
        row, column = columns.position(node.start_byte, node.start_point)
        script.static.append(StaticImport(specifier, row, column))
        url = resolve(specifier)
        if url is not None:
            edits.append(_Replacement(node.start_byte, node.start_point, node.end_byte, f'"{url}"'))
    function = _fresh_name(code)
    for node in dynamics:
        edits.append(_Replacement(node.start_byte, node.start_point, node.start_byte, f"{function}("))
        edits.append(_Replacement(node.end_byte, node.end_point, node.end_byte, ")"))
        specifier = _constant(source, node)
        if specifier is None:
            script.computed = True
        else:
            script.dynamic.append(specifier)
    script.text = _apply(source, edits, script)
    if script.dynamic or script.computed:
        # Appended, so that no line moves; an import is hoisted wherever it stands.
        script.text += f'\nimport {{ importable as {function} }} from "{import_url}";\n'
    return script


def _parse(source: bytes, media_type: str, deadline: float) -> Node:
    parser = _parser(media_type)
    try:
        # Only a parser that reads through a callback can be stopped.
        tree = parser.parse(
            lambda offset, _point: source[offset : offset + _PARSE_CHUNK_BYTES],
            encoding="utf8",
            progress_callback=lambda _offset, _has_error: time.monotonic() > deadline,
        )
    except ValueError:
        parser.reset()
        raise TooComplex(f"it cannot be parsed within {PARSE_BOUND_SECONDS:g} s") from None
    return tree.root_node


def _imports(root: Node, source: bytes, deadline: float) -> tuple[list[Node], list[Node]]:
    """The specifiers of static imports and the first arguments of dynamic ones, in the order of the text.

    A walk of its own, into no subtree without a keyword: tree-sitter's queries are quadratic in siblings and in
    depth, and cannot be stopped without crashing.
    """
    statics: list[Node] = []
    dynamics: list[Node] = []
    keywords = [match.start() for match in _KEYWORD.finditer(source)]
    cursor = root.walk()
    while True:
        node = cursor.node
        assert node is not None
        if time.monotonic() > deadline:
            raise TooComplex(f"it cannot be searched for imports within {PARSE_BOUND_SECONDS:g} s")
        at = bisect_left(keywords, node.start_byte)
        if at < len(keywords) and keywords[at] < node.end_byte:
            if node.type in ("import_statement", "export_statement"):
                specifier = node.child_by_field_name("source")
                if specifier is not None and not _only_types(node):
                    statics.append(specifier)
            elif node.type == "call_expression":
                function = node.child_by_field_name("function")
                if function is not None and function.type == "import" and (first := _first_argument(node)):
                    dynamics.append(first)
            if len(statics) + len(dynamics) > MAX_IMPORTS:
                raise TooComplex(f"it has over {MAX_IMPORTS} imports")
            if cursor.goto_first_child():
                continue
        while not cursor.goto_next_sibling():
            if not cursor.goto_parent():
                return statics, dynamics


def _only_types(statement: Node) -> bool:
    """Whether it is an `import type` or `export type` statement, which TypeScript erases."""
    return statement.child_count > 1 and statement.children[1].type == "type"


def _apply(source: bytes, edits: list[_Replacement], script: Script) -> str:
    pieces: list[bytes] = []
    at = 0
    columns = _Columns(source)
    for edit in sorted(edits, key=lambda edit: edit.start):
        line, column = columns.position(edit.start, edit.point)
        old = len(_utf16(source[edit.start : edit.end]))
        script._edits.setdefault(line, []).append(_Edit(line, column, old, len(edit.text)))  # pyright: ignore[reportPrivateUsage]
        pieces += [source[at : edit.start], edit.text.encode()]
        at = edit.end
    pieces.append(source[at:])
    return b"".join(pieces).decode()


def _utf16(raw: bytes) -> memoryview:
    return memoryview(raw.decode("utf-8", "replace").encode("utf-16-le")).cast("H")


class _Columns:
    """Line and column, from 1, of places that are asked for in the order of the text.

    Columns count on from the node before: a line may be a whole megabyte long.
    """

    def __init__(self, source: bytes) -> None:
        self._source = source
        self._row = -1
        self._byte = 0
        self._column = 0

    def position(self, byte: int, point: tuple[int, int]) -> tuple[int, int]:
        row, column = point
        if row != self._row:
            self._row, self._byte, self._column = row, byte - column, 1
        self._column += len(_utf16(self._source[self._byte : byte]))
        self._byte = byte
        return row + 1, self._column


def _literal(source: bytes, node: Node) -> str:
    """The text of a string node; an escape in it is left as written and so resolves to nothing."""
    return source[node.start_byte + 1 : node.end_byte - 1].decode("utf-8", "replace")


def _first_argument(call: Node) -> Node | None:
    arguments = call.child_by_field_name("arguments")
    children = arguments.named_children if arguments is not None else []
    first = next((child for child in children if child.type != "comment"), None)
    # Without an expression the engine has a syntax error to tell.
    return None if first is None or first.type in ("spread_element", "ERROR") else first


def _constant(source: bytes, node: Node) -> str | None:
    text = _literal(source, node) if node.type == "string" else "\\"
    return None if "\\" in text else text


def _fresh_name(code: str) -> str:
    taken = set(re.findall(rf"{IMPORT_FUNCTION}\d*", code))
    name, number = IMPORT_FUNCTION, 2
    while name in taken:
        name = f"{IMPORT_FUNCTION}{number}"
        number += 1
    return name
