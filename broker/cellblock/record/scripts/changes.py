"""Says what a change of a tool's schemas means for a kept script: nothing, something to look at, or that it is broken.

The table is that of docs/scripts.md. It judges by what the script names, sent and got; a meaning that changes behind
the same schema is not found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from cellblock.base.json import is_array, is_object
from cellblock.record.scripts.script_file import without_words
from cellblock.tools.schemas.validation import InputValidator

Verdict = Literal["works", "changed", "broken"]
"""Says how a kept script stands; each is worse than the one before."""

RANK: Final[dict[Verdict, int]] = {"works": 0, "changed": 1, "broken": 2}

MAX_DEPTH: Final = 24
"""Bounds how deep schemas are compared: what is deeper is not read by name."""

MAX_PLACES: Final = 5_000
"""Bounds the places of one schema that are compared; what is past it is not."""

_WORD: Final = re.compile(r"[\w$]+")


@dataclass(frozen=True, slots=True)
class Finding:
    """Says what has changed: a verdict, where, and what it is, half a sentence."""

    verdict: Verdict
    place: str
    what: str


@dataclass(frozen=True, slots=True)
class Use:
    """Holds what is known of how a script uses one tool.

    Args:
        tool: `server.tool`.
        words: The words of the script.
        inputs: What it sent in its recording.
        answers: What it got there, where that was JSON.
    """

    tool: str
    words: frozenset[str]
    inputs: Sequence[Any] = field(default_factory=list[Any])
    answers: Sequence[Any] = field(default_factory=list[Any])


def words_of(code: str) -> frozenset[str]:
    """Returns the words of a script: it names a field that is one of them."""
    return frozenset(_WORD.findall(code))


def worst(findings: Sequence[Finding]) -> Verdict:
    """Returns the verdict of all findings together."""
    verdicts: list[Verdict] = ["works", *(one.verdict for one in findings)]
    return max(verdicts, key=lambda one: RANK[one])


def removed(use: Use) -> Finding:
    """Says that a tool is not there any more."""
    return Finding("broken", use.tool, "the tool is not there any more")


def compared(use: Use, before: Sequence[Any], after: Sequence[Any]) -> list[Finding]:
    """Holds what a script does with a tool against the tool's schemas.

    Args:
        use: What it does.
        before: The schemas of input and output when it was kept.
        after: Those of now.
    """
    old, new = without_words(list(before)), without_words(list(after))
    found: list[Finding] = []
    if old[0] != new[0]:
        found += _inputs(use, old[0], new[0])
    if old[1] != new[1]:
        found += _outputs(use, old[1], new[1])
    return found


# ---- inputs ------------------------------------------------------------------------------------------


def _inputs(use: Use, old: Any, new: Any) -> Iterator[Finding]:
    """Judges inputs by what was sent; of a tool that was not called, by what the schemas require and the script
    names."""
    place = f"{use.tool} input"
    if use.inputs:
        validator = InputValidator(new, label=use.tool)
        was = InputValidator(old, label=use.tool)
        for sent in use.inputs:
            misfit = validator.check(sent)
            if misfit is not None and was.check(sent) is None:
                yield Finding("broken", f"{place}{misfit.path}", misfit.sentence)
                return
        return
    before, after = dict(_places(old)), dict(_places(new))
    for path, (kinds, required, values) in after.items():
        known = before.get(path)
        if required and (known is None or not known[1]) and _name_of(path) is not None:
            yield Finding("broken", f"{place}{path}", "it is required now")
        if known is not None and _named(use, path) and _narrowed(known[0], kinds):
            yield Finding("broken", f"{place}{path}", f"it was {_said(known[0])}, and is {_said(kinds)} now")
        if known is not None and values is not None:
            gone = [one for one in (known[2] or ()) if one not in values and str(one) in use.words]
            if gone:
                yield Finding("broken", f"{place}{path}", f"{gone[0]!r} is not allowed any more")
    for path in before.keys() - after.keys():
        if _named(use, path) and "" in after:
            yield Finding("changed", f"{place}{path}", "it is gone")


# ---- outputs -----------------------------------------------------------------------------------------


def _outputs(use: Use, old: Any, new: Any) -> Iterator[Finding]:
    place = f"{use.tool} output"
    if new is None or old is None:
        if old is not None:
            yield Finding("changed", place, "it is not declared any more")
        elif any(
            InputValidator(_read_part(new, use.words), label=use.tool).check(one) for one in use.answers
        ):
            yield Finding("changed", place, "it is declared now, and what was recorded does not fit")
        return
    before, after = dict(_places(old)), dict(_places(new))
    told: set[str] = set()
    for path, (kinds, _, _values) in before.items():
        if not _named(use, path):
            continue
        now = after.get(path)
        if now is None and _parent(path) in after:
            told.add(path)
            yield Finding("broken", f"{place}{path}", "the script reads it, and it is gone")
        elif now is not None and now[0] != kinds and not (now[0] <= kinds and now[0]):
            told.add(path)
            verdict: Verdict = "changed" if kinds <= now[0] or not now[0] else "broken"
            yield Finding(verdict, f"{place}{path}", f"it was {_said(kinds)}, and is {_said(now[0])} now")
    if told:
        return
    part = InputValidator(_read_part(new, use.words), label=use.tool)
    was = InputValidator(_read_part(old, use.words), label=use.tool)
    for got in use.answers:
        misfit = part.check(got)
        if misfit is not None and was.check(got) is None:
            yield Finding(
                "changed", f"{place}{misfit.path}", f"what was recorded does not fit: {misfit.sentence}"
            )
            return


# ---- schemas as places -------------------------------------------------------------------------------

Place = tuple[frozenset[str], bool, "list[Any] | None"]
"""Holds the kinds of values at a place (empty: any), whether it is required, and the values that it may have."""


def _places(schema: Any) -> Iterator[tuple[str, Place]]:
    """Yields each place in a schema, by its path: `/issues/*/title`."""
    left = MAX_PLACES
    waiting: list[tuple[str, Any, bool, int]] = [("", schema, True, 0)]
    while waiting and left:
        path, part, required, depth = waiting.pop()
        left -= 1
        parts = list(_alternatives(part, schema))
        kinds: frozenset[str] = (
            frozenset[str]()
            if any(not _kinds(one) for one in parts)
            else frozenset(one for part in parts for one in _kinds(part))
        )
        values: list[Any] | None = []
        for one in parts:
            mine = one.get("enum", [one["const"]] if "const" in one else None)
            values = None if values is None or not is_array(mine) else [*values, *mine]
        yield path, (kinds, required, values)
        for one in parts if depth < MAX_DEPTH else ():
            properties = one.get("properties")
            needed: Any = one.get("required")
            for name, below in properties.items() if is_object(properties) else ():
                is_needed = is_array(needed) and name in needed
                waiting.append((f"{path}/{name}", below, is_needed, depth + 1))
            if (items := one.get("items")) is not None and items is not True:
                waiting.append((f"{path}/*", items, False, depth + 1))


def _alternatives(part: Any, root: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """Yields what a value at a place may fit: the schema itself, or its alternatives, references followed."""
    if not is_object(part) or depth > MAX_DEPTH:
        yield {}
        return
    reference = part.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        at: Any = root
        for step in reference[2:].split("/"):
            at = at.get(step.replace("~1", "/").replace("~0", "~")) if is_object(at) else None
        yield from _alternatives(at, root, depth + 1)
        return
    branches = [
        one for keyword in ("anyOf", "oneOf") if is_array(listed := part.get(keyword)) for one in listed
    ]
    for branch in branches:
        yield from _alternatives(branch, root, depth + 1)
    merged = [one for one in part.get("allOf", ()) if is_object(one)] if is_array(part.get("allOf")) else []
    if not branches or "properties" in part:
        yield (
            {**part, "properties": {**_properties(merged, root, depth), **(part.get("properties") or {})}}
            if merged
            else part
        )


def _properties(parts: Sequence[Any], root: Any, depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in parts:
        for one in _alternatives(part, root, depth + 1):
            found |= one.get("properties") or {}
    return found


def _kinds(part: Mapping[str, Any]) -> frozenset[str]:
    kinds = part.get("type")
    if isinstance(kinds, str):
        kinds = [kinds]
    if is_array(kinds):
        return frozenset("number" if one == "integer" else str(one) for one in kinds)
    return frozenset(("object",)) if "properties" in part else frozenset()


def _name_of(path: str) -> str | None:
    name = path.rpartition("/")[2]
    return name if name and name != "*" else None


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _named(use: Use, path: str) -> bool:
    """Says whether a script names the field at a place, and those around it on the way."""
    name = _name_of(path)
    return name is not None and name in use.words


def _narrowed(before: frozenset[str], now: frozenset[str]) -> bool:
    return bool(now) and not before <= now


def _said(kinds: frozenset[str]) -> str:
    return " or ".join(sorted(kinds)) or "anything"


def _read_part(schema: Any, words: frozenset[str]) -> Any:
    """Returns what a schema says of the fields that a script names: the others may be anything, or not be there."""
    if is_array(schema):
        return [_read_part(one, words) for one in schema]
    if not is_object(schema):
        return schema
    made: dict[str, Any] = {}
    for key, value in schema.items():
        if key in (
            "required",
            "additionalProperties",
            "unevaluatedProperties",
            "minProperties",
            "maxProperties",
        ):
            continue
        if key in ("properties", "patternProperties") and is_object(value):
            made[key] = {name: _read_part(one, words) for name, one in value.items() if name in words}
        elif key in ("enum", "const"):
            made[key] = value
        elif key in ("$defs", "definitions") and is_object(value):
            made[key] = {name: _read_part(one, words) for name, one in value.items()}
        else:
            made[key] = _read_part(value, words)
    return made
