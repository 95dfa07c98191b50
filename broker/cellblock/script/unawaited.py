"""Finds calls whose promise a script certainly does not wait for, from its text.

Whether such a call is still under way when the script ends depends on how fast its server is; that it is not awaited
does not. Calls of imported tools are looked at, and of the script's own async functions that await something. Only what
is certain counts: a promise that is handed on, kept in a list or returned may be awaited elsewhere.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tree_sitter import Node

from cellblock.script.trees import field, operator_of

SERVERS_PREFIX: Final = b"@codemode/servers/"

MAX_LOOKED_AT: Final = 200
"""Bounds the calls of one script that are looked at."""

MAX_TOLD: Final = 3

MAX_CALLEE_CHARS: Final = 80

_BLANKS: Final = 100
"""Counts the bytes before a name in which an `await` of it is looked for."""

_CHAIN: Final = frozenset([b"then", b"catch", b"finally"])
_FUNCTIONS: Final = frozenset(
    [
        "arrow_function",
        "function_expression",
        "function_declaration",
        "method_definition",
        "generator_function",
    ]
)
_AROUND: Final = frozenset(
    ["parenthesized_expression", "as_expression", "satisfies_expression", "non_null_expression"]
)
_LOOKS_AT: Final = re.compile(
    rb"(?:JSON\.(?:parse|stringify)|Object\.(?:keys|values|entries)|Array\.isArray|String|Number|console\.\w+)"
)
_ASYNC: Final = re.compile(
    rb"(?<![\w$.])(?:async\s+function\s+(?P<one>[\w$]+)|(?:const|let|var)\s+(?P<other>[\w$]+)\s*=\s*async\b)"
)


@dataclass(frozen=True, slots=True)
class Unawaited:
    """Describes one call. `start` is its first byte; `used` says whether its promise is used as if it were the
    value."""

    start: int
    callee: str
    used: bool


def unawaited_calls(
    root: Node, source: bytes, imports: Iterable[Node], deadline: float = math.inf
) -> tuple[Unawaited, ...]:
    """Gives the first `MAX_TOLD` calls of tools that nothing awaits, or as many as are found in time.

    Args:
        root: The tree of a script without syntax errors.
        source: The script.
        imports: The specifiers of its static imports.
        deadline: The CPU time of this thread at which to give up.
    """
    modules, functions = _names(imports, source)
    own = _own_async(root, source)
    names = {*modules, *functions, *own}
    if not names:
        return ()
    called = re.compile(
        rb"(?<![\w$])(?:(?<=\.\.\.)|(?<!\.))("
        + b"|".join(map(re.escape, sorted(names)))
        + rb")(?![\w$])(?=\s*\??[.(])"
    )
    found: list[Unawaited] = []
    for count, match in enumerate(called.finditer(source)):
        if count >= MAX_LOOKED_AT or len(found) >= MAX_TOLD or time.thread_time() > deadline:
            break
        name = match[1]
        node = root.descendant_for_byte_range(match.start(), match.end())
        call = _call_of(node, is_module=name in modules)
        use = _use_of(call, source) if call is not None else None
        if call is None or use is None or _is_shadowed(call, name, source, deadline, declared=name in own):
            continue
        callee = _text(field(call, "function"), source).decode("utf-8", "replace")
        found.append(Unawaited(call.start_byte, callee[:MAX_CALLEE_CHARS], used=use))
    return tuple(found)


def _names(imports: Iterable[Node], source: bytes) -> tuple[set[bytes], set[bytes]]:
    """Gives what a script calls the modules of servers, and their tools."""
    modules: set[bytes] = set()
    functions: set[bytes] = set()
    for specifier in imports:
        statement = specifier.parent
        if not source.startswith(SERVERS_PREFIX, specifier.start_byte + 1) or statement is None:
            continue
        for clause in (child for child in statement.named_children if child.type == "import_clause"):
            for part in clause.named_children:
                if part.type == "namespace_import":
                    modules.add(_text(part.named_children[0], source))
                for one in part.named_children if part.type == "named_imports" else ():
                    functions.add(_text(field(one, "alias") or field(one, "name"), source))
    return modules, functions - {b"__meta__", b""}


def _own_async(root: Node, source: bytes) -> set[bytes]:
    """Gives the async functions of the top level that wait for something."""
    if b"async" not in source:
        return set()
    names: set[bytes] = set()
    for statement in root.named_children:
        if statement.type in ("function_declaration", "lexical_declaration"):
            match = _ASYNC.match(source, statement.start_byte, statement.end_byte)
            if match is not None and source.find(b"await", match.end(), statement.end_byte) >= 0:
                names.add(match["one"] or match["other"])
    return names


def _call_of(callee: Node | None, *, is_module: bool) -> Node | None:
    """Gives the call that a name is called in: itself, or a member of the module that it names."""
    if is_module and callee is not None:
        named, callee = callee, callee.parent
        if callee is None or callee.type != "member_expression" or field(callee, "property") in (None, named):
            return None
    call = callee.parent if callee is not None else None
    is_call = call is not None and call.type == "call_expression" and field(call, "function") == callee
    return call if is_call else None


def _is_shadowed(call: Node, name: bytes, source: bytes, deadline: float, *, declared: bool) -> bool:
    """Says whether the name may be another's: a parameter around the call, or declared once more, or no time to
    look."""
    made = re.findall(rb"(?:const|let|var|class|function)\s+" + re.escape(name) + rb"(?![\w$])", source)
    if len(made) > declared:
        return True
    word = re.compile(rb"(?<![\w$])" + re.escape(name) + rb"(?![\w$])")
    around = call.parent
    while around is not None:
        # To find a node's parent, tree-sitter goes down from the root.
        if time.thread_time() > deadline:
            return True
        for name_of in ("parameters", "parameter") if around.type in _FUNCTIONS else ():
            if word.search(_text(field(around, name_of), source)) is not None:
                return True
        around = around.parent
    return False


def _use_of(call: Node, source: bytes) -> bool | None:
    """Says whether a call's promise is used as a value (True) or thrown away (False); None where it may be
    awaited."""
    node, around = _out(call)
    while around is not None and around.type == "member_expression":
        outer = around.parent
        if _text(field(around, "property"), source) not in _CHAIN or outer is None:
            return True
        if outer.type != "call_expression":
            return None
        node, around = _out(outer)
    if around is None:
        return None
    match around.type:
        case "expression_statement":
            return False
        case "subscript_expression":
            return _is_field(around, "object", node) or None
        case "for_in_statement":
            return _is_field(around, "right", node) or None
        case "if_statement" | "ternary_expression" | "while_statement":
            return _is_field(around, "condition", node) or None
        case "template_substitution" | "spread_element":
            return True
        case "binary_expression":
            return operator_of(around) not in ("", "&&", "||", "??") or None
        case "unary_expression":
            return around.children[0].type == "!" or None
        case "assignment_expression":
            return _text(field(around, "left"), source).endswith(b"__codemode_result__") or None
        case "arguments":
            return _LOOKS_AT.fullmatch(_text(field(around.parent, "function"), source)) is not None or None
        case "variable_declarator":
            name = field(around, "name")
            return None if name is None else True if name.type != "identifier" else _of_variable(name, source)
        case _:
            return None


def _of_variable(name: Node, source: bytes) -> bool | None:
    """Gives the same of a call whose promise has a name, by all places of that name."""
    word = re.escape(_text(name, source))
    used = False
    for match in re.finditer(rb"(?<![\w$.])" + word + rb"(?![\w$])(\s*\??\.\s*(\w+)|\s*\[)?", source):
        if match.start() == name.start_byte:
            continue
        before = source[max(0, match.start() - _BLANKS) : match.start()].rstrip()
        if match[1] is None or match[2] in _CHAIN or before.endswith(b"await"):
            return None
        used = True
    return used


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
