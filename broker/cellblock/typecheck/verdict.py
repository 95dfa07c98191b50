"""Which of the compiler's complaints count: those that a script would trip over when it runs.

Scripts are loosely typed JavaScript, and what is known of tools may be little. So a complaint counts only when it is
about something that Cellblock knows: a member of a tool's output or of a module, a tool's arguments, a name that
nothing declares. Code that looks before it reads (`a.b ?? c`, `if (a.b)`, `typeof b`) is left alone.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import tree_sitter_javascript
import tree_sitter_typescript
from tree_sitter import Language, Node, Parser

from cellblock.script_lines import CompilerPlaces
from cellblock.typecheck.comparisons import COMPARISON, foreign_value

MAX_JUDGED: Final = 200
"""Complaints of one script that are looked at, in the order of the text."""

PARSE_BOUND_SECONDS: Final = 0.3
"""A script at the checker's cap of 256 KiB takes 0.1 s."""

MEMBER: Final = frozenset({2339, 2551})
EXPORT: Final = frozenset({2305, 2724, 2614, 1192})
NAME: Final = frozenset({2304, 2307, 2552, 2580, 2581, 2582, 2583, 2584, 2591, 2592, 2593, 2868, 18004})
ARGUMENT: Final = frozenset({2322, 2345, 2353, 2554, 2555, 2561, 2739, 2740, 2741, 2820})
REQUIRE: Final = 2591
"""What the compiler says of a `require` that it does not know."""

_UNKNOWN_MEMBER: Final = frozenset({2353, 2561})

# A script's own texts stand in messages: no name goes past what may be another beginning.
_ON_TYPE: Final = re.compile(
    r"Property '((?:(?!Property ').)*?)' does not exist on type '((?:(?!Property ').)*?)'\.", re.DOTALL
)
_QUOTED: Final = re.compile(r"'([^']*)'")
_SPECIFIER: Final = re.compile(r'"(@codemode/[^"]*)"')
_MODULE: Final = re.compile(r'typeof import\("@codemode/[^"]*"\)')
_PLAIN: Final = re.compile(r"(?:string|number|boolean)(?:\[\])*(?: \| (?:string|number|boolean)(?:\[\])*)*")
_NOT_ASSIGNABLE: Final = re.compile(
    r"(?:Type|Argument of type) '(.*)' is not assignable to (?:parameter of )?type '(.*+)", re.DOTALL
)
_IDENTIFIER: Final = re.compile(r"[A-Za-z_$][\w$]*")
_LINE_END: Final = re.compile(r"\r\n|\n|\r")
_ERASED: Final = frozenset(
    [
        "type_identifier",
        "nested_type_identifier",
        "type_annotation",
        "type_query",
        "type_arguments",
        "comment",
        "interface_declaration",
        "type_alias_declaration",
    ]
)
_SCOPES: Final = frozenset(
    ["arrow_function", "function_expression", "function_declaration", "method_definition"]
)


@dataclass(frozen=True, slots=True)
class Complaint:
    """One complaint that counts. `line` and `column` are as in `script_lines`, as the sandbox's are."""

    code: int
    message: str
    line: int
    column: int
    name: str
    """The text it is about."""

    receiver: str | None = None
    """The type that lacks a member, as the compiler prints it."""

    position: tuple[int, int] = (0, 0)
    """Line and column from 0, for the compiler."""

    module: str = ""
    """Of a complaint about arguments: from which module the called function is; of `require`, what it asks for."""

    called: str = ""
    """The name that this module exports the called function by."""

    owner: str = ""
    """The property whose value is at fault, or lies in what is at fault; empty for the input itself."""


class _Source:
    """A script's text with its tree, and places in it as the compiler gives them."""

    def __init__(self, code: str, typescript: bool) -> None:
        self.code = code
        self.raw = code.encode()
        self.places = CompilerPlaces(code)
        self._lines = [0, *(match.end() for match in _LINE_END.finditer(code))]
        deadline = time.monotonic() + PARSE_BOUND_SECONDS
        parser = _parser(typescript)
        # A parser that reads through a callback can be stopped.
        tree = parser.parse(
            lambda offset, _point: self.raw[offset : offset + 65_536],
            encoding="utf8",
            progress_callback=lambda _offset, _has_error: time.monotonic() > deadline,
        )
        self.root = tree.root_node
        self.imported = _imported_names(self.root)

    def offset(self, line: int, column: int) -> int:
        """Index in `code` of a place that counts from 0, columns in UTF-16 units."""
        if line >= len(self._lines):
            return len(self.code)
        start = self._lines[line]
        end = self._lines[line + 1] if line + 1 < len(self._lines) else len(self.code)
        units = self.code[start:end].encode("utf-16-le")[: column * 2]
        return start + len(units.decode("utf-16-le", "ignore"))

    def text(self, node: Node) -> str:
        """What is written there."""
        return self.raw[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def node(self, start: int, end: int) -> Node | None:
        """The smallest node around a part of `code`."""
        first = len(self.code[:start].encode())
        return self.root.named_descendant_for_byte_range(first, first + len(self.code[start:end].encode()))


def judge(raw: list[Any], code: str, declarations: str, *, typescript: bool) -> list[Complaint]:
    """The complaints that count, in the order of the text.

    Args:
        raw: Items of a diagnostic report (language server protocol 3.17), untrusted in shape.
        code: What was checked; must have no lone surrogate.
        declarations: What it was checked against.
        typescript: Whether it is TypeScript and no JavaScript.

    Raises:
        ValueError: The script cannot be parsed within `PARSE_BOUND_SECONDS`.
    """
    wanted = MEMBER | EXPORT | NAME | ARGUMENT | COMPARISON
    found = [item for item in raw if isinstance(item, dict) and item.get("code") in wanted][:MAX_JUDGED]  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if not found:
        return []
    source = _Source(code, typescript)
    counted: list[Complaint] = []
    for item in found:  # pyright: ignore[reportUnknownVariableType]
        complaint = _complaint(item, source, declarations)  # pyright: ignore[reportUnknownArgumentType]
        if complaint is not None:
            counted.append(complaint)
    return sorted(counted, key=lambda complaint: complaint.position)


def _complaint(item: dict[str, Any], source: _Source, declarations: str) -> Complaint | None:
    number, message = int(item["code"]), str(item["message"])
    start, end = item["range"]["start"], item["range"]["end"]
    line, column = int(start["line"]), int(start["character"])
    first, last = source.offset(line, column), source.offset(int(end["line"]), int(end["character"]))
    name = source.code[first:last]
    node = source.node(first, last)
    if node is None or any(part.type in _ERASED for part in _upwards(node)):
        return None
    receiver, module, called, owner = None, "", "", ""
    if number in MEMBER:
        match = _ON_TYPE.search(message)
        if match is None or not _member_counts(match[1], match[2], message, node, source, declarations):
            return None
        name, receiver = match[1], match[2]
    elif number in NAME:
        quoted = _QUOTED.search(message)
        is_module = name[:1] in ('"', "'", "`")
        if is_module and not re.search(r"\brequire\s*\(\s*$", source.code[max(0, first - 100) : first]):
            return None  # An import: the plan, or the script's own exception, tells it better.
        if is_module:
            name, module = "require", name[1:-1]
        elif quoted:
            name = quoted[1]
        if re.search(rf"\btypeof\s+{re.escape(name)}\b", source.code):
            return None
    elif number in EXPORT and any(_is_required(part, source) for part in _upwards(node)):
        # The compiler takes it for an import, which the sandbox does not.
        number, name, module = REQUIRE, "require", _module_in(message)
    elif number in COMPARISON:
        if foreign_value(message, declarations) is None:
            return None
    elif number in ARGUMENT:
        function = _called(node, source)
        if function is None or not _argument_counts(number, message):
            return None
        module, called = function
        owner = _owner(node, source, of_member=number in _UNKNOWN_MEMBER)
    at = source.places.place(line + 1, column + 1)
    return Complaint(number, message, *at, name, receiver, (line, column), module, called, owner)


def _upwards(node: Node) -> list[Node]:
    """The node and what is around it, up to the statement."""
    found = [node]
    while (parent := found[-1].parent) is not None and not parent.type.endswith("statement"):
        found.append(parent)
    if parent is not None:
        found.append(parent)
    return found


# ---- members -----------------------------------------------------------------------------------------------


def _member_counts(
    name: str, receiver: str, message: str, node: Node, source: _Source, declarations: str
) -> bool:
    if re.search(rf"\.\s*{re.escape(name)}\s*(?:[-+*/%&|^]|\?\?|\|\||&&)?=(?![=>])", source.code):
        return False  # The script itself gives it the member.
    if _looked_at_first(node):
        return False
    lacking = [match[2] for match in _ON_TYPE.finditer(message)]
    if len(lacking) > 1:
        # Of a union the compiler names one type that lacks the member; another may have it.
        return _is_known(lacking[-1], declarations) and not re.search(rf"\b{re.escape(name)}\b", declarations)
    return _is_known(receiver, declarations)


def _is_known(receiver: str, declarations: str) -> bool:
    """Whether a type comes from what Cellblock declares, or is one that scripts do not add members to."""
    if _MODULE.fullmatch(receiver) or receiver.startswith("Promise<") or _PLAIN.fullmatch(receiver):
        return True
    base = receiver.removesuffix("[]")
    if base.startswith("{") and base != "{}":
        return True
    if base != receiver and base in ("any", "unknown"):
        return True
    named = _IDENTIFIER.fullmatch(base)
    return (
        named is not None
        and re.search(rf"\b(?:type|interface) {re.escape(base)}\b", declarations) is not None
    )


def _looked_at_first(node: Node) -> bool:
    """Whether the script asks if the member is there, instead of relying on it."""
    here = node
    if here.parent is not None and here.parent.type in ("member_expression", "subscript_expression"):
        here = here.parent
    around = here.parent
    while around is not None and (
        around.type in ("parenthesized_expression", "non_null_expression") or _is_last_of_choice(here, around)
    ):
        here, around = around, around.parent
    if around is None:
        return False
    match around.type:
        case "binary_expression":
            operator = around.child_by_field_name("operator")
            left = around.child_by_field_name("left")
            tests = ("??", "||", "&&", "==", "!=", "===", "!==", "in")
            return operator is not None and operator.type in tests and left is not None and left.id == here.id
        case "unary_expression":
            operator = around.child_by_field_name("operator")
            return operator is not None and operator.type in ("!", "typeof", "delete")
        case "if_statement" | "ternary_expression" | "while_statement":
            condition = around.child_by_field_name("condition")
            return condition is not None and condition.id == here.id
        case "member_expression" | "call_expression" | "subscript_expression":
            return any(child.type in ("optional_chain", "?.") for child in around.children)
        case "object_assignment_pattern":
            return True
        case _:
            return False


def _is_last_of_choice(node: Node, around: Node) -> bool:
    """Whether it is the right side of `a ?? b` or `a || b`, which may be the left side of another."""
    if around.type != "binary_expression":
        return False
    operator, right = around.child_by_field_name("operator"), around.child_by_field_name("right")
    chosen = operator is not None and operator.type in ("??", "||")
    return chosen and right is not None and right.id == node.id


# ---- arguments of tools ------------------------------------------------------------------------------------


def _argument_counts(number: int, message: str) -> bool:
    deepest = message.splitlines()[-1].strip()
    match = _NOT_ASSIGNABLE.match(deepest.removesuffix("."))
    if match is None or match[2][-1:] != "'" or number in (2554, 2555):
        return True
    given, wanted = match[1], match[2][:-1]
    # `const input = { state: "open" }` makes the state a string: only what is certainly wrong counts.
    literal = given.startswith('"') or given.isdigit()
    return _PLAIN.fullmatch(wanted) is not None or (literal and '"' in wanted)


def _called(node: Node, source: _Source) -> tuple[str, str] | None:
    """The module and the export of the call that a node is in; None when it is none of `@codemode/…`."""
    here: Node | None = node
    while here is not None and here.type not in _SCOPES:
        if here.type == "call_expression":
            function = here.child_by_field_name("function")
            found = source.imported.get(_root_name(function, source) or "")
            if found is None or function is None:
                return None
            member = function.child_by_field_name("property")
            return found[0], (source.text(member) if member is not None else found[1])
        here = here.parent
    return None


def _owner(node: Node, source: _Source, *, of_member: bool) -> str:
    """The property whose value a complaint is about, or whose value has the member that it is about."""
    here: Node | None = node
    if of_member:
        # From the member's name to the object that it is in.
        while here is not None and here.type != "object":
            here = here.parent
    while here is not None and here.type != "call_expression":
        parent = here.parent
        if parent is not None and parent.type == "pair":
            key = parent.child_by_field_name("key")
            return source.text(key).strip("\"'") if key is not None else ""
        if here.type.startswith("shorthand_property"):
            return source.text(here)
        here = parent
    return ""


def _root_name(function: Node | None, source: _Source) -> str | None:
    if function is not None and function.type == "member_expression":
        function = function.child_by_field_name("object")
    if function is None or function.type != "identifier":
        return None
    return source.text(function)


def _is_required(node: Node, source: _Source) -> bool:
    """Whether it is a declaration whose value is a call of `require`."""
    value = node.child_by_field_name("value") if node.type == "variable_declarator" else None
    return (
        value is not None
        and value.type == "call_expression"
        and _root_name(value.child_by_field_name("function"), source) == "require"
    )


def _module_in(message: str) -> str:
    found = _SPECIFIER.search(message)
    return found[1] if found else ""


def _imported_names(root: Node) -> dict[str, tuple[str, str]]:
    """The local names that imports of `@codemode/…` bind: to a module, and an export of it or nothing."""
    names: dict[str, tuple[str, str]] = {}
    for statement in root.named_children:
        if statement.type != "import_statement":
            continue
        specifier = statement.child_by_field_name("source")
        if specifier is None or b"@codemode/" not in (specifier.text or b""):
            continue
        module = _decoded(specifier)[1:-1]
        stack = [child for child in statement.named_children if child.type == "import_clause"]
        while stack:
            here = stack.pop()
            if here.type == "import_specifier":
                exported = _decoded(here.child_by_field_name("name")).strip("\"'")
                bound = _decoded(here.child_by_field_name("alias")) or exported
                names[bound] = module, exported
            elif here.type == "identifier":
                names[_decoded(here)] = module, ""
            else:
                stack.extend(here.named_children)
    return names


def _decoded(node: Node | None) -> str:
    return ((node.text if node is not None else None) or b"").decode("utf-8", "replace")


@lru_cache(maxsize=2)
def _language(typescript: bool) -> Language:
    raw = tree_sitter_typescript.language_typescript() if typescript else tree_sitter_javascript.language()
    return Language(raw)


def _parser(typescript: bool) -> Parser:
    # One for each call: judging happens in threads.
    return Parser(_language(typescript))
