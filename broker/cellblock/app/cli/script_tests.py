"""`test`: whether kept scripts still work."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence

from cellblock.app.broker import Broker
from cellblock.app.cli.arguments import UsageError
from cellblock.app.cli.help import EXIT_NO, EXIT_OK
from cellblock.app.cli.loading import settled_catalog
from cellblock.app.cli.scripts import NO_OPTIONS, code_with, opened_library, run_version
from cellblock.app.cli.streams import agreed, asks, say, write_data, write_json
from cellblock.app.script_trials import Result, against, replayed, type_checked
from cellblock.base.errors import CellblockError
from cellblock.base.settings.settings import Settings
from cellblock.base.terminal import harmless
from cellblock.record.scripts.changes import Finding
from cellblock.record.scripts.library import Library, Trial
from cellblock.record.scripts.script_file import KeptScript
from cellblock.types.check.checker import TypeChecker


async def test(parsed: argparse.Namespace) -> int:
    """Tries the scripts, and prints how they stand; or runs one with another input.

    Raises:
        UsageError: The options do not go together, or nobody can be asked.
        BadScript: There is no such script.
    """
    settings, library = opened_library(parsed)
    scripts = [library.current(name) for name in parsed.names or library.names()]
    if parsed.input is None:
        return await _test(parsed, settings, library, scripts)
    if len(scripts) != 1 or not parsed.names:
        raise UsageError("--input is for one script; name it")
    script, code = scripts[0], code_with(scripts[0], parsed.input)
    if not parsed.yes:
        if not asks():
            raise UsageError("nobody can be asked here; use a terminal, or name --yes")
        if not agreed(f"Run {script.name} with this input, live? Its tools are called."):
            sys.stdout.write("Nothing was run.\n")
            return EXIT_NO
    return await run_version(argparse.Namespace(**{**vars(parsed), **NO_OPTIONS}), settings, script, code)


async def _test(
    parsed: argparse.Namespace, settings: Settings, library: Library, scripts: Sequence[KeptScript]
) -> int:
    results = {script.name: Result(script.name) for script in scripts}
    trials: dict[str, Trial | None] = {}
    for script in scripts:
        trials[script.name] = trial = await _replay(settings, library, script, results[script.name])
        if trial is None:
            results[script.name].notes.append("not replayed: this machine has no recording of it")
    if not parsed.offline and scripts:
        checker = TypeChecker(settings.cellblock.isolation)
        async with contextlib.AsyncExitStack() as stack, Broker(settings.without_workers()) as broker:
            stack.push_async_callback(checker.close)
            servers = {tool.partition(".")[0] for script in scripts for tool in script.header.tools}
            catalog = await settled_catalog(broker, sorted(servers), say)
            for script in scripts:
                found, trial = against(script, trials[script.name], catalog), trials[script.name]
                results[script.name].findings += found.findings
                results[script.name].notes += found.notes
                results[script.name].findings += await type_checked(script, trial, catalog, checker)
    if parsed.json:
        write_json([result.as_json() for result in results.values()])
    else:
        write_data("".join(map(_lines, results.values())) or "No script is kept.\n")
    return EXIT_OK if all(result.verdict == "works" for result in results.values()) else EXIT_NO


async def _replay(settings: Settings, library: Library, script: KeptScript, result: Result) -> Trial | None:
    try:
        trial = library.trial(script)
    except CellblockError as error:
        result.findings.append(Finding("broken", script.name, f"its recording cannot be read: {error}"))
        return None
    if trial is not None:
        result.findings += await replayed(script, trial, settings)
    return trial


def _lines(result: Result) -> str:
    lines = [f"{result.name}: {result.verdict}"]
    lines += [f"  {one.verdict}  {one.place}: {one.what}" for one in result.findings]
    lines += [f"  note     {note}" for note in result.notes]
    return "".join(f"{harmless(line)}\n" for line in lines)
