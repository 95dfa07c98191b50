"""Finds calls whose promise a script certainly does not wait for, from its text.

Whether such a call is still under way when the script ends depends on how fast its server is; that it is not awaited
does not. Calls of tools are looked at, of the script's own async functions that await something, and `forEach` and
`map` with an async callback. Only what is certain counts: a promise that is handed on, kept in a list or returned may
be awaited elsewhere.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal

from tree_sitter import Node

from cellblock.script.meanings import FUNCTIONS, PREFIX, Meanings
from cellblock.script.trees import arguments_of, field, nearest, operator_of

SERVERS_PREFIX: Final = f"{PREFIX}servers/"

MAX_LOOKED_AT: Final = 200
"""Bounds the calls of one script that are looked at."""

MAX_OWN: Final = 20
"""Bounds the script's own async functions whose calls are looked at; each is looked for in the whole script."""

MAX_TOLD: Final = 3

MAX_CALLEE_CHARS: Final = 80

_BLANKS: Final = 100
"""Counts the bytes before a name in which an `await` of it is looked for."""

_CHAIN: Final = frozenset([b"then", b"catch", b"finally"])
_AROUND: Final = frozenset(
    ["parenthesized_expression", "as_expression", "satisfies_expression", "non_null_expression"]
)
_LOOKS_AT: Final = re.compile(
    rb"(?:JSON\.(?:parse|stringify)|Object\.(?:keys|values|entries)|Array\.isArray|String|Number|console\.\w+)"
)
_ASYNC: Final = re.compile(
    rb"(?<![\w$.])(?:async\s++function\s*+\*?\s*+(?P<one>[\w$]+)|(?:const|let|var)\s+(?P<other>[\w$]+)\s*=\s*async\b)"
)
_EACH: Final = re.compile(rb"\.\s*(?:forEach|map|flatMap)\s*\(\s*(?:async\b|[\w$]+\s*[,)])")
_AWAIT: Final = re.compile(rb"(?<![\w$.])await(?![\w$])")

Kind = Literal["dropped", "used", "each", "list", "void"]


@dataclass(frozen=True, slots=True)
class Unawaited:
    """Describes one call whose promise nobody awaits.

    Attributes:
        start: Its first byte.
        callee: What is called, as it is written.
        kind: Whether its promise is thrown away, or used as if it were the value; whether it is a `forEach` whose
            callback nothing waits for, or a list of promises that are used as values. `void`: the script says itself
            that it does not wait.
    """

    start: int
    callee: str
    kind: Kind


def unawaited_calls(
    root: Node, source: bytes, imports: Iterable[Node], deadline: float = math.inf
) -> tuple[Unawaited, ...]:
    """Gives `MAX_TOLD` calls that nothing awaits, in the order of the text, or as many as are found in time.

    Args:
        root: The tree of a script without syntax errors.
        source: The script.
        imports: The specifiers of its imports.
        deadline: The CPU time of this thread at which to give up.
    """
    meanings = Meanings(root, source, deadline)
    of_servers = (call for call, of in meanings.calls(imports) if of.module.startswith(SERVERS_PREFIX))
    ways = (
        (of_servers, _use_of),
        (_own_calls(root, source, meanings), _use_of),
        (_each_calls(root, source, meanings), _use_of_each),
    )
    found: dict[int, Unawaited] = {}
    for calls, use_of in ways:
        told = len(found) + MAX_TOLD
        for call in islice(calls, MAX_LOOKED_AT):
            if len(found) >= told or time.thread_time() > deadline:
                break
            if call.start_byte not in found and (kind := use_of(call, source)) is not None:
                callee = _text(field(call, "function"), source).decode("utf-8", "replace")
                found[call.start_byte] = Unawaited(call.start_byte, callee[:MAX_CALLEE_CHARS], kind)
    return tuple(found[start] for start in sorted(found)[:MAX_TOLD])


def _own_calls(root: Node, source: bytes, meanings: Meanings) -> Iterator[Node]:
    """Gives the calls of the script's own async functions that wait for something."""
    if b"async" not in source:
        return
    names = {match["one"] or match["other"] for match in islice(_ASYNC.finditer(source), MAX_OWN)}
    for name in names:
        for match in re.finditer(rb"(?<![\w$.])" + re.escape(name) + rb"(?=\s*\()", source):
            node = root.descendant_for_byte_range(match.start(), match.end())
            call = node.parent if node is not None else None
            is_call = call is not None and call.type == "call_expression" and field(call, "function") == node
            if node is not None and call is not None and is_call and _waits(meanings.function(node), source):
                yield call


def _each_calls(root: Node, source: bytes, meanings: Meanings) -> Iterator[Node]:
    """Gives the calls of `forEach` and `map` whose callback is async and waits for something."""
    if b"async" not in source:
        return
    for match in _EACH.finditer(source):
        node = root.descendant_for_byte_range(match.start(), match.start() + 1)
        called = node.parent if node is not None else None
        call = called.parent if called is not None and called.type == "member_expression" else None
        if call is None or call.type != "call_expression" or field(call, "function") != called:
            continue
        callback = next(iter(arguments_of(call)), None)
        if callback is not None and callback.type == "identifier":
            callback = meanings.function(callback)
        if _waits(callback, source):
            yield call


def _waits(function: Node | None, source: bytes) -> bool:
    """Says whether a function is async, and awaits something itself, not only in a function within it."""
    kinds = {child.type for child in function.children} if function is not None else set[str]()
    if function is None or "async" not in kinds or "*" in kinds:
        # A generator gives no promise.
        return False
    body = field(function, "body")
    stack = [body] if body is not None and _AWAIT.search(source, body.start_byte, body.end_byte) else []
    while stack:
        node = stack.pop()
        if node.type == "await_expression" or _text(field(node, "function"), source) == b"await":
            return True
        if node.type == "for_in_statement" and any(child.type == "await" for child in node.children):
            return True
        # Only where the word is.
        if node.type not in FUNCTIONS and _AWAIT.search(source, node.start_byte, node.end_byte):
            stack += node.children
    return False


def _use_of_each(call: Node, source: bytes) -> Kind | None:
    """Says what becomes of the promises of a `forEach`, which gives none, or of a `map`."""
    method = _text(field(call, "function", "property"), source)
    if method == b"forEach":
        # `new Promise((resolve) => list.forEach(async …))` may count them itself.
        return "each" if nearest(call, "new_expression") is None else None
    return _use_of_list(call, source)


def _use_of_list(call: Node, source: bytes) -> Kind | None:
    """Says what becomes of a list of promises; None where they may be awaited."""
    around = _out(call)[1]
    if around is not None and around.type == "await_expression":
        # That waits for a list, not for what is in it.
        around = _out(around)[1]
    if around is None:
        return None
    match around.type:
        case "expression_statement":
            return "each"
        case "variable_declarator":
            name = field(around, "name")
            if name is None or name.type != "identifier":
                return None
            return _use_of_name(name, source)
        case "template_substitution":
            return "list"
        case "arguments":
            is_shown = _LOOKS_AT.fullmatch(_text(field(around.parent, "function"), source)) is not None
            return "list" if is_shown else None
        case _:
            return "list" if _lands_in_result(call, source) else None


def _use_of_name(name: Node, source: bytes) -> Kind | None:
    """Says what becomes of a list of promises that has a name, by all places of the name but where its length is
    read."""
    word = re.compile(rb"(?<![\w$.])" + re.escape(_text(name, source)) + rb"(?![\w$])(?!\s*\.\s*length)")
    root = _root(name)
    places = [match for match in word.finditer(source) if match.start() != name.start_byte]
    nodes = [root.descendant_for_byte_range(match.start(), match.end()) for match in places]
    if not nodes:
        return "each"
    in_result = all(node is not None and _lands_in_result(node, source) for node in nodes)
    return "list" if in_result else None


def _lands_in_result(node: Node, source: bytes) -> bool:
    """Says whether a value is the script's result, or a part of it, as it is."""
    around = node.parent
    while around is not None:
        if around.type == "assignment_expression":
            left = field(around, "left")
            return left != node and _text(left, source).endswith(b"__codemode_result__")
        if around.type == "pair" and field(around, "key") == node:
            return False
        if around.type not in _AROUND | {"pair", "object", "array"}:
            return False
        node, around = around, around.parent
    return False


def _root(node: Node) -> Node:
    while node.parent is not None:
        node = node.parent
    return node


def _use_of(call: Node, source: bytes) -> Kind | None:
    """Says what becomes of a call's promise; None where it may be awaited."""
    if _AWAIT.match(source, call.start_byte):
        # To the grammar, `await (x).f()` is a call of `await`, and what follows is read of that.
        return None
    node, around = _out(call)
    while around is not None and around.type == "member_expression":
        outer = around.parent
        if _text(field(around, "property"), source) not in _CHAIN or outer is None:
            return "used"
        if outer.type != "call_expression":
            return None
        node, around = _out(outer)
    if around is None:
        return None
    used: Kind = "used"
    match around.type:
        case "expression_statement":
            return "dropped"
        case "subscript_expression":
            return used if _is_field(around, "object", node) else None
        case "for_in_statement":
            return used if _is_field(around, "right", node) else None
        case "if_statement" | "ternary_expression" | "while_statement":
            return used if _is_field(around, "condition", node) else None
        case "template_substitution" | "spread_element":
            return used
        case "binary_expression":
            return used if operator_of(around) not in ("", "&&", "||", "??") else None
        case "unary_expression":
            sign = around.children[0].type
            return "void" if sign == "void" else used if sign == "!" else None
        case "assignment_expression" | "pair" | "array":
            return used if _lands_in_result(node, source) else None
        case "arguments":
            return used if _LOOKS_AT.fullmatch(_text(field(around.parent, "function"), source)) else None
        case "variable_declarator":
            name = field(around, "name")
            if name is None:
                return None
            return used if name.type != "identifier" else _of_variable(name, source)
        case "arrow_function" if field(around, "body") == node:
            return _of_callback(around, source)
        case _:
            return None


def _of_callback(function: Node, source: bytes) -> Kind | None:
    """Says what becomes of a call's promise that a callback gives: a list of them, from `map`; nothing, from
    `forEach`."""
    call = function.parent.parent if function.parent is not None else None
    if call is None or call.type != "call_expression" or next(iter(arguments_of(call)), None) != function:
        return None
    method = _text(field(call, "function", "property"), source)
    if method == b"forEach":
        return "dropped"
    use = _use_of_list(call, source) if method in (b"map", b"flatMap") else None
    return "dropped" if use == "each" else "used" if use is not None else None


def _of_variable(name: Node, source: bytes) -> Kind | None:
    """Says what becomes of a call's promise that has a name, by all places of that name."""
    word = re.escape(_text(name, source))
    root: Node | None = None
    kind: Kind = "dropped"
    for match in re.finditer(rb"(?<![\w$.])" + word + rb"(?![\w$])(\s*\??\.\s*(\w+)|\s*\[)?", source):
        if match.start() == name.start_byte:
            continue
        before = source[max(0, match.start() - _BLANKS) : match.start()].rstrip()
        if match[2] in _CHAIN or before.endswith(b"await"):
            return None
        if match[1] is None:
            root = root or _root(name)
            node = root.descendant_for_byte_range(match.start(), match.end())
            if node is None or not _lands_in_result(node, source):
                return None
        kind = "used"
    return kind


def _out(node: Node) -> tuple[Node, Node | None]:
    """Gives the node, or the parentheses and types around it, and what is around these."""
    around = node.parent
    while around is not None and around.type in _AROUND:
        node, around = around, around.parent
    return node, around


def _is_field(around: Node, name: str, node: Node) -> bool:
    part = field(around, name)
    return part is not None and part.start_byte <= node.start_byte and node.end_byte <= part.end_byte


def _text(node: Node | None, source: bytes) -> bytes:
    return source[node.start_byte : node.end_byte] if node is not None else b""
