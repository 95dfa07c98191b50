"""Makes JavaScript of TypeScript by writing spaces over what is only types, so that no position changes.

The idea is that of ts-blank-space. Every blank has as many bytes and as many UTF-16 units as what it covers, and line
terminators stay. Where JavaScript would then read another program than TypeScript did, a semicolon or the closing
parenthesis of parameters is written into the blank. What has a meaning at run time (enums, namespaces, parameter
properties, decorators), and whatever leaves a doubt about how TypeScript reads it, is not blanked at all: such a script
is left to Deno's own type stripping, which is slower but knows.

Without the word `type` nothing tells that an imported name is a type, so TypeScript and Deno drop every imported name
that no value position uses. Here it is blanked; the import itself stays, for what its module does.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tree_sitter import Node

from cellblock.script.trees import operator_of

_LINE_END: Final = re.compile(rb"[\r\n]|\xe2\x80[\xa8\xa9]")
_TO_SPACE: Final = bytes(byte if byte in b"\r\n" else 0x20 for byte in range(256))
_CHARACTER: Final = re.compile(
    rb"\xe2\x80[\xa8\xa9]|[\xc2-\xdf].|[\xe0-\xef]..|[\xf0-\xf7]...|[^\r\n]", re.DOTALL
)
_NEXT_TOKEN: Final = re.compile(
    rb"(?:\s|\xc2\xa0|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe3\x80\x80|\xef\xbb\xbf"
    rb"|//(?:(?!\xe2\x80[\xa8\xa9])[^\r\n])*|/\*.*?\*/)*+",
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

_BRACED: Final = re.compile(rb"\{|(?:async|class|function|let)\b")
_LIKE_MODIFIERS: Final = frozenset({b"accessor", b"async", b"get", b"set", b"static"})
_MODIFIERS: Final = frozenset({"accessibility_modifier", "override_modifier", "readonly"})
_SIGNATURES: Final = frozenset({"method_signature", "abstract_method_signature", "index_signature"})
_TYPE_STATEMENTS: Final = frozenset(
    {"type_alias_declaration", "interface_declaration", "ambient_declaration", "function_signature"}
)

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


@dataclass(slots=True)
class _Import:
    """Holds one statement: local names and what to blank for each, and what to blank when none is left."""

    start: int
    end: int
    bare: Span
    names: dict[bytes, Span] = field(default_factory=dict[bytes, Span])


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
        unused = blanking.unused(root, result)
    except NotErasable:
        return None
    if unused:
        blanking.spans += unused
        result = blanking.result()
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


def _child(node: Node, kind: str) -> Node | None:
    return next((child for child in node.children if child.type == kind), None)


class _Blanking:
    def __init__(self, source: bytes, deadline: float) -> None:
        self.source = source
        self.spans: list[Span] = []
        self._imports: list[_Import] = []
        self._exported: set[bytes] = set()
        self._written: list[tuple[int, bytes]] = []
        self._statements: set[int] = set()
        self._deadline = deadline

    def result(self) -> bytes:
        text = bytearray(self.source)
        for start, end in self.spans:
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
            if time.thread_time() > self._deadline:
                raise TimeoutError
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
            self.spans.append((node.start_byte, node.end_byte))
        return []

    def annotation(self, node: Node) -> list[Node]:
        self._ends_for_sure(node)
        return self.whole(node)

    def statement(self, node: Node) -> list[Node]:
        """Blanks a statement or class member; the semicolon in its place ends the one before, as it did."""
        first = node.children[0]
        if first.type in ("type", "interface", "declare", "abstract"):
            self._on_one_line(first.end_byte, node.children[1].start_byte)
        self._ends_for_sure(node)
        self._written.append((node.start_byte, b";"))
        return self.whole(node)

    def looked_into(self, node: Node) -> list[Node]:
        """Has a node looked into also without a mark in it: a method's signature needs none."""
        return [node]

    def doubt(self, node: Node) -> list[Node]:
        raise NotErasable(node.type)

    # Expressions

    def cast(self, node: Node) -> list[Node]:
        """Blanks the type of `x as T` and of `x satisfies T`."""
        children = node.children
        word = next(child for child in children[1:] if child.type in ("as", "satisfies"))
        self._on_one_line(children[0].end_byte, word.start_byte)
        self._ends_for_sure(node)
        self._nothing_joins(node.end_byte)
        self.spans.append((word.start_byte, node.end_byte))
        return self._again(children[0])

    def assertion(self, node: Node) -> list[Node]:
        """Blanks the type of `<T>x`: nothing may come to stand at the start of a statement or of an arrow function's
        body."""
        types, value = node.children[0], node.children[-1]
        self._on_one_line(node.start_byte, value.start_byte)
        if node.start_byte in self._statements or _BRACED.match(self.source, value.start_byte):
            raise NotErasable("type_assertion")
        self.whole(types)
        return self._again(value)

    def not_null(self, node: Node) -> list[Node]:
        mark = node.children[-1]
        self._on_one_line(node.children[0].end_byte, mark.start_byte)
        self.whole(mark)
        return self._again(node.children[0])

    def instantiation(self, node: Node) -> list[Node]:
        """Blanks `f<T>` that is not called, and `new F<T>`, with or without arguments."""
        if node.children[-1].type == "type_arguments":
            self._nothing_joins(node.end_byte)
        return [node]

    def comparison(self, node: Node) -> list[Node]:
        """Blanks the type arguments of a tagged template, which the grammar takes for comparisons."""
        left, right = node.children[0], node.children[-1]
        less = left.type == "binary_expression" and operator_of(left) == "<"
        if operator_of(node) == ">" and (less or right.type == "template_string"):
            raise NotErasable("binary_expression")
        return [node]

    def expression_statement(self, node: Node) -> list[Node]:
        self._statements.add(node.start_byte)
        return [node]

    # Functions and variables

    def arrow(self, node: Node) -> list[Node]:
        parameters = node.child_by_field_name("parameters")
        generics = node.child_by_field_name("type_parameters")
        returned = node.child_by_field_name("return_type")
        if parameters is not None and generics is not None and node.children[0].type == "async":
            self._on_one_line(node.start_byte, parameters.start_byte)
        if parameters is None or returned is None:
            return [node]
        self._ends_for_sure(returned)
        if self._line_ends(parameters.end_byte, returned.end_byte):
            # No line may end between the parenthesis and the arrow: it moves to where the type ended.
            if self.source[returned.end_byte - 1] > 0x7F:
                raise NotErasable("arrow_function")
            self.spans.append((parameters.end_byte - 1, returned.end_byte))
            self._written.append((returned.end_byte - 1, b")"))
        return [node]

    def parameters(self, node: Node) -> list[Node]:
        children = node.children
        for at, child in enumerate(children):
            if child.type == "required_parameter" and child.children[0].type == "this":
                comma = next((after for after in children[at + 1 :] if after.type == ","), child)
                self.spans.append((child.start_byte, comma.end_byte))
        return [node]

    def parameter(self, node: Node) -> list[Node]:
        for child in node.children:
            if child.type in _MODIFIERS:
                raise NotErasable("parameter property")
            if child.type == "?":
                self.whole(child)
        return [node]

    def declarator(self, node: Node) -> list[Node]:
        for child in node.children:
            if child.type == "!":
                self.whole(child)
        return [node]

    # Classes

    def abstract_class(self, node: Node) -> list[Node]:
        children = node.children
        for at, child in enumerate(children):
            if child.type == "abstract":
                self._on_one_line(child.end_byte, children[at + 1].start_byte)
                self.whole(child)
        return [node]

    def field(self, node: Node) -> list[Node]:
        kinds = {child.type for child in node.children}
        if kinds & {"abstract", "declare"}:
            return self.statement(node)
        if "accessor" in kinds:
            raise NotErasable("accessor")
        self._member(node)
        if node.child_by_field_name("value") is None:
            types = next((child for child in node.children if child.type == "type_annotation"), None)
            name = node.child_by_field_name("name")
            if types is not None:
                # A field that is called `get` must not join what comes after it.
                self._written.append((types.start_byte, b";"))
            elif name is not None and self._text(name) in _LIKE_MODIFIERS:
                raise NotErasable("public_field_definition")
        return [node]

    def method(self, node: Node) -> list[Node]:
        self._member(node)
        return [node]

    def _member(self, node: Node) -> None:
        name = node.child_by_field_name("name")
        for at, child in enumerate(node.children):
            if child.type in _MODIFIERS:
                if name is not None:
                    self._on_one_line(node.start_byte, name.start_byte)
                self.whole(child)
                if at == 0:
                    # Without the word, `[x]` or `*` might join the field before.
                    self._written.append((child.start_byte, b";"))
            elif child.type in ("?", "!"):
                self.whole(child)

    # Modules

    def imported(self, node: Node) -> list[Node]:
        children = node.children
        if children[1].type == "type":
            return self.statement(node)
        if any(child.type == "import_require_clause" for child in children):
            raise NotErasable("import_require_clause")
        clause, word = _child(node, "import_clause"), _child(node, "from")
        if clause is None or word is None:
            return []
        found = _Import(node.start_byte, node.end_byte, (clause.start_byte, word.end_byte))
        children = [child for child in clause.children if child.type != "comment"]
        for at, child in enumerate(children):
            if child.type == "identifier":
                comma = children[at + 1] if at + 1 < len(children) else child
                found.names[self._text(child)] = (child.start_byte, comma.end_byte)
            elif child.type == "namespace_import":
                start = children[at - 1].start_byte if at else child.start_byte
                found.names[self._text(child.children[-1])] = (start, child.end_byte)
            elif child.type == "named_imports":
                self._named(child, found)
        if found.names:
            self._imports.append(found)
        return []

    def _named(self, clause: Node, found: _Import) -> None:
        """Notes the names in `{ a, b as c }`; one with the word `type` is blanked in any case."""
        children = [child for child in clause.children if child.type != "comment"]
        for at, child in enumerate(children):
            if child.type != "import_specifier":
                continue
            comma = children[at + 1] if children[at + 1].type == "," else child
            span = (child.start_byte, comma.end_byte)
            if child.children[0].type == "type":
                self.spans.append(span)
            else:
                found.names[self._text(child.children[-1])] = span

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

    def unused(self, root: Node, blanked: bytes) -> list[Span]:
        """Gives what to blank of imports whose names nothing uses.

        Args:
            root: The tree.
            blanked: The script without its types.

        Raises:
            NotErasable: A type is exported like a value, or an imported name is declared again in some scope: Deno
                knows what is meant.
            TimeoutError: The deadline has passed.
        """
        for name in self._exported:
            if len(re.findall(_any_of([name]), blanked)) < 2:
                raise NotErasable("export of a type")
        left = {name for each in self._imports for name in each.names}
        if not left:
            return []
        at = 0
        for match in re.finditer(_any_of(sorted(left)), blanked):
            while at < len(self._imports) and self._imports[at].end <= match.start():
                at += 1
            if match[0] not in left or (at < len(self._imports) and self._imports[at].start <= match.start()):
                continue
            if time.thread_time() > self._deadline:
                raise TimeoutError
            node = root.descendant_for_byte_range(match.start(), match.end())
            if node is not None and _binds(node):
                raise NotErasable("a name of an import with another meaning in places")
            if node is not None and node.type in _VALUES:
                left.discard(match[0])
        spans: list[Span] = []
        for each in self._imports:
            unused = each.names.keys() & left
            if len(unused) == len(each.names):
                spans.append(each.bare)
            else:
                spans += [each.names[name] for name in unused]
        return spans

    # Doubts

    def _again(self, node: Node) -> list[Node]:
        """Gives the node itself to the walk, which looks at the children of what it is given."""
        visit = _VISITS.get(node.type)
        return [node] if visit is None else visit(self, node)

    def _text(self, node: Node) -> bytes:
        return self.source[node.start_byte : node.end_byte]

    def _line_ends(self, start: int, end: int) -> bool:
        return _LINE_END.search(self.source, start, end) is not None

    def _on_one_line(self, start: int, end: int) -> None:
        if self._line_ends(start, end):
            raise NotErasable("line end")

    def _nothing_joins(self, at: int) -> None:
        found = _NEXT_TOKEN.match(self.source, at)
        if found is not None and _CONTINUES.match(self.source, found.end()):
            raise NotErasable("joined")

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
    **dict.fromkeys(("type_parameters", "type_arguments", "implements_clause"), _Blanking.whole),
    **dict.fromkeys(
        ("type_annotation", "asserts_annotation", "type_predicate_annotation"), _Blanking.annotation
    ),
    **dict.fromkeys(_TYPE_STATEMENTS | _SIGNATURES, _Blanking.statement),
    **dict.fromkeys(
        ("decorator", "enum_declaration", "import_alias", "internal_module", "module"), _Blanking.doubt
    ),
    **dict.fromkeys(("as_expression", "satisfies_expression"), _Blanking.cast),
    "type_assertion": _Blanking.assertion,
    "non_null_expression": _Blanking.not_null,
    **dict.fromkeys(("instantiation_expression", "new_expression"), _Blanking.instantiation),
    "binary_expression": _Blanking.comparison,
    "class_body": _Blanking.looked_into,
    "expression_statement": _Blanking.expression_statement,
    "arrow_function": _Blanking.arrow,
    "formal_parameters": _Blanking.parameters,
    **dict.fromkeys(("required_parameter", "optional_parameter"), _Blanking.parameter),
    "variable_declarator": _Blanking.declarator,
    "abstract_class_declaration": _Blanking.abstract_class,
    "public_field_definition": _Blanking.field,
    "method_definition": _Blanking.method,
    "import_statement": _Blanking.imported,
    "export_statement": _Blanking.exported,
}
