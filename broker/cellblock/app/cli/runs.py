"""Runs shows what is written down of runs: `runs list|show|delete`, for the user of this machine."""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
import time
from collections.abc import Generator
from typing import Any, Final

from cellblock.app.assembly import store_of
from cellblock.app.cli.help import EXIT_OK
from cellblock.app.cli.loading import with_state_dir
from cellblock.app.cli.run_page import parts, title
from cellblock.app.cli.streams import write_data, write_json
from cellblock.base.database import StoreError
from cellblock.base.errors import ConfigError
from cellblock.base.redaction import redacting
from cellblock.base.settings.settings import Settings
from cellblock.base.terminal import Painter, cell, harmless
from cellblock.record.journals import open_store
from cellblock.record.pieces import recording_in
from cellblock.record.place import Place
from cellblock.record.recording import Recording
from cellblock.record.rows import Head, Piece
from cellblock.record.store import JournalStore
from cellblock.record.tables import JOURNAL_TABLES
from cellblock.record.views import NO_END, head_data, shown

KIB: Final = 1024


def show_all(parsed: argparse.Namespace) -> int:
    """Prints which runs are kept, the newest first. Raises ConfigError: they cannot be read."""
    settings = with_state_dir(parsed)
    heads: list[Head] = []
    if _place(settings).exists():
        with opened_runs(settings) as store:
            heads = store.heads(parsed.client, limit=parsed.limit, state="parked" if parsed.parked else None)
    if parsed.json:
        write_json([head_data(head) for head in heads])
    elif parsed.parked and not heads:
        sys.stdout.write("No run waits.\n")
    elif heads:
        lines = [_line("RUN", "BEGAN", "OUTCOME", "CALLS", "SIZE", "CLIENT"), *map(_line_of, heads)]
        write_data("".join(f"{harmless(line)}\n" for line in lines))
    else:
        sys.stdout.write("No run is kept.\n")
    return EXIT_OK


def show(parsed: argparse.Namespace) -> int:
    """Prints one run.

    Raises:
        ConfigError: It is not kept, or cannot be read.
    """
    settings = with_state_dir(parsed)
    with opened_runs(settings) as store:
        found = store.read(parsed.run)
    if found is None:
        raise _unknown(parsed.run)
    run = shown(*found)
    run = _with_calls(run, found[1]) if parsed.values else without_values(run)
    run = redacting(settings.servers.values())(run)
    if parsed.json:
        write_json(run)
        return EXIT_OK
    width = max(40, shutil.get_terminal_size((120, 24)).columns)
    lines = [title(parsed.run, run)]
    for question in run.get("waitsFor", ()):
        lines += ["", *_question_lines(question, values=parsed.values)]
    for part in parts(run, width, Painter(sys.stdout)):
        lines += ["", part.heading, *part.lines]
    if not parsed.values:
        lines += ["", "--values shows the script, its console output, and what its calls sent and got."]
    write_data("".join(f"{line.rstrip()}\n" for line in lines))
    if parsed.values:
        write_data("".join(harmless(f"\n{heading}\n{text}\n") for heading, text in _values(run)))
    return EXIT_OK


def delete(parsed: argparse.Namespace) -> int:
    """Deletes runs. Raises ConfigError: One is not kept, or cannot be deleted."""
    with opened_runs(with_state_dir(parsed)) as store:
        for run_id in parsed.runs:
            if not store.delete(run_id):
                raise _unknown(run_id)
            sys.stdout.write(f"deleted {run_id}\n")
    return EXIT_OK


def kept_recording(parsed: argparse.Namespace, run_id: str) -> Recording:
    """Returns the recording of a kept run.

    Raises:
        ConfigError: It is not kept, cannot be read, or was not recorded.
        UnreadableRecording: Another release has made it.
    """
    with opened_runs(with_state_dir(parsed)) as store:
        found = store.read(run_id)
    if found is None:
        raise _unknown(run_id)
    recording = recording_in(found[1], decoded=True)
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
        case "login":
            lines = [f"waits for a login, for {call}: {question['said']}"]
        case kind:
            lines = [f"waits for an answer ({kind}, question {question['number']}) to {call}"]
            lines += [f"  it asks: {question['said']}"] if question["said"] else []
    if values:
        lines.append(f"  input: {question['input']}")
        lines += [f"  request: {question['request']}"] if question["kind"] == "elicitation" else []
    # What servers and scripts say, on a terminal.
    return [harmless(line) for line in lines]


@contextlib.contextmanager
def opened_runs(settings: Settings) -> Generator[JournalStore]:
    """Opens the kept runs for a while; raises ConfigError where there are none, or they cannot be used."""
    section = settings.cellblock
    where = "state.url" if section.state.is_shared else "--state-dir"
    try:
        store = open_store(_place(settings), section.journal)
    except FileNotFoundError:
        raise ConfigError(
            f"No run was kept yet: there is no {settings.state_dir / JOURNAL_TABLES.file}.",
            hint='Set "cellblock": {"journal": "failed"}. Is it the daemon\'s --state-dir?',
        ) from None
    except StoreError as error:
        raise ConfigError(f"The kept runs cannot be used: {error}.", hint=f"Check {where}.") from None
    try:
        yield store
    except StoreError as error:
        raise ConfigError(f"The kept runs cannot be read: {error}.", hint=f"Check {where}.") from None
    finally:
        store.close()


def without_values(run: dict[str, Any]) -> dict[str, Any]:
    """Returns what is shown of a run without what its script has said or seen."""
    left = len(run["logs"]) + run["logsLeftOut"]
    return {key: part for key, part in run.items() if key != "script"} | {"logs": [], "logsLeftOut": left}


# ---- inside ------------------------------------------------------------------------------------------


def _place(settings: Settings) -> Place:
    return Place(store_of(settings), settings.cellblock.auth)


def _unknown(run_id: str) -> ConfigError:
    return ConfigError(f"No run {run_id} is kept.", hint="`cellblock runs list` shows those that are.")


def _line_of(head: Head) -> str:
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(head.began))
    size = f"{head.bytes / KIB:,.1f} KiB"
    return _line(
        head.id,
        began,
        head.outcome or (head.state if head.state == "parked" else NO_END),
        str(head.calls),
        size,
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
            "input": _decoded(call.input),
            "ok": call.ok,
            "answer": _decoded(call.answer),
        }
        for call in ([] if recording is None else recording.calls)
    ]
    return run | {"values": calls, "result": recording and (recording.response or {}).get("result")}


def _decoded(body: bytes) -> Any:
    try:
        return json.loads(body) if body else None
    except (ValueError, RecursionError):
        return body.decode("utf-8", "replace")


def _values(run: dict[str, Any]) -> Generator[tuple[str, str]]:
    yield "SCRIPT", run["script"]
    for number, call in enumerate(run["values"], 1):
        answer = "no answer" if call["ok"] is None else "answer" if call["ok"] else "error"
        sent, got = (json.dumps(call[part], ensure_ascii=False) for part in ("input", "answer"))
        yield f"CALL {number}: {call['name']}", f"input: {sent}\n{answer}: {got}"
    yield "RESULT", json.dumps(run["result"], ensure_ascii=False, indent=2)
