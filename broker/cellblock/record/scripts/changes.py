"""Says what a change of a tool's schemas means for a kept script, by what its recording sent and got.

The table is that of docs/scripts.md; what no recorded value shows, the type check tells.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from cellblock.base.json import is_array, is_object
from cellblock.record.scripts.script_file import pruned
from cellblock.tools.schemas.explain import Violation
from cellblock.tools.schemas.validation import InputValidator

Verdict = Literal["works", "changed", "broken"]

WORD: Final = re.compile(r"[\w$]+")

_OPENING: Final = frozenset(("required", "minProperties", "unevaluatedProperties"))


@dataclass(frozen=True, slots=True)
class Finding:
    """Says what has changed: a verdict, where, and what it is."""

    verdict: Verdict
    place: str
    what: str


def compared(
    tool: str, code: str, before: Sequence[Any], after: Sequence[Any], sent: Sequence[Any], got: Sequence[Any]
) -> list[Finding]:
    """Holds what a script sent to a tool, and got from it, against the tool's schemas.

    Args:
        tool: `server.tool`.
        code: The script: it reads the fields that it names.
        before: The schemas of input and output when it was kept.
        after: Those of now.
        sent: The recorded inputs.
        got: The recorded results.
    """
    found: list[Finding] = []
    if (misfit := _misfit(before[0], after[0], sent)) is not None:
        found.append(Finding("broken", f"{tool} input{misfit.path}", misfit.sentence))
    if before[1] is not None and after[1] is None:
        found.append(Finding("changed", f"{tool} output", "it is not declared any more"))
        return found
    words = frozenset(WORD.findall(code))
    read = [_read(value, words) for value in got]
    was, now = (pruned(one[1], _OPENING, closed=True) for one in (before, after))
    if (misfit := _misfit(was, now, read)) is not None:
        verdict: Verdict = "broken" if misfit.keyword in ("type", "additionalProperties") else "changed"
        found.append(Finding(verdict, f"{tool} output{misfit.path}", misfit.sentence))
    return found


def _misfit(before: Any, after: Any, values: Sequence[Any]) -> Violation | None:
    """Finds the first value that fits a schema no more."""
    if before == after:
        return None
    was, now = InputValidator(before), InputValidator(after)
    return next(filter(None, (now.check(value) for value in values if was.check(value) is None)), None)


def _read(value: Any, words: frozenset[str]) -> Any:
    """Returns what a script reads of a result: the fields that it names."""
    if is_array(value):
        return [_read(one, words) for one in value]
    if is_object(value):
        return {name: _read(one, words) for name, one in value.items() if name in words}
    return value
