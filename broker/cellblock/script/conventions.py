"""Finds how a script gives its result where it does not assign it: conventions that models bring from elsewhere.

Section 3.2.2 knows one way, an assignment to `globalThis.__codemode_result__`, and that wins over these: a default
export, a lone function expression, a call of an async function of the script's own at its end, a `return` at the top
level. The first needs nothing; before the others and around what returns, `export default` is written, and the sandbox
calls a function that it finds there, and awaits a promise. A function that is only declared is not called.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from typing import Final, Literal

from tree_sitter import Node

from cellblock.script.trees import field

RESULT_NAME: Final = "__codemode_result__"

ASSIGN: Final = f"Assign what you want to see: `globalThis.{RESULT_NAME} = value;`"

MAX_SHOWN: Final = 80
"""Bounds the characters of the script in a hint."""

_STATEMENTS: Final = frozenset(
    [
        "statement_block",
        "if_statement",
        "else_clause",
        "for_statement",
        "for_in_statement",
        "while_statement",
        "do_statement",
        "try_statement",
        "catch_clause",
        "finally_clause",
        "switch_statement",
        "switch_body",
        "switch_case",
        "switch_default",
        "labeled_statement",
    ]
)
"""Names nodes that have statements in them which are no other function's."""

_DECLARATIONS: Final = frozenset(
    [
        "lexical_declaration",
        "variable_declaration",
        "function_declaration",
        "generator_function_declaration",
        "class_declaration",
        "empty_statement",
        "interface_declaration",
        "type_alias_declaration",
    ]
)
_FUNCTIONS: Final = frozenset(["arrow_function", "function_expression"])
_CONSOLE: Final = re.compile(r"console\s*\.\s*\w+")
_RETURN: Final = re.compile(rb"return")
_OWN: Final = re.compile(rb"(?<![\w$.])(const|let|var)\s+__codemode_result__(?![\w$])")
_SHARED: Final = re.compile(rb"globalThis\s*(?:\?\.|\.|\[\s*[\"'])\s*__codemode_result__")
_NAME: Final = re.compile(r"[\w$]+")
_NO_PROMISE: Final = re.compile(
    r"(?:Array|Date|JSON|Math|Number|Object|String)\.(?!fromAsync)\w+|Boolean|Number|String|parse(?:Float|Int)"
    r"|structuredClone|.*\.(?:at|concat|every|filter|find\w*|flat|flatMap|includes|indexOf|join|match|padStart|pop"
    r"|map|reduce|replace\w*|reverse|shift|slice|some|sort|split|test|to[A-Z]\w+|trim\w*)",
    re.DOTALL,
)
"""Fits functions of the language that give no promise, unless what they are given makes one."""

# To tree-sitter's JavaScript `await (f())` is a call of `await`.
_AWAITS: Final = re.compile(r"await(?![\w$])")

Kind = Literal["export", "function", "call", "return"]


@dataclass(frozen=True, slots=True)
class Entry:
    """Says where the result is, if it is not assigned: `at` is the byte before which `export default` belongs,
    and what returns at the top level goes on to the end of the script."""

    kind: Kind
    at: int = 0


def entry_of(root: Node, source: bytes) -> Entry | None:
    """Finds the convention by which the script gives its result, if it does."""
    if not any(word in source for word in (b"=>", b"function", b"return", b"default")):
        return None
    imports, others = _split(root)
    if not others:
        return None
    if any(node.type == "export_statement" for node in others):
        return Entry("export") if b"default" in source else None
    returns = [match.start() for match in _RETURN.finditer(source)]
    if returns and any(_returns(node, returns) for node in others):
        # An import cannot be in a function.
        first = not imports or imports[-1].end_byte <= others[0].start_byte
        return Entry("return", others[0].start_byte) if first else None
    last, before = others[-1], [node for node in others[:-1] if not _is_directive(node)]
    if _bare(last).type in _FUNCTIONS and all(node.type in _DECLARATIONS for node in before):
        return Entry("function", last.start_byte)
    if last.type == "expression_statement" and _calls_own_async(_bare(last), before, source):
        return Entry("call", last.start_byte)
    return None


def _calls_own_async(call: Node, before: list[Node], source: bytes) -> bool:
    """Says whether an expression calls an async function of the script's own, or `then` and its like of one."""
    whole, call = call, _unchained(call, source)
    function = field(call, "function") if call.type == "call_expression" else None
    if function is None:
        return False
    called = _bare(function)
    if called.type == "identifier":
        named = [
            one
            for statement in before
            for one in (statement, *statement.named_children)
            if (name := field(one, "name")) is not None and _text(name, source) == _text(called, source)
        ]
        called = (field(named[0], "value") or named[0]) if len(named) == 1 else called
    # Of what a function gives, `then` is a method where it gives a promise.
    is_own = called.type in (*_FUNCTIONS, "function_declaration")
    return any(child.type == "async" for child in called.children) or (is_own and call is not whole)


def _unchained(call: Node, source: bytes) -> Node:
    """Gives the call whose promise's `then`, `catch` or `finally` a chain calls."""
    while call.type == "call_expression":
        method = field(call, "function")
        name = (
            field(method, "property") if method is not None and method.type == "member_expression" else None
        )
        if method is None or name is None or _text(name, source) not in ("then", "catch", "finally"):
            break
        call = _bare(method.named_children[0])
    return call


def hidden_result(source: bytes) -> str | None:
    """Gives the one corrective action for a script that declares the result as a variable of its own; None where it
    does not."""
    declared = _OWN.search(source)
    if declared is None or _SHARED.search(source) is not None:
        return None
    word = declared[1].decode()
    return f"`{word} {RESULT_NAME}` makes a variable of the script's own: leave out `{word}`."


def uncalled(root: Node, source: bytes) -> str | None:
    """Gives the one corrective action for a script that only declares, of what one function is named nowhere else;
    None where it does more."""
    others = _split(root)[1]
    if any(node.type not in _DECLARATIONS for node in others):
        return None
    names = [field(node, "name") for node in others if node.type == "function_declaration"]
    called = [_text(name, source) for name in names if name is not None]
    if len(others) > 1:
        times = Counter(_NAME.findall(source.decode("utf-8", "replace")))
        called = [name for name in called if times[name] == 1]
    if len(called) != 1:
        return None
    return f"Nothing calls `{called[0]}`: add `globalThis.{RESULT_NAME} = await {called[0]}();`"


def likely_result(root: Node, source: bytes) -> str:
    """Gives the one corrective action for a script that gives no result, with what was probably meant as one if
    that is clear."""
    others = _split(root)[1]
    if not others:
        return ASSIGN
    last = others[-1]
    if (hint := uncalled(root, source)) is not None:
        return hint
    if last.type == "expression_statement":
        value = _value_of(_bare(last), source)
        return f"Write the last statement as `globalThis.{RESULT_NAME} = {value};`" if value else ASSIGN
    names = [name for node in others for name in _declared(node, source)]
    names = [name for name in names if not name.endswith("()")] or names
    if last.type not in _DECLARATIONS:
        text = source[last.start_byte : last.end_byte].decode("utf-8", "replace")
        used = set(re.findall(r"(?<![\w$.])[\w$]+", text))
        names = [name for name in names if name in used]
    return f"Add at the end: `globalThis.{RESULT_NAME} = {names[-1]};`" if names else ASSIGN


def _split(root: Node) -> tuple[list[Node], list[Node]]:
    """Gives the top level's imports and its other statements."""
    imports: list[Node] = []
    others: list[Node] = []
    for node in root.named_children:
        if node.type != "comment":
            (imports if node.type == "import_statement" else others).append(node)
    return imports, others


def _is_directive(statement: Node) -> bool:
    """Says whether a statement is a text alone, as `"use strict"` is."""
    return statement.type == "expression_statement" and _bare(statement).type == "string"


def _returns(statement: Node, returns: list[int]) -> bool:
    """Says whether a statement has a `return` in it that belongs to no function.

    Args:
        statement: Where to look.
        returns: The bytes at which the word stands in the script, in order.
    """
    todo = [statement]
    while todo:
        node = todo.pop()
        if node.type == "return_statement":
            return True
        if node.type not in _STATEMENTS:
            continue
        at = bisect_left(returns, node.start_byte)
        if at < len(returns) and returns[at] < node.end_byte:
            todo += node.named_children
    return False


def _bare(node: Node) -> Node:
    """Gives what an expression statement, or an expression in parentheses, is about."""
    while node.type in ("expression_statement", "parenthesized_expression"):
        inner = next((child for child in node.named_children if child.type != "comment"), None)
        if inner is None:
            break
        node = inner
    return node


def _value_of(expression: Node, source: bytes) -> str:
    """Gives the expression whose value an expression statement throws away."""
    if expression.type == "unary_expression" and expression.children[0].type == "void":
        expression = _bare(expression.named_children[0])
    if expression.type in ("assignment_expression", "augmented_assignment_expression", "update_expression"):
        expression = expression.named_children[0]
    elif expression.type == "call_expression":
        function, arguments = field(expression, "function"), field(expression, "arguments")
        if function is None or arguments is None:
            return ""
        if not _CONSOLE.fullmatch(_text(function, source)):
            text = _text(_unchained(expression, source), source)
            is_value = _NO_PROMISE.fullmatch(_text(function, source)) and "async" not in text
            return text if not text or is_value or _AWAITS.match(text) else f"await {text}"
        given = arguments.named_children
        if len(given) != 1 or given[0].type in ("string", "template_string"):
            return ""
        expression = given[0]
    text = _text(expression, source)
    return f"({text})" if text and expression.type == "sequence_expression" else text


def _declared(statement: Node, source: bytes) -> list[str]:
    """Gives the variables of a declaration; of one that is a function, its call."""
    if statement.type not in ("lexical_declaration", "variable_declaration"):
        return []
    named = [(field(node, "name"), field(node, "value")) for node in statement.named_children]
    return [
        f"await {_text(name, source)}()" if value and value.type in _FUNCTIONS else _text(name, source)
        for name, value in named
        if name is not None and name.type == "identifier"
    ]


def _text(node: Node, source: bytes) -> str:
    """Gives the source text of a node; "" where it is no short line."""
    text = source[node.start_byte : node.end_byte].decode("utf-8", "replace")
    return text if len(text) <= MAX_SHOWN and text.isprintable() else ""
