"""Tells type errors as diagnostics: before a script is started, and of one that has run, whether it failed or
not."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from functools import partial
from typing import Final

from cellblock.base.errors import shorten
from cellblock.base.raw_json import RawJson, weight_of
from cellblock.base.settings.settings import RunSettings, TypecheckMode
from cellblock.run.answers import ValueNote, made_in
from cellblock.run.failure import CORRECT_IT, MISSING
from cellblock.run.request import RunRequest
from cellblock.run.response import Diagnostic, RunResponse, Severity
from cellblock.run.side_checks import SideCheck
from cellblock.script.lines import SCRIPT_NAME, line_of, place
from cellblock.tools.upstream.definitions import shown
from cellblock.types.check.checker import Checked, TypeChecker, TypeFault
from cellblock.types.check.compiler import FIX
from cellblock.types.check.faults import IF_THERE, MAX_SHOWN

CHECK_SECONDS: Final = 0.5
"""Bounds a type check where nothing else is said: beside a run it bounds the compiler's work."""

HOLD_SECONDS: Final = 0.03
"""Bounds how long a response waits for the check beside its run behind those of other scripts; later findings come with
the client's next one."""

OF_THE_SCRIPT: Final = frozenset({"UNCAUGHT_EXCEPTION", "IMPORT_FAILURE"})
"""Lists failures that a type error may be behind, as one about tools may be behind a limit; of a host that is gone, the
types say nothing."""

MAX_WEIGHT: Final = 1_000
"""Bounds the values of a result whose texts are looked at, in 0.1 ms: what is larger is data of tools."""

MAX_QUOTED_CHARS: Final = 80
"""Bounds the characters of the line of an earlier script that is quoted."""

_BEGINNING: Final = re.compile(r"(?<=\")1970-01-\d\d")
"""Matches the date that becomes of null, and of seconds."""

_OF_PAGES: Final = re.compile(
    r"(?i:cursor|token|next|more|truncated|incomplete|offset|skip|\bpages?\b|last_?page|total_?(?:count|items|pages|results))"
    r"|\.total\b|\{[^{}]{0,80}\btotal\b[^{}]{0,80}\}\s{0,3}\}?\s{0,3}=(?![=>])"
    r"|\b(?:first|limit|max\w{0,20}|n|page_?[sS]ize|per_?[pP]age|top)[\"']?\s?:\s?[1-4]?\d\b"
)
"""Matches what a script says of parts of a list: that it knows of them, or wants few."""

_STOPS_EARLY: Final = re.compile(
    r"for \(let (?P<page>\w+) = [12]; ?(?P=page) < [\w$.]*pages;|while \([\w$.]+\.(?P<member>\w*(?i:more|next)\w*)\)"
)
"""Matches loops that leave out the last page, or go on for a member that answers may not have."""

_OF_REFUSALS: Final = re.compile(r"(?i:error|fail|refus)|\b(?:ok|success)\b")
"""Matches what a script says of answers that may be refusals."""

LATE: Final = Diagnostic(
    severity="info",
    code="TYPECHECK_UNAVAILABLE",
    message="The script is still being type-checked.",
    hint="What is found comes with your next response.",
)


class TypeErrors:
    """Finds the type errors that a response tells.

    Args:
        settings: The mode, and how long is waited for a check.
        checker: None where type checking is switched off.
    """

    def __init__(self, settings: RunSettings, checker: TypeChecker | None) -> None:
        self._default: TypecheckMode = settings.typecheck
        self._explicit = "typecheck" in settings.model_fields_set
        self._checker = checker
        self._given = settings.typecheck_timeout_ms

    @property
    def check_seconds(self) -> float:
        """Bounds a check, and the wait of a script that is checked before it starts."""
        return CHECK_SECONDS if self._given is None else self._given / 1000

    def mode(self, request: RunRequest) -> TypecheckMode:
        """Says when this request's script is checked."""
        return request.typecheck or self._default

    async def before(self, side: SideCheck) -> tuple[list[Diagnostic], list[Diagnostic]]:
        """Gives the errors that refuse a script, and the notices that belong to its response in any case.

        A script that cannot be checked is not refused: the notice says that it was not.
        """
        checked = await side.outcome()
        if checked is None or checked.gave_up is not None:
            return [], [self._notice(checked, side)]
        if not checked.faults:
            return [], []
        # Against open types only what is certainly wrong is left, and with it a slip of the pen refuses a script.
        certain = await side.certain()
        slips = [fault for fault in checked.faults if fault.slip]
        told = {(fault.line, fault.column): fault for fault in [*slips, *certain.faults]}
        errors = _diagnostics([told[place] for place in sorted(told)], "error", side.name)
        if errors:
            said = f"{errors[0].message} The script was not started, and no tool was called."
            errors[0] = errors[0].model_copy(update={"message": said})
        # What counts of the rest is known after the run only; in a script that is refused, all of it is told.
        rest = [
            fault
            for fault in checked.faults
            if errors and not fault.about.texts[0] and (fault.line, fault.column) not in told
        ]
        return errors, _diagnostics(rest, "warning", side.name)

    async def after(
        self, response: RunResponse, request: RunRequest, side: SideCheck, *, is_last: bool = False
    ) -> RunResponse:
        """Gives the response, with what is wrong in the script by its types: of one that succeeded too, if it
        is known soon. What is found too late for its client's last response could never be told."""
        await side.learn()
        hold = self.check_seconds if is_last or self._given is not None else HOLD_SECONDS
        found = await (
            self._of_success(response, side, hold)
            if response.ok
            else self._of_failure(response, request, side, hold)
        )
        if found:
            lines = {_line_of(one) for one in found if one.code == "TYPE_ERROR"}
            told = [*(_without_default(one, lines) for one in response.diagnostics), *found]
            response = response.model_copy(update={"diagnostics": told})
        return response

    async def _of_success(self, response: RunResponse, side: SideCheck, hold: float) -> list[Diagnostic]:
        if self._checker is None or not side.is_about_tools:
            return []
        checked, told = await side.outcome(hold), _of_texts(response, side)
        look, of_values = partial(side.answers.of_values, side.code, side.schemas), list[ValueNote]()
        if side.value_uses:
            of_values = look() if side.answers.are_light(side.value_uses) else await asyncio.to_thread(look)
        told += _of_pages(side) + _of_refusals(side)
        if checked is None:
            side.tell_later(partial(_late, side))
            return told + [_of_value(side, one) for one in of_values[:MAX_SHOWN]]
        missed = await _missed(checked, side)
        # Of one that a declared enum does not have, that is told.
        absent = {fault.about.absent for fault in missed}
        told += [_of_value(side, one) for one in of_values[:MAX_SHOWN] if one.absent not in absent - {""}]
        return [*told, *_diagnostics(missed, "warning", side.name)]

    async def _of_failure(
        self, response: RunResponse, request: RunRequest, side: SideCheck, hold: float
    ) -> list[Diagnostic]:
        failures = OF_THE_SCRIPT | {"SANDBOX_LIMIT"} if side.is_about_tools else OF_THE_SCRIPT
        if not any(found.code in failures for found in response.diagnostics):
            return []
        # What could not be checked before was told then.
        asked = self.mode(request) != "before" and (request.typecheck is not None or self._explicit)
        if self._checker is None and not asked:
            return []
        checked = await side.outcome(hold)
        if checked is None:
            side.tell_later(partial(_late, side, failed=True))
            return [LATE] if asked else []
        if checked.gave_up is not None:
            # Who did not ask for a check is not told that there was none: `cellblock doctor` does that.
            return [self._notice(checked, side)] if asked else []
        # The engine has told a missing export already, at the same place.
        told = {found.path for found in response.diagnostics if found.code == "IMPORT_FAILURE"}
        found = _diagnostics(await _missed(checked, side, failed=True), "warning", side.name)
        return [fault for fault in found if fault.path not in told]

    def _notice(self, checked: Checked | None, side: SideCheck) -> Diagnostic:
        why = checked.gave_up if checked is not None else f"it took over {side.bound_seconds:g} s"
        if self._checker is None:
            hint = "Set cellblock.typecheck to after or before in the configuration."
        elif self._checker.unavailable is not None:
            hint = FIX
        else:
            hint = "Read the script against the declarations of its tools."
        message = f"The script was not type-checked: {why}."
        return Diagnostic(severity="info", code="TYPECHECK_UNAVAILABLE", message=message, hint=hint)


def _line_of(one: Diagnostic) -> str:
    return (one.path or "").rpartition(":")[0]


def _without_default(one: Diagnostic, lines: set[str]) -> Diagnostic:
    """Gives a diagnostic as it is told beside type errors in these lines: a default would hide what is known to have
    made it."""
    if lines and (one.code, one.severity == "error") == ("RESULT_NOT_JSON", False):
        return one.model_copy(update={"hint": None})
    said = one.hint and one.hint.replace(MISSING, CORRECT_IT[1])
    return one.model_copy(update={"hint": said}) if _line_of(one) in lines else one


def _of_texts(response: RunResponse, side: SideCheck) -> list[Diagnostic]:
    """Tells of a text, in the result or in an input of a tool, that an object, or a missing value, has become part of;
    and of a date in the result that null or seconds have become."""
    hint = "Read a field of the object, await the promise, or give a default: `value ?? …`."
    made = "what it was made of is an object, missing, null or no number."
    told = [
        Diagnostic(
            severity="warning",
            code="TYPE_ERROR",
            message=f"A text in the input of `{shown(tool)}` has `{text}` in it: {made}",
            hint=hint,
        )
        for text, tool in side.answers.inputs.items()
        if not _is_known(text, side)
    ]
    if isinstance(response.result, RawJson) or weight_of(response.result, MAX_WEIGHT) > MAX_WEIGHT:
        return told
    result = json.dumps(response.result, ensure_ascii=False)
    found, date = made_in(result), _BEGINNING.search(result)
    if found is not None and not _is_known(found, side):
        message = f"A text of the result has `{found}` in it: {made}"
        told.append(Diagnostic(severity="warning", code="RESULT_NOT_JSON", message=message, hint=hint))
    if date is not None and not _is_known(date[0], side) and "Date(0" not in side.code:
        told.append(
            Diagnostic(
                severity="warning",
                code="TYPE_ERROR",
                message=f"A date of the result is of {date[0]}: null became one, or a number of seconds.",
                hint="Leave out what is null; `new Date(…)` takes milliseconds: multiply seconds by 1000.",
            )
        )
    return told


def _of_pages(side: SideCheck) -> list[Diagnostic]:
    """Tells of the tools whose last answer was not the last part, where the script says nothing of parts."""
    stops = _STOPS_EARLY.search(side.code)
    is_none = stops is not None and stops["member"] and not side.answers.may_have(stops["member"])
    if _OF_PAGES.search(side.code) and not (is_none or (stops is not None and stops["page"])):
        return []
    return [
        Diagnostic(
            severity="info",
            code="TOOL_RESULT_NOTE",
            message=f"`{shown(tool)}` said with `{member}` that there is more, which the script has not asked for.",
            hint="If it wants all, call it again for the next part, until there is none.",
        )
        for tool, member in side.answers.unread()
    ]


def _of_refusals(side: SideCheck) -> list[Diagnostic]:
    """Tells of answers that say that the tool has not done what was asked, where the script asks for no such."""
    if _OF_REFUSALS.search(side.code):
        return []
    return [
        Diagnostic(
            severity="warning",
            code="TOOL_RESULT_NOTE",
            message=f"`{shown(tool)}` has answered, and not failed: {shorten(said, MAX_QUOTED_CHARS)}",
            hint="Look at what it answers before you count it as done.",
        )
        for tool, said in side.answers.refusals(side.code).items()
    ]


def _is_known(text: str, side: SideCheck) -> bool:
    in_code = text in side.code or text.replace('"', "'") in side.code
    return in_code or side.answers.may_say(text)


def _of_value(side: SideCheck, note: ValueNote) -> Diagnostic:
    line, column = place(side.code.encode("utf-8", "replace").decode(), note.at)
    return Diagnostic(
        severity="warning" if note.is_wrong else "info",
        code="TYPE_ERROR",
        message=note.message,
        hint=note.hint,
        path=f"{side.name}:{line}:{column}",
    )


def _counted(checked: Checked, side: SideCheck) -> list[TypeFault]:
    """Gives what counts in a script that has run: not a text that was taken for a value, where it was one after all,
    nor what is wrong with other texts than a field has."""
    return [
        fault
        for fault in checked.faults
        if (not fault.about.is_text or side.answers.may_be_text(fault.tool))
        and (not fault.about.texts[0] or side.answers.holds(*fault.about.texts))
    ]


async def _missed(checked: Checked, side: SideCheck, *, failed: bool = False) -> list[TypeFault]:
    """Gives what counts in a script that has run: where it succeeded, not what a result has after all, whatever is
    declared."""
    told: list[TypeFault] = []
    is_of_values = any(fault.about.texts[0] for fault in checked.faults)
    counted = await asyncio.to_thread(_counted, checked, side) if is_of_values else _counted(checked, side)
    for fault in counted:
        about, name, around = fault.about, fault.about.absent, None
        if name:
            look = partial(side.answers.place_of, name, fault.beside, fault.tool, about.compared)
            around = await asyncio.to_thread(look)
        if around:
            is_path = about.subject and re.fullmatch(r"[\w$.]+", around)
            way = f": read `{about.subject}.{around}.{name}`" if is_path else ""
            fault = replace(fault, hint=f"`{name}` is in `{around}`{way}.")
        # What only a good answer has is read where one was asked for.
        is_other_branch = around is None and any(
            f"{about.subject}.{flag}" in side.code and side.answers.may_be_false(flag)
            for flag in re.findall(r"\b(\w+): boolean", about.receiver)
        )
        if is_other_branch and not failed:
            continue
        if name and not failed:
            fault = replace(fault, message=f"{fault.message} No result of this run had it there.")
        if failed or around != "":
            told.append(fault)
    return told[:MAX_SHOWN]


async def _late(side: SideCheck, checked: Checked, *, failed: bool = False) -> list[Diagnostic]:
    return _earlier(await _missed(checked, side, failed=failed), side.code)


def _earlier(faults: list[TypeFault], code: str) -> list[Diagnostic]:
    """Makes the diagnostics of a script whose response is gone: its places would be taken for those of another."""
    found: list[Diagnostic] = []
    for fault, diagnostic in zip(faults, _diagnostics(faults, "warning"), strict=True):
        line = line_of(code, fault.line).strip()
        if len(line) > MAX_QUOTED_CHARS:
            start = max(0, fault.column - MAX_QUOTED_CHARS // 2)
            line = f"{'…' if start else ''}{line[start : start + MAX_QUOTED_CHARS]}…"
        message = f"In an earlier script of yours, at `{line}`: {diagnostic.message}"
        found.append(diagnostic.model_copy(update={"message": message, "path": None}))
    return found


def _diagnostics(faults: list[TypeFault], severity: Severity, name: str = SCRIPT_NAME) -> list[Diagnostic]:
    # In one that has run, it would hide what is wrong.
    dropped = "" if severity == "error" else IF_THERE
    return [
        Diagnostic(
            severity=severity,
            code="TYPE_ERROR",
            message=fault.message,
            hint=fault.hint and fault.hint.replace(dropped, ""),
            path=f"{name}:{fault.line}:{fault.column}",
        )
        for fault in faults
    ]
