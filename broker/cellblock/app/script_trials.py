"""Tries whether a kept script still works: against its recording, offline, and against its servers' schemas of now."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from cellblock.app.replay import replay
from cellblock.base.errors import CellblockError
from cellblock.base.settings.settings import Settings
from cellblock.record.recording import catalog_of
from cellblock.record.scripts.changes import Finding, Verdict, compared
from cellblock.record.scripts.library import Trial
from cellblock.record.scripts.script_file import SUFFIX, KeptScript, schema_digest
from cellblock.script.imports import PARSE_BOUND_SECONDS, find_imports
from cellblock.script.source import specifiers
from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry
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

    def as_json(self) -> dict[str, Any]:
        """Gives it as JSON data."""
        return {"name": self.name, "verdict": self.verdict, **asdict(self)}


async def replayed(script: KeptScript, trial: Trial, settings: Settings) -> list[Finding]:
    """Runs a script offline against its recording: it must come to the recorded result."""
    try:
        code = script.with_input(trial.input)
        found = await replay(
            trial.recording, script=code, settings=settings, script_name=script.name + SUFFIX
        )
    except CellblockError as error:
        return [Finding("broken", script.name, f"it cannot be replayed: {error}")]
    failed = next((one for one in found.response.diagnostics if one.severity == "error"), None)
    if failed is not None:
        return [Finding("broken", failed.path or script.name, f"the replay fails: {failed.message}")]
    recorded = (trial.recording.response or {}).get("result")
    if json.dumps(found.response.result, sort_keys=True) != json.dumps(recorded, sort_keys=True):
        return [Finding("broken", script.name, "the replay comes to another result than was recorded")]
    return []


def against(script: KeptScript, trial: Trial | None, catalog: Catalog) -> Result:
    """Holds a script against the schemas of its tools as they are now."""
    result = Result(script.name)
    for name, digest in script.header.tools.items():
        server_id, _, tool_name = name.partition(".")
        if server_id not in catalog.servers and server_id in catalog.unavailable:
            result.notes.append(f"{name}: not compared: {server_id} is not connected")
            continue
        tool = _tool(catalog, server_id, tool_name)
        if tool is None:
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
    return result


async def type_checked(
    script: KeptScript, trial: Trial | None, catalog: Catalog, checker: TypeChecker
) -> list[Finding]:
    """Type-checks a script against the schemas of now, and tells what it was not told with those before."""
    code = script.with_input({} if trial is None else trial.input)
    source = code.encode()
    found = await asyncio.to_thread(find_imports, source, PARSE_BOUND_SECONDS)
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
    before = {(one.line, one.message) for one in (await checked(_before(trial))).faults}
    return [
        Finding("changed", f"{script.name}{SUFFIX}:{one.line}:{one.column}", one.message)
        for one in now.faults
        if (one.line, one.message) not in before
    ]


# ---- inside ------------------------------------------------------------------------------------------


def _tool(catalog: Catalog, server_id: str, tool_name: str) -> ToolEntry | None:
    server = catalog.servers.get(server_id)
    known = () if server is None else (*server.tools, *((server.reads,) if server.reads else ()))
    return next((tool for tool in known if tool.tool_name == tool_name), None)


def _before(trial: Trial) -> Catalog:
    """Makes the catalog of the tools as they were when the script was kept."""
    names = catalog_of(trial.recording.catalog)
    servers: dict[str, ServerEntry] = {}
    for server_id, server in names.servers.items():
        tools = tuple(
            replace(tool, input_schema=known[0], output_schema=known[1])
            for tool in server.tools
            if (known := trial.tools.get(f"{server_id}.{tool.tool_name}")) is not None
        )
        servers[server_id] = replace(server, tools=tools, by_export={one.export_name: one for one in tools})
    return replace(names, servers=servers)
