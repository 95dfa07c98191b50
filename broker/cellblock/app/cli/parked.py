"""Parked answers runs that wait for a person: `runs approve|deny|cancel|resume`."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, Final

from cellblock.app.broker import Broker
from cellblock.app.cli.help import EXIT_NO, EXIT_OK
from cellblock.app.cli.loading import with_state_dir
from cellblock.app.cli.runs import opened_runs
from cellblock.app.cli.streams import write_data, write_json
from cellblock.base.database import StoreError
from cellblock.base.errors import ConfigError
from cellblock.base.json import is_object
from cellblock.base.questions import Answer, ParkedQuestion, QuestionId, Reply
from cellblock.base.settings.settings import Settings
from cellblock.base.terminal import harmless
from cellblock.observe.audit import FILE_NAME, AuditLog
from cellblock.observe.logs import logging_as_configured
from cellblock.record.rows import WAITING
from cellblock.record.store import JournalStore
from cellblock.record.views import ParkedRun, parked_run
from cellblock.run.events import Decision
from cellblock.run.hook import CANCELLED
from cellblock.tools.schemas.replies import WrongAnswer

TAKEN_SECONDS: Final = 6.0
"""Bounds the wait for a daemon to go on with a run; one looks every 2 s."""

LOOK_SECONDS: Final = 0.1

BY: Final = "cli"
"""Names who has decided, in the audit log: who can write to the state directory."""


def approve(parsed: argparse.Namespace) -> int:
    """Allows the calls of a parked run, and answers its servers. Raises ConfigError: It does not wait, or the answer
    does not fit."""
    return _answer(parsed, "accepted", parsed.answer)


def deny(parsed: argparse.Namespace) -> int:
    """Refuses the calls of a parked run, whose script is told so. Raises ConfigError: It does not wait."""
    return _answer(parsed, "declined")


def cancel(parsed: argparse.Namespace) -> int:
    """Ends a parked run. Raises ConfigError: It does not wait."""
    settings = with_state_dir(parsed)
    with opened_runs(settings) as store, _audited(settings) as tell:
        if not store.end(parsed.run, CANCELLED):
            raise _waits_not(parsed.run)
        tell(Decision(run=parsed.run, verdict="cancelled", calls=(), by=BY))
    sys.stdout.write(f"{parsed.run} is ended\n")
    return EXIT_OK


def resume(parsed: argparse.Namespace) -> Coroutine[Any, Any, int]:
    """Goes on with a parked run that has its answers, in this process, and prints its response.

    Raises:
        ConfigError: It does not wait, or has no answer yet.
    """
    settings = with_state_dir(parsed).for_one_run()
    with opened_runs(settings) as store:
        questions = _waiting(store, parsed.run).questions
    if questions:
        raise ConfigError(
            f"Run {parsed.run} waits for answers: {_named(questions)}.",
            hint=f"`cellblock runs approve {parsed.run}` allows the calls, `cellblock runs deny` refuses them.",
        )
    return _resumed(parsed.run, settings)


# ---- inside ------------------------------------------------------------------------------------------


async def _resumed(run_id: str, settings: Settings) -> int:
    section = settings.cellblock
    with logging_as_configured(section.log, settings.servers.values(), section.traces.headers.values()):
        async with Broker(settings) as broker:
            await broker.settled()
            try:
                await broker.parked_runs.answer(run_id, {})
                response = await broker.parked_runs.outcome(run_id)
            except StoreError as error:
                raise ConfigError(
                    f"Run {run_id} does not go on here: {error}.", hint="Check --config and --state-dir."
                ) from None
    if response is None:
        raise _waits_not(run_id)
    write_json(response.decoded().as_json())
    return EXIT_OK if response.ok else EXIT_NO


def _answer(parsed: argparse.Namespace, answer: Answer, form: str | None = None) -> int:
    named: list[str] = parsed.call
    settings = with_state_dir(parsed)
    with opened_runs(settings) as store, _audited(settings) as tell:
        waiting = _waiting(store, parsed.run)
        questions = waiting.questions
        if not questions:
            raise _waits_not(parsed.run)
        for name in named:
            if not any(_is_meant(name, question) for question in questions):
                raise ConfigError(
                    f"Run {parsed.run} does not wait for call {name}.",
                    hint=f"`cellblock runs show {parsed.run}` lists what it waits for.",
                )
        meant = [
            question
            for question in questions
            if not named or any(_is_meant(name, question) for name in named)
        ]
        given = answer if form is None else _filled_in(form, meant)
        try:
            found = store.answer(parsed.run, {question.id: given for question in meant})
        except WrongAnswer as error:
            raise ConfigError(
                error.message,
                hint=f"`cellblock runs show {parsed.run} --values` shows its form, --answer takes the fields.",
            ) from None
        if found is None:
            raise _waits_not(parsed.run)
        head, _, known = found
        done = [question for question in questions if question.id in known]
        left = [question for question in questions if question.id not in known]
        if done:
            calls = tuple(question.call for question in done)
            tell(Decision(run=parsed.run, verdict=answer, calls=calls, by=BY))
        write_data(harmless(f"{answer}: {_named(done)}\n"))
        if left:
            write_data(harmless(f"{head.id} still waits: {_named(left)}\n"))
        elif head.owner is not None:
            sys.stdout.write(f"{head.id} goes on when its tools have answered\n")
        elif _is_taken(store, head.id):
            sys.stdout.write(f"{head.id} goes on\n")
        else:
            sys.stdout.write(
                f"no daemon of this state directory goes on with it yet: start one, or run "
                f"`cellblock runs resume {head.id}`\n"
            )
    return EXIT_OK


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
    if not (audit.enabled or (audit.enabled is None and (state_dir / FILE_NAME).exists())):
        yield lambda decision: None
        return
    log = AuditLog(audit, state_dir)
    try:
        yield log.run_decided
    finally:
        log.close()


def _waiting(store: JournalStore, run_id: str) -> ParkedRun:
    read = store.read(run_id, kinds=WAITING)
    if read is None or read[0].state != "parked":
        raise _waits_not(run_id)
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
        time.sleep(LOOK_SECONDS)
    return False


def _named(questions: Sequence[ParkedQuestion]) -> str:
    return ", ".join(f"call {question.call} of {question.server}.{question.tool}" for question in questions)


def _waits_not(run_id: str) -> ConfigError:
    return ConfigError(
        f"No run {run_id} waits for an answer.", hint="`cellblock runs list --parked` shows those that do."
    )
