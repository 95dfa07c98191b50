"""Holds a script's text with its tree: finds places in it as the compiler gives them, what it does with texts that hold
JSON, and what it looks at before it relies on it."""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain
from typing import Final, Literal

from tree_sitter import Node

from cellblock.script.copies import Copies, without_any
from cellblock.script.lines import units
from cellblock.script.meanings import FUNCTIONS, Meaning, Meanings
from cellblock.script.trees import Nodes, arguments_of, field, nearest, nodes_of, operator_of, parse
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


ITS_CHARACTERS: Final = "its single characters are read"

CHOICES: Final = frozenset({"??", "||", "&&"})
EQUALITIES: Final = frozenset({"==", "!=", "===", "!=="})
_NOTHING: Final = frozenset({"undefined", "null"})

_Use = tuple[str, str, Mapping[str, Collection[str]]]

_TESTED: Final[tuple[_Use, ...]] = (("asked", "condition", {}),)
_FILLED: Final[_Use] = ("filled", "left", {"left": {"subscript_expression"}})
_USES: Final[Mapping[str, tuple[_Use, ...]]] = {
    "if_statement": _TESTED,
    "ternary_expression": _TESTED,
    "while_statement": _TESTED,
    "do_statement": _TESTED,
    "for_statement": _TESTED,
    "unary_expression": (
        ("asked", "argument", {"operator": {"!", "typeof", "delete"}}),
        ("typed", "argument", {"operator": {"typeof"}}),
    ),
    "binary_expression": (
        ("asked", "left", {"operator": CHOICES}),
        ("asked", "left", {"operator": EQUALITIES, "right": _NOTHING}),
        ("asked", "right", {"operator": EQUALITIES, "left": _NOTHING}),
        ("named", "left", {"operator": {"in"}, "left": {"string"}}),
        ("defaulted", "left", {"operator": {"??", "||"}, "right": {"object"}}),
    ),
    "member_expression": (("member", "property", {}),),
    "subscript_expression": (
        ("index", "index", {}),
        ("numbered", "object", {}),
        ("keyed", "object", {"index": {"string"}}),
    ),
    "for_in_statement": (
        ("each", "right", {}),
        ("numbered", "right", {"operator": {"in"}}),
        ("taken", "right", {"left": {"object_pattern"}}),
    ),
    "variable_declarator": (
        ("made", "name", {"value": {"object"}}),
        ("taken", "value", {"name": {"object_pattern"}}),
    ),
    "assignment_expression": (
        _FILLED,
        ("taken", "right", {"left": {"object_pattern"}}),
    ),
    "augmented_assignment_expression": (_FILLED,),
    "assignment_pattern": (("taken", "right", {"left": {"object_pattern"}}),),
    "object_assignment_pattern": (),
    "object_pattern": (),
    "call_expression": (),
    "spread_element": (),
}
"""Lists, by the type of a node, how expressions in it are used: the use, the field of the expression, and of what types
other fields must be. `asked`: whether it is there; `named`: as the name of a member that may be; `taken`: apart."""

_CHAINED: Final = frozenset({"member_expression", "subscript_expression", "call_expression"})
_COMPARED: Final = frozenset({"binary_expression", "unary_expression", "parenthesized_expression"})

Tool = tuple[str, str]
"""Names a tool by its server's id, and the name that it is exported by."""

TextKind = Literal["json", "plain", "boxed"]
"""Says what text a tool answers with: one that holds JSON, another one, or one that is all that an object holds."""

_MISUSES: Final[Mapping[str, tuple[frozenset[TextKind], str]]] = {
    "numbered": (frozenset({"json"}), ITS_CHARACTERS),
    "Array.isArray": (frozenset({"json"}), "is no array"),
    "defaulted": (frozenset({"json"}), "is no object"),
    "each": (frozenset({"plain", "boxed"}), ITS_CHARACTERS),
    "counted": (frozenset({"json", "plain", "boxed"}), "its characters are counted"),
}
"""Maps uses to the kinds of texts that are never used so, and what is wrong."""


class ParsedScript:
    """Holds the text and the tree of one script.

    Args:
        code: Must have no lone surrogate.
        typescript: Whether it is TypeScript and no JavaScript.

    Attributes:
        calls: Its calls.

    Raises:
        ValueError: It cannot be parsed within `PARSE_BOUND_SECONDS`.
    """

    def __init__(self, code: str, typescript: bool) -> None:
        self.code = code
        self.raw = code.encode()
        self._lines = [0, *(match.end() for match in _LINE_END.finditer(code))]
        deadline = time.thread_time() + PARSE_BOUND_SECONDS
        self.root = parse(self.raw, typescript=typescript, is_late=lambda: time.thread_time() > deadline)
        self.meanings = Meanings(self.root, self.raw, time.thread_time() + PARSE_BOUND_SECONDS)
        self._nodes = nodes_of(self.root, tuple(_USES), typescript=typescript)
        self.calls = self._nodes["call_expression"]

    @cached_property
    def found(self) -> Nodes:
        """Holds the expressions that are used in some way, by their uses."""
        return _found(chain.from_iterable(self._nodes.values()))

    @cached_property
    def json_texts(self) -> JsonTexts:
        """Knows what it does with texts that hold JSON."""
        return JsonTexts(self.found, self.meanings)

    @cached_property
    def guards(self) -> Guards:
        """Knows what it looks at before it relies on it."""
        return Guards(self.found)

    def names_read(self, of: Node | None) -> frozenset[str] | None:
        """Gives the members that the script reads of an expression, or of anything; None where it may be any."""
        wanted, found = text_of(of), self.found
        if of is None:
            names = [*found["member"], *found["index"], *found["key"]]
        elif any(text_of(giver) == wanted for giver in found["taken"]):
            return None
        else:
            names = [name for name in found["member"] if text_of(field(name.parent, "object")) == wanted]
        return frozenset(self.text(name).strip("\"'") for name in names)

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
        """Gives the other keys of the object literal that a key is in, each with its place."""
        literal = nearest(key, "object")
        members = literal.named_children if literal is not None else []
        keys = [field(member, "key") or member for member in members]
        others = [one for one in keys if one.type in _KEYS and one.start_byte != key.start_byte][:MAX_KEYS]
        return tuple((self.text(one).strip("\"'"), *self.position(one)) for one in others)

    def position(self, node: Node) -> tuple[int, int]:
        """Gives the line and column of a node, from 0, as the compiler counts."""
        return self.place(node.start_byte)

    def place(self, byte: int) -> tuple[int, int]:
        """Gives the line and column of a byte."""
        before = self.raw[:byte].decode("utf-8", "replace")
        line = bisect_right(self._lines, len(before)) - 1
        return line, units(before[self._lines[line] :])

    def node(self, start: int, end: int) -> Node | None:
        """Gives the smallest node around a part of `code`."""
        first = len(self.code[:start].encode())
        return self.root.named_descendant_for_byte_range(first, first + len(self.code[start:end].encode()))


class Shown:
    """Holds what the compiler is shown of a script.

    Args:
        code: The script; must have no lone surrogate.
        typescript: Whether it is TypeScript and no JavaScript.
        changed: Whether it is shown with what tells more of its types, `script.copies`.

    Attributes:
        source: What is shown.
        text: Its text, as the compiler looks at all of it.

    Raises:
        ValueError: It cannot be parsed within `PARSE_BOUND_SECONDS`.
    """

    def __init__(self, code: str, typescript: bool, *, changed: bool) -> None:
        written = without_any(code) if changed and typescript else code
        self._script = self.source = script = ParsedScript(written, typescript)
        self._copies = Copies(script.raw, script.meanings, script.calls[:MAX_LOOKED_AT] if changed else [])
        if self._copies.text is not None:
            self.source = ParsedScript(self._copies.text.decode(), typescript)
        self.text = _without_returns(self.source, typescript)

    def origin(self, place: tuple[int, int]) -> tuple[tuple[int, int], int]:
        """Gives the place in the script of one in what is shown, and how often what stands there is shown."""
        if self._copies.text is None:
            return place, 1
        byte, times = self._copies.origin(len(self.source.code[: self.source.offset(*place)].encode()))
        return self._script.place(byte), times


def _without_returns(source: ParsedScript, typescript: bool) -> str:
    """Gives a script in which `throw` stands for a `return` at the top level: what that returns, the compiler does not
    look at."""
    text = bytearray(source.raw)
    for node in nodes_of(source.root, ("return_statement",), typescript=typescript)["return_statement"]:
        if node.named_children and nearest(node, *FUNCTIONS) is None:
            text[node.start_byte : node.start_byte + 6] = b"throw "
    return text.decode()


def _found(nodes: Iterable[Node]) -> Nodes:
    """Gives the expressions that are used in some way, by their uses."""
    found: Nodes = defaultdict(list)
    for node in nodes:
        for use, of, types in _USES[node.type]:
            if all(_type_of(field(node, other)) in allowed for other, allowed in types.items()):
                found[use] += filter(None, [field(node, of)])
        if node.type == "object_pattern":
            found["key"] += (field(one, "key") or field(one, "left") or one for one in node.named_children)
        elif node.type == "spread_element" and node.parent is not None and node.parent.type == "array":
            found["each"] += node.named_children[:1]
        elif text_of(field(node, "property")) == b"length" and _type_of(node.parent) not in _COMPARED:
            found["counted"] += filter(None, [field(node, "object")])
        elif node.type == "call_expression":
            for use, arguments in _uses_of(node):
                found[use] += arguments
        if node.type in _CHAINED and any(child.type in ("optional_chain", "?.") for child in node.children):
            found["asked"] += filter(None, [field(node, "object") or field(node, "function")])
    return found


def _type_of(node: Node | None) -> str:
    return node.type if node is not None else ""


def _uses_of(call: Node) -> Iterator[tuple[str, list[Node]]]:
    """Yields how the arguments of a call are used."""
    called, given = text_of(field(call, "function")), arguments_of(call)
    texts = [one for one in given if one.type == "string"]
    if called in (b"Array.isArray", b"Boolean"):
        yield "asked", given[:1]
        yield called.decode(), given[:1]
    elif called == b"Array.from":
        yield "each", given[:1]
    elif called.endswith((b"Object.hasOwn", b".hasOwnProperty", b"hasOwnProperty.call")):
        yield "named", texts
    elif called in (b"Object.assign", b"Object.defineProperty"):
        members = [member for one in given if one.type == "object" for member in one.named_children]
        yield "named", texts + [field(member, "key") or member for member in members]


class JsonTexts:
    """Finds where a script uses a text that holds JSON as if it were the value, beyond what the compiler can say.

    To the compiler such a text is a string: its characters may be read by number, and `?.` or `?? []` guard any read of
    a field. A script that neither parses the text nor asks for its type cannot mean that.

    Args:
        found: The script's expressions by their uses.
        meanings: What its expressions stand for.
    """

    def __init__(self, found: Nodes, meanings: Meanings) -> None:
        self._found = found
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
        asked = map(self._meanings.of, self._found["typed"][:MAX_LOOKED_AT])
        return any(one is not None and _is_same(one, of) for one in asked)

    def misused(self, kinds: Mapping[Tool, TextKind]) -> Iterator[tuple[Node, str, TextKind]]:
        """Gives each text of these tools that is not used as one, with what is wrong and its kind."""
        keyed = {*self._found["keyed"]}
        for use, (of_kinds, wrong) in _MISUSES.items():
            for read in self._found[use][:MAX_LOOKED_AT]:
                of = self._meanings.of(read)
                kind = kinds.get(_tool(of)) if of is not None and of.kind == "answer" else None
                if of is None or kind is None or kind not in of_kinds or read in keyed:
                    continue
                is_whole = of.inner == (kind == "boxed") and (use != "counted" or _LISTING.search(of.export))
                if is_whole and not self.is_handled(read) and not _is_by_character(read):
                    yield read, wrong, kind

    @cached_property
    def _parsed(self) -> list[Meaning | None]:
        """Holds the meaning of what each `JSON.parse` of the script parses; None where that may be anything."""
        named = (name.parent for name in self._found["member"] if text_of(name) == b"parse")
        calls = [parser.parent for parser in named if parser is not None and text_of(parser) == b"JSON.parse"]
        given = (next(iter(arguments_of(call)), None) for call in calls[:MAX_LOOKED_AT])
        return [self._meanings.of(one) for one in given]


def _is_by_character(read: Node) -> bool:
    """Says whether a loop compares what it takes with single characters, or has it for a key."""
    name, body = text_of(field(read.parent, "left")), field(read.parent, "body")
    compared = rb"(?<![\w$.])%s\s*+[!=]==?\s*+([\"'`])\\?.\1|\[%s\]" % ((re.escape(name),) * 2)
    return bool(name) and body is not None and re.search(compared, body.text or b"") is not None


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


class Guards:
    """Holds the guards of one script: `if (a.b)`, `a.b && …`, `a.b ?? …`, `a.b?.c`, `typeof a.b`, `"b" in a`
    and their like.

    One that is written anywhere holds everywhere in the script: a read is told only where nobody asked. Objects that
    the script makes itself count as guarded, too.

    Args:
        found: The script's expressions by their uses.
    """

    def __init__(self, found: Nodes) -> None:
        self._asked: set[bytes] = set()
        self._names = {text_of(name).strip(b"\"'") for name in found["named"]}
        # Filled by computed names, or as it begins: what it has is not to be known.
        self._own = {text_of(field(left, "object")) for left in found["filled"]}
        self._own.update(text_of(name) for name in found["made"] if not _copies(field(name.parent, "value")))
        stack = [one for one in found["asked"] if not _is_answer(one.parent)]
        while stack:
            # What is tested, or the parts of it that are.
            here = stack.pop()
            if here.type in _PATHS:
                self._asked.add(text_of(here))
            elif here.type in AROUND or operator_of(here) in {"!", *CHOICES}:
                stack.extend(here.named_children)

    def cover(self, name: str, node: Node) -> bool:
        """Says whether a read of a member is guarded. `node` is the member's name, in an expression or a
        pattern."""
        parent = node.parent
        if name.encode() in self._names or parent is None:
            return name.encode() in self._names
        if parent.type.endswith("_pattern"):
            # With a default, or bound to a name that is asked for.
            bound = field(parent, "value") or node
            has_default = "assignment_pattern" in (bound.type, parent.type.removeprefix("object_"))
            return has_default or text_of(bound) in self._asked
        if parent.type not in _PATHS:
            return False
        is_asked = text_of(parent) in self._asked or text_of(field(parent, "object")) in self._own
        return is_asked or self._is_kept_for_later(parent)

    def _is_kept_for_later(self, read: Node) -> bool:
        """Says whether a value is kept under a name that the script asks for: `const next = page.next; if (next) …`."""
        value, around = read, read.parent
        while around is not None and (
            around.type in ("parenthesized_expression", "await_expression") or operator_of(around) in CHOICES
        ):
            value, around = around, around.parent
        if around is None or around.type not in ("variable_declarator", "assignment_expression"):
            return False
        kept = field(around, "name") or field(around, "left")
        return kept is not None and kept.id != value.id and text_of(kept) in self._asked


def _copies(literal: Node | None) -> bool:
    members = literal.named_children if literal is not None else []
    return any(member.type == "spread_element" for member in members)


def _is_answer(test: Node | None) -> bool:
    """Says whether a test is the whole answer of a callback: `!a.b` says nothing of whether `b` may be missing."""
    around = test.parent if test is not None and test.type == "unary_expression" else None
    return _type_of(around) in ("arrow_function", "return_statement")


def text_of(node: Node | None) -> bytes:
    """Gives an expression without blanks and without the question marks of optional chains."""
    if node is None:
        return b""
    if node.end_byte - node.start_byte > _MAX_TEXT:
        return b"@%d" % node.start_byte
    return _BLANKS.sub(b"", node.text or b"").replace(b"?.[", b"[").replace(b"?.", b".")
