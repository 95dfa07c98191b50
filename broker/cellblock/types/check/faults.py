"""Turns the complaints that count into what an agent reads: one message, and one hint that names what was meant."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cellblock.base.errors import counted, shorten
from cellblock.base.json import is_object
from cellblock.base.suggest import by_shared_words, did_you_mean
from cellblock.script.lines import CompilerPlaces, line_of
from cellblock.tools.catalog.model import Catalog, ToolEntry, ToolOutput
from cellblock.tools.catalog.modules import SERVERS_PREFIX
from cellblock.tools.schemas.document import subschemas
from cellblock.types.absent_globals import absent_hint, import_hint
from cellblock.types.check.ambient import Got, imported_servers
from cellblock.types.check.compiler import CompilerSession
from cellblock.types.check.hints import (
    MAX_NAMED,
    WRAPPERS,
    is_slip,
    likely_members,
    likely_of_language,
    listed,
)
from cellblock.types.check.verdict import (
    ASKED_OF_ANY,
    ENVELOPE,
    MAX_MESSAGE_CHARS,
    SETTLED,
    Complaint,
    at_key,
    is_json_text,
)
from cellblock.types.typescript import takes
from cellblock.types.typescript.text import letters
from cellblock.types.typescript.types import RESULT

MAX_SHOWN: Final = 10
"""Bounds the type errors of one response; they end up in a model's context, and the first ones are what matters."""

MAX_DECLARED_CHARS: Final = 300
"""Bounds the declaration of a function in a hint."""

_OF_LISTS: Final = frozenset(
    ("length", "map", "filter", "find", "forEach", "some", "every", "reduce", "slice", "sort", "at", "join")
)
_OF_NUMBERS: Final = frozenset(("toFixed", "toPrecision"))
_OF_DATES: Final = re.compile(
    r"get(?:Time|FullYear|Month|Date|Day|Hours|Minutes)|to(?:ISO|Locale(?:Date|Time))String"
)
IF_THERE: Final = " `?? null` reads a member that may be there."
"""Says how a script that is refused for a member can be run all the same."""

_IF_JSON: Final = "if it holds JSON, use JSON.parse first"
_ONLY_MEMBER: Final = re.compile(r"\{ ([\w$]++)\??: [^{};]*+(?:\{[^{}]*+\}[^{};]*+)?; \}")
"""Fits a printed type of one member."""

_LINE_END: Final = re.compile(r"(?<!\s)\s*\n\s*")


@dataclass(frozen=True, slots=True)
class TypeFault:
    """Describes one type error of a script, in the agent's terms. `line` and `column` count from 1."""

    message: str
    hint: str | None
    line: int
    column: int
    about: Complaint = field(compare=False)
    """Holds what the compiler complains of: if a result has what is `absent` after all, the script is right; a text
    is taken for a value with right where the tool answers with a value."""

    tool: tuple[str, str] | None = None
    """Names the tool that the value is from, if that is known, by its server's id and its own name."""

    beside: tuple[str, ...] = ()
    """Names the fields that there are where the absent one is read."""

    slip: bool = False
    """Says whether the fault is a key that is spelt almost like one which the call does not give."""


@dataclass(frozen=True, slots=True)
class Checked:
    """Holds the findings of a check; `gave_up` says why there was none, and then nothing is known."""

    faults: tuple[TypeFault, ...] = ()
    gave_up: str | None = None


@dataclass(frozen=True, slots=True)
class Script:
    """Holds the script that one check is of, and the catalog that it is checked against."""

    code: str
    typescript: bool
    catalog: Catalog
    names: frozenset[str]
    closed: bool
    got: Got
    principal: str


async def find_faults(
    counted: list[Complaint],
    script: Script,
    declarations: str,
    observed: Mapping[str, ToolOutput],
    warm: CompilerSession,
) -> tuple[TypeFault, ...]:
    """Gives the faults of a script, at most `MAX_SHOWN` beside those that values of the run decide.

    Args:
        counted: The complaints that count.
        script: What was checked.
        declarations: What it was checked against.
        observed: The functions whose output was observed.
        warm: The compiler that has just checked it. Raises SessionLost.
    """
    faults: list[TypeFault] = []
    places = CompilerPlaces(script.code)
    counted = [
        each
        for complaint in counted
        for each in (complaint, *await _also_undeclared(complaint, script, warm))
    ]
    distinct = [one for one in _distinct(counted) if script.closed or one[0].kind != "misused"]
    # All at once: each would wait for the one before it.
    places_asked = {one.asked_at for one, _ in distinct if one.described}
    answers = await asyncio.gather(*(warm.described_at(at, script.typescript) for at in places_asked))
    described = dict(zip(places_asked, answers, strict=True))
    for complaint, times in distinct:
        # Of what the values of the run decide, few count.
        if sum(not fault.about.texts[0] for fault in faults) >= MAX_SHOWN:
            break
        is_misused = complaint.kind == "misused"
        is_few = bool(complaint.receiver) and _of_few(script, observed, math.inf if is_misused else 1)
        is_unsure = complaint.guard == "replaced" and not complaint.is_text
        if is_few and (is_misused or is_unsure or not script.closed):
            continue
        if complaint.described and not re.search(complaint.described, described[complaint.asked_at]):
            continue
        asked = complaint.kind in ("member", "key") and not complaint.name.isdigit()
        names = await warm.names_at(complaint.asked_at, script.typescript) if asked else []
        members = [name for name in names if name != complaint.name]
        if complaint.guard and not (script.closed and _asks_in_vain(complaint, members, is_few)):
            continue
        if complaint.name.isdigit() and (only := _ONLY_MEMBER.fullmatch(complaint.receiver)):
            members = [only[1]]
        slip = complaint.kind == "key" and is_slip(complaint.name, members)
        is_open = script.closed and complaint.kind == "key" and not slip
        if is_open and takes_any_key(complaint, script.catalog, members):
            continue
        said = shorten(_LINE_END.sub(" ", complaint.message), MAX_MESSAGE_CHARS)
        message = f"{said} (In {times} places.)" if times > 1 else said
        line, column = places.place(complaint.start[0] + 1, complaint.start[1] + 1)
        text = line_of(script.code, line)
        hint = hint_of(complaint, members, script.catalog, script.names, declarations, text)
        tool = _tool(script.catalog, *complaint.tool) if complaint.tool is not None else None
        named = (
            (complaint.tool[0], tool.tool_name) if complaint.tool is not None and tool is not None else None
        )
        if complaint.kind == "member":
            hint += of_observed(complaint, script.code, observed)
            seen = observed.get(complaint.tool[1]) if complaint.tool is not None else None
            if seen is not None and seen.document is None:
                hint = hint.replace(_IF_JSON, "no earlier result was JSON")
        faults.append(
            TypeFault(message, hint, line, column, complaint, tool=named, beside=tuple(members), slip=slip)
        )
    return tuple(faults)


def _of_few(script: Script, observed: Mapping[str, ToolOutput], most: float = 1) -> bool:
    """Says whether what a script reads may be of a tool of which one result was seen, or so many at most: that refuses
    nothing."""
    return any(
        output.samples <= most and re.search(rf"(?<![\w$]){re.escape(name)}(?![\w$])", script.code)
        for name, output in observed.items()
    )


def _asks_in_vain(complaint: Complaint, members: Sequence[str], is_few: bool) -> bool:
    """Says whether a script that asks for a member always gets its default: an array never has it; or it takes a text
    or number in its place; or means one that is there: it is written the same but for case and `_`, or the script takes
    a list for it and reads nothing that is there. Where one result was seen, any that is no page may have it."""
    has_default = complaint.guard in ("alone", "replaced")
    if complaint.receiver.endswith("[]") or (complaint.is_text and complaint.receiver == "string"):
        return has_default
    alike = {name for name in members if letters(name) == letters(complaint.name)}
    of_any = not alike and ASKED_OF_ANY.fullmatch(complaint.name)
    if complaint.guard == "replaced" and not of_any:
        return bool(members and complaint.absent)
    if (
        (of_any and not (has_default and complaint.name in ENVELOPE))
        or complaint.read is None
        or not complaint.absent
    ):
        return False
    # A list under another name than any that there is.
    is_list = not {"value", *WRAPPERS}.isdisjoint(members) and complaint.name.endswith("s")
    is_in_vain = complaint.guard != "asked" and not is_few
    meant = {*members} if is_list or is_in_vain else alike
    return bool(meant) and complaint.read.isdisjoint(meant)


def _tool(catalog: Catalog, server_id: str, export: str) -> ToolEntry | None:
    server = catalog.servers.get(server_id)
    tools = server.tools if server is not None else ()
    return next((tool for tool in tools if tool.export_name == export), None)


def _called_tool(complaint: Complaint, catalog: Catalog) -> ToolEntry | None:
    return _tool(catalog, complaint.module.removeprefix(SERVERS_PREFIX), complaint.called)


async def _also_undeclared(complaint: Complaint, script: Script, warm: CompilerSession) -> list[Complaint]:
    """Gives the other keys of a literal with an undeclared key that are not declared either."""
    return [
        at_key(complaint, name, line, column)
        for name, line, column in complaint.other_keys
        if name not in await warm.names_at((line, column), script.typescript)
    ]


def _distinct(complaints: list[Complaint]) -> list[tuple[Complaint, int]]:
    """Gives each complaint once, at its first place, with the number of its places."""
    groups: dict[tuple[str, str, str], list[Complaint]] = {}
    for complaint in complaints:
        groups.setdefault((complaint.kind, complaint.message, complaint.guard), []).append(complaint)
    return [(group[0], len(group)) for group in groups.values()]


def hint_of(
    complaint: Complaint,
    members: Sequence[str],
    catalog: Catalog,
    imports: Iterable[str],
    declarations: str = "",
    line: str = "",
) -> str:
    """Gives one corrective action for a complaint.

    Args:
        complaint: What counts.
        members: What the type has that lacks a member, if the compiler was asked.
        catalog: The run's snapshot.
        imports: Specifiers that the script imports.
        declarations: What the script was checked against.
        line: The script's line that it is about.
    """
    match complaint.kind:
        case _ if complaint.hint:
            return complaint.hint
        case "name":
            return _name_hint(complaint, catalog, imports, line)
        case "export":
            return _export_hint(complaint, catalog, imports)
        case "member":
            return _member_hint(complaint, members)
        case _:
            return argument_hint(complaint, declarations, catalog, members)


def of_observed(complaint: Complaint, code: str, observed: Mapping[str, ToolOutput]) -> str:
    """Gives what to add to a hint about a member when the output may be known from a few results only.

    Args:
        complaint: Of a member that is not there.
        code: The script.
        observed: The functions whose output was observed.
    """
    receiver = complaint.receiver
    is_of_language = receiver in ("string", "void") or receiver.endswith("[]")
    if is_of_language or is_json_text(receiver) or receiver.startswith(("Promise", "typeof import")):
        # What texts, arrays and promises have is the language's, whoever gave them.
        return ""
    called = [name for name in observed if re.search(rf"(?<![\w$]){re.escape(name)}\s*\(", code)]
    # Behind a dot it may as well be a field's name.
    named = [name for name in observed if re.search(rf"(?<![\w$.]){re.escape(name)}(?![\w$])", code)]
    # Under another name, or handed on: then whatever is named may be meant.
    meant = (called or named) if complaint.tool is None else observed.keys() & {complaint.tool[1]}
    counts = [(name, observed[name].samples) for name in list(meant)[:MAX_NAMED]]
    seen = ", ".join(f"{name} ({counted(count, 'result')})" for name, count in counts)
    return f" (Observed, not declared: {seen}.{IF_THERE})" if seen else ""


def _member_hint(complaint: Complaint, members: Sequence[str]) -> str:
    receiver, wanted, suggested = complaint.receiver, complaint.name, complaint.suggested
    if receiver.startswith("Promise<"):
        return f"Await the call first: `(await …).{wanted}`."
    if receiver.startswith(SETTLED):
        return f"A settled result has `status`, and `value` or `reason`: read `.value?.{wanted}`."
    if receiver == RESULT:
        return "It is a whole result: its blocks are in `content`, the text of each in `text`."
    if receiver == "void":
        return "What gives it returns nothing: add `return` to that function."
    is_enveloped, is_of_language = wanted in ENVELOPE, receiver == "string" or receiver.endswith("[]")
    if is_of_language and not is_enveloped:
        return _hint_of_language(receiver, wanted, members)
    if len(members) == 1 and members[0] in WRAPPERS and (wanted in _OF_LISTS or wanted.isdigit()):
        read = f"[{wanted}]" if wanted.isdigit() else f".{wanted}"
        return f"The array is in `{members[0]}`: read `.{members[0]}{read}`."
    is_module = receiver.startswith("typeof import")
    likely = likely_members(wanted, members, functions=is_module) if members else [suggested]
    named = receiver if re.fullmatch(r"[\w$]{1,60}", receiver) else "It"
    all_there = listed(by_shared_words(wanted, sorted(members)))
    has = (
        f" {'The module' if is_module else named} has: {all_there}." if members and not is_of_language else ""
    )
    itself = f"A call gives the value itself, with nothing around it: leave out `{wanted}`."
    start = itself if is_enveloped else did_you_mean(f"`{name}`" for name in likely if name)
    return f"{start}{has}".lstrip() or "Log one value to see what it has."


def _hint_of_language(receiver: str, wanted: str, members: Sequence[str]) -> str:
    """Gives the hint about a member that arrays, or texts, do not have."""
    array = receiver.endswith("[]")
    if array and wanted in WRAPPERS:
        return f"It is the array itself: leave out `.{wanted}`."
    maker = "Number" if wanted in _OF_NUMBERS else "new Date" if _OF_DATES.fullmatch(wanted) else ""
    if not array and maker:
        return f"It is text: read `{maker}(…).{wanted}`."
    likely = likely_of_language(wanted, members, array=array)
    start = did_you_mean([f"`{likely}`"] if likely else [])
    if array:
        return start or f"It is an array: read `{wanted}` of its elements."
    return f"{start} It is text: {_IF_JSON}.".strip()


def _export_hint(complaint: Complaint, catalog: Catalog, imports: Iterable[str]) -> str:
    if complaint.message.endswith("has no default export."):
        return "Import the functions by name, or the module as `* as server`."
    name, exports = complaint.name.strip("\"'"), [export for _, export in _exports(catalog, imports)]
    meant = [complaint.suggested] if complaint.suggested else likely_members(name, exports, functions=True)
    otherwise = "listTools of @codemode/discovery names the functions."
    return did_you_mean((f"`{name}`" for name in meant), otherwise)


def _name_hint(complaint: Complaint, catalog: Catalog, imports: Iterable[str], line: str) -> str:
    name = complaint.name
    absent = absent_hint(name, complaint.module, catalog)
    if absent is not None:
        return absent
    for server_id, export in _exports(catalog, imports):
        if export == name:
            return f'Import it: `import {{ {name} }} from "{SERVERS_PREFIX}{server_id}"`.'
    meant = [f"`{complaint.suggested}`"] if complaint.suggested else []
    return import_hint(name, catalog, line) or did_you_mean(
        meant, f"Declare `{name}`, or correct its spelling."
    )


def _exports(catalog: Catalog, imports: Iterable[str]) -> list[tuple[str, str]]:
    servers = imported_servers(catalog, imports)
    return [(server.server_id, tool.export_name) for server in servers for tool in server.tools]


def argument_hint(
    complaint: Complaint,
    declarations: str,
    catalog: Catalog,
    members: Sequence[str] = (),
) -> str:
    """Gives one corrective action for a complaint about a call's arguments: what was likely meant, and how the function
    is declared.

    Args:
        complaint: What counts.
        declarations: What the script was checked against.
        catalog: The run's snapshot.
        members: Of a key that is not declared: those that are, and that the call does not give.
    """
    meant = [complaint.suggested] if complaint.suggested not in ("", complaint.name) else []
    if members and not {*meant} & {*members}:
        meant = likely_members(complaint.name, members)
    start = did_you_mean(f"`{name}`" for name in meant)
    declared = _declared(complaint, declarations, catalog)
    how = f"It is declared as `{declared}`." if declared else "See getTool of @codemode/discovery."
    return f"{start} {how}".lstrip()


def _declared(complaint: Complaint, declarations: str, catalog: Catalog) -> str | None:
    """Gives the called function with what it takes."""
    if (tool := _called_tool(complaint, catalog)) is not None:
        return takes(tool, MAX_DECLARED_CHARS)
    module = declarations.find(f'declare module "{complaint.module}" {{')
    found = re.compile(rf"\bfunction ({re.escape(complaint.called)}\([^(){{}}]*\))").search(
        declarations, max(0, module)
    )
    return found[1] if found else None


def takes_any_key(complaint: Complaint, catalog: Catalog, members: Sequence[str]) -> bool:
    """Says whether the schema says in so many words that where an undeclared key stands, beside these `members`, any
    other key may stand."""
    tool = _called_tool(complaint, catalog)
    waiting = [tool.input_schema] if tool is not None else []
    while waiting:
        if is_object(part := waiting.pop()):
            waiting += (below for _, _, below in subschemas(part))
            declared: object = part.get("properties")
            is_open = part.get("additionalProperties") in ({}, True)
            if is_open and is_object(declared) and declared.keys() >= {*members}:
                return True
    return False
