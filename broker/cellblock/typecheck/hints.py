"""From a complaint to what the agent reads: one message, and one hint that names what was probably meant."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from cellblock.catalog.model import Catalog
from cellblock.catalog.modules import SERVERS_PREFIX
from cellblock.catalog.outputs import ToolOutput
from cellblock.catalog.suggest import nearest_names
from cellblock.typecheck.verdict import ARGUMENT, EXPORT, MEMBER, NAME, Complaint
from cellblock_worker.confinement import BUNDLE_DIR

MAX_NAMED: Final = 12
"""Members that a hint names; they end up in a model's context."""

MAX_NAMED_CHARS: Final = 100

MAX_MESSAGE_CHARS: Final = 500

_ALIKE: Final = (
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
"""Words for the same thing in the outputs of tools; a word may be in several lines."""

_WORDS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")
_SUGGESTED: Final = re.compile(r"Did you mean (?:the \w+ member )?'([^']+)'")
_BOILERPLATE: Final = re.compile(r" (?:Do you need to|Did you mean|Try ).*$", re.DOTALL)
_UNKNOWN_PROPERTY: Final = re.compile(
    r"may only specify known properties, (?:but|and) '(.+?)' does not exist in type '(.*)'", re.DOTALL
)
_MISSING_PROPERTY: Final = re.compile(r"Property '(.+?)' is missing in type")
_PROPERTY: Final = re.compile(r"([A-Za-z_$][\w$]*)\??: ")
_ELSEWHERE: Final = frozenset(
    [
        "fetch",
        "XMLHttpRequest",
        "WebSocket",
        "process",
        "require",
        "Buffer",
        "Deno",
        "Bun",
        "window",
        "document",
        "module",
        "exports",
        "__dirname",
        "__filename",
        "setImmediate",
        "localStorage",
        "navigator",
    ]
)


def message_of(complaint: Complaint) -> str:
    """The compiler's message without its advice, which is about projects, not about scripts."""
    text = _BOILERPLATE.sub("", complaint.message.strip())
    if complaint.code in NAME:
        text = f"Cannot find name '{complaint.name}'."
    if complaint.code in ARGUMENT and text.startswith("Type ") and len(complaint.name) < MAX_NAMED_CHARS:
        text = f"`{complaint.name}`: {text}"
    text = re.sub(r"\s*\n\s*", " ", text)
    return text if len(text) <= MAX_MESSAGE_CHARS else text[: MAX_MESSAGE_CHARS - 1] + "…"


def hint_of(
    complaint: Complaint, members: Sequence[str], catalog: Catalog, imports: Iterable[str]
) -> str | None:
    """One corrective action.

    Args:
        complaint: What counts.
        members: What the type has that lacks a member, if the compiler was asked.
        catalog: The run's snapshot.
        imports: Specifiers that the script imports.
    """
    suggested = _SUGGESTED.search(complaint.message)
    if complaint.code in MEMBER:
        return _member_hint(complaint, members, suggested[1] if suggested else None)
    if complaint.code in EXPORT:
        return _export_hint(complaint, catalog, imports, suggested[1] if suggested else None)
    if complaint.code in NAME:
        return _name_hint(complaint.name, catalog, imports, suggested[1] if suggested else None)
    assert complaint.code in ARGUMENT
    return _argument_hint(complaint, suggested[1] if suggested else None)


def of_observed(complaint: Complaint, code: str, observed: Mapping[str, ToolOutput]) -> str:
    """What to add to a hint about a member when the output may be known from a few results only.

    Args:
        complaint: Of a member that is not there.
        code: The script.
        observed: The functions whose output was observed.
    """
    receiver = complaint.receiver or ""
    if receiver == "string" or receiver.startswith(("Promise<", "typeof import")):
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


def likely_member(wanted: str, members: Sequence[str]) -> str | None:
    """The member that was probably meant: one spelt alike, else one that means the same."""
    near = nearest_names(wanted, members, limit=1)
    if near:
        return near[0]
    words = _words(wanted)
    best: tuple[int, int] | None = None
    for index, member in enumerate(members):
        others = _words(member)
        for line in _alike():
            if words & line and others & line:
                # The closest in the list of likely words, then the first as declared.
                rank = (len(others - line), index)
                best = rank if best is None or rank < best else best
    return members[best[1]] if best is not None else None


def _member_hint(complaint: Complaint, members: Sequence[str], suggested: str | None) -> str:
    receiver, wanted = complaint.receiver or "", complaint.name
    if receiver.startswith("Promise<"):
        return f"Await the call first: `(await …).{wanted}`."
    likely = suggested or likely_member(wanted, members)
    named = ", ".join(members[:MAX_NAMED]) + (", …" if len(members) > MAX_NAMED else "")
    if receiver == "string":
        start = f"Did you mean `{likely}`? " if likely else ""
        return f"{start}It is text: if it holds JSON, use JSON.parse first."
    if receiver.endswith("[]"):
        return f"Did you mean `{likely}`?" if likely else f"It is an array: read `{wanted}` of its elements."
    what = "The module" if receiver.startswith("typeof import") else _short(receiver)
    if likely:
        return f"Did you mean `{likely}`? {what} has: {named}." if members else f"Did you mean `{likely}`?"
    return f"{what} has: {named}." if members else "Log one value to see what it has."


def _argument_hint(complaint: Complaint, suggested: str | None) -> str:
    if suggested:
        return f"Did you mean `{suggested}`?"
    unknown = _UNKNOWN_PROPERTY.search(complaint.message)
    if unknown:
        known = _PROPERTY.findall(unknown[2])
        likely = likely_member(unknown[1].strip("\"'"), known)
        named = ", ".join(known[:MAX_NAMED])
        if likely:
            return f"Did you mean `{likely}`? The tool takes: {named}."
        return f"The tool takes: {named}." if known else f"Leave `{unknown[1]}` out."
    missing = _MISSING_PROPERTY.search(complaint.message)
    if missing:
        return f"Add `{missing[1]}` to the input."
    if complaint.code in (2554, 2555):
        return "A tool takes one input object."
    return "Pass what the tool declares: see its description, or getTool of @codemode/discovery."


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


def _name_hint(name: str, catalog: Catalog, imports: Iterable[str], suggested: str | None) -> str:
    deviations = _deviations()
    if name in deviations:
        return f"In the sandbox, {name} is {deviations[name]}."
    if name in _ELSEWHERE:
        return f"The sandbox has no {name}: use tools of @codemode/servers/*."
    for server_id, export in _exports(catalog, imports):
        if export == name:
            return f'Import it: `import {{ {name} }} from "{SERVERS_PREFIX}{server_id}"`.'
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


def _words(name: str) -> frozenset[str]:
    return frozenset(word.lower() for word in _WORDS.findall(name[:64]))


@lru_cache(maxsize=1)
def _alike() -> tuple[frozenset[str], ...]:
    return tuple(frozenset(line.split()) for line in _ALIKE)


@lru_cache(maxsize=1)
def _deviations() -> dict[str, str]:
    table: dict[str, str] = json.loads((BUNDLE_DIR / "globals.json").read_text(encoding="utf-8"))[
        "deviations"
    ]
    return {name: text for name, text in table.items() if text.startswith("absent")}
