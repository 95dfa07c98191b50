"""`save` and `run --saved`: the script of a run is kept, and a kept one runs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Coroutine
from typing import Any

from cellblock.app.cli.arguments import UsageError
from cellblock.app.cli.help import EXIT_OK
from cellblock.app.cli.loading import catalog_of
from cellblock.app.cli.recordings import recording_of
from cellblock.app.cli.run import read_object, read_script, run_script
from cellblock.app.cli.scripts import opened_library
from cellblock.app.cli.streams import say
from cellblock.base.errors import counted
from cellblock.base.settings.settings import Settings
from cellblock.record.journal import Journal
from cellblock.record.scripts.saving import input_schema
from cellblock.record.scripts.saving import save as keep
from cellblock.record.scripts.script_file import (
    SUFFIX,
    Header,
    KeptScript,
    check_name,
    format_script,
)
from cellblock.tools.schemas.validation import InputValidator


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
    script = library.approvals.script(parsed.saved)
    return run_version(parsed, settings, script, parsed.input or "{}")


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
