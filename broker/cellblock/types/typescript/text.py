"""Makes hostile text safe for the places of generated TypeScript: comments, strings, keys, names.

Nothing that an upstream server wrote reaches the generated text except through here
(Code Mode specification, section 11: server responses are untrusted input).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from cellblock.base.visible import UNSEEN, json_escape, visible
from cellblock.tools.catalog.naming import RESERVED_WORDS

IDENTIFIER = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*\Z")

_LINE_BREAKS = re.compile("\r\n|[\n\r\x0b\x0c\x85\u2028\u2029]")
_TAG_AT = re.compile(r"(?<![A-Za-z0-9\\])@(?=[A-Za-z])")
_NEEDS_ESCAPE = re.compile(f'["\\\\\x00-\x1f\x7f-\x9f\u2028-\u2029\ufff9-\uffff\ud800-\udfff{UNSEEN}]')
_SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}

_RESERVED_IN_MODULES = """
arguments as async enum eval from implements interface package private protected public type undefined
"""
RESERVED_BINDINGS = RESERVED_WORDS | frozenset(_RESERVED_IN_MODULES.split())
"""Holds the words that no `function` or `const` can be named in strict module code, beyond what TypeScript itself
refuses."""


def _escape(match: re.Match[str]) -> str:
    char = match.group()
    return _SHORT_ESCAPES.get(char) or json_escape(char)


def string_literal(value: str) -> str:
    """Gives a double-quoted TypeScript string literal for any text, lone surrogates included; always one line."""
    return f'"{_NEEDS_ESCAPE.sub(_escape, value)}"'


def property_key(name: str) -> str:
    """Gives a property key as it stands in a type literal: bare where that is legal, else quoted."""
    return name if IDENTIFIER.match(name) else string_literal(name)


def comment_lines(value: str, budget: int) -> list[str]:
    """Gives the lines of any text, safe inside a block comment and at most about `budget` characters long.

    `*/` cannot close the comment, no character can break a line or reorder the text, and a word
    with `@` in front cannot pose as a JSDoc tag or a compiler directive.
    """
    left_out = len(value) - budget
    lines: list[str] = []
    for raw in _LINE_BREAKS.split(value[:budget]):
        line = visible(raw, keep="\t").replace("\t", "  ").rstrip()
        line = _TAG_AT.sub(r"\\@", line).replace("*/", "*\\/")
        if line or (lines and lines[-1]):
            lines.append(line)
    while lines and not lines[-1]:
        lines.pop()
    if left_out > 0:
        lines.append(f"… ({left_out} more characters)")
    return lines


def one_line(value: str, budget: int) -> str:
    """Writes any text as one line that is safe inside a block comment or after `//`."""
    return " ".join(comment_lines(value, budget))


def json_line(value: object, budget: int) -> str:
    """Gives a JSON value as one line that is safe inside a block comment."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (ValueError, TypeError, RecursionError):
        return "(not shown)"
    return one_line(text, budget)


def letters(text: str) -> str:
    """Gives the letters and digits of a text alone, in lower case, to tell whether two texts say the same."""
    return "".join(char for char in text.lower() if char.isalnum())


def short_comment(prose: Iterable[str], facts: Iterable[str], indent: str = "") -> str:
    """Writes a block comment in as few characters as can be: facts share a line, and lines begin with nothing.

    The lines are made by `comment_lines` or `one_line`. One that ends in `*` would take the slash of the closing mark
    early; a blank keeps them apart.
    """
    body = [line for line in prose if line]
    last = " ".join(facts)
    if last:
        body = [*body, last] if len(body) > 1 else [" ".join([*body, last])]
    if not body:
        return ""
    return f"{indent}/** {f'{chr(10)}{indent}'.join(body)} */\n"


def pascal_case(value: str, budget: int = 48) -> str:
    """Gives an ASCII type name made from any text: `create_task` becomes `CreateTask`; may be empty."""
    words = re.findall(r"[A-Za-z0-9]+", value[: budget * 4])
    name = "".join(word[0].upper() + word[1:] for word in words)[:budget]
    return f"_{name}" if name[:1].isdigit() else name
