"""Makes the diagnostics of runs that did not end by themselves: which limit, or whose fault."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from typing import Final

from cellblock.base.errors import Certainty, shorten
from cellblock.base.questions import ParkedQuestion
from cellblock.run.calls import CallCounts
from cellblock.run.events import CallFacts
from cellblock.run.failure import memory_limit
from cellblock.run.hook import Parked
from cellblock.run.request import Limits
from cellblock.run.response import Diagnostic, error_diagnostic
from cellblock.script.conventions import RESULT_NAME
from cellblock.script.lines import place
from cellblock.script.source import Script
from cellblock.script.unawaited import Unawaited
from cellblock.tools.catalog.model import Catalog
from cellblock_worker.wire import protocol

MAX_NAMED: Final = 5
"""Bounds the calls that a diagnostic names."""

SEND_AGAIN: Final = "No tool call ran or may have run: the script can be sent again as it is."

CHECK: Final = "Check what these calls did before you run the script again."

PARKED: Final = (
    " The run is written down and goes on from here when the answer is there; its process has ended."
)

_LOOP: Final = re.compile(r"\b(?:for(?:\s+await)?|while)\s*\(")
_ENDLESS: Final = re.compile(r"\bwhile\s*\(\s*(?:true|1)\s*\)|\bfor\s*\(\s*;\s*;")

MAX_SAID_CHARS: Final = 500
"""Bounds what a diagnostic says of a login that is needed."""


def limit_diagnostic(message: str, hint: str, path: str | None = None) -> Diagnostic:
    """Makes a `SANDBOX_LIMIT` diagnostic (Code Mode specification, section 7.4)."""
    return error_diagnostic("SANDBOX_LIMIT", message, hint, path, "SandboxLimitError")


def call_limit(maximum: int) -> Diagnostic:
    """Says that the script made more calls than it was given."""
    return limit_diagnostic(
        f"The script made more tool calls than it may: limits.maxToolCalls = {maximum}.",
        "Make fewer calls, or ask for a larger limits.maxToolCalls.",
        "/limits/maxToolCalls",
    )


def query_limit(maximum: int) -> Diagnostic:
    """Says that the script asked the catalog more often than it may; no request can raise that."""
    return limit_diagnostic(
        f"The script made more than {maximum} discovery requests.",
        "Ask once and keep the answer: list or search outside of loops.",
    )


def not_shown(catalog: Catalog) -> Diagnostic:
    """Says which servers the lists and searches of a script did not cover."""
    return Diagnostic(
        severity="warning",
        code="NOT_CONNECTED",
        message=f"Lists and searches show connected servers alone.{catalog.who_is_lost()}",
        hint="Send the same script again: servers are still starting."
        if catalog.starting & catalog.unavailable.keys()
        else "Do without them, or tell the user: `cellblock doctor` says what to do.",
    )


def no_result(script: Script, *, logged: bool) -> Diagnostic:
    """Says of a script that has ended with an undefined result what it forgot, unless it has shown something in
    logs."""
    if script.entry is not None and script.entry.kind == "call" and script.fix:
        said = "What the script's last call gives is undefined, so its result is null."
        hint = script.fix
    elif script.entry is not None:
        said = "What the script exports or returns is undefined, so its result is null."
        hint = f"Return a value on every way through the script, or assign one: `globalThis.{RESULT_NAME} = value;`"
    elif script.fix is None:
        said = f"globalThis.{RESULT_NAME} is undefined at the end of the script, so its result is null."
        hint = (
            "No run waits for `setTimeout`: await `new Promise((done) => setTimeout(done, …))`, then assign a value."
            if "setTimeout(" in script.code
            else "Assign a value on every way through the script; null if there is none: `… = value ?? null;`"
        )
    else:
        said = f"The script assigned nothing to globalThis.{RESULT_NAME}, so its result is null."
        hint = script.fix
    return Diagnostic(
        severity="info" if logged else "warning",
        code="NO_RESULT",
        message=said,
        hint=hint,
        path=script.entry_place,
    )


def run_parked(run_id: str, parked: Parked) -> Diagnostic:
    """Says that a run waits for a person, and how it goes on."""
    before = [question for question in parked.questions if question.kind == "approval"]
    logins = [question for question in parked.questions if question.kind == "login"]
    asked = [question for question in parked.questions if question.is_of_server]
    said: list[str] = []
    if before:
        said.append(f"waits until the user allows its calls: {_named(before)}. They were not made.")
    if logins:
        why = shorten(logins[0].said, MAX_SAID_CHARS)
        said.append(f"waits for a login, for calls that were not made: {_named(logins)}. {why}")
    if asked:
        said.append(f"waits for the user's answer to what servers ask during calls: {_named(asked)}.")
    hint = (
        "Do not run the script again. The user answers on the page that `cellblock dashboard` opens, or by a command: "
        f"`cellblock runs approve {run_id}` lets it go on, `cellblock runs deny {run_id}` "
    )
    return Diagnostic(
        severity="warning",
        code="RUN_PARKED",
        message=f"The run {' It '.join(said)}{PARKED}",
        hint=f"{hint}refuses the calls."
        if before
        else f"{hint}refuses; `cellblock runs show` says what it waits for.",
    )


def not_written_down(parked: Diagnostic, why: str = "") -> Diagnostic:
    """Says that a run which waits for a person has ended, as it could not be written down; `parked` says what for."""
    waits = parked.message.removesuffix(PARKED)
    return error_diagnostic(
        "RUN_NOT_PARKED",
        f"{waits} It could not be written down{f': {why}' if why else ''}, so it has ended.",
        "Answer or cancel runs that wait, or look whether Cellblock's state directory is full or its PostgreSQL is "
        f"away. {SEND_AGAIN}",
    )


def _named(calls: Sequence[ParkedQuestion | CallFacts]) -> str:
    names = [f"{call.server}.{call.tool}" for call in calls]
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more


NOT_AWAITED: Final = "CALLS_NOT_AWAITED"


def with_unawaited(notices: list[Diagnostic], script: Script) -> list[Diagnostic]:
    """Gives the sandbox's notices, and a warning for each call that the script does not wait for, by its text.

    Whether one was still under way at the end is luck, and the sandbox's notice about it belongs to the first one.
    """
    if not script.unawaited:
        return notices
    late = next((found for found in notices if found.code == NOT_AWAITED), None)
    told: list[Diagnostic] = []
    for path, call in script.unawaited:
        if call.kind == "void":
            continue
        said, hint = _unawaited(call)
        message = f"{said}{f' {late.message}' if late and not told else ''}"
        told.append(Diagnostic(severity="warning", code=NOT_AWAITED, message=message, hint=hint, path=path))
    others = [found for found in notices if found is not late]
    if late is not None and not told:
        # `void` says that the script means it: what became of the call is still to be known.
        others.insert(0, late.model_copy(update={"severity": "info", "hint": None}))
    return [*told, *others]


def _unawaited(call: Unawaited) -> tuple[str, str]:
    """Gives what is wrong with a call that the script does not wait for, and what to write."""
    match call.kind:
        case "each":
            over = call.callee.rpartition(".")[0] or "list"
            said = f"{call.callee}(async …) waits for none of its callbacks: the script may end before they are done."
            return (
                said,
                f"Write `await Promise.all({over}.map(async …))`, or a `for … of` with `await` in it.",
            )
        case "list":
            said = f"{call.callee}(async …) gives promises, which are used here as if they were the values."
            return said, f"Write `await Promise.all({call.callee}(async …))`."
        case "used":
            said = f"{call.callee}(…) gives a promise, which is used here as if it were the value."
            return said, f"Write `(await {call.callee}(…))`."
        case _:
            said = f"{call.callee}(…) is not awaited: the script may end before it is done, and does not see it fail."
            return said, f"Write `await {call.callee}(…)`."


def _lost(why: str, certain: str) -> Diagnostic:
    return error_diagnostic("HOST_LOST", f"The worker host was lost: {why}. {certain}", SEND_AGAIN)


def ending(ended: protocol.Ended, lost: str | None, limits: Limits, *, started: bool) -> Diagnostic:
    """Says why a run ended that did not finish.

    Args:
        ended: The host's last word on the run.
        lost: Why the host is gone, if it is.
        limits: The run's limits.
        started: Whether a worker is known to have been given the script.
    """
    if lost is not None:
        certain = "The script may have run in part." if started else "The script may or may not have started."
        return _lost(lost, certain)
    match ended.reason:
        case "timeout":
            return limit_diagnostic(
                f"The script ran longer than it may: limits.timeoutMs = {limits.timeout_ms}.",
                "Do less in one script, or ask for a larger limits.timeoutMs.",
                "/limits/timeoutMs",
            )
        case "cpu":
            return limit_diagnostic(
                f"The script computed longer than it may: limits.maxCpuMs = {limits.max_cpu_ms}.",
                "Compute less in one script, or ask for a larger limits.maxCpuMs.",
                "/limits/maxCpuMs",
            )
        case "memory":
            return memory_limit(limits.max_memory_bytes)
        case "total_memory":
            return limit_diagnostic(
                "The machine had no memory left, although the script was within its own maxMemoryBytes: "
                f"{ended.detail}.",
                "Run it again when fewer scripts run, or have pool.total_memory_bytes raised or pool.capacity lowered.",
            )
        case "protocol":
            return error_diagnostic(
                "PROTOCOL_VIOLATION",
                f"The worker broke the protocol and was killed: {ended.detail}.",
                "Use only the documented modules and globals; keep inputs and results smaller.",
            )
        case "host_stopping" if started:
            return _lost("it was stopped", "The script may have run in part.")
        case "boot_failed" | "host_stopping":
            return error_diagnostic(
                "WORKER_UNAVAILABLE",
                f"No worker could take the script ({ended.detail or ended.reason}); it was not started.",
                "Run `cellblock doctor`, or try again in a moment.",
            )
        case "cancelled":
            return error_diagnostic(
                "CANCELLED", "The run was cancelled.", "Run the script again if it is still wanted."
            )
        case "crashed" | "finished":
            return error_diagnostic(
                "WORKER_CRASHED",
                f"The worker died ({ended.detail or 'no reason known'}).",
                f"{SEND_AGAIN} If it dies again, make it do less at a time.",
            )


def not_back(replay_ms: int) -> Diagnostic:
    """Says that a run which was to go on has not come to the point where it was parked or lost."""
    return limit_diagnostic(
        "The run was to go on, and did not come back to where it was: its replay took over "
        f"{replay_ms} ms of CPU time, or {protocol.REPLAY_WALL_TIMES} times as long.",
        "Run the script again when the machine has less to do.",
    )


def run_losses(losses: Sequence[str], adopted: int) -> list[Diagnostic]:
    """Says of a run that it has gone on although its process was lost, each time as told, or its broker."""
    said = list(losses)
    if adopted:
        times = f" {adopted} times" if adopted > 1 else ""
        said.append(
            f"The run's broker was lost{times}. The run went on from where it was; calls that were answered are not "
            "made again."
        )
    return [Diagnostic(severity="warning", code="RUN_RESUMED", message=one) for one in said]


def with_certainty(diagnostic: Diagnostic, counts: CallCounts) -> Diagnostic:
    """Gives the end of a run that has called tools, with what is certain about its calls."""
    said = (
        f"{diagnostic.message} Tool calls: {counts.completed} completed, {counts.in_flight} in flight "
        f"(may have run), {counts.not_started} not started."
    )
    return diagnostic.model_copy(update={"message": said})


def with_calls(
    diagnostic: Diagnostic, calls: Sequence[CallFacts], changing: Sequence[CallFacts]
) -> Diagnostic:
    """Gives the end of a run that failed, with the calls that have run, or may have: all of them where it would be sent
    again as it is, else those that may have changed something."""
    hint = diagnostic.hint or ""
    named = calls if SEND_AGAIN in hint else changing
    ran = [call for call in named if call.over and call.certainty is Certainty.COMPLETED]
    unsure = [call for call in named if call not in ran and call.certainty is not Certainty.NOT_STARTED]
    said = [
        f"{what}: {_named(some)}." for what, some in (("Completed", ran), ("May have run", unsure)) if some
    ]
    if not said:
        return diagnostic
    if SEND_AGAIN not in hint:
        # What a script has thrown stays its own words.
        return diagnostic.model_copy(update={"hint": " ".join(filter(None, [hint, *said, CHECK]))})
    hint = hint.replace(SEND_AGAIN, CHECK)
    return diagnostic.model_copy(update={"message": " ".join([diagnostic.message, *said]), "hint": hint})


def with_loops(diagnostic: Diagnostic, script: Script) -> Diagnostic:
    """Gives the diagnostic of a limit with the script's loops before a larger limit: one without end uses up that,
    too."""
    hint, code = diagnostic.hint or "", script.code
    found = [*islice(_ENDLESS.finditer(code), 2)] or [*islice(_LOOP.finditer(code), 2)]
    if not found or "ask for a larger" not in hint:
        return diagnostic
    lines = {place(code, loop.start())[0] for loop in found}
    which = f"the loop in line {lines.pop()} ends" if len(lines) == 1 else "its loops end"
    return diagnostic.model_copy(update={"hint": f"Look whether {which}. If so, {hint[0].lower()}{hint[1:]}"})


def end_not_written(run_id: str) -> Diagnostic:
    """Says of a durable run that others may not know of its end, and so may go on with it."""
    return Diagnostic(
        severity="warning",
        code="END_NOT_WRITTEN",
        message="The end of this durable run could not be written down. Where another broker takes it over, or this "
        "one is lost before it can write, the run goes on from what is written, and may make calls that were refused "
        "here.",
        hint=f"`cellblock runs show {run_id}` says what became of it, when its state directory or PostgreSQL is back.",
    )
