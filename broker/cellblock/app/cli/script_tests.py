"""`test`: whether kept scripts still work, against their recordings, offline, and their servers' schemas of now."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from cellblock.app.broker import Broker
from cellblock.app.cli.arguments import UsageError
from cellblock.app.cli.help import EXIT_NO, EXIT_OK
from cellblock.app.cli.loading import settled_catalog
from cellblock.app.cli.scripts import NO_OPTIONS, code_with, opened_library, run_version
from cellblock.app.cli.streams import agreed, answer, asks, say
from cellblock.app.replay import replay
from cellblock.base.errors import CellblockError
from cellblock.base.settings.settings import Settings
from cellblock.base.terminal import harmless
from cellblock.record.recording import catalog_of
from cellblock.record.scripts.changes import Finding, Verdict, compared
from cellblock.record.scripts.library import Library, Trial
from cellblock.record.scripts.script_file import SUFFIX, KeptScript, schema_digest
from cellblock.script.imports import PARSE_BOUND_SECONDS, find_imports
from cellblock.script.source import specifiers
from cellblock.tools.catalog.model import Catalog, ServerEntry
from cellblock.types.check.checker import Checked, TypeChecker

CHECK_SECONDS: Final = 20.0
"""Bounds the type check of one script."""


@dataclass(slots=True)
class Result:
    """Says how one script stands.

    Args:
        name: The script's.
        findings: What was found.
        notes: What was not tried, and why; and what is told and not judged.
    """

    name: str
    findings: list[Finding] = field(default_factory=list[Finding])
    notes: list[str] = field(default_factory=list[str])

    @property
    def verdict(self) -> Verdict:
        """Gives the worst of it."""
        found = {one.verdict for one in self.findings}
        return "broken" if "broken" in found else "changed" if found else "works"


async def test(parsed: argparse.Namespace) -> int:
    """Tries the scripts, and prints how they stand; or runs one with another input.

    Raises:
        UsageError: The options do not go together, or nobody can be asked.
        BadScript: There is no such script.
    """
    settings, library = opened_library(parsed)
    scripts = [library.current(name) for name in parsed.names or library.names()]
    if parsed.input is None:
        results = await _tested(settings, library, scripts, offline=parsed.offline)
        text = "".join(map(_lines, results)) or "No script is kept.\n"
        answer(parsed, [{"verdict": result.verdict, **asdict(result)} for result in results], text)
        return EXIT_OK if all(result.verdict == "works" for result in results) else EXIT_NO
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


async def _tested(
    settings: Settings, library: Library, scripts: Sequence[KeptScript], *, offline: bool
) -> Sequence[Result]:
    tried = [(script, *await _replayed(script, library, settings)) for script in scripts]
    results = [result for _, _, result in tried]
    if offline or not scripts:
        return results
    checker = TypeChecker(settings.cellblock.isolation)
    async with contextlib.AsyncExitStack() as stack, Broker(settings.without_workers()) as broker:
        stack.push_async_callback(checker.close)
        servers = {tool.partition(".")[0] for script in scripts for tool in script.header.tools}
        catalog = await settled_catalog(broker, sorted(servers), say)
        for script, trial, result in tried:
            against(script, trial, catalog, result)
            result.findings += await type_checked(script, trial, catalog, checker)
    return results


async def _replayed(script: KeptScript, library: Library, settings: Settings) -> tuple[Trial | None, Result]:
    trial, result = None, Result(script.name)
    try:
        trial = library.trial(script)
        if trial is None:
            result.notes.append("not replayed: this machine has no recording of it")
        else:
            result.findings += await replayed(script, trial, settings)
    except CellblockError as error:
        result.findings.append(Finding("broken", script.name, f"it cannot be replayed: {error}"))
    return trial, result


async def replayed(script: KeptScript, trial: Trial, settings: Settings) -> list[Finding]:
    """Runs a script offline against its recording: it must come to the recorded result. Raises CellblockError: It
    cannot be replayed."""
    code = script.with_input(trial.input)
    found = await replay(trial.recording, script=code, settings=settings, script_name=script.name + SUFFIX)
    failed = next((one for one in found.response.diagnostics if one.severity == "error"), None)
    if failed is not None:
        return [Finding("broken", failed.path or script.name, f"the replay fails: {failed.message}")]
    recorded = (trial.recording.response or {}).get("result")
    if json.dumps(found.response.result, sort_keys=True) != json.dumps(recorded, sort_keys=True):
        return [Finding("broken", script.name, "the replay comes to another result than was recorded")]
    return []


def against(script: KeptScript, trial: Trial | None, catalog: Catalog, result: Result) -> None:
    """Holds a script against the schemas of its tools as they are now."""
    for name, digest in script.header.tools.items():
        server_id, _, tool_name = name.partition(".")
        server = catalog.servers.get(server_id)
        if server is None and server_id in catalog.unavailable:
            result.notes.append(f"{name}: not compared: {server_id} is not connected")
        elif server is None or (tool := server.tool(tool_name)) is None:
            result.findings.append(Finding("broken", name, "the tool is not there any more"))
        elif trial is not None and name in trial.tools:
            calls = [
                one for one in trial.recording.calls if one.kind == "call" and one.name == name and one.ok
            ]
            sent: list[Any] = [json.loads(one.input or b"{}") for one in calls]
            got: list[Any] = [json.loads(one.answer) for one in calls]
            schemas = [tool.input_schema, tool.output_schema]
            result.findings += compared(name, script.code, trial.tools[name], schemas, sent, got)
        elif schema_digest(tool) != digest:
            what = "its schemas are not those it was kept with, and there is no recording here to judge by"
            result.findings.append(Finding("changed", name, what))


async def type_checked(
    script: KeptScript, trial: Trial | None, catalog: Catalog, checker: TypeChecker
) -> list[Finding]:
    """Type-checks a script against the schemas of now, and tells what it was not told with those before."""
    code = script.with_input({} if trial is None else trial.input)
    found = await asyncio.to_thread(find_imports, code.encode(), PARSE_BOUND_SECONDS)
    names, _ = specifiers(code, found)

    async def checked(of: Catalog) -> Checked:
        return await checker.check(
            code,
            typescript=found.media_type == "application/typescript",
            catalog=of,
            imports=names,
            bound_seconds=CHECK_SECONDS,
            wait_for_start=True,
            closed=True,
        )

    now = await checked(catalog)
    if not now.faults or trial is None:
        return []
    earlier = _earlier(catalog_of(trial.recording.catalog), trial.tools)
    before = {(one.line, one.message) for one in (await checked(earlier)).faults}
    return [
        Finding("changed", f"{script.name}{SUFFIX}:{one.line}:{one.column}", one.message)
        for one in now.faults
        if (one.line, one.message) not in before
    ]


def _earlier(names: Catalog, schemas: Mapping[str, Sequence[Any]]) -> Catalog:
    """Makes the catalog of the tools as they were when the script was kept."""
    servers: dict[str, ServerEntry] = {}
    for server_id, server in names.servers.items():
        tools = tuple(
            replace(tool, input_schema=known[0], output_schema=known[1])
            for tool in server.tools
            if (known := schemas.get(f"{server_id}.{tool.tool_name}")) is not None
        )
        servers[server_id] = replace(server, tools=tools, by_export={one.export_name: one for one in tools})
    return replace(names, servers=servers)


def _lines(result: Result) -> str:
    lines = [f"{result.name}: {result.verdict}"]
    lines += [f"  {one.verdict}  {one.place}: {one.what}" for one in result.findings]
    lines += [f"  note     {note}" for note in result.notes]
    return "".join(f"{harmless(line)}\n" for line in lines)
