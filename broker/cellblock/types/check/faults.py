"""Turns the complaints that count into what an agent reads: one message, and one hint that names what was meant."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cellblock.base.errors import counted, shorten
from cellblock.base.suggest import did_you_mean, nearest_names
from cellblock.script.lines import line_of
from cellblock.tools.catalog.model import Catalog
from cellblock.tools.catalog.modules import SERVERS_PREFIX
from cellblock.tools.catalog.outputs import ToolOutput
from cellblock.types.absent_globals import absent_hint, import_hint
from cellblock.types.check.ambient import Got, imported_servers
from cellblock.types.check.compiler import CompilerSession
from cellblock.types.check.hints import (
    MAX_NAMED,
    WRAPPERS,
    argument_hint,
    is_slip,
    likely_member,
    likely_members,
    likely_of_language,
    listed,
    takes_any_key,
    wants_a_list,
)
from cellblock.types.check.parsed import ITS_CHARACTERS
from cellblock.types.check.verdict import (
    ARGUMENT,
    ASKED_OF_ANY,
    BRACKETS,
    CHARACTERS,
    EXPORT,
    JSON_TEXT,
    KEY,
    MAX_NAMED_CHARS,
    MEMBER,
    MISUSED,
    NAME,
    NUMBERED,
    SPREAD,
    Complaint,
    at_key,
    is_json_text,
    is_of_object,
)
from cellblock.types.typescript.text import letters

MAX_SHOWN: Final = 10
"""Bounds the type errors of one response; they end up in a model's context, and the first ones are what matters."""

MAX_MESSAGE_CHARS: Final = 500

MAX_RECEIVER_CHARS: Final = 100
"""Bounds the characters of the type that lacks a member: the hint names what it has."""

_SUGGESTED: Final = re.compile(r"Did you mean (?:to write |the \w+ member )?'([^']+)'")
_OF_LISTS: Final = frozenset(
    ("length", "map", "filter", "find", "forEach", "some", "every", "reduce", "slice", "sort", "at", "join")
)
_OF_NUMBERS: Final = frozenset(("toFixed", "toPrecision"))
_IF_JSON: Final = "if it holds JSON, use JSON.parse first"
_ONLY_MEMBER: Final = re.compile(r"\{ ([\w$]++)\??: [^{};]*+(?:\{[^{}]*+\}[^{};]*+)?; \}")
"""Fits a printed type of one member."""

_BOILERPLATE: Final = re.compile(r" (?:Do you need to|Did you mean|Try ).*$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TypeFault:
    """Describes one type error of a script, in the agent's terms. `line` and `column` count from 1."""

    message: str
    hint: str | None
    line: int
    column: int
    absent: str = ""
    """Names the field that is read, or the text that is compared with: if a result has it after all, the script is
    right."""

    is_text: bool = False
    """Says whether a text that holds JSON is taken for the value: right where the tool answers with a value."""

    tool: tuple[str, str] | None = None
    """Names the tool that the text is from, if that is known, by its server's id and its own name."""

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
    """Gives the faults of a script, at most `MAX_SHOWN`.

    Args:
        counted: The complaints that count.
        script: What was checked.
        declarations: What it was checked against.
        observed: The functions whose output was observed.
        warm: The compiler that has just checked it. Raises SessionLost.
    """
    faults: list[TypeFault] = []
    counted = [
        each
        for complaint in counted
        for each in (complaint, *await _also_undeclared(complaint, script, warm))
    ]
    for complaint, places in _distinct(counted):
        if len(faults) >= MAX_SHOWN:
            break
        if not script.closed and complaint.code in MEMBER | CHARACTERS and _of_few(script, observed):
            continue
        if complaint.code == MISUSED and not script.closed:
            continue
        if complaint.described and not re.search(
            complaint.described, await warm.described_at(complaint.position, script.typescript)
        ):
            continue
        if complaint.code == SPREAD and not await _spreads_json_text(complaint, script, warm):
            continue
        asked = complaint.code in MEMBER | KEY and not complaint.name.isdigit()
        names = await warm.names_at(complaint.position, script.typescript) if asked else []
        members = [name for name in names if name != complaint.name]
        if complaint.guard and not (script.closed and _asks_in_vain(complaint, members)):
            continue
        if complaint.name.isdigit() and (only := _ONLY_MEMBER.fullmatch(complaint.receiver or "")):
            members = [only[1]]
        slip = complaint.code in KEY and is_slip(complaint.name, members)
        if (
            script.closed
            and complaint.code in KEY
            and not slip
            and takes_any_key(complaint, script.catalog, members)
        ):
            continue
        message = message_of(complaint) + (f" (In {places} places.)" if places > 1 else "")
        line = line_of(script.code, complaint.line)
        hint = hint_of(complaint, members, script.catalog, script.names, declarations, line)
        if complaint.code in MEMBER and hint is not None:
            hint += of_observed(complaint, script.code, observed)
            seen = observed.get(complaint.tool[1]) if complaint.tool is not None else None
            if seen is not None and seen.document is None:
                hint = hint.replace(_IF_JSON, "no result was JSON")
        at = complaint.line, complaint.column
        is_text = is_json_text(complaint.receiver or "") or (
            complaint.code == NUMBERED and bool(complaint.receiver)
        )
        tool = _tool_of(complaint, script.catalog)
        faults.append(TypeFault(message, hint, *at, _absent(complaint), is_text, tool, slip))
    return tuple(faults)


def _of_few(script: Script, observed: Mapping[str, ToolOutput]) -> bool:
    """Says whether what a script reads may be of a tool of which one result was seen: that refuses nothing."""
    few = (name for name, output in observed.items() if output.samples == 1)
    return any(re.search(rf"(?<![\w$]){re.escape(name)}(?![\w$])", script.code) for name in few)


def _asks_in_vain(complaint: Complaint, members: Sequence[str]) -> bool:
    """Says whether a script that asks for a member means one that is there: it is written the same but for case and
    `_`, or the script takes a default for it and reads nothing that is there."""
    if complaint.name in ASKED_OF_ANY or complaint.read is None or not is_of_object(complaint):
        return False
    meant = {*members}
    if complaint.guard != "defaulted" or not members:
        meant = {name for name in members if letters(name) == letters(complaint.name)}
    return bool(meant) and complaint.read.isdisjoint(meant)


def _absent(complaint: Complaint) -> str:
    if complaint.choices:
        try:
            return str(json.loads(complaint.name))
        except ValueError:
            return ""
    return complaint.name if is_of_object(complaint) else ""


def _tool_of(complaint: Complaint, catalog: Catalog) -> tuple[str, str] | None:
    server = catalog.servers.get(complaint.tool[0]) if complaint.tool is not None else None
    tool = (
        server.by_export.get(complaint.tool[1]) if server is not None and complaint.tool is not None else None
    )
    return (server.server_id, tool.tool_name) if server is not None and tool is not None else None


async def _also_undeclared(complaint: Complaint, script: Script, warm: CompilerSession) -> list[Complaint]:
    """Gives the other keys of a literal with an undeclared key that are not declared either."""
    if wants_a_list(complaint):
        return []
    return [
        at_key(complaint, name, line, column, script.code)
        for name, line, column in complaint.other_keys
        if name not in await warm.names_at((line, column), script.typescript)
    ]


async def _spreads_json_text(complaint: Complaint, script: Script, warm: CompilerSession) -> bool:
    """Says whether what is spread is a name for a text that holds JSON."""
    line, column = complaint.position
    described = await warm.described_at((line, column + len("...")), script.typescript)
    return JSON_TEXT in described


def _distinct(complaints: list[Complaint]) -> list[tuple[Complaint, int]]:
    """Gives each complaint once, at its first place, with the number of its places."""
    groups: dict[tuple[int, str, str], list[Complaint]] = {}
    for complaint in complaints:
        groups.setdefault((complaint.code, complaint.message, complaint.guard), []).append(complaint)
    return [(group[0], len(group)) for group in groups.values()]


def message_of(complaint: Complaint) -> str:
    """Gives the compiler's message without its advice, which is about projects, not about scripts."""
    text = _BOILERPLATE.sub("", complaint.message.strip())
    if complaint.choices:
        of = f" of `{complaint.subject}`" if complaint.subject else ""
        said = f"The comparison with {complaint.name} is in vain: the declared values{of} have no such one."
        return shorten(said, MAX_MESSAGE_CHARS)
    if complaint.code in NAME:
        text = f"Cannot find name '{complaint.name}'."
    if complaint.code in ARGUMENT and text.startswith("Type ") and len(complaint.name) < MAX_NAMED_CHARS:
        text = f"`{complaint.name}`: {text}"
    if complaint.code in KEY:
        where = f"`{complaint.owner}` in the input" if complaint.owner else "The input"
        text = f"{where} of `{complaint.called}` declares no '{complaint.name}'."
    if complaint.code == BRACKETS:
        text = text[text.rfind("Property '") :]
    if complaint.code in MEMBER and is_json_text(complaint.receiver or ""):
        # However the compiler writes it out.
        text = f"Property '{complaint.name}' does not exist on JSON text."
    elif complaint.code in MEMBER and len(complaint.receiver or "") > MAX_RECEIVER_CHARS:
        text = text.replace(
            f"'{complaint.receiver}'", f"'{(complaint.receiver or '')[:MAX_RECEIVER_CHARS]}…'"
        )
    if complaint.code in CHARACTERS:
        what = complaint.subject or complaint.name
        wrong = complaint.message if complaint.code == NUMBERED else ITS_CHARACTERS
        kind = "JSON text" if is_json_text(complaint.receiver or "") else "text"
        text = f"{f'`{what}`' if what else 'It'} is {kind}, and {wrong}."
    return shorten(re.sub(r"(?<!\s)\s*\n\s*", " ", text), MAX_MESSAGE_CHARS)


def hint_of(
    complaint: Complaint,
    members: Sequence[str],
    catalog: Catalog,
    imports: Iterable[str],
    declarations: str = "",
    line: str = "",
) -> str | None:
    """Gives one corrective action for a complaint.

    Args:
        complaint: What counts.
        members: What the type has that lacks a member, if the compiler was asked.
        catalog: The run's snapshot.
        imports: Specifiers that the script imports.
        declarations: What the script was checked against.
        line: The script's line that it is about.
    """
    found = _SUGGESTED.search(complaint.message)
    suggested = found[1] if found else None
    if complaint.choices:
        return _comparison_hint(complaint)
    if complaint.hint:
        return complaint.hint
    if is_json_text(complaint.receiver or ""):
        return _json_text_hint(complaint)
    if complaint.code == NUMBERED:
        return f'Take its lines: `{complaint.subject or "…"}.split("\\n")`.'
    if complaint.code in MEMBER:
        return _member_hint(complaint, members, suggested)
    if complaint.code in EXPORT:
        return _export_hint(complaint, catalog, imports, suggested)
    if complaint.code in NAME:
        return _name_hint(complaint, catalog, imports, suggested, line)
    assert complaint.code in ARGUMENT
    return argument_hint(complaint, suggested, declarations, catalog, members)


def _comparison_hint(complaint: Complaint) -> str:
    near = nearest_names(complaint.name, complaint.choices, limit=1)
    return shorten(f"{did_you_mean(near)} Declared: {listed(complaint.choices)}.".lstrip(), MAX_MESSAGE_CHARS)


def _json_text_hint(complaint: Complaint) -> str:
    value = f"JSON.parse({complaint.subject or '…'})"
    if complaint.code in MEMBER:
        return f"It is JSON text, not yet a value: read `{value}.{complaint.name}`."
    return f"It is JSON text, not yet a value: use `{value}` first."


def of_observed(complaint: Complaint, code: str, observed: Mapping[str, ToolOutput]) -> str:
    """Gives what to add to a hint about a member when the output may be known from a few results only.

    Args:
        complaint: Of a member that is not there.
        code: The script.
        observed: The functions whose output was observed.
    """
    receiver = complaint.receiver or ""
    if is_json_text(receiver) or receiver.startswith(("Promise<", "typeof import")):
        return ""
    if receiver == "string" or receiver.endswith("[]"):
        # What texts and arrays have is the language's, whoever gave them.
        return ""
    called = [name for name in observed if re.search(rf"(?<![\w$]){re.escape(name)}\s*\(", code)]
    # Behind a dot it may as well be a field's name.
    named = [name for name in observed if re.search(rf"(?<![\w$.]){re.escape(name)}(?![\w$])", code)]
    # Under another name, or handed on: then whatever is named may be meant.
    counts = [(name, observed[name].samples) for name in (called or named)[:MAX_NAMED]]
    seen = ", ".join(f"{name} ({counted(count, 'result')})" for name, count in counts)
    if not seen:
        return ""
    return f" (Observed, not declared: {seen}. `?? null` reads a member that may be there.)"


def _member_hint(complaint: Complaint, members: Sequence[str], suggested: str | None) -> str:
    receiver, wanted = complaint.receiver or "", complaint.name
    if receiver.startswith("Promise<"):
        return f"Await the call first: `(await …).{wanted}`."
    if receiver == "string" or receiver.endswith("[]"):
        return _hint_of_language(receiver, wanted, members)
    if len(members) == 1 and members[0] in WRAPPERS and (wanted in _OF_LISTS or wanted.isdigit()):
        read = f"[{wanted}]" if wanted.isdigit() else f".{wanted}"
        return f"The array is in `{members[0]}`: read `.{members[0]}{read}`."
    likely = likely_members(wanted, members) if members else [suggested] if suggested else []
    what = "The module" if receiver.startswith("typeof import") else receiver
    if not re.fullmatch(r"The module|[\w$]{1,60}", what):
        what = "It"
    has = f" {what} has: {listed(sorted(members))}." if members else ""
    start = did_you_mean(f"`{name}`" for name in likely)
    return f"{start}{has}".lstrip() or "Log one value to see what it has."


def _hint_of_language(receiver: str, wanted: str, members: Sequence[str]) -> str:
    """Gives the hint about a member that arrays, or texts, do not have."""
    array = receiver.endswith("[]")
    if array and wanted in WRAPPERS:
        return f"It is the array itself: leave out `.{wanted}`."
    if not array and wanted in _OF_NUMBERS:
        return f"It is text: read `Number(…).{wanted}`."
    likely = likely_of_language(wanted, members, array=array)
    start = did_you_mean([f"`{likely}`"] if likely else [])
    if array:
        return start or f"It is an array: read `{wanted}` of its elements."
    return f"{start} It is text: {_IF_JSON}.".strip()


def _export_hint(
    complaint: Complaint, catalog: Catalog, imports: Iterable[str], suggested: str | None
) -> str:
    if complaint.code == 1192:
        return "Import the functions by name, or the module as `* as server`."
    exports = [export for _, export in _exports(catalog, imports)]
    likely = suggested or likely_member(complaint.name.strip("\"'"), exports)
    return f"Did you mean `{likely}`?" if likely else "listTools of @codemode/discovery names the functions."


def _name_hint(
    complaint: Complaint, catalog: Catalog, imports: Iterable[str], suggested: str | None, line: str
) -> str:
    name = complaint.name
    absent = absent_hint(name, complaint.module, catalog)
    if absent is not None:
        return absent
    for server_id, export in _exports(catalog, imports):
        if export == name:
            return f'Import it: `import {{ {name} }} from "{SERVERS_PREFIX}{server_id}"`.'
    meant = [f"`{suggested}`"] if suggested else []
    otherwise = did_you_mean(meant, f"Declare `{name}`, or correct its spelling.")
    return import_hint(name, catalog, line) or otherwise


def _exports(catalog: Catalog, imports: Iterable[str]) -> list[tuple[str, str]]:
    servers = imported_servers(catalog, imports)
    return [(server.server_id, tool.export_name) for server in servers for tool in server.tools]
