"""What to do about an argument that a function does not take: the name that was meant, its place, or an array."""

from __future__ import annotations

import re
from typing import Final

from cellblock.catalog.modules import SERVERS_PREFIX
from cellblock.typecheck.likely import MAX_NAMED, likely_member, listed
from cellblock.typecheck.printed_types import element_of, members_of, nested_place, parameters_of
from cellblock.typecheck.verdict import Complaint

_UNKNOWN_PROPERTY: Final = re.compile(
    r"may only specify known properties, (?:but|and) '(.+?)' does not exist in type '(.*?)'\."
    r"(?: Did you mean to write '[^']*'\?)?$",
    re.DOTALL | re.MULTILINE,
)
_MISSING_PROPERTY: Final = re.compile(r"Property '(.+?)' is missing in type")
_MISSING_PROPERTIES: Final = re.compile(
    r"is missing the following properties from type '(.*)': (.+)", re.DOTALL
)
_MORE: Final = re.compile(r",? and \d+ more\.?$")
_NOT_AN_ARRAY: Final = re.compile(r"Type '([^\n]*)' is not assignable to type '([^\n]*\[\])'\.?$")
_OF_PROPERTY: Final = re.compile(r"Types of property '([^'\n]+)' are incompatible")
_ARITY: Final = frozenset({2554, 2555})


def argument_hint(complaint: Complaint, suggested: str | None, declarations: str) -> str:
    """One corrective action for a complaint about a call's arguments.

    Args:
        complaint: What counts.
        suggested: The name that the compiler suggests.
        declarations: What the script was checked against.
    """
    unknown = _UNKNOWN_PROPERTY.search(complaint.message)
    if unknown:
        return _unknown_hint(complaint, unknown[1].strip("\"'"), unknown[2], suggested, declarations)
    if suggested:
        return f"Did you mean `{suggested}`?"
    array = _array_hint(complaint)
    if array is not None:
        return array
    missing = _MISSING_PROPERTY.search(complaint.message)
    if missing:
        return _missing_hint(complaint, f"`{missing[1]}`")
    several = _MISSING_PROPERTIES.search(complaint.message)
    if several:
        names = _MORE.sub("", several[2]).split(", ")
        return _missing_hint(complaint, ", ".join(f"`{name}`" for name in names[:MAX_NAMED]))
    if complaint.module and not complaint.module.startswith(SERVERS_PREFIX):
        taken = parameters_of(complaint.called, declarations, complaint.module)
        if taken is not None:
            return f"Call it as `{complaint.called}({taken})`."
    if complaint.code in _ARITY:
        return "A tool takes one input object."
    return "Pass what the tool declares: see its description, or getTool of @codemode/discovery."


def _unknown_hint(
    complaint: Complaint, name: str, kind: str, suggested: str | None, declarations: str
) -> str:
    """Of a property that the type at its place does not have."""
    element = element_of(kind)
    known = members_of(kind, declarations, complaint.module)
    named = listed(list(known.types), cut=known.cut)
    if element is not None:
        start = _pass_array(complaint.owner, of_objects=bool(known.types))
        return f"{start} Each element takes: {named}." if known.types else start
    taker = f"`{complaint.owner}` takes" if complaint.owner else "The tool takes"
    if not complaint.module.startswith(SERVERS_PREFIX) and not complaint.owner:
        taker = "It takes"
    takes = f" {taker}: {named}." if known.types else ""
    if suggested and suggested != name:
        return f"Did you mean `{suggested}`?{takes}"
    place = nested_place(name, kind, declarations, complaint.module)
    if place is not None:
        where = ".".join(place)
        belongs = f"each element of `{where[:-2]}`" if where.endswith("[]") else f"`{where}`"
        return f"`{name}` belongs into {belongs}.{takes}"
    likely = likely_member(name, [member for member in known.types if member != name])
    if likely:
        return f"Did you mean `{likely}`?{takes}"
    return takes.strip() or f"Leave `{name}` out."


def _array_hint(complaint: Complaint) -> str | None:
    """Of something else where an array is wanted."""
    deepest = complaint.message.splitlines()[-1].strip()
    several = _MISSING_PROPERTIES.search(deepest)
    if several and element_of(several[1]) is not None and "length" in several[2].split(", "):
        of_objects = bool(members_of(several[1]).types)
    else:
        given = _NOT_AN_ARRAY.search(deepest)
        if given is None or element_of(given[2]) is None or element_of(given[1]) is not None:
            return None
        of_objects = bool(members_of(given[2]).types)
    inner = _OF_PROPERTY.findall(complaint.message)
    return _pass_array(inner[-1] if inner else complaint.owner, of_objects=of_objects)


def _pass_array(owner: str, *, of_objects: bool) -> str:
    array = "[{ … }]" if of_objects else "[…]"
    return f"Pass an array: `{owner}: {array}`." if owner else f"Pass an array: `{array}`."


def _missing_hint(complaint: Complaint, names: str) -> str:
    return f"Add {names} to `{complaint.owner}`." if complaint.owner else f"Add {names} to the input."
