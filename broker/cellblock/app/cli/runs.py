"""`runs`: what is written down of runs, and answers to those that wait for a person, for the user of this machine."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from cellblock.app.assembly import store_of
from cellblock.app.broker import Broker
from cellblock.app.cli.arguments import default_file
from cellblock.app.cli.help import EXIT_NO, EXIT_OK
from cellblock.app.cli.loading import of_state, opened, with_state_dir
from cellblock.app.cli.streams import agreed, answer, asks, say, write_data, write_json
from cellblock.base import payload
from cellblock.base.database import StoreError
from cellblock.base.errors import ConfigError
from cellblock.base.json import is_object
from cellblock.base.questions import Answer, ParkedQuestion, QuestionId, Reply
from cellblock.base.redaction import redacting
from cellblock.base.settings.sections import MIB
from cellblock.base.settings.settings import Settings
from cellblock.base.tasks import in_background
from cellblock.base.terminal import Painter, cell, harmless, milliseconds, plain, spelled_out, wrapped
from cellblock.observe.audit import FILE_NAME, AuditLog
from cellblock.observe.logs import logging_as_configured
from cellblock.record.journals import open_store
from cellblock.record.recording import Recording
from cellblock.record.rows import WAITING, Head, Piece, recording_in
from cellblock.record.store import JOURNAL_TABLES, JournalStore
from cellblock.record.views import NO_END, ParkedRun, head_data, parked_run, question_data, shown
from cellblock.run.events import Decision
from cellblock.run.hook import CANCELLED
from cellblock.run.policy.asking import flow_of
from cellblock.tools.schemas.replies import WrongAnswer


def show_all(parsed: argparse.Namespace) -> None:
    """Prints which runs are kept, the newest first. Raises ConfigError: they cannot be read."""
    settings = of_state(parsed)
    heads: list[Head] = []
    if store_of(settings).exists(JOURNAL_TABLES):
        with opened_runs(settings) as store:
            heads = store.heads(parsed.client, limit=parsed.limit, state="parked" if parsed.parked else None)
    text = "No run waits.\n" if parsed.parked else "No run is kept.\n"
    if heads:
        lines = [_line("RUN", "BEGAN", "OUTCOME", "CALLS", "SIZE", "CLIENT"), *map(_line_of, heads)]
        text = "".join(f"{harmless(line)}\n" for line in lines)
    answer(parsed, [head_data(head) for head in heads], text)


def show(parsed: argparse.Namespace) -> None:
    """Prints one run.

    Raises:
        ConfigError: It is not kept, or cannot be read.
    """
    settings = of_state(parsed)
    head, pieces = _read(settings, parsed.run)
    run = shown(head, pieces)
    run = _with_calls(run, pieces) if parsed.values else without_values(run)
    run = redacting(settings.servers.values())(run)
    width = max(40, shutil.get_terminal_size((120, 24)).columns)
    lines = [title(parsed.run, run)]
    for question in run.get("waitsFor", ()):
        lines += ["", *_question_lines(question, values=parsed.values)]
    if head.state == "parked":
        lines += ["", f"to go on when it is answered, {_how_it_goes_on(parsed, parked_run(head, pieces))}"]
    for heading, below in parts(run, width, Painter(sys.stdout)).items():
        lines += ["", heading, *below]
    if not parsed.values:
        lines += ["", "--values shows the script, its console output, and what its calls sent and got."]
    values = [harmless(f"\n{heading}\n{text}\n") for heading, text in _values(run)] if parsed.values else []
    answer(parsed, run, "".join([*(f"{line.rstrip()}\n" for line in lines), *values]))


def delete(parsed: argparse.Namespace) -> None:
    """Deletes runs. Raises ConfigError: One is not kept, or cannot be deleted."""
    with opened_runs(of_state(parsed)) as store:
        for run_id in parsed.runs:
            if not store.delete(run_id):
                raise _unknown(run_id)
            sys.stdout.write(f"deleted {run_id}\n")


def kept_recording(parsed: argparse.Namespace, run_id: str) -> Recording:
    """Returns the recording of a kept run.

    Raises:
        ConfigError: It is not kept, cannot be read, or was not recorded.
        UnreadableRecording: Another release has made it.
    """
    recording = recording_in(_read(of_state(parsed), run_id)[1], decoded=True)
    if recording is None:
        raise ConfigError(
            f"Run {run_id} is kept without a recording: it held too much, or its script has texts that are no Unicode.",
            hint=f"`cellblock runs show {run_id} --values` shows what is kept.",
        )
    return recording


def _question_lines(question: dict[str, Any], *, values: bool) -> list[str]:
    """Returns what is shown of what a run waits for: what a server or Cellblock says to its user, too."""
    call = f"call {question['call']} of {question['server']}.{question['tool']}"
    match question["kind"]:
        case "approval":
            lines = [f"waits until you allow {call}"]
            if question["said"]:
                flow = json.loads(question["request"])
                lines.append(f"  {question['said']}")
                seen = flow["found"] if values else ()
                lines += [f"  found in it of what the run has read: {text}" for text in seen]
                lines.append(f"  to allow it always (--always): {flow['rule']}")
        case "login":
            lines = [f"waits for a login, for {call}: {question['said']}"]
        case kind:
            lines = [f"waits for an answer ({kind}, question {question['number']}) to {call}"]
            lines += [f"  it asks: {question['said']}"] if question["said"] else []
    if values:
        is_cut = question["bytes"] > len(question["input"].encode("utf-8", "surrogatepass"))
        rest = f"… ({question['bytes']:,} bytes in all)" if is_cut else ""
        lines.append(f"  input: {question['input']}{rest}")
        lines += [f"  request: {question['request']}"] if question["kind"] == "elicitation" else []
    # What servers and scripts say; a person decides by it.
    return [spelled_out(line) for line in lines]


def opened_runs(settings: Settings) -> contextlib.AbstractContextManager[JournalStore]:
    """Opens the kept runs for a while; raises ConfigError where there are none, or they cannot be used."""
    store, section = store_of(settings), settings.cellblock
    if not store.exists(JOURNAL_TABLES):
        raise ConfigError(
            f"No run was kept yet: there is no {settings.state_dir / JOURNAL_TABLES.file}.",
            hint='Set "cellblock": {"journal": "all"}, or "failed". Is it the daemon\'s --state-dir?',
        )
    return opened(
        settings,
        "The kept runs",
        lambda: contextlib.closing(open_store(store, section.auth, section.journal)),
    )


def without_values(run: dict[str, Any]) -> dict[str, Any]:
    """Returns what is shown of a run without what its script has said or seen."""
    left = {key: part for key, part in run.items() if key != "script"}
    return left | {"logs": [], "logsLeftOut": len(run["logs"]) + run["logsLeftOut"]}


# ---- inside ------------------------------------------------------------------------------------------


def _read(settings: Settings, run_id: str) -> tuple[Head, list[Piece]]:
    with opened_runs(settings) as store:
        found = store.read(run_id)
    if found is None:
        raise _unknown(run_id)
    return found


def _unknown(run_id: str) -> ConfigError:
    return ConfigError(f"No run {run_id} is kept.", hint="`cellblock runs list` shows those that are.")


def _line_of(head: Head) -> str:
    return _line(
        head.id,
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(head.began)),
        head.outcome or ("waits for you" if head.state == "parked" else NO_END),
        str(head.calls),
        f"{head.bytes / 1024:,.1f} KiB",
        head.principal,
    )


def _line(*values: str) -> str:
    widths = (16, 19, 24, 5, 12, 24)
    cells = (cell(value, width, right=width in (5, 12)) for value, width in zip(values, widths, strict=True))
    return "  ".join(cells).rstrip()


def _with_calls(run: dict[str, Any], kept: list[Piece]) -> dict[str, Any]:
    """Returns what is shown of a run, with what its calls sent and got where that was recorded."""
    recording = recording_in(kept, decoded=True)
    calls = [
        {
            "name": call.name,
            "input": decoded(call.input),
            "ok": call.ok,
            "answer": decoded(call.answer),
        }
        for call in ([] if recording is None else recording.calls)
    ]
    return run | {"values": calls, "result": recording and (recording.response or {}).get("result")}


def decoded(body: bytes) -> Any:
    """Returns what a body says, or its text where it is no JSON."""
    try:
        return payload.decode(body) if body else None
    except payload.PayloadError:
        return body.decode("utf-8", "replace")


def _values(run: dict[str, Any]) -> Generator[tuple[str, str]]:
    yield "SCRIPT", run["script"]
    for number, call in enumerate(run["values"], 1):
        answer = "no answer" if call["ok"] is None else "answer" if call["ok"] else "error"
        sent, got = (json.dumps(call[part], ensure_ascii=False) for part in ("input", "answer"))
        yield f"CALL {number}: {call['name']}", f"input: {sent}\n{answer}: {got}"
    yield "RESULT", json.dumps(run["result"], ensure_ascii=False, indent=2)


TAKEN_SECONDS: Final = 6.0
"""Bounds the wait for a daemon to go on with a run; one looks every 2 s."""

POLL_SECONDS: Final = 0.1

BY: Final = "cli"
"""Names who has decided, in the audit log: who can write to the state directory."""


def approve(parsed: argparse.Namespace) -> None:
    """Allows the calls of a parked run, and answers its servers. Raises ConfigError: It does not wait, or the answer
    does not fit."""
    _answer(parsed, "accepted", parsed.answer, always=parsed.always)


def deny(parsed: argparse.Namespace) -> None:
    """Refuses the calls of a parked run, whose script is told so. Raises ConfigError: It does not wait."""
    _answer(parsed, "declined")


def cancel(parsed: argparse.Namespace) -> None:
    """Ends a parked run. Raises ConfigError: It does not wait."""
    settings = of_state(parsed)
    with opened_runs(settings) as store, _audited(settings) as tell:
        if not store.end(parsed.run, CANCELLED):
            raise _waits_not(parsed.run, store.head(parsed.run))
        tell(Decision(run=parsed.run, verdict="cancelled", calls=(), by=BY))
    sys.stdout.write(f"{parsed.run} is ended\n")


def resume(parsed: argparse.Namespace) -> Coroutine[Any, Any, int]:
    """Goes on with a parked run that has its answers, in this process, and prints its response.

    Raises:
        ConfigError: It does not wait, or has no answer yet.
    """
    settings = with_state_dir(parsed).for_one_run()
    with opened_runs(settings) as store:
        waiting = _waiting(store, parsed.run)
    if waiting.questions:
        raise ConfigError(
            f"Run {parsed.run} waits for answers: {_named(waiting.questions)}.",
            hint=f"`cellblock runs approve {parsed.run}` allows the calls, `cellblock runs deny` refuses them.",
        )
    return _resumed(parsed.run, settings, f"To go on, {_how_it_goes_on(parsed, waiting)}.")


async def _resumed(run_id: str, settings: Settings, hint: str) -> int:
    with logging_as_configured(settings.cellblock.log, settings.servers.values()):
        async with Broker(settings) as broker, in_background(broker.installed(say)):
            try:
                await broker.parked_runs.answer(run_id, {})
                response = await broker.parked_runs.outcome(run_id)
            except StoreError as error:
                raise ConfigError(f"Run {run_id} does not go on here: {error}.", hint=hint) from None
    if response is None:
        raise _waits_not(run_id)
    write_json(response.decoded().as_json())
    return EXIT_OK if response.ok else EXIT_NO


def _answer(
    parsed: argparse.Namespace, answer: Answer, form: str | None = None, *, always: bool = False
) -> None:
    named: list[str] = parsed.call
    settings = of_state(parsed)
    with opened_runs(settings) as store, _audited(settings) as tell:
        waiting = _waiting(store, parsed.run)
        questions = waiting.questions
        if not questions:
            raise _waits_not(parsed.run)
        if unknown := [name for name in named if not any(_is_meant(name, one) for one in questions)]:
            raise ConfigError(
                f"Run {parsed.run} does not wait for call {unknown[0]}.",
                hint=f"`cellblock runs show {parsed.run}` lists what it waits for.",
            )
        meant = [
            question
            for question in questions
            if not named or any(_is_meant(name, question) for name in named)
        ]
        given = answer if form is None else _filled_in(form, meant)
        asked = redacting(settings.servers.values())([*map(question_data, meant)])
        write_data("".join(f"{line}\n" for one in asked for line in _question_lines(one, values=True)))
        if answer == "accepted" and asks() and not agreed("Allow this always?" if always else "Allow this?"):
            sys.stdout.write("Nothing was answered.\n")
            return
        for rule in [json.loads(flow.rule) for one in meant if always and (flow := flow_of(one)) is not None]:
            # It imports what edits files.
            from cellblock.app.cli.flows import write_rule

            write_data(harmless(f"written: {write_rule(parsed.config, rule)}\n"))
        try:
            found = store.answer(parsed.run, {question.id: given for question in meant})
        except WrongAnswer as error:
            raise ConfigError(
                error.message,
                hint=f"`cellblock runs show {parsed.run} --values` shows its form, --answer takes the fields.",
            ) from None
        if found is None:
            raise _waits_not(parsed.run, store.head(parsed.run))
        head, _, known, _ = found
        done = [question for question in questions if question.id in known]
        left = [question for question in questions if question.id not in known]
        if done:
            tell(
                Decision(
                    run=parsed.run, verdict=answer, calls=tuple(question.call for question in done), by=BY
                )
            )
        write_data(harmless(f"{answer}: {_named(done)}\n"))
        if left:
            write_data(harmless(f"{head.id} still waits: {_named(left)}\n"))
        elif head.owner is not None:
            sys.stdout.write(f"{head.id} goes on when its tools have answered\n")
        elif _is_taken(store, head.id):
            sys.stdout.write(f"{head.id} goes on\n")
        else:
            sys.stdout.write(f"no daemon goes on with it yet: {_how_it_goes_on(parsed, waiting)}\n")


def _how_it_goes_on(parsed: argparse.Namespace, run: ParkedRun) -> str:
    """Says with which configuration a parked run goes on, and by which command."""
    words = ["cellblock", "runs", "resume", run.id]
    words += ["--config", run.config] if run.config not in ("", str(default_file())) else []
    words += ["--state-dir", str(parsed.state_dir)] if parsed.state_dir is not None else []
    return f"start a daemon with {run.config or 'its configuration'}, or run `{shlex.join(words)}`"


def _is_meant(name: str, question: ParkedQuestion) -> bool:
    """Says whether a question is named, by its own name or that of its call."""
    try:
        return QuestionId.parse(name) in (question.id, QuestionId(question.call))
    except ValueError:
        return False


def _filled_in(form: str, meant: Sequence[ParkedQuestion]) -> Reply:
    """Returns the answer to the one form that is meant. Raises ConfigError: There is none, or more."""
    try:
        content: object = json.loads(form)
    except (ValueError, RecursionError):
        content = None
    if not is_object(content):
        raise ConfigError(
            "--answer is no JSON object.", hint='It has the fields of the form: {"name": "Ann"}.'
        )
    if [question.kind for question in meant] != ["elicitation"]:
        raise ConfigError(
            "--answer is for one question of a server, and that is not what is meant.",
            hint="--call N names its call; `cellblock runs show` lists what the run waits for.",
        )
    return {"action": "accept", "content": content}


@contextlib.contextmanager
def _audited(settings: Settings) -> Generator[Callable[[Decision], None]]:
    """Gives what writes decisions to the audit log, where there is one: opened first, so that none is without its line.

    Raises:
        ConfigError: It cannot be written.
    """
    audit, state_dir = settings.cellblock.audit, settings.state_dir
    if not ("calls" in audit or (audit != "off" and (state_dir / FILE_NAME).exists())):
        yield lambda decision: None
        return
    with contextlib.closing(AuditLog(audit, state_dir)) as log:
        yield log.run_decided


def _waiting(store: JournalStore, run_id: str) -> ParkedRun:
    read = store.read(run_id, kinds=WAITING)
    if read is None or read[0].state != "parked":
        raise _waits_not(run_id, read and read[0])
    return parked_run(*read)


def _is_taken(store: JournalStore, run_id: str) -> bool:
    until = time.monotonic() + TAKEN_SECONDS
    while time.monotonic() < until:
        try:
            head = store.head(run_id)
        except StoreError:
            return False
        if head is None or head.state != "parked":
            return True
        time.sleep(POLL_SECONDS)
    return False


def _named(questions: Sequence[ParkedQuestion]) -> str:
    return ", ".join(f"call {question.call} of {question.server}.{question.tool}" for question in questions)


def _waits_not(run_id: str, head: Head | None = None) -> ConfigError:
    if head is not None and head.state != "parked":
        state = f"is over ({head.outcome})" if head.state == "ended" else "goes on"
        return ConfigError(
            f"Run {run_id} {state}, and waits for no answer.",
            hint=f"`cellblock runs show {run_id} --values` has its response.",
        )
    return ConfigError(
        f"No run {run_id} waits for an answer.", hint="`cellblock runs list --parked` shows those that do."
    )


Data = Mapping[str, Any]


OUTCOME, TOOK = 10, 9

WORDS: Final = {"parked": "waits for you", "not_sent": "not sent", "not_started": "not sent"}
"""Has what people are shown in place of an outcome's name; `app.js` has it, too."""

STYLES: Final = {"ok": "green", "running": "cyan"}
LEVELS: Final = {"warn": "yellow", "error": "red", "debug": "dim"}


def title(run_id: str, run: Data) -> str:
    state = run["outcome"] if run["state"] == "ended" else run["state"]
    took = f", {milliseconds(run['elapsedMs'])}" if run["steps"] else ""
    return f"run {run_id}: {WORDS.get(state, state)}{took}"


def parts(run: Data, width: int, paint: Painter) -> dict[str, list[str]]:
    """Draws what `/dashboard/runs/ID` gives in its parts: the lines by their headings. All texts of servers and scripts
    are made harmless."""
    calls = f"TIMELINE ({len(run['timeline'])} of {run['calls']} call{'s' * (run['calls'] != 1)})"
    return {
        "RUN": [plain(f"  {cell(name, 10)}{value}", width) for name, value in _facts(run)],
        calls: _timeline(run, width, paint),
        "DIAGNOSTICS": list(_diagnostics(run, width, paint)) or [plain("  none", width)],
        f"CONSOLE ({len(run['logs'])})": list(_logs(run, width, paint)) or [plain("  nothing", width)],
    }


# ---- inside ------------------------------------------------------------------------------------------


def _facts(run: Data) -> Iterator[tuple[str, str]]:
    for name in ("outcome", "state", "client"):
        yield name, WORDS.get(run[name], str(run[name]))
    yield "accepted", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run["acceptedAt"]))
    yield "script", f"{run['scriptChars']} characters"
    used = run["usage"]
    if used is not None:
        yield (
            "used",
            f"CPU {milliseconds(used['cpuMs'])}, memory {used['peakMemoryBytes'] / MIB:.1f} MiB, "
            f"waited for tools {milliseconds(used['toolWaitMs'])}",
        )
    if run["workerEnd"]:
        yield "worker", str(run["workerEnd"])


def _timeline(run: Data, width: int, paint: Painter) -> list[str]:
    whole = run["elapsedMs"]
    name = min(48, max(8, width - 2 * TOOK - OUTCOME - 4))
    lines = [_lane("", "AT", "TOOK", "OUTCOME", name, width)]
    steps = [0, *(run["steps"].get(step, whole) for step in ("queued", "leased", "started")), whole]
    stages = ("plan", "queue", "worker", "script") if run["steps"] else ()
    for stage, (start, end) in zip(stages, pairwise(steps), strict=False):
        lines.append(_lane(stage, milliseconds(start), milliseconds(end - start), "", name, width))
    for call in run["timeline"]:
        took, outcome = call["durationMs"], call["outcome"]
        shown, at = milliseconds(took) if took else "<1 ms", milliseconds(call["atMs"])
        line = _lane(
            f"{call['server']}.{call['tool']}", at, shown, str(WORDS.get(outcome, outcome)), name, width
        )
        lines.append(paint(line, STYLES.get(outcome, "red")))
        if call["error"] and outcome not in STYLES:
            lines += [paint(plain(f"    {text}", width), "red") for text in wrapped(call["error"], width - 4)]
    left = run["calls"] - len(run["timeline"])
    return lines + ([plain(f"  ({left} later calls)", width)] if left > 0 else [])


def _lane(name: str, at: str, took: str, outcome: str, named: int, width: int) -> str:
    times = f"{cell(at, TOOK, right=True)} {cell(took, TOOK, right=True)}"
    return plain(f"{cell(f'  {name}', named)} {times} {outcome}", width)


def _diagnostics(run: Data, width: int, paint: Painter) -> Iterator[str]:
    for entry in run["diagnostics"]:
        style = "red" if entry["severity"] == "error" else "yellow"
        for number, text in enumerate(wrapped(f"{entry['code']}: {entry['message']}", width - 4)):
            yield paint(plain(f"{'    ' if number else '  '}{text}", width), style)


def _logs(run: Data, width: int, paint: Painter) -> Iterator[str]:
    if run["logsLeftOut"]:
        yield paint(plain(f"  log entries that are not shown: {run['logsLeftOut']}", width), "dim")
    for entry in run["logs"]:
        head = f"{entry['timeMs']:>8} ms  {cell(entry['level'], 6)}"
        # In a narrow window the message goes below, not into a column of three letters.
        apart = width < 2 * len(head)
        indent = 2 if apart else len(head)
        lines = [f"{' ' * indent}{text}" for text in wrapped(entry["message"], width - indent)]
        lines = [head, *lines] if apart else [head + lines[0][indent:], *lines[1:]]
        style = LEVELS.get(entry["level"])
        for line in lines:
            yield paint(plain(line, width), style) if style else plain(line, width)
