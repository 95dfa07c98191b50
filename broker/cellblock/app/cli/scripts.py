"""`scripts`: which versions of kept scripts a person has let in, and which wait for one."""

from __future__ import annotations

import argparse
import difflib
import sys
import time
from typing import Any, Final

from cellblock.app.assembly import library_of
from cellblock.app.cli.arguments import UsageError
from cellblock.app.cli.help import EXIT_NO, EXIT_OK
from cellblock.app.cli.loading import of_state, store_to_read
from cellblock.app.cli.streams import answer, confirmed, write_data
from cellblock.base.settings.settings import Settings
from cellblock.base.terminal import cell, harmless, spelled_line
from cellblock.record.scripts.library import Library
from cellblock.record.scripts.script_file import BadScript

WIDTHS: Final = (24, 29, 20, 22, 60)
"""Bound the columns of a list: of a digest, people see `sha256:` and twelve digits."""


CHANGED: Final = "changed since it was approved"
"""Says of a script that its file is another version than the one that runs."""


def opened_library(parsed: argparse.Namespace) -> tuple[Settings, Library]:
    """Returns the settings, and what knows the kept scripts. Raises ConfigError."""
    settings = of_state(parsed)
    return settings, library_of(settings, store_to_read(settings))


def show_all(parsed: argparse.Namespace) -> int:
    """Prints all scripts: those that run, and those that wait for a person."""
    _, library = opened_library(parsed)
    found = [state_of(library, name) for name in library.names()]
    rows = [("NAME", "STATE", "VERSION", "APPROVED", "DESCRIPTION"), *map(_row, found)]
    lines = (harmless("  ".join(map(cell, row, WIDTHS)).rstrip()) for row in rows)
    return answer(parsed, found, "".join(f"{line}\n" for line in lines) if found else "No script is kept.\n")


def approve(parsed: argparse.Namespace) -> int:
    """Shows what is new in a script, and lets it in when a person says yes. Raises BadScript, UsageError."""
    _, library = opened_library(parsed)
    script, before = library.file(parsed.name), library.approvals.get(parsed.name)
    old = "" if before is None else before.script.text
    lines = [
        *difflib.unified_diff(
            old.split("\n"),
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


def remove(parsed: argparse.Namespace) -> int:
    """Takes the approvals of scripts back. Raises BadScript: One has none."""
    _, library = opened_library(parsed)
    for name in parsed.names:
        library.approvals.remove(name)
        sys.stdout.write(f"{name} does not run any more; its file stays\n")
    return EXIT_OK


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


def _row(found: dict[str, Any]) -> tuple[str, ...]:
    approved = found["approved"]
    by = f"{time.strftime('%Y-%m-%d', time.localtime(approved['at']))} {approved['by']}" if approved else ""
    return found["name"], found["state"], found["digest"] or "", by, found["description"]
