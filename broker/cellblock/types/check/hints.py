"""Finds which name was probably meant by one that there is not, and says what to do about an argument that a function
does not take: the name that was meant, its place, or an array."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, cast

from cellblock.base.json import is_array
from cellblock.base.suggest import nearest_names, rated_names
from cellblock.tools.catalog.model import Catalog
from cellblock.tools.catalog.modules import SERVERS_PREFIX
from cellblock.types.check.printed_types import element_of, members_of, nested_place, parameters_of
from cellblock.types.check.verdict import Complaint

MAX_NAMED: Final = 12
"""Bounds the members that a hint names; they end up in a model's context."""

MAX_GUESSES: Final = 3

MIN_OF_LANGUAGE: Final = 0.75
"""Sets the least similarity of a member of arrays and texts: `count` is not `concat`."""

WRAPPERS: Final = frozenset(
    [
        "array",
        "data",
        "elements",
        "entries",
        "items",
        "list",
        "records",
        "result",
        "results",
        "rows",
        "values",
    ]
)
"""Names members that hold the elements, where something is not the array itself."""

_COUNTS: Final = frozenset(["count", "len", "size", "total"])
_OF_ARRAYS: Final = {
    "contains": "includes",
    "append": "push",
    "add": "push",
    "select": "map",
    "where": "filter",
    "first": "[0]",
    "last": "at(-1)",
    "each": "forEach",
}
MAX_SLIPS: Final = 2

MAX_SLIP_CHARS: Final = 64
"""Bounds the characters of names that are compared letter by letter."""

_ALIKE: Final = tuple(
    frozenset(line.split())
    for line in (
        "title name label subject summary heading headline caption",
        "body content text description message details note",
        "due deadline date when",
        "id key uid uuid identifier number ref",
        "created date time timestamp since opened",
        "updated modified changed edited",
        "status state phase stage",
        "done completed finished closed resolved",
        "url link href uri website address",
        "author user owner creator by login username",
        "assignee owner user responsible",
        "items results data list entries records rows values elements",
        "count total length size number amount",
        "price cost amount total",
        "email mail address",
        "path file filename filepath",
        "folder directory dir parent",
        "tags labels categories topics",
        "kind type category class",
        "first start begin from",
        "last end until to",
    )
)
"""Holds words for the same thing in the outputs of tools; a word may be in several lines."""

_WORDS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")

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
                if known.keys() == keys:
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
    named = listed(list(known))
    if element is not None:
        start = _pass_array(complaint.owner, of_objects=bool(known))
        return f"{start} Each element takes: {named}." if known else start
    taker = f"`{complaint.owner}` takes" if complaint.owner else "The tool takes"
    if not complaint.module.startswith(SERVERS_PREFIX) and not complaint.owner:
        taker = "It takes"
    takes = f" {taker}: {named}." if known else ""
    near = suggested if suggested != name else None
    if members and near not in members:
        near = next(iter(nearest_names(name, members, limit=1)), None)
    place = None if near else nested_place(name, kind, declarations, complaint.module)
    if place is not None:
        where = ".".join(place)
        belongs = f"each element of `{where[:-2]}`" if where.endswith("[]") else f"`{where}`"
        return f"`{name}` belongs into {belongs}.{takes}"
    likely = near or likely_member(name, members or [member for member in known if member != name])
    if likely:
        return f"Did you mean `{likely}`?{takes}"
    return takes.strip() or f"Leave `{name}` out."


def _array_hint(complaint: Complaint) -> str | None:
    """Gives the hint about something else where an array is wanted."""
    deepest = complaint.message.splitlines()[-1].strip()
    several = _missing_properties(deepest)
    if several is not None and element_of(several[0]) is not None and "length" in several[1].split(", "):
        of_objects = bool(members_of(several[0]))
    else:
        types = _not_an_array(deepest)
        if types is None or element_of(types[1]) is None or element_of(types[0]) is not None:
            return None
        of_objects = bool(members_of(types[1]))
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


# ---- names that were probably meant --------------------------------------------------------------------------


def is_slip(name: str, members: Sequence[str]) -> bool:
    """Says whether a name is one of some others, but for a slip of the pen: within two edits, and a third of
    its length."""
    most = min(MAX_SLIPS, len(name) / 3)
    return any(member != name and _edits(name, member) <= most for member in members)


def _edits(one: str, other: str) -> int:
    """Counts the letters to insert, take out, change, or exchange with their neighbours, to make one name of
    another."""
    if abs(len(one) - len(other)) > MAX_SLIPS or len(one) > MAX_SLIP_CHARS:
        return MAX_SLIPS + 1
    before: list[int] = []
    last = list(range(len(other) + 1))
    for at, letter in enumerate(one):
        row = [at + 1]
        for to, wanted in enumerate(other):
            cost = min(last[to + 1] + 1, row[to] + 1, last[to] + (letter != wanted))
            if at and to and letter == other[to - 1] and one[at - 1] == wanted:
                cost = min(cost, before[to - 1] + 1)
            row.append(cost)
        before, last = last, row
    return last[-1]


def listed(names: Sequence[str]) -> str:
    """Gives the first of some names."""
    return ", ".join([*names[:MAX_NAMED], *["…"] * (len(names) > MAX_NAMED)])


def likely_member(wanted: str, members: Sequence[str]) -> str | None:
    """Gives the member that was probably meant, if there is one that is likelier than all others."""
    likely = likely_members(wanted, members)
    return likely[0] if len(likely) == 1 else None


def likely_members(wanted: str, members: Sequence[str]) -> list[str]:
    """Gives the members of which one was probably meant, whatever their order: those spelt most alike, else
    those that mean the same. More than one are equally likely."""
    near = rated_names(wanted, sorted(members))
    if near:
        return [name for similarity, name in near if similarity == near[0][0]][:MAX_GUESSES]
    words = _words(wanted)
    ranks: dict[str, int] = {}
    for member in sorted(members):
        others = _words(member)
        for line in _ALIKE:
            if words & line and others & line:
                # The closest in the list of likely words.
                ranks[member] = min(len(others - line), ranks.get(member, len(others)))
    closest = min(ranks.values(), default=0)
    return [member for member, rank in ranks.items() if rank == closest][:MAX_GUESSES]


def likely_of_language(wanted: str, members: Sequence[str], *, array: bool) -> str | None:
    """Says what to read of an array or a text in place of a member that it does not have: only what is certain.

    Synonyms are of no use here: `entries` of an array are not its `rows`.
    """
    if wanted in _COUNTS:
        return "length"
    if array and wanted in _OF_ARRAYS:
        return _OF_ARRAYS[wanted]
    near = [
        name for similarity, name in rated_names(wanted, sorted(members)) if similarity >= MIN_OF_LANGUAGE
    ]
    return near[0] if len(near) == 1 else None


def _words(name: str) -> frozenset[str]:
    return frozenset(word.lower() for word in _WORDS.findall(name[:64]))
