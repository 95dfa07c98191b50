"""Turns a complaint into what the agent reads: one message, and one hint that names what was probably meant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from cellblock.catalog.absent_globals import absent_hint, import_hint
from cellblock.catalog.model import Catalog
from cellblock.catalog.modules import SERVERS_PREFIX
from cellblock.catalog.outputs import ToolOutput
from cellblock.catalog.suggest import nearest_names
from cellblock.typecheck.argument_hints import argument_hint
from cellblock.typecheck.likely import (
    MAX_NAMED,
    WRAPPERS,
    likely_member,
    likely_members,
    likely_of_language,
    listed,
)
from cellblock.typecheck.verdict import (
    ARGUMENT,
    BRACKETS,
    CHARACTERS,
    EXPORT,
    KEY,
    MEMBER,
    NAME,
    Complaint,
    is_json_text,
)

MAX_NAMED_CHARS: Final = 100

MAX_MESSAGE_CHARS: Final = 500

MAX_RECEIVER_CHARS: Final = 100
"""Bounds the characters of the type that lacks a member: the hint names what it has."""

_SUGGESTED: Final = re.compile(r"Did you mean (?:to write |the \w+ member )?'([^']+)'")
_BOILERPLATE: Final = re.compile(r" (?:Do you need to|Did you mean|Try ).*$", re.DOTALL)


def message_of(complaint: Complaint) -> str:
    """Gives the compiler's message without its advice, which is about projects, not about scripts."""
    text = _BOILERPLATE.sub("", complaint.message.strip())
    if complaint.choices:
        of = f" of `{complaint.subject}`" if complaint.subject else ""
        return _cut(
            f"The comparison with {complaint.name} is in vain: the declared values{of} have no such one."
        )
    if complaint.code in NAME:
        text = f"Cannot find name '{complaint.name}'."
    if complaint.code in ARGUMENT and text.startswith("Type ") and len(complaint.name) < MAX_NAMED_CHARS:
        text = f"`{complaint.name}`: {text}"
    if complaint.code in KEY:
        where = f"`{complaint.owner}` in the input" if complaint.owner else "The input"
        text = f"{where} of `{complaint.called}` declares no '{complaint.name}'."
    if complaint.code == BRACKETS:
        text = text[text.rfind("Property '") :]
    if complaint.code in MEMBER and len(complaint.receiver or "") > MAX_RECEIVER_CHARS:
        text = text.replace(
            f"'{complaint.receiver}'", f"'{(complaint.receiver or '')[:MAX_RECEIVER_CHARS]}…'"
        )
    if complaint.code in CHARACTERS:
        text = f"`{complaint.subject or complaint.name}` is JSON text, and its single characters are read."
    text = re.sub(r"(?<!\s)\s*\n\s*", " ", text)
    return _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE_CHARS else text[: MAX_MESSAGE_CHARS - 1] + "…"


def hint_of(
    complaint: Complaint,
    members: Sequence[str],
    catalog: Catalog,
    imports: Iterable[str],
    declarations: str = "",
) -> str | None:
    """Gives one corrective action.

    Args:
        complaint: What counts.
        members: What the type has that lacks a member, if the compiler was asked.
        catalog: The run's snapshot.
        imports: Specifiers that the script imports.
        declarations: What the script was checked against.
    """
    suggested = _SUGGESTED.search(complaint.message)
    if complaint.choices:
        return _comparison_hint(complaint)
    if is_json_text(complaint.receiver or ""):
        return _json_text_hint(complaint)
    if complaint.code in MEMBER:
        return _member_hint(complaint, members, suggested[1] if suggested else None)
    if complaint.code in EXPORT:
        return _export_hint(complaint, catalog, imports, suggested[1] if suggested else None)
    if complaint.code in NAME:
        return _name_hint(complaint, catalog, imports, suggested[1] if suggested else None)
    assert complaint.code in ARGUMENT
    return argument_hint(complaint, suggested[1] if suggested else None, declarations, members)


def _comparison_hint(complaint: Complaint) -> str:
    near = nearest_names(complaint.name, complaint.choices, limit=1)
    start = f"Did you mean {near[0]}? " if near else ""
    return _cut(f"{start}Declared: {listed(complaint.choices)}.")


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
    if receiver == "string" or is_json_text(receiver) or receiver.startswith(("Promise<", "typeof import")):
        return ""
    named = [name for name in observed if re.search(rf"(?<![\w$]){re.escape(name)}(?![\w$])", code)]
    called = [name for name in named if re.search(rf"(?<![\w$]){re.escape(name)}\s*\(", code)]
    # Under another name, or handed on: then whatever is named may be meant.
    used = (called or named)[:MAX_NAMED]
    if not used:
        return ""
    counts = [(name, observed[name].samples) for name in used]
    seen = ", ".join(f"{name} ({count} result{'' if count == 1 else 's'})" for name, count in counts)
    return f" (Observed, not declared: {seen}. `?? null` reads a member that may be there.)"


def _member_hint(complaint: Complaint, members: Sequence[str], suggested: str | None) -> str:
    receiver, wanted = complaint.receiver or "", complaint.name
    if receiver.startswith("Promise<"):
        return f"Await the call first: `(await …).{wanted}`."
    if receiver == "string" or receiver.endswith("[]"):
        return _hint_of_language(receiver, wanted, members)
    likely = likely_members(wanted, members) if members else [suggested] if suggested else []
    named = listed(sorted(members))
    what = "The module" if receiver.startswith("typeof import") else _short(receiver)
    if likely:
        start = f"Did you mean {' or '.join(f'`{name}`' for name in likely)}?"
        return f"{start} {what} has: {named}." if members else start
    return f"{what} has: {named}." if members else "Log one value to see what it has."


def _hint_of_language(receiver: str, wanted: str, members: Sequence[str]) -> str:
    """Gives the hint about a member that arrays, or texts, do not have."""
    array = receiver.endswith("[]")
    if array and wanted in WRAPPERS:
        return f"It is the array itself: leave out `.{wanted}`."
    likely = likely_of_language(wanted, members, array=array)
    start = f"Did you mean `{likely}`?" if likely else ""
    if array:
        return start or f"It is an array: read `{wanted}` of its elements."
    return f"{start} It is text: if it holds JSON, use JSON.parse first.".strip()


def _short(receiver: str) -> str:
    return receiver if re.fullmatch(r"[\w$]{1,60}", receiver) else "It"


def _export_hint(
    complaint: Complaint, catalog: Catalog, imports: Iterable[str], suggested: str | None
) -> str:
    if complaint.code == 1192:
        return "Import the functions by name, or the module as `* as server`."
    exports = [export for _, export in _exports(catalog, imports)]
    likely = suggested or likely_member(complaint.name.strip("\"'"), exports)
    return f"Did you mean `{likely}`?" if likely else "listTools of @codemode/discovery names the functions."


def _name_hint(complaint: Complaint, catalog: Catalog, imports: Iterable[str], suggested: str | None) -> str:
    name = complaint.name
    absent = absent_hint(name, complaint.module, catalog)
    if absent is not None:
        return absent
    for server_id, export in _exports(catalog, imports):
        if export == name:
            return f'Import it: `import {{ {name} }} from "{SERVERS_PREFIX}{server_id}"`.'
    unimported = import_hint(name, catalog)
    if unimported is not None:
        return unimported
    if suggested:
        return f"Did you mean `{suggested}`?"
    return f"Declare `{name}`, or correct its spelling."


def _exports(catalog: Catalog, imports: Iterable[str]) -> list[tuple[str, str]]:
    ids = {name.removeprefix(SERVERS_PREFIX) for name in imports}
    return [
        (server_id, tool.export_name)
        for server_id, server in catalog.servers.items()
        if server_id in ids
        for tool in server.tools
    ]
