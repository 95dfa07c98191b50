"""`test`: whether kept scripts still work, against their recordings, offline, and their servers' schemas of now."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from cellblock.app.broker import Broker
from cellblock.app.cli.arguments import UsageError
from cellblock.app.cli.help import EXIT_NO, EXIT_OK
from cellblock.app.cli.loading import settled_catalog
from cellblock.app.cli.scripts import CHANGED, opened_library, run_version, state_of
from cellblock.app.cli.streams import answer, confirmed, say
from cellblock.app.replay import replay
from cellblock.base.errors import CellblockError
from cellblock.base.settings.settings import Settings
from cellblock.base.terminal import harmless
from cellblock.record.scripts.changes import Finding, Verdict, against, type_checked, worst
from cellblock.record.scripts.library import Library, Trial
from cellblock.record.scripts.script_file import SUFFIX, KeptScript
from cellblock.types.check.checker import TypeChecker


async def test(parsed: argparse.Namespace) -> int:
    """Tries the scripts, and prints how they stand; or runs one with another input.

    Raises:
        UsageError: The options do not go together, or nobody can be asked.
        BadScript: There is no such script.
    """
    settings, library = opened_library(parsed)
    scripts = [library.current(name) for name in parsed.names]
    if parsed.input is None:
        told = await _tested(
            settings,
            library,
            [script.name for script in scripts] or library.names(),
            offline=parsed.offline,
        )
        lines = "".join(f"{harmless(line)}\n" for one in told for line in _lines(**one))
        answer(parsed, told, lines or "No script is kept.\n")
        return EXIT_OK if all(one["verdict"] == "works" for one in told) else EXIT_NO
    if len(scripts) != 1:
        raise UsageError("--input is for one script; name it")
    if not parsed.yes and not confirmed(
        f"Run {scripts[0].name} with this input, live? Its tools are called.", "name --yes"
    ):
        sys.stdout.write("Nothing was run.\n")
        return EXIT_NO
    return await run_version(parsed, settings, scripts[0], parsed.input)


async def _tested(
    settings: Settings, library: Library, names: Sequence[str], *, offline: bool
) -> list[dict[str, Any]]:
    tried = {name: await _replayed(name, library, settings) for name in names}
    usable = [(script, trial, findings) for script, trial, findings in tried.values() if script is not None]
    async with contextlib.AsyncExitStack() as stack:
        if usable and not offline:
            checker = TypeChecker(settings.cellblock.isolation)
            stack.push_async_callback(checker.close)
            broker = await stack.enter_async_context(Broker(settings.without_workers()))
            servers = {tool.partition(".")[0] for script, _, _ in usable for tool in script.header.tools}
            catalog = await settled_catalog(broker, sorted(servers), say)
            for script, trial, findings in usable:
                findings += against(script, trial, catalog)
                findings += await type_checked(script, trial, catalog, checker)
    return [
        {
            "name": name,
            "verdict": worst(findings),
            "state": state_of(library, name)["state"],
            "findings": [asdict(one) for one in findings],
        }
        for name, (_, _, findings) in tried.items()
    ]


async def _replayed(
    name: str, library: Library, settings: Settings
) -> tuple[KeptScript | None, Trial | None, list[Finding]]:
    script = trial = None
    try:
        script = library.current(name)
        trial = library.trial(script)
        if trial is not None:
            return script, trial, await replayed(script, trial, settings)
        return script, None, [Finding("works", name, "not replayed: this machine has no recording of it")]
    except CellblockError as error:
        return script, trial, [Finding("broken", name, str(error))]


async def replayed(script: KeptScript, trial: Trial, settings: Settings) -> list[Finding]:
    """Runs a script offline against its recording: it must come to the recorded result. Raises CellblockError: It
    cannot be replayed."""
    found = await replay(
        trial.recording,
        script=script.with_input(trial.input),
        settings=settings,
        script_name=script.name + SUFFIX,
    )
    failed = next((one for one in found.response.diagnostics if one.severity == "error"), None)
    if failed is not None:
        return [Finding("broken", failed.path or script.name, f"the replay fails: {failed.message}")]
    recorded = (trial.recording.response or {}).get("result")
    if json.dumps(found.response.result, sort_keys=True) != json.dumps(recorded, sort_keys=True):
        return [Finding("broken", script.name, "the replay comes to another result than was recorded")]
    return []


def _lines(name: str, verdict: Verdict, state: str, findings: Sequence[Mapping[str, str]]) -> Iterator[str]:
    tried = " (this is its file, not the version that runs)" if state == CHANGED else ""
    yield f"{name}: {verdict}{tried}"
    for one in findings:
        yield f"  {one['verdict']:<7} {one['place']}: {one['what']}"
