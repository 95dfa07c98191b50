"""Parses a script: where its imports are, which language it is, and whether it is fit for a worker.

Pure functions of the text, so that another process can do it.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

from tree_sitter import Node

from cellblock.script.conventions import (
    ASSIGN,
    RESULT_NAME,
    Entry,
    entry_of,
    hidden_result,
    likely_result,
    uncalled,
)
from cellblock.script.trees import TOO_DEEP, arguments_of, field, parse, too_deep
from cellblock.script.type_blanking import blank_types
from cellblock.script.unawaited import Unawaited, unawaited_calls

MAX_IMPORTS: Final = 1_000
"""Bounds the imports of one script, static and dynamic; each costs the broker some work on its only thread."""

PARSE_BOUND_SECONDS: Final = 2.0
"""Bounds the CPU time of parsing. Parsing 1 MiB of ordinary code takes 0.5 s; text made for it takes minutes."""

BLANK_BOUND_SECONDS: Final = 0.15
"""Bounds the CPU time after parsing that taking the types out of a large script may cost: what a worker would lose
with them."""

JAVASCRIPT: Final = "application/javascript"
TYPESCRIPT: Final = "application/typescript"

_KEYWORD: Final = re.compile(rb"import|export")

_PHASE: Final = re.compile(rb"(?<=import)\s*\.\s*(?:defer|source)(?=\s*\()")
"""Matches the part of `import.defer(…)` and `import.source(…)` that no grammar knows yet, but the engine does."""

_HASHBANG: Final = re.compile(rb"(?:\xef\xbb\xbf)?#![^\r\n]*?(?=[\r\n]|\xe2\x80[\xa8\xa9]|\Z)")
"""Matches a first line that is a comment; to the grammars only LF ends it."""


class TooComplex(ValueError):
    """Tells that the imports of a script cannot be found at a reasonable cost; the text says why."""


class TooSlow(TooComplex):
    """Tells that the parsing of a script was given up at its bound."""


@dataclass(frozen=True, slots=True)
class Span:
    """Describes a piece of the source in bytes. `text` is what stands in it if it is a string, with escapes as they are
    written."""

    start: int
    end: int
    text: str | None = None

    @property
    def constant(self) -> str | None:
        """Gives the text, of which is certain what it says; None where that is computed."""
        return None if self.text is None or "\\" in self.text else self.text


@dataclass(frozen=True, slots=True)
class Imports:
    """Holds the specifiers of static imports, the first arguments of dynamic ones and these as a whole, in the order of
    the text.

    `media_type` is that of the source; `javascript` is a TypeScript source with blanks for types, if that can be.
    `entry` is how it gives its result by a convention, and `fix` what to do where it never names the result;
    `unawaited` are calls that it does not wait for.
    """

    media_type: str
    statics: tuple[Span, ...] = ()
    dynamics: tuple[Span, ...] = ()
    javascript: str | None = None
    entry: Entry | None = None
    fix: str | None = None
    unawaited: tuple[Unawaited, ...] = ()
    calls: tuple[Span, ...] = ()

    @property
    def computed(self) -> bool:
        """Says whether something is imported of which the name is computed."""
        return any(node.constant is None for node in self.dynamics)

    @property
    def specifiers(self) -> set[str]:
        """Gives all others."""
        named = {node.text for node in self.statics} | {node.constant for node in self.dynamics}
        return {name for name in named if name is not None}


def find_imports(source: bytes, bound: float, blank_bound: float | None = None) -> Imports:
    """Finds the imports of a script, by parsing it.

    Args:
        source: UTF-8.
        bound: Seconds of this thread's CPU time after which to give up.
        blank_bound: Seconds after parsing after which TypeScript stays as it is; None to give up at `bound` then too.

    Raises:
        TooSlow: `bound` is over.
        TooComplex: Over `MAX_IMPORTS`, or nested too deeply for a worker.
    """
    deadline = time.thread_time() + bound
    media_type = JAVASCRIPT
    root = _parse(source, media_type, deadline)
    if root.has_error:
        media_type = TYPESCRIPT
        root = _parse(source, media_type, deadline)
        if root.has_error and source.rfind(b"/*") > source.rfind(b"*/"):
            # Deno's type stripping takes a comment without end for an empty rest; V8 calls it a syntax error.
            media_type = JAVASCRIPT
    if too_deep(root, source):
        raise TooComplex(TOO_DEEP)
    statics: list[Node] = []
    dynamics: list[Node] = []
    if b"import" in source or b"export" in source:
        statics, dynamics = import_nodes(root, source, deadline)
    javascript = None
    if media_type == TYPESCRIPT and not root.has_error:
        try:
            until = deadline if blank_bound is None else time.thread_time() + blank_bound
            javascript = _javascript(root, source, until)
        except TooSlow:
            if blank_bound is None:
                raise
    entry = fix = None
    unawaited: tuple[Unawaited, ...] = ()
    if not root.has_error:
        unawaited = unawaited_calls(root, source, [*statics, *dynamics], deadline)
        entry = entry_of(root, source)
        if entry is not None and entry.kind == "call":
            # It is awaited, as the result.
            unawaited = tuple(call for call in unawaited if call.start != entry.at)
        if RESULT_NAME.encode() not in source:
            fix = likely_result(root, source) if entry is None or entry.kind == "call" else ASSIGN
        elif entry is None:
            fix = hidden_result(source) or uncalled(root, source)
    if javascript is not None:
        statics, dynamics = (
            # What is blanked imports nothing; no specifier or argument begins with a space.
            [node for node in nodes if javascript[node.start_byte] == source[node.start_byte]]
            for nodes in (statics, dynamics)
        )
    return Imports(
        media_type,
        _spans(statics, source),
        _spans(dynamics, source),
        None if javascript is None else javascript.decode(),
        entry,
        fix,
        unawaited,
        _spans(_calls(dynamics), source),
    )


def _javascript(root: Node, source: bytes, deadline: float) -> bytes | None:
    """Gives a TypeScript script with blanks for types, or None where it is no JavaScript then."""
    try:
        blanked = blank_types(root, source, deadline)
    except TimeoutError:
        raise TooSlow("its types cannot be taken out in time") from None
    return None if blanked is None or _parse(blanked, JAVASCRIPT, deadline).has_error else blanked


def _spans(nodes: list[Node], source: bytes) -> tuple[Span, ...]:
    return tuple(Span(node.start_byte, node.end_byte, _string(node, source)) for node in nodes)


def _string(node: Node, source: bytes) -> str | None:
    if node.type != "string":
        return None
    return source[node.start_byte + 1 : node.end_byte - 1].decode("utf-8", "replace")


def _parse(source: bytes, media_type: str, deadline: float) -> Node:
    source = _PHASE.sub(lambda match: re.sub(rb"\S", b" ", match[0]), source)
    if (hashbang := _HASHBANG.match(source)) is not None:
        source = b" " * hashbang.end() + source[hashbang.end() :]
    try:
        return parse(
            source, typescript=media_type == TYPESCRIPT, is_late=lambda: time.thread_time() > deadline
        )
    except ValueError:
        raise TooSlow(f"it cannot be parsed within {PARSE_BOUND_SECONDS:g} s") from None


def import_nodes(root: Node, source: bytes, deadline: float) -> tuple[list[Node], list[Node]]:
    """Gives the specifiers of static imports and the first arguments of dynamic ones, in the order of the text.

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
        if time.thread_time() > deadline:
            raise TooSlow(f"it cannot be searched for imports within {PARSE_BOUND_SECONDS:g} s")
        at = bisect_left(keywords, node.start_byte)
        if at < len(keywords) and keywords[at] < node.end_byte:
            if node.type in ("import_statement", "export_statement"):
                specifier = field(node, "source")
                if specifier is not None and not _only_types(node):
                    statics.append(specifier)
            elif node.type == "call_expression":
                function = field(node, "function")
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
    """Says whether a statement is an `import type` or `export type`, which TypeScript erases."""
    return statement.child_count > 1 and statement.children[1].type == "type"


def _calls(arguments: list[Node]) -> list[Node]:
    """Gives the calls that these nodes are first arguments of."""
    calls = [node.parent.parent for node in arguments if node.parent is not None]
    return [call for call in calls if call is not None]


def _first_argument(call: Node) -> Node | None:
    first = next(iter(arguments_of(call)), None)
    # Without an expression the engine has a syntax error to tell.
    return None if first is None or first.type in ("spread_element", "ERROR") else first
