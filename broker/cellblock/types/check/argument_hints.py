"""Says what to do about an argument that a function does not take: the name that was meant, its place, or an
array."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, cast

from cellblock.base.json import is_array
from cellblock.base.suggest import nearest_names
from cellblock.tools.catalog.model import Catalog
from cellblock.tools.catalog.modules import SERVERS_PREFIX
from cellblock.types.check.likely import MAX_NAMED, likely_member, listed
from cellblock.types.check.printed_types import element_of, members_of, nested_place, parameters_of
from cellblock.types.check.verdict import Complaint

_UNKNOWN: Final = "may only specify known properties, "
_MISSING_ONE: Final = "' is missing in type"
_MISSING_SOME: Final = "is missing the following properties from type '"
_NOT_ASSIGNABLE: Final = "' is not assignable to type '"
_MORE: Final = re.compile(r",? and \d+ more\.?$")
_OF_PROPERTY: Final = re.compile(r"Types of property '([^'\n]+)' are incompatible")
_ARITY: Final = frozenset({2554, 2555})


def argument_hint(
    complaint: Complaint, suggested: str | None, declarations: str, members: Sequence[str] = ()
) -> str:
    """Gives one corrective action for a complaint about a call's arguments.

    Args:
        complaint: What counts.
        suggested: The name that the compiler suggests.
        declarations: What the script was checked against.
        members: Of a key that is not declared: those that are, and that the call does not give.
    """
    unknown = _unknown_property(complaint.message)
    if unknown is not None:
        return _unknown_hint(complaint, *unknown, suggested, declarations, members)
    advice = f"Did you mean `{suggested}`?" if suggested else _array_hint(complaint)
    if advice is not None:
        return advice
    missing = _missing_property(complaint.message)
    if missing:
        return _missing_hint(complaint, f"`{missing}`")
    several = _missing_properties(complaint.message)
    if several is not None:
        names = _MORE.sub("", several[1]).split(", ")
        return _missing_hint(complaint, ", ".join(f"`{name}`" for name in names[:MAX_NAMED]))
    if complaint.module and not complaint.module.startswith(SERVERS_PREFIX):
        taken = parameters_of(complaint.called, declarations, complaint.module)
        if taken is not None:
            return f"Call it as `{complaint.called}({taken})`."
    if complaint.code in _ARITY:
        return "A tool takes one input object."
    return "Pass what the tool declares: see its description, or getTool of @codemode/discovery."


def wants_a_list(complaint: Complaint) -> bool:
    """Says whether an object stands where an array is wanted: then none of its keys is at fault."""
    unknown = _unknown_property(complaint.message)
    return unknown is not None and element_of(unknown[1]) is not None


def takes_any_key(complaint: Complaint, catalog: Catalog) -> bool:
    """Says whether the schema says in so many words that where an undeclared key stands any other key may stand."""
    unknown = _unknown_property(complaint.message)
    server = catalog.servers.get(complaint.module.removeprefix(SERVERS_PREFIX))
    tools = server.tools if server is not None else ()
    tool = next((one for one in tools if one.export_name == complaint.called), None)
    if unknown is None or tool is None:
        return False
    known = members_of(unknown[1])
    stack: list[object] = [tool.input_schema]
    while stack:
        part = stack.pop()
        if is_array(part):
            stack.extend(part)
        elif isinstance(part, Mapping):
            schema = cast("Mapping[str, object]", part)
            stack.extend(schema.values())
            declared = schema.get("properties")
            if schema.get("additionalProperties") in ({}, True) and isinstance(declared, Mapping):
                keys = set(cast("Mapping[str, object]", declared))
                if known.types.keys() == keys or (known.cut and known.types.keys() <= keys):
                    return True
    return False


def _unknown_hint(
    complaint: Complaint,
    name: str,
    kind: str,
    suggested: str | None,
    declarations: str,
    members: Sequence[str],
) -> str:
    """Gives the hint about a property that the type at its place does not have."""
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
    near = suggested if suggested != name else None
    if members and near not in members:
        near = next(iter(nearest_names(name, members, limit=1)), None)
    place = None if near else nested_place(name, kind, declarations, complaint.module)
    if place is not None:
        where = ".".join(place)
        belongs = f"each element of `{where[:-2]}`" if where.endswith("[]") else f"`{where}`"
        return f"`{name}` belongs into {belongs}.{takes}"
    likely = near or likely_member(name, members or [member for member in known.types if member != name])
    if likely:
        return f"Did you mean `{likely}`?{takes}"
    return takes.strip() or f"Leave `{name}` out."


def _array_hint(complaint: Complaint) -> str | None:
    """Gives the hint about something else where an array is wanted."""
    deepest = complaint.message.splitlines()[-1].strip()
    several = _missing_properties(deepest)
    if several is not None and element_of(several[0]) is not None and "length" in several[1].split(", "):
        of_objects = bool(members_of(several[0]).types)
    else:
        types = _not_an_array(deepest)
        if types is None or element_of(types[1]) is None or element_of(types[0]) is not None:
            return None
        of_objects = bool(members_of(types[1]).types)
    inner = _OF_PROPERTY.findall(complaint.message)
    return _pass_array(inner[-1] if inner else complaint.owner, of_objects=of_objects)


def _pass_array(owner: str, *, of_objects: bool) -> str:
    array = "[{ … }]" if of_objects else "[…]"
    return f"Pass an array: `{owner}: {array}`." if owner else f"Pass an array: `{array}`."


def _missing_hint(complaint: Complaint, names: str) -> str:
    return f"Add {names} to `{complaint.owner}`." if complaint.owner else f"Add {names} to the input."


# The compiler's messages quote names and types that scripts and servers have made: no pattern, which would be tried at
# each place of a long one.


def _unknown_property(message: str) -> tuple[str, str] | None:
    """Returns name and type of "… may only specify known properties, and 'NAME' does not exist in type 'TYPE'."."""
    _, found, rest = message.partition(_UNKNOWN)
    if not found or rest[:5] not in ("but '", "and '"):
        return None
    name, found, rest = rest[5:].partition("' does not exist in type '")
    end = rest.find("'.") if found else -1
    while (
        end >= 0 and not rest.startswith(("\n", " Did you mean to write '"), end + 2) and len(rest) > end + 2
    ):
        end = rest.find("'.", end + 1)
    return (name.strip("\"'"), rest[:end]) if name and end >= 0 else None


def _missing_property(message: str) -> str:
    """Returns NAME of "Property 'NAME' is missing in type …"; empty where there is none."""
    before, found, _ = message.partition(_MISSING_ONE)
    return before.rpartition("Property '")[2] if found and "Property '" in before else ""


def _missing_properties(message: str) -> tuple[str, str] | None:
    """Returns type and names of "… is missing the following properties from type 'TYPE': NAME, NAME"."""
    rest = message.partition(_MISSING_SOME)[2]
    kind, found, names = rest.rpartition("': ")
    return (kind, names) if found and names else None


def _not_an_array(line: str) -> tuple[str, str] | None:
    """Returns both types of "Type 'GIVEN' is not assignable to type 'WANTED[]'."."""
    rest = line.removesuffix(".").partition("Type '")[2]
    given, found, wanted = rest.removesuffix("'").rpartition(_NOT_ASSIGNABLE)
    return (given, wanted) if found and rest.endswith("[]'") else None
