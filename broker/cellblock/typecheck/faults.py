"""Turns the complaints that count into what an agent is told of its script."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cellblock.catalog.model import Catalog
from cellblock.catalog.outputs import ToolOutput
from cellblock.typecheck.ambient import Got
from cellblock.typecheck.argument_hints import takes_any_key, wants_a_list
from cellblock.typecheck.documents import WarmSession
from cellblock.typecheck.hints import hint_of, message_of, of_observed
from cellblock.typecheck.likely import is_slip
from cellblock.typecheck.verdict import (
    JSON_TEXT,
    KEY,
    MEMBER,
    SPREAD,
    Complaint,
    at_key,
    is_json_text,
    is_of_object,
)

MAX_SHOWN: Final = 10
"""Bounds the type errors of one response; they end up in a model's context, and the first ones are what matters."""


@dataclass(frozen=True, slots=True)
class TypeFault:
    """Describes one type error of a script, in the agent's terms. `line` and `column` count from 1."""

    message: str
    hint: str | None
    line: int
    column: int

    absent: str = ""
    """Names what makes it right if a result has it after all: the field that is read, or the text that is
    compared with."""

    slip: bool = False
    """Says whether the fault is a key that is spelt almost like one which the call does not give."""

    json_text: bool = False
    """Says whether a text that holds JSON is used as what it holds."""


@dataclass(frozen=True, slots=True)
class Checked:
    """Holds what a check found; `gave_up` says why there was none, and then nothing is known."""

    faults: tuple[TypeFault, ...] = ()
    gave_up: str | None = None


@dataclass(frozen=True, slots=True)
class Script:
    """Holds what one check is of."""

    code: str
    typescript: bool
    catalog: Catalog
    names: frozenset[str]
    closed: bool
    got: Got


async def told(
    counted: list[Complaint],
    script: Script,
    declarations: str,
    observed: Mapping[str, ToolOutput],
    warm: WarmSession,
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
        if complaint.code == SPREAD and not await _spreads_json_text(complaint, script, warm):
            continue
        asked = complaint.code in MEMBER or complaint.code in KEY
        members = await warm.members(complaint, script.typescript) if asked else []
        slip = complaint.code in KEY and is_slip(complaint.name, members)
        if script.closed and complaint.code in KEY and not slip and takes_any_key(complaint, script.catalog):
            continue
        if complaint.choices and _only_observed(complaint, script, observed):
            continue
        message = message_of(complaint) + (f" (In {places} places.)" if places > 1 else "")
        hint = hint_of(complaint, members, script.catalog, script.names, declarations)
        if complaint.code in MEMBER and hint is not None:
            hint += of_observed(complaint, script.code, observed)
        faults.append(
            TypeFault(
                message,
                hint,
                complaint.line,
                complaint.column,
                absent=_absent(complaint),
                slip=slip,
                json_text=is_json_text(complaint.receiver or ""),
            )
        )
    return tuple(faults)


def _absent(complaint: Complaint) -> str:
    if complaint.choices:
        try:
            return str(json.loads(complaint.name))
        except ValueError:
            return ""
    return complaint.name if is_of_object(complaint) else ""


def _only_observed(complaint: Complaint, script: Script, observed: Mapping[str, ToolOutput]) -> bool:
    """Says whether the values that are compared with may be tags that results happened to have: others may come."""
    known = [
        json.dumps([output.schema, output.document])
        for name, output in observed.items()
        if name in script.code
    ]
    return any(all(choice in text for choice in complaint.choices) for text in known)


async def _also_undeclared(complaint: Complaint, script: Script, warm: WarmSession) -> list[Complaint]:
    """Gives the other keys of a literal with an undeclared key that are not declared either."""
    if wants_a_list(complaint):
        return []
    return [
        at_key(complaint, name, line, column, script.code)
        for name, line, column in complaint.beside
        if name not in await warm.names_at((line, column), script.typescript)
    ]


async def _spreads_json_text(complaint: Complaint, script: Script, warm: WarmSession) -> bool:
    """Says whether what is spread is a name for a text that holds JSON."""
    line, column = complaint.position
    described = await warm.described_at((line, column + len("...")), script.typescript)
    return JSON_TEXT in described


def _distinct(complaints: list[Complaint]) -> list[tuple[Complaint, int]]:
    """Gives each complaint once, at its first place, with the number of its places."""
    first: dict[tuple[int, str], Complaint] = {}
    places: dict[tuple[int, str], int] = {}
    for complaint in complaints:
        key = (complaint.code, complaint.message)
        first.setdefault(key, complaint)
        places[key] = places.get(key, 0) + 1
    return [(complaint, places[key]) for key, complaint in first.items()]
