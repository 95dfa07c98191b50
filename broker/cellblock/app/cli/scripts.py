"""`scripts`, `save` and `run --saved`: the script of a run is kept, a person lets versions of it in, and a kept one
runs."""

from __future__ import annotations

import argparse
import difflib
import json
import sys
import time
from collections.abc import Coroutine
from typing import Any, Final

from cellblock.app.assembly import library_of
from cellblock.app.cli.arguments import UsageError
from cellblock.app.cli.help import EXIT_NO, EXIT_OK
from cellblock.app.cli.loading import catalog_of, of_state, store_to_read
from cellblock.app.cli.recordings import recording_of
from cellblock.app.cli.run import read_object, read_script, run_script
from cellblock.app.cli.streams import answer, confirmed, say, write_data
from cellblock.base.errors import counted
from cellblock.base.settings.settings import Settings
from cellblock.base.terminal import cell, harmless, spelled_line
from cellblock.record.journal import Journal
from cellblock.record.scripts.library import Library
from cellblock.record.scripts.saving import input_schema, save as keep
from cellblock.record.scripts.script_file import (
    SUFFIX,
    BadScript,
    Header,
    KeptScript,
    check_name,
    format_script,
)
from cellblock.tools.schemas.validation import InputValidator

WIDTHS: Final = (24, 29, 20, 22, 60)
"""Bound the columns of a list: of a digest, people see `sha256:` and twelve digits."""


CHANGED: Final = "changed since it was approved"
"""Says of a script that its file is another version than the one that runs."""


def opened_library(parsed: argparse.Namespace) -> tuple[Settings, Library]:
    """Returns the settings, and what knows the kept scripts. Raises ConfigError."""
    settings = of_state(parsed)
    return settings, library_of(settings, store_to_read(settings))


def show_all(parsed: argparse.Namespace) -> None:
    """Prints all scripts: those that run, and those that wait for a person."""
    _, library = opened_library(parsed)
    found = [state_of(library, name) for name in library.names()]
    rows = [("NAME", "STATE", "VERSION", "APPROVED", "DESCRIPTION"), *map(_row, found)]
    lines = (harmless("  ".join(map(cell, row, WIDTHS)).rstrip()) for row in rows)
    answer(parsed, found, "".join(f"{line}\n" for line in lines) if found else "No script is kept.\n")


def approve(parsed: argparse.Namespace) -> int:
    """Shows what is new in a script, and lets it in when a person says yes. Raises BadScript, UsageError."""
    _, library = opened_library(parsed)
    script, before = library.file(parsed.name), library.approvals.get(parsed.name)
    lines = [
        *difflib.unified_diff(
            [""] if before is None else before.script.text.split("\n"),
            script.text.split("\n"),
            "(nothing is approved)" if before is None else f"{script.name} approved",
            f"{script.name} file",
            lineterm="",
        )
    ]
    if not lines:
        sys.stdout.write(f"{script.name} is approved already: {script.digest}\n")
        return EXIT_OK
    write_data("".join(f"{spelled_line(line)}\n" for line in lines))
    sys.stdout.write(f"\n{script.name} would be {script.digest}\n")
    if parsed.digest is not None and parsed.digest != script.digest:
        raise UsageError(f"--digest names another version: this one is {script.digest}")
    if parsed.digest is None and not confirmed(
        f"Let this version of {script.name} run?", "name what was reviewed with --digest"
    ):
        sys.stdout.write("Nothing was approved.\n")
        return EXIT_NO
    # This very text, whatever the file is by now.
    library.approvals.approve(script)
    sys.stdout.write(f"approved {script.name}\n")
    return EXIT_OK


def remove(parsed: argparse.Namespace) -> None:
    """Takes the approvals of scripts back. Raises BadScript: One has none."""
    _, library = opened_library(parsed)
    for name in parsed.names:
        library.approvals.remove(name)
        sys.stdout.write(f"{name} does not run any more; its file stays\n")


def state_of(library: Library, name: str) -> dict[str, Any]:
    """Returns what is known of a script, as JSON data."""
    approval, script, why = None, None, ""
    try:
        approval = library.approvals.get(name)
        script = library.file(name) if name in library.files() else None
    except BadScript as error:
        why = str(error)
    if why:
        state = "unusable"
    elif script is None:
        state = "approved, without a file"
    elif approval is None:
        state = "waits for approval"
    else:
        state = "approved" if approval.script.digest == script.digest else CHANGED
    shown = script or (approval.script if approval else None)
    return {
        "name": name,
        "state": state,
        "description": shown.header.description if shown and not why else why,
        "digest": shown and shown.digest,
        "approved": approval and approval.told,
    }


def run_saved(parsed: argparse.Namespace) -> Coroutine[Any, Any, int]:
    """Reads the approved version of a kept script, and its input. Returns what runs it.

    Raises:
        UsageError: The input does not fit, or grants are given.
        BadScript: There is none, or no version is approved.
    """
    if parsed.grants is not None:
        raise UsageError("a kept script has grants of its own; leave --grants out")
    settings, library = opened_library(parsed)
    if check_name(parsed.saved) not in library.names():
        raise library.missing(parsed.saved)
    return run_version(parsed, settings, library.approvals.script(parsed.saved), parsed.input or "{}")


def run_version(
    parsed: argparse.Namespace, settings: Settings, script: KeptScript, text: str
) -> Coroutine[Any, Any, int]:
    """Returns what runs a kept script with the input that `--input` gives, within its own grants, and holds its result
    against its schema. Raises UsageError: The input does not fit."""
    given = read_object(text, "--input")
    misfit = InputValidator(script.header.input, label=script.name, strict=True).check(given)
    if misfit is not None:
        missing = [one for one in script.header.input.get("required", ()) if one not in given]
        needs = f" It needs {', '.join(missing)}." if missing else ""
        raise UsageError(f"the input of {script.name} does not fit: {misfit.sentence}{needs}")
    code, parsed.script = script.with_input(given), f"{script.name}{SUFFIX}"
    return run_script(parsed, settings.for_one_run(), code, script.grants, output=script.header.output)


async def save(parsed: argparse.Namespace) -> int:
    """Keeps the script of a run, or runs one with an input and keeps it if it ends well.

    Raises:
        UsageError: Something cannot be read.
        ConfigError: No such run is kept, or no folder of scripts is set.
    """
    check_name(parsed.name)
    settings, library = opened_library(parsed)
    given, code = dict(map(_parameter, parsed.param)), None
    if parsed.input is None:
        recording, _ = recording_of(parsed, parsed.source)
    elif given:
        raise UsageError("--param is for literals of a run; a script with --input has its parameters already")
    else:
        code, given = read_script(parsed.source), read_object(parsed.input, "--input")
        trial = format_script(parsed.name, Header(description="?", input=input_schema(given)), code)
        parsed.script, journal = parsed.source, Journal()
        exit_code = await run_script(parsed, settings.for_one_run(), trial.with_input(given), None, journal)
        if exit_code != EXIT_OK:
            say("nothing is kept: the script failed")
            return exit_code
        recording = journal.snapshot()
    catalog, _ = await catalog_of(
        settings, sorted({call.server for call in recording.calls if call.kind == "call"})
    )
    script = keep(
        library,
        settings,
        catalog,
        recording,
        parsed.name,
        parameters=given,
        code=code,
        description=parsed.description or "",
        replace=parsed.replace,
    )
    say(
        f"kept {script.name}: {counted(len(script.header.tools), 'tool')}, in {library.folder}/{script.name}{SUFFIX}. "
        f"It runs when it is approved: cellblock scripts approve {script.name}"
    )
    return EXIT_OK


def _parameter(text: str) -> tuple[str, Any]:
    name, equals, literal = text.partition("=")
    if not (name and equals):
        raise UsageError(f"--param {text}: write NAME=LITERAL, the literal as in the script")
    try:
        return name, json.loads(literal)
    except ValueError:
        return name, literal


def _row(found: dict[str, Any]) -> tuple[str, ...]:
    approved = found["approved"]
    by = f"{time.strftime('%Y-%m-%d', time.localtime(approved['at']))} {approved['by']}" if approved else ""
    return found["name"], found["state"], found["digest"] or "", by, found["description"]
