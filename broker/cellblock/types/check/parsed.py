"""Holds a script's text with its tree: finds places in it as the compiler gives them, what it does with texts that hold
JSON, and what it looks at before it relies on it."""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Final, Literal

from tree_sitter import Node

from cellblock.script.lines import CompilerPlaces, units
from cellblock.script.meanings import Meaning, Meanings
from cellblock.script.trees import Nodes, arguments_of, field, nodes_of, operator_of, parse
from cellblock.tools.catalog.modules import SERVERS_PREFIX

PARSE_BOUND_SECONDS: Final = 0.3
"""Bounds the thread's own time; a script at the checker's cap of 256 KiB takes 0.1 s."""

MAX_KEYS: Final = 20
"""Bounds the keys of a literal that are looked at beside one that is not declared."""

MAX_LOOKED_AT: Final = 200
"""Bounds the brackets, loops and parses of one script that are looked at."""

_LINE_END: Final = re.compile(r"\r\n|\n|\r")
_KEYS: Final = frozenset({"property_identifier", "shorthand_property_identifier", "string"})
_LISTING: Final = re.compile(r"(?:^|_)(?:list|log|search|find|tree)(?:_|$)")
"""Matches names of tools whose text is a list, of which nobody wants to know the characters."""

_MEMBERS: Final = ("member_expression", "subscript_expression")

_LOOKED_AT: Final = (
    "assignment_expression",
    "assignment_pattern",
    "augmented_assignment_expression",
    "binary_expression",
    "call_expression",
    "do_statement",
    "expression_statement",
    "for_in_statement",
    "for_statement",
    "if_statement",
    "member_expression",
    "object_assignment_pattern",
    "object_pattern",
    "spread_element",
    "subscript_expression",
    "ternary_expression",
    "unary_expression",
    "variable_declarator",
    "while_statement",
)
"""Names the nodes that are looked at one by one."""

Tool = tuple[str, str]
"""Names a tool by its server's id, and the name that it is exported by."""

TextKind = Literal["json", "plain", "boxed"]
"""Says what text a tool answers with: one that holds JSON, another one, or one that is all that an object holds."""


class ParsedScript:
    """Holds the text and the tree of one script.

    Args:
        code: Must have no lone surrogate.
        typescript: Whether it is TypeScript and no JavaScript.

    Raises:
        ValueError: It cannot be parsed within `PARSE_BOUND_SECONDS`.
    """

    def __init__(self, code: str, typescript: bool) -> None:
        self.code = code
        self.raw = code.encode()
        self.places = CompilerPlaces(code)
        self._lines = [0, *(match.end() for match in _LINE_END.finditer(code))]
        deadline = time.thread_time() + PARSE_BOUND_SECONDS
        self.root = parse(self.raw, typescript=typescript, is_late=lambda: time.thread_time() > deadline)
        self.meanings = Meanings(self.root, self.raw, time.thread_time() + PARSE_BOUND_SECONDS)
        self._typescript = typescript

    @cached_property
    def nodes(self) -> Nodes:
        """Holds nodes by their type, in the order of the text."""
        return nodes_of(self.root, _LOOKED_AT, typescript=self._typescript)

    @cached_property
    def json_texts(self) -> JsonTexts:
        """Knows what the script does with texts that hold JSON."""
        return JsonTexts(self.nodes, self.meanings)

    @cached_property
    def guards(self) -> Guards:
        """Gives what the script looks at before it relies on it."""
        return Guards(self.nodes)

    def names_read(self, of: Node | None) -> frozenset[str] | None:
        """Gives the members that the script reads of an expression, or of anything; None where it may be any."""
        members = self.nodes["member_expression"]
        if of is not None:
            wanted = text_of(of)
            givers = (pattern.parent for pattern in self.nodes["object_pattern"])
            if any(text_of(field(one, "value") or field(one, "right")) == wanted for one in givers):
                return None
            members = [one for one in members if text_of(field(one, "object")) == wanted]
        names = [field(one, "property") for one in members]
        if of is None:
            names += [field(one, "index") for one in self.nodes["subscript_expression"]]
            bound = [one for pattern in self.nodes["object_pattern"] for one in pattern.named_children]
            names += [field(one, "key") or field(one, "left") or one for one in bound]
        return frozenset(self.text(name).strip("\"'") for name in names if name is not None)

    def offset(self, line: int, column: int) -> int:
        """Gives the index in `code` of a place that counts from 0, columns in UTF-16 units."""
        if line >= len(self._lines):
            return len(self.code)
        start = self._lines[line]
        end = self._lines[line + 1] if line + 1 < len(self._lines) else len(self.code)
        units = self.code[start:end].encode("utf-16-le")[: column * 2]
        return start + len(units.decode("utf-16-le", "ignore"))

    def text(self, node: Node) -> str:
        """Gives the source text of a node."""
        return self.raw[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def other_keys(self, key: Node) -> tuple[tuple[str, int, int], ...]:
        """Gives the other keys of the object literal that a key is in."""
        literal = literal_around(key)
        found: list[tuple[str, int, int]] = []
        for member in literal.named_children if literal is not None else []:
            other = field(member, "key") if member.type == "pair" else member
            if other is None or other.type not in _KEYS or other.start_byte == key.start_byte:
                continue
            found.append((self.text(other).strip("\"'"), *self.position(other)))
        return tuple(found[:MAX_KEYS])

    def position(self, node: Node) -> tuple[int, int]:
        """Gives the line and column of a node, from 0, as the compiler counts."""
        before = self.raw[: node.start_byte].decode("utf-8", "replace")
        line = bisect_right(self._lines, len(before)) - 1
        return line, units(before[self._lines[line] :])

    def node(self, start: int, end: int) -> Node | None:
        """Gives the smallest node around a part of `code`."""
        first = len(self.code[:start].encode())
        return self.root.named_descendant_for_byte_range(first, first + len(self.code[start:end].encode()))


def literal_around(key: Node) -> Node | None:
    """Gives the object literal that a key is in."""
    literal: Node | None = key
    while literal is not None and literal.type != "object":
        literal = literal.parent
    return literal


class JsonTexts:
    """Finds where a script uses a text that holds JSON as if it were the value, beyond what the compiler can say.

    To the compiler such a text is a string: its characters may be read by number, and `?.` or `?? []` guard any read of
    a field. A script that neither parses the text nor asks for its type cannot mean that.

    Args:
        nodes: Those of the script.
        meanings: What its expressions stand for.
    """

    def __init__(self, nodes: Nodes, meanings: Meanings) -> None:
        self._nodes = nodes
        self._meanings = meanings

    def tool(self, read: Node | None) -> Tool | None:
        """Names the tool that an expression has its value, or a part of it, from."""
        of = self._meanings.of(read)
        return _tool(of) if of is not None and of.kind == "answer" else None

    def is_handled(self, read: Node | None) -> bool:
        """Says whether the script parses the text that something is read of, or asks for its type, or may do so."""
        of = self._meanings.of(read)
        if of is None:
            return bool(self._parsed)
        if any(parsed is None or _is_same(parsed, of) for parsed in self._parsed):
            return True
        return any(asked is not None and _is_same(asked, of) for asked in self._asked)

    def misused(self, kinds: Mapping[Tool, TextKind]) -> Iterator[tuple[Node, Node, TextKind]]:
        """Gives each place where a text of these tools is not used as one: the whole expression, the text, its kind.

        Of texts that hold JSON, characters are read by number or by `for … in`, or it is asked whether the text is an
        array; of others they are taken one after the other. Those of a list are counted.
        """
        for reads, is_json in ((self._reads(), True), (self._one_by_one(), False)):
            for around, read in reads:
                of = self._meanings.of(read)
                kind = kinds.get(_tool(of)) if of is not None and of.kind == "answer" else None
                if of is None or kind is None or (kind == "json") != is_json:
                    continue
                if of.inner == (kind == "boxed") and not self.is_handled(read):
                    yield around, read, kind

    def _one_by_one(self) -> Iterator[tuple[Node, Node]]:
        for around in self._some("for_in_statement"):
            if (read := field(around, "right")) is not None:
                yield read, read
        for around in self._some("spread_element"):
            if around.parent is not None and around.parent.type == "array" and around.named_children:
                yield around, around.named_children[0]
        yield from self._lengths()

    def _lengths(self) -> Iterator[tuple[Node, Node]]:
        for around in self._some("member_expression"):
            read, used, name = field(around, "object"), around.parent, field(around, "property")
            if read is None or name is None or name.text != b"length":
                continue
            tool = self.tool(read)
            asked = used is None or used.type in (
                "binary_expression",
                "unary_expression",
                "parenthesized_expression",
            )
            if tool is not None and not asked and _LISTING.search(tool[1]):
                yield around, read

    def tool_read_by(self, node: Node | None) -> Tool | None:
        """Names the tool whose answer is read by the smallest expression around a node."""
        while node is not None:
            if (tool := self.tool(node)) is not None:
                return tool
            around = node.parent
            node = around if around is not None and around.type in _MEMBERS else None
        return None

    # ---- inside --------------------------------------------------------------------------------------

    def _reads(self) -> Iterator[tuple[Node, Node]]:
        yield from self._lengths()
        for around in self._some("subscript_expression"):
            index, read = field(around, "index"), field(around, "object")
            if read is not None and index is not None and index.type != "string":
                yield around, read
        for around in self._some("for_in_statement"):
            if (read := field(around, "right")) is not None and operator_of(around) == "in":
                yield read, read
        for around in self._some("binary_expression"):
            read, default = field(around, "left"), field(around, "right")
            is_object = default is not None and default.type == "object"
            if read is not None and is_object and operator_of(around) in ("??", "||"):
                yield around, read
        for around in self._some("call_expression"):
            if text_of(field(around, "function")) == b"Array.isArray":
                yield from ((around, read) for read in arguments_of(around)[:1])

    @cached_property
    def _parsed(self) -> list[Meaning | None]:
        """Holds the meaning of what each `JSON.parse` of the script parses; None where that may be anything."""
        parsers = [node for node in self._nodes["member_expression"] if text_of(node) == b"JSON.parse"]
        given = [next(iter(arguments_of(node.parent)), None) for node in parsers[:MAX_LOOKED_AT]]
        return [self._meanings.of(one) for one in given]

    @cached_property
    def _asked(self) -> list[Meaning | None]:
        """Holds the meaning of what each `typeof` of the script asks about."""
        asking = [around for around in self._some("unary_expression") if operator_of(around) == "typeof"]
        return [self._meanings.of(field(one, "argument")) for one in asking]

    def _some(self, kind: str) -> list[Node]:
        return self._nodes[kind][:MAX_LOOKED_AT]


def _is_same(one: Meaning, other: Meaning) -> bool:
    """Says whether one meaning is the very answer that another one is, or is a part of."""
    return one.kind == "answer" and one.call == other.call and not one.inner


def _tool(of: Meaning) -> Tool:
    return of.module.removeprefix(SERVERS_PREFIX), of.export


_MAX_TEXT: Final = 2_000
"""Bounds the bytes of an expression that is compared with others; a longer one is like itself alone."""

_BLANKS: Final = re.compile(rb"\s+")
_PATHS: Final = frozenset({"identifier", "member_expression", "subscript_expression"})
AROUND: Final = frozenset(
    {"parenthesized_expression", "non_null_expression", "await_expression", "expression_statement"}
)
_NOTHING: Final = frozenset({"undefined", "null"})
_CHOICES: Final = frozenset({"??", "||", "&&"})
EQUALITIES: Final = frozenset({"==", "!=", "===", "!=="})
_ASKING_CALLS: Final = frozenset({b"Array.isArray", b"Boolean"})
_CONDITIONS: Final = (
    "if_statement",
    "ternary_expression",
    "while_statement",
    "do_statement",
    "for_statement",
)


class Guards:
    """Holds the guards of one script: `if (a.b)`, `a.b && …`, `a.b ?? …`, `a.b?.c`, `typeof a.b`, `"b" in a`
    and their like.

    One that is written anywhere holds everywhere in the script: a read is told only where nobody asked. Objects that
    the script makes itself count as guarded, too.

    Args:
        nodes: Those of the script.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._asked: set[bytes] = set()
        self._names: set[bytes] = set()
        self._own: set[bytes] = set()
        for node in nodes["binary_expression"]:
            self._look_at_operator(node)
        for node in nodes["unary_expression"]:
            # As the whole answer of a callback, `!a.b` says nothing of whether `b` may be missing.
            is_answer = node.parent is not None and node.parent.type in ("arrow_function", "return_statement")
            if operator_of(node) in ("!", "typeof", "delete") and not is_answer:
                self._ask(field(node, "argument"))
        for node in nodes["variable_declarator"]:
            self._look_at_own(node)
        for node in (*nodes["assignment_expression"], *nodes["augmented_assignment_expression"]):
            left = field(node, "left")
            if left is not None and left.type == "subscript_expression":
                # Filled by computed names: what it has is not to be known.
                self._own.add(text_of(field(left, "object") or left))
        for kind in _CONDITIONS:
            for node in nodes[kind]:
                self._ask(field(node, "condition"))
        for kind in ("member_expression", "subscript_expression", "call_expression"):
            for node in nodes[kind]:
                if any(child.type in ("optional_chain", "?.") for child in node.children):
                    self._ask(field(node, "object") or field(node, "function"))
        for node in nodes["call_expression"]:
            self._look_at_call(node)

    def cover(self, name: str, node: Node) -> bool:
        """Says whether a read of a member is guarded. `node` is the member's name, in an expression or a
        pattern."""
        if name.encode() in self._names:
            return True
        parent = node.parent
        if parent is not None and parent.type == "pair_pattern":
            return self._binds_guarded(field(parent, "value"))
        if node.type == "shorthand_property_identifier_pattern":
            return self._binds_guarded(node)
        if parent is None or parent.type not in _PATHS:
            return False
        if text_of(parent) in self._asked:
            return True
        read_of = field(parent, "object")
        return (read_of is not None and text_of(read_of) in self._own) or self._is_kept_for_later(parent)

    def _binds_guarded(self, bound: Node | None) -> bool:
        """Says whether a pattern gives the member a default, or binds it to a name that is asked for."""
        if bound is None:
            return False
        parent = bound.parent
        if bound.type == "assignment_pattern" or (
            parent is not None and parent.type == "object_assignment_pattern"
        ):
            return True
        return text_of(bound) in self._asked

    def _is_kept_for_later(self, read: Node) -> bool:
        """Says whether a value is kept under a name that the script asks for: `const next = page.next; if (next) …`."""
        value, around = read, read.parent
        while around is not None and (
            around.type in ("parenthesized_expression", "await_expression") or operator_of(around) in _CHOICES
        ):
            value, around = around, around.parent
        if around is None or around.type not in ("variable_declarator", "assignment_expression"):
            return False
        kept = field(around, "name") or field(around, "left")
        return kept is not None and kept.id != value.id and text_of(kept) in self._asked

    # ---- inside: finding them --------------------------------------------------------------------------

    def _look_at_own(self, declarator: Node) -> None:
        """Notes a variable that begins as an object of the script's own making, which may grow in many ways."""
        name, value = field(declarator, "name"), field(declarator, "value")
        if name is None or value is None or value.type != "object":
            return
        if not any(member.type == "spread_element" for member in value.named_children):
            self._own.add(text_of(name))

    def _look_at_operator(self, node: Node) -> None:
        operator, left, right = operator_of(node), field(node, "left"), field(node, "right")
        if left is None or right is None:
            return
        if operator in _CHOICES:
            self._ask(left)
        elif operator in EQUALITIES:
            for one, other in ((left, right), (right, left)):
                if other.type in _NOTHING:
                    self._ask(one)
        elif operator == "in" and left.type == "string":
            self._names.add(text_of(left)[1:-1])

    def _look_at_call(self, node: Node) -> None:
        called, given = text_of(field(node, "function")), arguments_of(node)
        if called in _ASKING_CALLS:
            for argument in given[:1]:
                self._ask(argument)
        elif called.endswith((b"Object.hasOwn", b".hasOwnProperty", b"hasOwnProperty.call")):
            self._names.update(text_of(argument)[1:-1] for argument in given if argument.type == "string")
        elif called in (b"Object.assign", b"Object.defineProperty"):
            self._names.update(_keys_in(given))

    def _ask(self, node: Node | None) -> None:
        """Counts an expression that is tested, or the parts of it that are."""
        stack = [node] if node is not None else []
        while stack:
            here = stack.pop()
            if here.type in _PATHS:
                self._asked.add(text_of(here))
            elif here.type in AROUND or operator_of(here) in {"!", *_CHOICES}:
                stack.extend(here.named_children)


def _keys_in(nodes: list[Node]) -> set[bytes]:
    """Gives the keys of the object literals among some arguments, and the texts among them."""
    found: set[bytes] = set()
    for node in nodes:
        if node.type == "string":
            found.add(text_of(node)[1:-1])
        for member in node.named_children if node.type == "object" else []:
            found.add(text_of(field(member, "key") or member).strip(b"\"'"))
    return found


def text_of(node: Node | None) -> bytes:
    """Gives an expression without blanks and without the question marks of optional chains."""
    if node is None:
        return b""
    if node.end_byte - node.start_byte > _MAX_TEXT:
        return b"@%d" % node.start_byte
    return _BLANKS.sub(b"", node.text or b"").replace(b"?.[", b"[").replace(b"?.", b".")
