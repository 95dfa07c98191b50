"""`save`, `scripts` and `run --saved`: what is kept, and which versions of it a person lets in."""

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
from cellblock.app.cli.loading import catalog_of, store_to_read, with_state_dir
from cellblock.app.cli.recordings import recording_of
from cellblock.app.cli.run import read_object, read_script, run_script
from cellblock.app.cli.streams import agreed, answer, asks, say, write_data
from cellblock.base.errors import counted
from cellblock.base.settings.settings import Settings
from cellblock.base.terminal import cell, harmless, spelled_out
from cellblock.record.journal import Journal
from cellblock.record.scripts.library import Library
from cellblock.record.scripts.saving import input_schema
from cellblock.record.scripts.saving import save as keep
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


def opened_library(parsed: argparse.Namespace) -> tuple[Settings, Library]:
    """Returns the settings, and what knows the kept scripts. Raises ConfigError."""
    settings = with_state_dir(parsed)
    return settings, library_of(settings, store_to_read(settings))


def show_all(parsed: argparse.Namespace) -> int:
    """Prints all scripts: those that run, and those that wait for a person."""
    _, library = opened_library(parsed)
    found = [state_of(library, name) for name in library.names()]
    rows = [("NAME", "STATE", "VERSION", "APPROVED", "DESCRIPTION"), *map(_row, found)]
    lines = ("  ".join(map(cell, row, WIDTHS)).rstrip() for row in rows)
    text = "".join(f"{harmless(line)}\n" for line in lines) if found else "No script is kept.\n"
    return answer(parsed, found, text)


def approve(parsed: argparse.Namespace) -> int:
    """Shows what is new in a script, and lets it in when a person says yes. Raises BadScript, UsageError."""
    _, library = opened_library(parsed)
    script, before = library.file(parsed.name), library.approvals.get(parsed.name)
    old = "" if before is None else before.script.text
    names = ("(nothing is approved)" if before is None else f"{script.name} approved", f"{script.name} file")
    lines = [*difflib.unified_diff(old.split("\n"), script.text.split("\n"), *names, lineterm="")]
    if not lines:
        sys.stdout.write(f"{script.name} is approved already: {script.digest}\n")
        return EXIT_OK
    write_data("".join(f"{spelled_out(line)}\n" for line in lines))
    sys.stdout.write(f"\n{script.name} would be {script.digest}\n")
    if parsed.digest is not None and parsed.digest != script.digest:
        raise UsageError(f"--digest names another version: this one is {script.digest}")
    if parsed.digest is None:
        if not asks():
            raise UsageError(
                "nobody can be asked here; use a terminal, or name what was reviewed with --digest"
            )
        if not agreed(f"Let this version of {script.name} run?"):
            sys.stdout.write("Nothing was approved.\n")
            return EXIT_NO
    # This very text, whatever the file is by now.
    library.approvals.approve(script)
    sys.stdout.write(f"approved {script.name}\n")
    return EXIT_OK


def remove(parsed: argparse.Namespace) -> int:
    """Takes the approvals of scripts back. Raises BadScript: One has none."""
    _, library = opened_library(parsed)
    for name in parsed.names:
        library.approvals.remove(name)
        sys.stdout.write(f"{name} does not run any more; its file stays\n")
    return EXIT_OK


def run_saved(parsed: argparse.Namespace) -> Coroutine[Any, Any, int]:
    """Reads the approved version of a kept script, and its input. Returns what runs it.

    Raises:
        UsageError: The input does not fit, or grants are given.
        BadScript: No version is approved.
    """
    if parsed.grants is not None:
        raise UsageError("a kept script has grants of its own; leave --grants out")
    settings, library = opened_library(parsed)
    approval = library.approvals.get(parsed.saved)
    if approval is None:
        raise BadScript(
            f"No version of {parsed.saved} is approved here.",
            hint=f"Approve it: cellblock scripts approve {parsed.saved}",
        )
    return run_version(parsed, settings, approval.script, code_with(approval.script, parsed.input or "{}"))


def code_with(script: KeptScript, text: str) -> str:
    """Returns the code of a kept script with the input that `--input` gives. Raises UsageError: It does not fit."""
    given = read_object(text, "--input")
    misfit = InputValidator(script.header.input, label=script.name, strict=True).check(given)
    if misfit is not None:
        raise UsageError(f"the input of {script.name} does not fit: {misfit.sentence}")
    return script.with_input(given)


def run_version(
    parsed: argparse.Namespace, settings: Settings, script: KeptScript, code: str
) -> Coroutine[Any, Any, int]:
    """Returns what runs a kept script, within its own grants, and holds its result against its schema."""
    parsed.script = f"{script.name}{SUFFIX}"
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
        wanted = argparse.Namespace(**{**vars(parsed), "script": parsed.source, **NO_OPTIONS})
        journal = Journal()
        exit_code = await run_script(wanted, settings.for_one_run(), trial.with_input(given), None, journal)
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
    said = f"kept {script.name}: {counted(len(script.header.tools), 'tool')}, in {library.folder}"
    say(f"{said}. It runs when it is approved: cellblock scripts approve {script.name}")
    return EXIT_OK


NO_OPTIONS: Final[dict[str, Any]] = {
    **dict.fromkeys(("timeout_ms", "max_memory_bytes", "max_log_bytes", "max_tool_calls", "max_cpu_ms")),
    **{"typecheck": None, "durable": False, "plan": False, "require": [], "grants": None},
}


def _parameter(text: str) -> tuple[str, Any]:
    name, equals, literal = text.partition("=")
    if not (name and equals):
        raise UsageError(f"--param {text}: write NAME=LITERAL, the literal as in the script")
    try:
        return name, json.loads(literal)
    except ValueError:
        return name, literal


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
        state = "approved" if approval.script.digest == script.digest else "changed since it was approved"
    shown = script or (approval.script if approval else None)
    said: dict[str, Any] = {
        "name": name,
        "state": state,
        "description": shown.header.description if shown else why,
    }
    if script is not None:
        said["digest"] = script.digest
    if approval is not None:
        told = {"digest": approval.script.digest, "by": approval.by}
        said["approved"] = {**told, "at": approval.at, "before": approval.before}
    return said


def _row(found: dict[str, Any]) -> tuple[str, ...]:
    approved: dict[str, Any] = found.get("approved", {})
    by = f"{time.strftime('%Y-%m-%d', time.localtime(approved['at']))} {approved['by']}" if approved else ""
    digest = str(found.get("digest", approved.get("digest", "")))
    return found["name"], found["state"], digest, by, found["description"]
