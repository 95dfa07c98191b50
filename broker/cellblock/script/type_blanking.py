"""Makes JavaScript of TypeScript by writing spaces over what is only types, so that no position changes.

The idea is that of ts-blank-space. Every blank has as many bytes and as many UTF-16 units as what it covers, and line
terminators stay. Only what scripts have every day is blanked: annotations, type declarations, `as`, `satisfies`, `!`,
type arguments, and imports of types by their word. What has a meaning at run time, what is rare, and whatever leaves a
doubt about how TypeScript reads it, leaves the script to Deno's own type stripping, which is slower but knows.

Without the word `type` nothing tells that an imported name is a type, so TypeScript and Deno drop every imported name
that no value position uses: a script with such a name is left to Deno, too, unless the name begins as no type does.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Final

from tree_sitter import Node

from cellblock.script.trees import operator_of

_LINE_END: Final = re.compile(rb"[\r\n]|\xe2\x80[\xa8\xa9]")
_TO_SPACE: Final = bytes(byte if byte in b"\r\n" else 0x20 for byte in range(256))
_CHARACTER: Final = re.compile(
    rb"\xe2\x80[\xa8\xa9]|[\xc2-\xdf].|[\xe0-\xef]..|[\xf0-\xf7]...|[^\r\n]", re.DOTALL
)
_NEXT_TOKEN: Final = re.compile(
    rb"(?>(?:\s++|\xc2\xa0|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe3\x80\x80|\xef\xbb\xbf"
    rb"|//(?:(?!\xe2\x80[\xa8\xa9])[^\r\n])*|/\*.*?\*/)*)",
    re.DOTALL,
)
"""Matches after the white space and line ends of the language, all of them, and comments."""

_CONTINUES: Final = re.compile(rb"[(\[`.+\-*/%]|\?\.|<<|>>|!(?!=)")
"""Matches tokens that JavaScript would join to an expression which TypeScript has ended, or that bind closer than
`as`."""

_MARK: Final = re.compile(
    rb"[:!?<@]|\(\s*this\b|\b(?:abstract|accessor|as|class|declare|enum|export|function|implements|import|interface"
    rb"|module|namespace|override|private|protected|public|readonly|satisfies|type)\b"
)
"""Matches a mark: one of these is in everything that is not JavaScript; what has none of them is not looked into."""

_TYPE_STATEMENTS: Final = frozenset(
    {"type_alias_declaration", "interface_declaration", "ambient_declaration", "function_signature"}
)
_DOUBTS: Final = frozenset(
    {
        *(
            "decorator",
            "enum_declaration",
            "import_alias",
            "internal_module",
            "module",
            "import_require_clause",
        ),
        *(
            "type_assertion",
            "instantiation_expression",
            "abstract_class_declaration",
            "accessibility_modifier",
        ),
        *(
            "override_modifier",
            "readonly",
            "accessor",
            "abstract",
            "declare",
            "method_signature",
            "index_signature",
        ),
        "abstract_method_signature",
    }
)
"""Names what is not blanked."""

_VALUES: Final = frozenset({"identifier", "shorthand_property_identifier"})
_BINDING: Final = frozenset(
    {
        "array_pattern",
        "catch_clause",
        "optional_parameter",
        "pair_pattern",
        "required_parameter",
        "rest_pattern",
    }
)
_IN_NAME: Final = rb"[\w$\x80-\xff\\]"

Span = tuple[int, int]


class NotErasable(ValueError):
    """Tells that blanks would change what a program does, or that it is not known whether they would."""


def blank_types(root: Node, source: bytes, deadline: float) -> bytes | None:
    """Gives the script without its types: as long as `source`, with every position where it was.

    Args:
        root: The TypeScript tree of `source`, without errors.
        source: UTF-8.
        deadline: In this thread's CPU time.

    Returns:
        None where blanks cannot do it.

    Raises:
        TimeoutError: The deadline has passed.
    """
    blanking = _Blanking(source, deadline)
    try:
        blanking.walk(root)
        result = blanking.result()
        blanking.check_names(root, result)
    except NotErasable:
        return None
    return result


def blank(text: bytes) -> bytes:
    """Returns white space with the same bytes, UTF-16 units and line terminators."""
    return text.translate(_TO_SPACE) if text.isascii() else _CHARACTER.sub(_white, text)


def _white(match: re.Match[bytes]) -> bytes:
    size = len(match[0])
    if size == 3:
        return match[0] if match[0] in (b"\xe2\x80\xa8", b"\xe2\x80\xa9") else b"\xe3\x80\x80"
    return b" " if size == 1 else b"\xc2\xa0" * (size // 2)


def _any_of(names: list[bytes]) -> bytes:
    """Gives a pattern that finds some names as words of their own."""
    return rb"(?<!%s)(?:%s)(?!%s)" % (_IN_NAME, b"|".join(map(re.escape, names)), _IN_NAME)


def _binds(node: Node) -> bool:
    """Says whether a name is declared there, so that uses of it may not be of the import."""
    if node.type == "shorthand_property_identifier_pattern":
        return True
    parent = node.parent if node.type == "identifier" else None
    if parent is None:
        return False
    declared = parent.child_by_field_name("name") if parent.type == "variable_declarator" else None
    return parent.type in _BINDING or declared == node


class _Blanking:
    def __init__(self, source: bytes, deadline: float) -> None:
        self.source = source
        self._spans: list[Span] = []
        self._written: list[tuple[int, bytes]] = []
        self._imported: set[bytes] = set()
        self._imports: list[Span] = []
        self._exported: set[bytes] = set()
        self._deadline = deadline

    def result(self) -> bytes:
        text = bytearray(self.source)
        for start, end in self._spans:
            text[start:end] = blank(self.source[start:end])
        for at, what in self._written:
            text[at : at + 1] = what
        return bytes(text)

    def walk(self, root: Node) -> None:
        marks = bytearray(len(self.source) + 1)
        for match in _MARK.finditer(self.source):
            marks[match.start()] = 1
        todo = [root]
        while todo:
            self._in_time()
            node = todo.pop()
            for child in node.children:
                visit = _VISITS.get(child.type)
                if visit is not None:
                    todo += visit(self, child)
                elif marks.find(1, child.start_byte, child.end_byte) >= 0:
                    todo.append(child)

    # What is only types

    def whole(self, node: Node) -> list[Node]:
        if node.end_byte > node.start_byte:
            self._spans.append((node.start_byte, node.end_byte))
        return []

    def annotation(self, node: Node) -> list[Node]:
        self._ends_for_sure(node)
        return self.whole(node)

    def statement(self, node: Node) -> list[Node]:
        """Blanks a statement; the semicolon in its place ends the one before, as it did."""
        first = node.children[0]
        if first.type in ("type", "interface", "declare"):
            self._on_one_line(first.end_byte, node.children[1].start_byte)
        self._ends_for_sure(node)
        self._written.append((node.start_byte, b";"))
        return self.whole(node)

    def doubt(self, node: Node) -> list[Node]:
        raise NotErasable(node.type)

    # Expressions

    def cast(self, node: Node) -> list[Node]:
        """Blanks the type of `x as T` and of `x satisfies T`."""
        children = node.children
        word = next(child for child in children[1:] if child.type in ("as", "satisfies"))
        self._on_one_line(children[0].end_byte, word.start_byte)
        self._ends_for_sure(node)
        found = _NEXT_TOKEN.match(self.source, node.end_byte)
        if found is not None and _CONTINUES.match(self.source, found.end()):
            raise NotErasable("joined")
        self._spans.append((word.start_byte, node.end_byte))
        return self._again(children[0])

    def not_null(self, node: Node) -> list[Node]:
        mark = node.children[-1]
        self._on_one_line(node.children[0].end_byte, mark.start_byte)
        self.whole(mark)
        return self._again(node.children[0])

    def comparison(self, node: Node) -> list[Node]:
        """Refuses the type arguments of a tagged template, which the grammar takes for comparisons."""
        left, right = node.children[0], node.children[-1]
        less = left.type == "binary_expression" and operator_of(left) == "<"
        if operator_of(node) == ">" and (less or right.type == "template_string"):
            raise NotErasable("binary_expression")
        return [node]

    def made(self, node: Node) -> list[Node]:
        """Refuses `new F<T>` without arguments: what follows might join it."""
        if node.children[-1].type == "type_arguments":
            raise NotErasable("new_expression")
        return [node]

    # Functions, variables and fields

    def arrow(self, node: Node) -> list[Node]:
        parameters = node.child_by_field_name("parameters")
        generics = node.child_by_field_name("type_parameters")
        returned = node.child_by_field_name("return_type")
        if parameters is not None and generics is not None and node.children[0].type == "async":
            self._on_one_line(node.start_byte, parameters.start_byte)
        if parameters is None or returned is None:
            return [node]
        self._ends_for_sure(returned)
        if _LINE_END.search(self.source, parameters.end_byte, returned.end_byte) is not None:
            # No line may end between the parenthesis and the arrow: it moves to where the type ended.
            if self.source[returned.end_byte - 1] > 0x7F:
                raise NotErasable("arrow_function")
            self._spans.append((parameters.end_byte - 1, returned.end_byte))
            self._written.append((returned.end_byte - 1, b")"))
        return [node]

    def parameter(self, node: Node) -> list[Node]:
        for child in node.children:
            if child.type == "this":
                raise NotErasable("this")
            if child.type == "?":
                self.whole(child)
        return [node]

    def field(self, node: Node) -> list[Node]:
        kinds = {child.type: child for child in node.children}
        if kinds.keys() & {"?", "!"}:
            raise NotErasable("public_field_definition")
        if node.child_by_field_name("value") is None and "type_annotation" in kinds:
            # A field that is called `get` must not join what comes after it.
            self._written.append((kinds["type_annotation"].start_byte, b";"))
        return [node]

    # Modules

    def imported(self, node: Node) -> list[Node]:
        children = [child for child in node.children if child.type != "comment"]
        if children[1].type == "type":
            return self.statement(node)
        self._imports.append((node.start_byte, node.end_byte))
        clauses = [child for child in children if child.type in ("import_clause", "import_require_clause")]
        for child in [part for clause in clauses for part in clause.children]:
            if child.type == "identifier":
                self._imported.add(self._text(child))
            elif child.type == "named_imports":
                self._named([part for part in child.children if part.type != "comment"])
            elif child.type == "=":
                raise NotErasable("import_require_clause")
        return []

    def _named(self, children: list[Node]) -> None:
        """Notes the names in `{ a, b as c }`; one with the word `type` is blanked."""
        for child, after in pairwise(children):
            if child.type == "import_specifier" and child.children[0].type == "type":
                end = after.end_byte if after.type == "," else child.end_byte
                self._spans.append((child.start_byte, end))
            elif child.type == "import_specifier":
                self._imported.add(self._text(child.children[-1]))

    def exported(self, node: Node) -> list[Node]:
        kinds = {child.type for child in node.children}
        if node.children[1].type == "type" or kinds & _TYPE_STATEMENTS:
            return self.statement(node)
        if kinds & {"=", "namespace", "export_clause"}:
            # A clause may name a type as it does a value.
            raise NotErasable("export_statement")
        value = node.child_by_field_name("value")
        if value is not None and value.type == "identifier":
            self._exported.add(self._text(value))
        return [node]

    def check_names(self, root: Node, blanked: bytes) -> None:
        """Looks whether a name that is imported or exported may be a type's.

        Args:
            root: The tree.
            blanked: The script without its types.

        Raises:
            NotErasable: A type may be exported like a value, or an imported name is used as no value, or declared again
                in some scope: Deno knows what is meant.
            TimeoutError: The deadline has passed.
        """
        for name in self._exported:
            if len(re.findall(_any_of([name]), blanked)) < 2:
                raise NotErasable("export of a type")
        left, at = {name for name in self._imported if not name[:1].islower()}, 0
        for match in re.finditer(_any_of(sorted(left)), blanked) if left else ():
            while at < len(self._imports) and self._imports[at][1] <= match.start():
                at += 1
            if match[0] not in left or (at < len(self._imports) and self._imports[at][0] <= match.start()):
                continue
            self._in_time()
            node = root.descendant_for_byte_range(match.start(), match.end())
            if node is not None and _binds(node):
                raise NotErasable("a name of an import with another meaning in places")
            if node is not None and node.type in _VALUES:
                left.discard(match[0])
        if left:
            raise NotErasable("import of a type")

    # Doubts

    def _in_time(self) -> None:
        if time.thread_time() > self._deadline:
            raise TimeoutError

    def _again(self, node: Node) -> list[Node]:
        """Gives the node itself to the walk, which looks at the children of what it is given."""
        visit = _VISITS.get(node.type)
        return [node] if visit is None else visit(self, node)

    def _text(self, node: Node) -> bytes:
        return self.source[node.start_byte : node.end_byte]

    def _on_one_line(self, start: int, end: int) -> None:
        if _LINE_END.search(self.source, start, end) is not None:
            raise NotErasable("line end")

    def _ends_for_sure(self, node: Node) -> None:
        """Says whether a type ends at a line's end before `[`, `<` and `extends`, as in TypeScript; in the
        grammar it goes on."""
        while True:
            children = node.children
            if children and children[-1].type == ";":
                # The list is the node's own: who changes it has the binding read past its end later.
                children = children[:-1]
            if not children:
                return
            if node.type in ("array_type", "lookup_type"):
                self._on_one_line(children[0].end_byte, children[1].start_byte)
                node = children[0]
                continue
            if node.type in ("generic_type", "conditional_type"):
                self._on_one_line(children[0].end_byte, children[1].start_byte)
            elif node.type == "type_query":
                self._on_one_line(node.start_byte, node.end_byte)
            node = children[-1]


_VISITS: Final[dict[str, Callable[[_Blanking, Node], list[Node]]]] = {
    **dict.fromkeys(_DOUBTS, _Blanking.doubt),
    **dict.fromkeys(("type_parameters", "type_arguments", "implements_clause"), _Blanking.whole),
    **dict.fromkeys(
        ("type_annotation", "asserts_annotation", "type_predicate_annotation"), _Blanking.annotation
    ),
    **dict.fromkeys(_TYPE_STATEMENTS, _Blanking.statement),
    **dict.fromkeys(("as_expression", "satisfies_expression"), _Blanking.cast),
    "non_null_expression": _Blanking.not_null,
    "binary_expression": _Blanking.comparison,
    "new_expression": _Blanking.made,
    "arrow_function": _Blanking.arrow,
    **dict.fromkeys(("required_parameter", "optional_parameter"), _Blanking.parameter),
    "public_field_definition": _Blanking.field,
    "import_statement": _Blanking.imported,
    "export_statement": _Blanking.exported,
}
