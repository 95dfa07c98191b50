"""`record` and `replay`: the recording of one script's run, and a recording run again."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

from cellblock.app.cli.arguments import UsageError
from cellblock.app.cli.help import EXIT_NO, EXIT_OK
from cellblock.app.cli.loading import no_secrets_known, with_state_dir
from cellblock.app.cli.run import (
    STDIN,
    approver_of,
    asker_on_terminal,
    name_of,
    read_grants,
    read_script,
    run_script,
)
from cellblock.app.cli.runs import decoded, kept_recording
from cellblock.app.cli.streams import say, warn, write_json
from cellblock.app.config.load import load_settings
from cellblock.app.replay import Live, is_well, replay
from cellblock.base.errors import first_few
from cellblock.base.redaction import redacting, without_credentials
from cellblock.base.settings.settings import Settings
from cellblock.record.journal import Journal
from cellblock.record.recording import (
    RecordedCall,
    Recording,
    UnreadableRecording,
    read_file,
    redacted,
    write,
)
from cellblock.run.policy.asking import COMMAND_LINE, Grantee
from cellblock_worker.base.folders import FILE, Folder, InTheWay
from cellblock_worker.base.private_files import write_private

RUN_ID: Final = re.compile("[0-9a-f]{16}")
"""Matches the ids of runs."""

MAX_TOLD: Final = 8
"""Bounds the parts of a recording that a warning names."""


def record(parsed: argparse.Namespace) -> Coroutine[Any, Any, int]:
    """Reads the script and the options, as `run` does. Returns what runs the script and writes the recording.

    Raises:
        UsageError: Something cannot be read, or the recording cannot have its name.
    """
    settings = with_state_dir(parsed).for_one_run()
    code = read_script(parsed.script)
    grants = None if parsed.grants is None else read_grants(parsed.grants)
    try:
        # Before the run: what it did cannot be recorded afterwards.
        with Folder.named(parsed.output.absolute().parent) as folder:
            folder.check(parsed.output.name, FILE)
    except InTheWay as error:
        raise UsageError(f"{error}; name another file") from None
    except OSError:
        raise UsageError(
            f"there is no folder for {parsed.output}; name a file in a folder that is there"
        ) from None
    return _record(parsed, settings, code, grants)


async def _record(
    parsed: argparse.Namespace, settings: Settings, code: str, grants: dict[str, Any] | None
) -> int:
    journal = Journal()
    exit_code = await run_script(parsed, settings, code, grants, journal)
    try:
        recording = journal.snapshot()
    except ValueError as error:
        say(f"error: nothing is recorded: {error}")
        return EXIT_NO
    known = redacting(settings.servers.values())
    found, changed = redacted(recording, known, lambda text: without_credentials(known(text)))
    try:
        with Folder.named(parsed.output.absolute().parent) as folder:
            write_private(folder, parsed.output.name, write(found).encode())
    except OSError as error:
        raise UsageError(f"cannot write {parsed.output}: {error.strerror}; name a file") from None
    say(f"recorded: {parsed.output} ({len(found.calls)} requests)")
    if changed:
        warn(f"secrets are taken out ({first_few(changed, MAX_TOLD)}); the file does not replay to the byte")
    return exit_code


def replay_file(parsed: argparse.Namespace) -> Coroutine[Any, Any, int]:
    """Reads a recording, and the script that is to be tried. Returns what replays it.

    Raises:
        UsageError: One of them cannot be read.
        ConfigError: No run of this id is kept with a recording, or it cannot be read.
    """
    recording, is_kept = recording_of(parsed, parsed.recording)
    script = None if parsed.script is None else read_script(parsed.script)
    if parsed.live_on_miss and script is None:
        raise UsageError("--live-on-miss is for another script; name one with --script")
    if parsed.yes and not parsed.live_on_miss:
        raise UsageError("--yes is for --live-on-miss; name that, too")
    live, settings = None, load_settings(parsed.config)
    if parsed.live_on_miss:
        approver = approver_of(asker_on_terminal(None) if parsed.script != STDIN else None)
        if approver is None and not parsed.yes:
            raise UsageError("nobody can be asked here; use a terminal, or name --yes")
        live = Live(
            with_state_dir(parsed).for_one_run(), Grantee(COMMAND_LINE, approver), asks=not parsed.yes
        )
    # Secrets were taken out of a file; what is kept has all that the script saw.
    if is_kept:
        warn(no_secrets_known(parsed))
    hide = redacting(settings.servers.values() if is_kept else ())
    return _replay(parsed, recording, script, hide, live, settings)


def recording_of(parsed: argparse.Namespace, source: str) -> tuple[Recording, bool]:
    """Reads the recording of a run that is kept, which the second value says, or of a file. Raises UsageError."""
    if RUN_ID.fullmatch(source) and not Path(source).exists():
        return kept_recording(parsed, source), True
    try:
        return read_file(Path(source)), False
    except OSError as error:
        raise UsageError(
            f"cannot read the recording {source}: {error.strerror}; name a file, or the id of a run that "
            "`cellblock runs list` shows"
        ) from None
    except UnreadableRecording as error:
        raise UsageError(str(error)) from None


async def _replay(
    parsed: argparse.Namespace,
    recording: Recording,
    script: str | None,
    hide: Callable[[Any], Any],
    live: Live | None,
    settings: Settings,
) -> int:
    found = await replay(
        recording,
        script=script,
        until=parsed.until,
        live=live,
        settings=settings,
        script_name="" if parsed.script is None else name_of(parsed.script),
    )
    told = {
        "same": found.same,
        "exact": recording.exact,
        "madeBy": recording.made_by,
        "deno": recording.deno,
    }
    trace = [_traced(call, place, values=parsed.values) for call, place in found.trace]
    more = {
        "reason": found.reason,
        "live": None if live is None else list(found.missed),
        "differences": found.differences or None,
        "trace": trace if parsed.trace or parsed.values else None,
    }
    told |= {key: value for key, value in more.items() if value is not None}
    write_json(hide(found.response.as_json() | {"replay": told}))
    made = sum(call.kind == "call" for call, _ in found.trace)
    if parsed.until is not None and made < parsed.until:
        say(f"note: it was not stopped: the script made {made} calls, and none is number {parsed.until}")
    if found.same is False and not recording.exact:
        say("secrets were taken out of the recording, and so the replay need not be the same")
    return EXIT_OK if is_well(found, recording) else EXIT_NO


def _traced(call: RecordedCall, place: str | None, *, values: bool) -> dict[str, Any]:
    told: dict[str, Any] = {
        "id": call.id,
        "kind": call.kind,
        "name": call.name,
        "place": place,
        "ok": call.ok,
    }
    if call.kind == "call":
        told |= {"durationMs": call.duration_ms, "error": call.error}
    if values:
        told |= {"input": decoded(call.input), "answer": decoded(call.answer)}
    return told
