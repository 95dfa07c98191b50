"""Finds what an expression of a script stands for: the module of a server, one of its tools, or what a tool answered.

A name is followed to where it is declared in its scope, and from there through imports, static and dynamic, aliases,
destructuring, brackets and assignments. What can be anything else has no meaning.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

from tree_sitter import Node

from cellblock.script.trees import arguments_of, field, nearest, operator_of

PREFIX: Final = "@codemode/"

MAX_STEPS: Final = 40
"""Bounds the declarations, members and calls that one expression is followed through."""

MAX_OCCURRENCES: Final = 400
"""Bounds the places of one name that are looked at."""

MAX_NAMES: Final = 100
"""Bounds the names that stand for modules and tools, or for something made of them."""

FUNCTIONS: Final = frozenset(
    [
        "arrow_function",
        "function_expression",
        "function_declaration",
        "method_definition",
        "generator_function",
        "generator_function_declaration",
    ]
)
_BLOCKS: Final = FUNCTIONS | {
    "program",
    "statement_block",
    "for_statement",
    "for_in_statement",
    "switch_body",
    "catch_clause",
    "class_static_block",
}
_AROUND: Final = frozenset(
    [
        "parenthesized_expression",
        "await_expression",
        "as_expression",
        "satisfies_expression",
        "non_null_expression",
        "expression_statement",
    ]
)
_PATTERNS: Final = frozenset(
    [
        "object_pattern",
        "array_pattern",
        "pair_pattern",
        "rest_pattern",
        "assignment_pattern",
        "object_assignment_pattern",
    ]
)
_NAMES: Final = frozenset(["identifier", "shorthand_property_identifier_pattern"])
_USES: Final = frozenset(["identifier", "shorthand_property_identifier"])
_NOTHING: Final = frozenset(["null", "undefined"])
_MEMBERS: Final = ("member_expression", "subscript_expression")
_WAITS: Final = frozenset([b"await", b"Promise.all"])
_PASSES_ON: Final = frozenset([b"catch", b"finally"])
_PARTS: Final = frozenset(
    [b"filter", b"slice", b"sort", b"reverse", b"at", b"find", b"findLast", b"flat", b"concat", b"toSorted"]
)
"""Names methods of arrays that give some of the elements."""

_EACH: Final = frozenset(
    [b"map", b"forEach", b"filter", b"find", b"findLast", b"findIndex", b"some", b"every", b"flatMap"]
)
"""Names methods of arrays whose callback is given an element first."""

_NOT_BOUND: Final = re.compile(rb"\s{0,64}(?:\.|\?\.|\(|\[)")
"""Fits the text behind a name that is read there: called, say, or asked for a member."""

_FUNCTION: Final = re.compile(rb"function\s*+\*?\s*+$")
"""Fits the text before a name that a function declares there all the same."""

_FUNCTION_ROOM: Final = 32

_LETTERS: Final = frozenset(
    bytes([one]) for one in range(256) if one >= 128 or chr(one).isalnum() or chr(one) in "_$#"
)
"""Holds the bytes that names are made of."""

_Step = bytes | int
_ANY: Final = b""
"""Stands for a member whose name is not known."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """Says what an expression stands for.

    Attributes:
        kind: A module, a tool of it, or what a call of the tool has answered.
        module: The module's specifier.
        export: What it exports the tool by.
        call: The first byte of the call that is answered.
        inner: Whether it is a part of the answer.
    """

    kind: Literal["module", "tool", "answer"]
    module: str
    export: str = ""
    call: int = -1
    inner: bool = False

    def member(self, step: _Step) -> Meaning | None:
        """Gives the meaning of a member of a value that has this one."""
        if self.kind == "answer":
            return replace(self, inner=True)
        # No tool is exported as `then`: that is the promise's.
        if self.kind == "module" and isinstance(step, bytes) and step not in (_ANY, b"then"):
            return Meaning("tool", self.module, step.decode("utf-8", "replace"))
        return None


@dataclass(frozen=True, slots=True)
class _Bound:
    """Describes a place where a name is declared or given a value.

    Attributes:
        at: The name's first byte.
        scope: First and last byte of where a declaration holds; None: a value is assigned.
        value: What it is given, or is given a part of; a function for its parameters.
        path: The way to that part.
        parameter: The number of the parameter of `value`; -1: it is none.
    """

    at: int
    scope: tuple[int, int] | None
    value: Node | None
    path: tuple[_Step, ...] = ()
    parameter: int = -1


class Meanings:
    """Finds what the expressions of one script stand for.

    Args:
        root: Its tree.
        source: Its text.
        deadline: The CPU time of this thread at which to give up: then nothing has a meaning.

    Attributes:
        deadline: That of the thread that asks, which may be another one later.
    """

    def __init__(self, root: Node, source: bytes, deadline: float = math.inf) -> None:
        self._root = root
        self._source = source
        self.deadline = deadline
        self._bound: dict[bytes, list[_Bound]] = {}
        self._left = MAX_STEPS

    def of(self, node: Node | None) -> Meaning | None:
        """Gives what an expression stands for; None where that is not known."""
        self._left = MAX_STEPS
        return self._of(node)

    def function(self, name: Node) -> Node | None:
        """Gives the function of the script's own that a name stands for."""
        self._left = MAX_STEPS
        values = self._values(name)
        value = self._bare(values[0].value) if len(values) == 1 and not values[0].path else None
        is_own = value is not None and values[0].parameter < 0 and value.type in FUNCTIONS
        return value if is_own else None

    def calls(self, specifiers: Iterable[Node]) -> Iterator[tuple[Node, Meaning]]:
        """Gives the calls of tools, name by name.

        Args:
            specifiers: The nodes of what is imported, statically or by `import(…)`.
        """
        names: list[bytes] = []
        for specifier in specifiers:
            around = specifier.parent
            if around is not None and around.type == "import_statement":
                names += (self._text(node) for node in _below(around, "identifier"))
            elif around is not None and (call := around.parent) is not None:
                yield from self._around(call, names)
        done: set[bytes] = set()
        while names and len(done) < MAX_NAMES:
            name = names.pop(0)
            if name in done:
                continue
            done.add(name)
            for node in self._occurrences(name):
                if node.type in _USES and not self._declares(node):
                    yield from self._around(node, names)

    # ---- what an expression is -----------------------------------------------------------------------

    def _of(self, node: Node | None) -> Meaning | None:
        node = self._bare(node)
        self._left -= 1
        if node is None or self._left < 0 or time.thread_time() > self.deadline:
            return None
        match node.type:
            case "identifier" | "shorthand_property_identifier":
                return self._of_name(node)
            case "member_expression":
                return self._member(field(node, "object"), (self._text(field(node, "property")),))
            case "subscript_expression":
                return self._member(field(node, "object"), (self._index(field(node, "index")),))
            case "call_expression":
                return self._of_call(node)
            case "ternary_expression":
                return self._first(field(node, "consequence"), field(node, "alternative"))
            case "binary_expression" if operator_of(node) in ("??", "||", "&&"):
                return self._first(field(node, "left"), field(node, "right"))
            case "assignment_expression":
                return self._of(field(node, "right"))
            case _:
                return None

    def _first(self, *nodes: Node | None) -> Meaning | None:
        return next((found for node in nodes if (found := self._of(node)) is not None), None)

    def _of_call(self, call: Node) -> Meaning | None:
        function, given = field(call, "function"), arguments_of(call)
        if function is None:
            return None
        if function.type == "import":
            module = self._text(given[0])[1:-1].decode("utf-8", "replace") if given else ""
            return Meaning("module", module) if module.startswith(PREFIX) else None
        if function.type == "member_expression":
            method = self._text(field(function, "property"))
            if method in _PASSES_ON:
                return self._of(field(function, "object"))
            if method in _PARTS:
                of = self._of(field(function, "object"))
                if of is not None and of.kind == "answer":
                    return of.member(_ANY)
        of = self._of(function)
        if of is None or of.kind != "tool":
            return None
        return replace(of, kind="answer", call=call.start_byte)

    def _of_name(self, name: Node) -> Meaning | None:
        """Returns the meaning of the value that a variable had last before its name stands here; None where the
        meaning of any of its values is not known."""
        values = [(bound.at, self._of_bound(bound)) for bound in self._values(name)]
        if not values or any(meaning is None for _, meaning in values):
            return None
        before = [value for value in values if value[0] <= name.start_byte]
        return (before or values)[-1][1]

    def _of_bound(self, bound: _Bound) -> Meaning | None:
        if bound.value is None:
            return None
        if bound.value.type == "import_statement":
            module = self._text(field(bound.value, "source"))[1:-1].decode("utf-8", "replace")
            found = Meaning("module", module) if module.startswith(PREFIX) else None
            return self._along(found, bound.path)
        if bound.parameter >= 0:
            return self._of_parameter(bound.value, bound.parameter, bound.path)
        return self._member(bound.value, bound.path)

    def _of_parameter(self, function: Node, number: int, path: tuple[_Step, ...]) -> Meaning | None:
        """Gives what a parameter of a callback is: of `then` what the promise holds, of `map` an element."""
        call = function.parent.parent if function.parent is not None else None
        called = field(call, "function") if call is not None and call.type == "call_expression" else None
        if called is None or called.type != "member_expression":
            return None
        method, of = self._text(field(called, "property")), field(called, "object")
        if method == b"then" and number == 0:
            return self._member(of, path)
        if (method in _EACH and number == 0) or method == b"sort" or (method == b"reduce" and number == 1):
            return self._member(of, (_ANY, *path))
        return None

    def _member(self, node: Node | None, path: tuple[_Step, ...]) -> Meaning | None:
        """Gives what a member of an expression is, by the way to it."""
        node = self._bare(node)
        if node is None or not path:
            return self._of(node)
        made = self._made(node)
        if made is not None:
            return self._member(self._part(made, path[0]), path[1:])
        return self._along(self._of(node), path)

    def _along(self, found: Meaning | None, path: tuple[_Step, ...]) -> Meaning | None:
        for step in path:
            found = found.member(step) if found is not None else None
        return found

    def _made(self, node: Node) -> Node | None:
        """Gives the literal that an expression is, or a name stands for; of `Promise.all([…])` its list."""
        if node.type == "identifier":
            values = self._values(node)
            only = values[0] if len(values) == 1 and values[0].parameter < 0 and not values[0].path else None
            node = (self._bare(only.value) if only is not None else None) or node
        if node.type == "call_expression" and self._text(field(node, "function")) == b"Promise.all":
            node = next(iter(arguments_of(node)), node)
        return node if node.type in ("object", "array") else None

    def _part(self, made: Node, step: _Step) -> Node | None:
        """Gives the part of a literal that has this key or number."""
        if made.type == "array":
            elements = [child for child in made.named_children if child.type != "comment"]
            is_there = isinstance(step, int) and 0 <= step < len(elements)
            return elements[step] if is_there and isinstance(step, int) else None
        for member in made.named_children:
            key = field(member, "key") if member.type == "pair" else member
            if self._text(key).strip(b"\"'") == step:
                return field(member, "value") if member.type == "pair" else member
        return None

    def _index(self, index: Node | None) -> _Step:
        """Gives the key that brackets ask for, if that is certain."""
        index = self._bare(index)
        if index is not None and index.type == "identifier":
            values = self._values(index)
            index = self._bare(values[0].value) if len(values) == 1 and not values[0].path else None
        is_plain = index is not None and index.type in ("string", "template_string")
        return self._text(index)[1:-1] if is_plain else _ANY

    def _bare(self, node: Node | None) -> Node | None:
        """Takes off parentheses, types, and what waits."""
        while node is not None:
            if node.type in _AROUND:
                node = next((child for child in node.named_children if child.type != "comment"), None)
            elif node.type == "call_expression" and self._text(field(node, "function")) == b"await":
                # What the grammar makes of `await (f())`.
                node = next(iter(arguments_of(node)), None)
            else:
                break
        return node

    # ---- where a name is declared --------------------------------------------------------------------

    def _values(self, name: Node) -> list[_Bound]:
        """Gives the bindings that a name at this place may have: none, where no scope declares the name."""
        self._left -= 1
        if self._left < 0:
            return []
        bound = self._all_bound(self._text(name))
        scope = _innermost(bound, name.start_byte)
        if scope is None:
            return []
        values = [
            one
            for one in bound
            if (one.scope or _innermost(bound, one.at)) == scope
            and (one.value is None or one.value.type not in _NOTHING)
        ]
        # `let x;` gives nothing where something is assigned later.
        given = [one for one in values if one.value is not None]
        return given or values

    def _all_bound(self, name: bytes) -> list[_Bound]:
        found = self._bound.get(name)
        if found is None:
            places = (
                _binding(node, self._source)
                for node in self._occurrences(name, _NOT_BOUND)
                if node.type in _NAMES
            )
            found = self._bound[name] = [bound for bound in places if bound is not None]
        return found

    def _declares(self, node: Node) -> bool:
        return any(bound.at == node.start_byte for bound in self._all_bound(self._text(node)))

    def _occurrences(self, name: bytes, besides: re.Pattern[bytes] | None = None) -> Iterator[Node]:
        """Gives the nodes of a name; not those whose text after the name fits `besides`, unless it is a function's."""
        source, start = self._source, -1
        for _ in range(MAX_OCCURRENCES):
            start = source.find(name, start + 1)
            if start < 0 or time.thread_time() > self.deadline:
                return
            end = start + len(name)
            # A word of its own, and nothing's member, but it may be spread.
            before, after = source[max(0, start - _FUNCTION_ROOM) : start], source[end : end + 1]
            if before[-1:] in _LETTERS or after in _LETTERS:
                continue
            if before.endswith(b".") and not before.endswith(b"..."):
                continue
            if besides and besides.match(source, end) and not _FUNCTION.search(before):
                # Without asking the tree, to which each place costs as much as it has siblings.
                continue
            node = self._root.descendant_for_byte_range(start, end)
            if node is not None and node.end_byte - node.start_byte == len(name):
                yield node

    # ---- what is made of an expression ---------------------------------------------------------------

    def _around(self, node: Node, names: list[bytes]) -> Iterator[tuple[Node, Meaning]]:
        """Gives the calls of what an expression, or a member of it, stands for; adds to `names` what is made of it."""
        around = node.parent
        while around is not None:
            if around.type == "call_expression":
                meaning = self.of(node) if field(around, "function") == node else None
                if meaning is not None and meaning.kind == "tool":
                    yield around, meaning
                return
            if around.type == "arguments":
                if around.parent is None or self._text(field(around.parent, "function")) not in _WAITS:
                    return
                around = around.parent
            elif around.type in ("variable_declarator", "assignment_expression"):
                names += self._names_in(field(around, "name") or field(around, "left"), besides=node)
                return
            elif around.type in _MEMBERS:
                if field(around, "object") != node:
                    return
                if self._text(field(around, "property")) == b"then" and around.parent is not None:
                    callback = next(iter(arguments_of(around.parent)), None)
                    names += self._names_in(field(callback, "parameters") or field(callback, "parameter"))
            elif around.type not in _AROUND | {
                "pair",
                "object",
                "array",
                "ternary_expression",
                "binary_expression",
            }:
                return
            node, around = around, around.parent

    def _names_in(self, pattern: Node | None, besides: Node | None = None) -> list[bytes]:
        if pattern is None or pattern == besides:
            return []
        if pattern.type == "identifier":
            return [self._text(pattern)]
        return [self._text(node) for kind in _NAMES for node in _below(pattern, kind)]

    def _text(self, node: Node | None) -> bytes:
        return self._source[node.start_byte : node.end_byte] if node is not None else b""


def _innermost(bound: list[_Bound], at: int) -> tuple[int, int] | None:
    """Gives the smallest scope around a byte in which the name is declared."""
    around = [one.scope for one in bound if one.scope is not None and one.scope[0] <= at < one.scope[1]]
    return min(around, key=lambda scope: scope[1] - scope[0], default=None)


def _binding(name: Node, source: bytes) -> _Bound | None:
    """Gives what a name is declared as, or given, at this place; None where it is read."""
    path: list[_Step] = []
    here, around, at = name, name.parent, name.start_byte
    if name.type == "shorthand_property_identifier_pattern":
        path.append(source[name.start_byte : name.end_byte])
    while around is not None and around.type in _PATTERNS:
        match around.type:
            case "pair_pattern":
                key = field(around, "key")
                if key is None or field(around, "value") != here:
                    return None
                path.append(source[key.start_byte : key.end_byte].strip(b"\"'"))
            case "array_pattern":
                path.append(_number(around, here))
            case "rest_pattern":
                path.append(_ANY)
            case "assignment_pattern" | "object_assignment_pattern" if field(around, "left") != here:
                return None
            case _:
                pass
        here, around = around, around.parent
    if around is None:
        return None
    way = tuple(reversed(path))
    match around.type:
        case "variable_declarator" if field(around, "name") == here:
            is_var = around.parent is not None and around.parent.type == "variable_declaration"
            return _Bound(at, _scope(around, FUNCTIONS if is_var else _BLOCKS), field(around, "value"), way)
        case "for_in_statement" if field(around, "left") == here:
            of = any(child.type == "of" for child in around.children)
            scope = _span(around) if field(around, "kind") is not None else None
            return _Bound(at, scope, field(around, "right") if of else around, (_ANY, *way))
        case "assignment_expression" if field(around, "left") == here:
            return _Bound(at, None, field(around, "right"), way)
        case "formal_parameters" | "required_parameter" | "optional_parameter":
            return _parameter(at, here, around, way)
        case "arrow_function" if field(around, "parameter") == here:
            return _Bound(at, _span(around), around, way, 0)
        case "catch_clause" if field(around, "parameter") == here:
            return _Bound(at, _span(around), around, way)
        case "import_specifier":
            exported = field(around, "name")
            if exported is None or (field(around, "alias") or exported) != here:
                return None
            step = source[exported.start_byte : exported.end_byte].strip(b"\"'")
            return _Bound(at, _scope(around), nearest(around, "import_statement"), (step,))
        case "namespace_import" | "import_clause":
            return _Bound(at, _scope(around), nearest(around, "import_statement"))
        case kind if kind in FUNCTIONS | {"class_declaration"} and field(around, "name") == here:
            scope = _span(around) if kind in ("function_expression", "generator_function") else _scope(around)
            return _Bound(at, scope, around)
        case _:
            return None


def _parameter(at: int, here: Node, around: Node, way: tuple[_Step, ...]) -> _Bound | None:
    if around.type != "formal_parameters":
        # TypeScript has a node around each.
        if field(around, "pattern") != here or around.parent is None:
            return None
        here, around = around, around.parent
    function = around.parent
    return _Bound(at, _span(function), function, way, _number(around, here)) if function is not None else None


def _number(around: Node, child: Node) -> int:
    """Gives the place of a child among those that commas part."""
    number = 0
    for one in around.children:
        if one == child:
            break
        number += one.type == ","
    return number


def _scope(node: Node, kinds: frozenset[str] = _BLOCKS) -> tuple[int, int]:
    around = nearest(node.parent, *kinds)
    return (0, 1 << 60) if around is None or around.parent is None else _span(around)


def _span(node: Node) -> tuple[int, int]:
    return node.start_byte, node.end_byte


def _below(node: Node, kind: str) -> list[Node]:
    """Gives the nodes of a kind in a pattern or a clause of imports."""
    found: list[Node] = []
    stack = [node]
    while stack and len(found) < MAX_NAMES:
        here = stack.pop()
        if here.type == kind:
            found.append(here)
        stack += here.named_children
    return found
