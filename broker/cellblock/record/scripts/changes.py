"""What has changed for a kept script: its recording and its text, held against its servers' schemas of now.

What a change of a tool's schemas means for a script goes by what its recording sent and got; the table is that of
docs/scripts.md. What no recorded value shows, the type check tells.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from cellblock.base.json import is_array, is_object
from cellblock.record.recording import catalog_of
from cellblock.record.scripts.library import Trial
from cellblock.record.scripts.script_file import SUFFIX, KeptScript, pruned, said_of, schema_digest
from cellblock.script.imports import PARSE_BOUND_SECONDS, find_imports
from cellblock.tools.catalog.model import Catalog, ServerEntry
from cellblock.tools.schemas.validation import InputValidator
from cellblock.tools.schemas.violations import Violation
from cellblock.types.check.checker import Checked, TypeChecker

CHECK_SECONDS: Final = 20.0
"""Bounds the type check of one script."""


VERDICTS: Final[tuple[Verdict, ...]] = ("works", "changed", "broken")
"""Has the best first: the worst of what was found is said of the script."""

Verdict = Literal["works", "changed", "broken"]

WORD: Final = re.compile(r"[\w$]+")

_OPENING: Final = frozenset(("required", "minProperties", "unevaluatedProperties"))


@dataclass(frozen=True, slots=True)
class Finding:
    """Says what has changed: a verdict, where, and what it is."""

    verdict: Verdict
    place: str
    what: str


def worst(findings: Iterable[Finding]) -> Verdict:
    """Returns the verdict on a script of which this was found."""
    return VERDICTS[max((VERDICTS.index(one.verdict) for one in findings), default=0)]


def against(script: KeptScript, trial: Trial | None, catalog: Catalog) -> Iterator[Finding]:
    """Holds a script against its tools as they are now."""
    for name, digest in script.header.tools.items():
        server_id, _, tool_name = name.partition(".")
        server = catalog.servers.get(server_id)
        if server is None and server_id in catalog.unavailable:
            yield Finding("works", name, f"not compared: {server_id} is not connected")
        elif server is None or (tool := server.tool(tool_name)) is None:
            yield Finding("broken", name, "the tool is not there any more")
        elif trial is not None and name in trial.tools:
            before, now = trial.tools[name], said_of(tool)
            calls = [
                one for one in trial.recording.calls if one.kind == "call" and one.name == name and one.ok
            ]
            found = [
                *compared(
                    name,
                    script.code,
                    before,
                    now,
                    sent=[json.loads(one.input or b"{}") for one in calls],
                    got=[json.loads(one.answer) for one in calls],
                )
            ]
            if not found and before != now:
                found = [
                    Finding("works", name, "what is said of it has changed, in nothing that the script uses")
                ]
            yield from found
        elif schema_digest(tool) != digest:
            yield Finding(
                "changed",
                name,
                "its schemas are not those it was kept with, and there is no recording here to judge by",
            )


async def type_checked(
    script: KeptScript, trial: Trial | None, catalog: Catalog, checker: TypeChecker
) -> list[Finding]:
    """Type-checks a script against the schemas of now, and tells what it was not told with those before."""
    code = script.with_input({} if trial is None else trial.input)
    found = await asyncio.to_thread(find_imports, code.encode(), PARSE_BOUND_SECONDS)

    async def checked(of: Catalog) -> Checked:
        return await checker.check(
            code,
            typescript=found.media_type == "application/typescript",
            catalog=of,
            imports=found.specifiers,
            bound_seconds=CHECK_SECONDS,
            wait_for_start=True,
            closed=True,
        )

    now = await checked(catalog)
    if not now.faults or trial is None:
        return []
    earlier = await checked(_earlier(catalog_of(trial.recording.catalog), trial.tools))
    # By their places: the words of a complaint have whole types, which change.
    before = {(one.line, one.column) for one in earlier.faults}
    return [
        Finding("changed", f"{script.name}{SUFFIX}:{one.line}:{one.column}", one.message)
        for one in now.faults
        if (one.line, one.column) not in before
    ]


def compared(
    tool: str, code: str, before: Sequence[Any], after: Sequence[Any], sent: Sequence[Any], got: Sequence[Any]
) -> Iterator[Finding]:
    """Holds what a script sent to a tool, and got from it, against the tool's schemas.

    Args:
        tool: `server.tool`.
        code: The script: it reads the fields that it names.
        before: The schemas of input and output when it was kept.
        after: Those of now.
        sent: The recorded inputs.
        got: The recorded results.
    """
    if (misfit := _misfit(before[0], after[0], sent)) is not None:
        yield Finding("broken", f"{tool} input{misfit.path}", misfit.sentence)
    if before[1] is not None and after[1] is None:
        yield Finding("changed", f"{tool} output", "it is not declared any more")
        return
    words = frozenset(WORD.findall(code))
    read = [_read(value, words) for value in got]
    was, now = (pruned(one[1], _OPENING, closed=True) for one in (before, after))
    if (misfit := _misfit(was, now, read)) is not None:
        verdict: Verdict = "broken" if misfit.keyword in ("type", "additionalProperties") else "changed"
        yield Finding(verdict, f"{tool} output{misfit.path}", misfit.sentence)


# ---- inside ------------------------------------------------------------------------------------------


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


def _misfit(before: Any, after: Any, values: Sequence[Any]) -> Violation | None:
    """Finds the first value that fits a schema no more."""
    if before == after:
        return None
    was, now = InputValidator(before), InputValidator(after)
    return next(filter(None, (now.check(value) for value in values if was.check(value) is None)), None)


def _read(value: Any, words: frozenset[str]) -> Any:
    """Returns what a script reads of a result: the fields that it names."""
    if is_array(value):
        return [_read(one, words) for one in value]
    if is_object(value):
        return {name: _read(one, words) for name, one in value.items() if name in words}
    return value
