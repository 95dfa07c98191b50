"""Reads types as the compiler prints them, and as the declarations write them: members, elements, what is nested where.

Only as much as hints need. What it does not know how to read has no members.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

MAX_TYPE_CHARS: Final = 20_000
"""Bounds the characters of a type that is read; the compiler itself prints a few hundred, declarations may be
long."""

MAX_NESTED: Final = 4
"""Bounds the levels below a type that are searched for a member."""

MAX_READ: Final = 32
"""Bounds the types read in the search for one member; a named one is looked for in all declarations."""

# What has no end goes to the end of its line or of the text: tried and given up, it would be read once for each quote.
_TOKEN: Final = re.compile(
    r"""(?P<text>"(?:\\.|[^"\\\n])*+"?|'(?:\\.|[^'\\\n])*+'?|`[^`]*+`?)"""
    r"""|(?P<note>/\*(?:[^*]|\*(?!/))*+(?:\*/)?|//[^\n]*)"""
    r"""|(?P<arrow>=>)|(?P<open>[{\[(<])|(?P<close>[}\])>])|(?P<other>[^"'`/={}\[\]()<>;,|&]+|.)""",
    re.DOTALL,
)
_MEMBER: Final = re.compile(
    r"""(?:readonly\s+)?(?:(?P<plain>(?:[^\W\d]|\$)[\w$]*)|(?P<quote>["'])(?P<quoted>.*?)(?P=quote))\??:(?P<type>.*)""",
    re.DOTALL,
)
_NAMED: Final = re.compile(r"(?:[^\W\d]|\$)[\w$]*")


def element_of(text: str) -> str | None:
    """Gives the type of an array's elements, or None where it is no array."""
    text = text.strip()
    if text.endswith("[]") and len(_split(text, "|&")) == 1:
        return _unwrapped(text[:-2].removeprefix("readonly "))
    return None


def is_union(text: str) -> bool:
    """Says whether a type is one of several."""
    return len(_split(text[:MAX_TYPE_CHARS], "|")) > 1


def members_of(text: str, declarations: str = "", module: str = "") -> dict[str, str]:
    """Gives the top-level members of an object type, or of all the object types of a union, each with its type; index
    signatures are none.

    Args:
        text: A type as it is printed or declared; of an array, that of its elements is read.
        declarations: Where named types are declared.
        module: The one of the declarations that comes first.
    """
    found: dict[str, str] = {}
    for part in _alternatives(text[:MAX_TYPE_CHARS], declarations, module):
        for written in _split(part[1:-1], ";,"):
            member = _MEMBER.fullmatch(written)
            if member is not None:
                found.setdefault(member["plain"] or member["quoted"], member["type"].strip())
    return found


def nested_place(name: str, text: str, declarations: str = "", module: str = "") -> list[str] | None:
    """Gives the one member of a type that has a member `name` below it, as the names on the way there, `[]` at
    the end of those of arrays; None where there is none, or more than one equally near. Arguments as of
    `members_of`."""
    level: list[tuple[list[str], dict[str, str]]] = [([], members_of(text, declarations, module))]
    left = MAX_READ
    for _ in range(MAX_NESTED):
        below: list[tuple[list[str], dict[str, str]]] = []
        for path, types in level:
            for key, kind in list(types.items())[: max(left, 0)]:
                left -= 1
                here = f"{key}[]" if element_of(kind) is not None else key
                below.append(([*path, here], members_of(kind, declarations, module)))
        found = [path for path, types in below if name in types]
        if found:
            return found[0] if len(found) == 1 else None
        level = below
    return None


def parameters_of(function: str, declarations: str, module: str) -> str | None:
    """Gives what a declared function takes, as it is written between its parentheses; None where it is not
    declared."""
    body = _module(declarations, module)
    found = re.search(rf"\bfunction {re.escape(function)}\(([^(){{}}]*)\)", body)
    return found[1] if found else None


def _alternatives(text: str, declarations: str, module: str, depth: int = 0) -> Iterator[str]:
    """Gives the object types in braces that a type is made of."""
    for part in _split(_unwrapped(text), "|&"):
        if part.startswith("{") and part.endswith("}"):
            yield part
        elif depth < MAX_NESTED:
            inner = element_of(part) or (_unwrapped(part) if part.startswith("(") else None)
            if inner is None and _NAMED.fullmatch(part):
                inner = _declared(part, declarations, module)
            if inner is not None and inner != part:
                yield from _alternatives(inner, declarations, module, depth + 1)


def _unwrapped(text: str) -> str:
    """Takes off parentheses around the whole of a type."""
    text = text.strip()
    while text.startswith("(") and text.endswith(")") and len(_split(text, "|&")) == 1:
        text = text[1:-1].strip()
    return text


def _declared(name: str, declarations: str, module: str) -> str | None:
    """Gives what a named type stands for."""
    for body in (_module(declarations, module), declarations):
        for opening in (f"type {name} = ", f"interface {name} "):
            start = body.find(opening)
            if start >= 0:
                end = ";" if opening.startswith("type") else "}"
                return _first_type(body[start + len(opening) :][:MAX_TYPE_CHARS], end)
    return None


def _first_type(rest: str, end: str) -> str | None:
    """Gives the type that a text begins with: up to a semicolon outside of brackets, or with a closing brace."""
    depth = 0
    for token in _TOKEN.finditer(rest):
        kind = token.lastgroup
        depth += (kind == "open") - (kind == "close")
        if depth == 0 and token[0] == end:
            return rest[: token.end()].removesuffix(";").strip()
        if depth < 0:
            return None
    return None


def _module(declarations: str, module: str) -> str:
    """Gives the declarations of one module, and what follows them."""
    start = declarations.find(f'declare module "{module}" {{') if module else -1
    return declarations[start:] if start >= 0 else declarations


def _split(text: str, separators: str) -> list[str]:
    """Gives the parts of a type between separators that are in no brackets, without comments and empty parts."""
    parts: list[str] = []
    here: list[str] = []
    depth = 0
    for token in _TOKEN.finditer(text):
        kind, written = token.lastgroup, token[0]
        if kind == "note":
            continue
        depth += (kind == "open") - (kind == "close")
        if kind == "other" and depth == 0 and written in separators:
            parts.append("".join(here).strip())
            here = []
        else:
            here.append(written)
    return [part for part in [*parts, "".join(here).strip()] if part]
