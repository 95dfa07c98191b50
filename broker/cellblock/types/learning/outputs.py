"""Joins what is known of tool outputs: what the catalog states, joined with what the learner has observed.

Types use what is given, then declared, then observed. Texts that a client caches are made with
`catalog.model.stated_output`, but for what the tools gave that it has used, which is taken once a day.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from cellblock.base.errors import ConfigError, counted
from cellblock.base.json import is_object
from cellblock.base.kept import Newest
from cellblock.base.settings.settings import SchemaSettings
from cellblock.tools.catalog.model import (
    Given,
    JsonSchema,
    OutputLookup,
    ServerEntry,
    ToolEntry,
    ToolOutput,
    stated_output,
)
from cellblock.tools.schemas.boxing import boxed_field, unbox_schema
from cellblock.types.learning.learner import Learner, mark_of
from cellblock.types.learning.observation import Observation, fingerprint
from cellblock.types.learning.overlay import overlay_file, read_overlay
from cellblock.types.learning.render import to_schema
from cellblock.types.learning.shape import LOCAL, NOTHING, join


def refined(
    settings: SchemaSettings, overlays: Mapping[str, Mapping[str, Given]], server: str, tool: ToolEntry
) -> ToolEntry:
    """Adds to a tool's catalog entry how scripts get its results, as the configuration has it.

    Args:
        settings: The section of the configuration.
        overlays: What the user says of tools, by server and tool.
        server: The server's name in the configuration.
        tool: The entry.
    """
    tool = replace(tool, parse_text=settings.unwraps(server), exact=settings.is_exact(server))
    overlay = overlays.get(server, {}).get(tool.tool_name)
    if overlay is not None:
        tool = _overlaid(tool, overlay)
    box = boxed_field(tool.output_schema) if settings.unbox else None
    if box is None or not isinstance(tool.output_schema, Mapping):
        return tool
    return replace(tool, box=box, output_schema=unbox_schema(tool.output_schema, box))


def load_overlays(folder: Path, servers: Iterable[str]) -> dict[str, dict[str, Given]]:
    """Gives the overlays of all configured servers, and of the Python tools.

    Raises:
        ConfigError: A file cannot be used; the message names line and column. Or two servers would share one.
    """
    found: dict[str, dict[str, Given]] = {}
    owners: dict[Path, str] = {}
    for name in [*servers, "local"]:
        file = overlay_file(folder, name)
        found[name] = read_overlay(file).tools
        other = owners.setdefault(file, name)
        if found[name] and other != name:
            # What is said of one server's tools, above all that they only read, must not be taken for the other's.
            raise ConfigError(
                f"The overlay {file} would be that of two servers, {other!r} and {name!r}.",
                hint="Rename one of them in mcpServers.",
            )
    return {name: overlays for name, overlays in found.items() if overlays}


_HINTS: Final = {
    "read": {"readOnlyHint": True},
    "write": {"readOnlyHint": False, "destructiveHint": False},
    "destructive": {"readOnlyHint": False, "destructiveHint": True},
}


def _overlaid(tool: ToolEntry, given: Given) -> ToolEntry:
    tool = replace(tool, given=given)
    if given.effect is not None:
        tool = replace(tool, annotations={**(tool.annotations or {}), **_HINTS[given.effect]})
    if given.examples and isinstance(tool.input_schema, Mapping):
        # Where agents and error messages look for examples (Code Mode specification, section 7.2).
        inputs = [example.input for example in given.examples]
        tool = replace(tool, input_schema={**tool.input_schema, "examples": inputs})
    return tool


_NARROWING: Final = frozenset(
    {"$ref", "anyOf", "oneOf", "allOf", "enum", "const", "patternProperties", "prefixItems"}
)
"""Holds keywords that say more than the kind of a value."""

MAX_MADE: Final = 4_096
"""Bounds the outputs that are kept, of all tools as each principal sees them."""


class KnownOutputs:
    """Looks up outputs over a learner, for the principal that asks; what was made for an observation is kept."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._made = Newest[tuple[str, str, str], tuple[ToolEntry, Observation, ToolOutput | None]](MAX_MADE)

    def of(self, principal: str) -> OutputLookup:
        """Gives what a principal looks outputs up with."""
        return partial(self, principal=principal)

    def observed(self, server: ServerEntry, tool: ToolEntry, principal: str = "") -> ToolOutput | None:
        """Gives what has been observed of a tool's output, whatever is given or declared; None when nothing has."""
        seen = self._learner.known(server.learnt_as, tool)
        return None if seen is None else _observed(tool, seen.shared(_own(mark_of(principal))))

    def __call__(self, server: ServerEntry, tool: ToolEntry, principal: str = "") -> ToolOutput | None:
        """Gives what is known of a tool's output now, as a principal is shown it; None when nothing is."""
        observed = self._learner.known(server.learnt_as, tool)
        if observed is None:
            return stated_output(server, tool)
        key = server.server_id, tool.tool_name, mark_of(principal)
        held = self._made.get(key)
        if held is None or held[0] is not tool or held[1] is not observed:
            stated, seen = stated_output(server, tool), observed.shared(_own(key[2]))
            is_open = stated is not None and stated.source == "declared" and _is_open(stated.schema)
            made = (
                _observed(tool, seen) or stated
                if stated is None or is_open
                else _compared(tool, stated, seen)
            )
            held = self._made[key] = (tool, observed, made)
        return held[2]


def _own(mark: str) -> tuple[str, ...]:
    """Gives the marks of what a principal has itself shown."""
    # What 0.1.0 has learnt has no mark: it is shown to the user of this machine.
    return ("", LOCAL) if mark == LOCAL else (mark,)


def _is_open(schema: object) -> bool:
    """Says whether a schema says no more than that there is an object, or a list of them, be it alone in an object."""
    if not is_object(schema):
        return schema in (None, True)
    if not _NARROWING.isdisjoint(schema):
        return False
    if schema.get("type") == "array":
        return _is_open(schema.get("items"))
    properties = schema.get("properties")
    if is_object(properties) and properties:
        boxed = properties.get("result")
        return len(properties) == 1 and _structured_kind(boxed) is not None and _is_open(boxed)
    return schema.get("type", "object") == "object" and schema.get("additionalProperties", True) in (True, {})


def _observed(tool: ToolEntry, seen: Observation) -> ToolOutput | None:
    if not seen.samples:
        return None
    value = join(seen.shape.value, seen.shape.document) if tool.parse_text else seen.shape.value
    has_document = seen.shape.document != NOTHING and not tool.parse_text and not seen.shape.texts
    declared = "" if tool.output_schema is not None else "; not declared by the server"
    made = ToolOutput(
        source="observed",
        note=f"{_observed_from(seen)}{declared}.",
        schema=None if value == NOTHING else to_schema(value),
        document=to_schema(seen.shape.document) if has_document else None,
        text=seen.shape.texts,
        result=seen.shape.results,
    )
    return _with_counts(made, seen)


def _compared(tool: ToolEntry, stated: ToolOutput, seen: Observation) -> ToolOutput:
    if not seen.samples:
        return stated
    if (text := _really_text(tool, stated, seen)) is not None:
        return text
    counted = _with_counts(stated, seen)
    if stated.source == "given" and (misfits := misfits_of(seen, stated)):
        counted = replace(counted, disagreement=misfits, note=f"{stated.note} {misfits}.")
    if not seen.disagreements:
        return counted
    count = f"{seen.disagreements} of {seen.samples} results"
    # Also where types come from the user: the server's own schema is shown beside it.
    by = "is declared" if stated.source == "declared" else "the server declares"
    disagreement = f"{count} did not fit what {by}; the newest: {seen.disagreement}"
    both = disagreement if counted.disagreement is None else f"{counted.disagreement}. {disagreement}"
    return replace(counted, disagreement=both, note=f"{stated.note} {both}.")


def misfits_of(seen: Observation, stated: ToolOutput) -> str | None:
    """Says how results did not fit what is given, as a sentence without a full stop; None when all did."""
    schema = stated.schema if stated.document is None else stated.document
    fit = seen.given
    if not fit.misfits or fit.of not in (fingerprint(schema, json_text) for json_text in (False, True)):
        return None
    return f"{fit.misfits} of {fit.checked} results did not fit what is given; the newest: {fit.newest}"


def _really_text(tool: ToolEntry, stated: ToolOutput, seen: Observation) -> ToolOutput | None:
    """Gives what scripts really get of a tool that declares an object or an array and has always answered with a
    text."""
    kind = _structured_kind(stated.schema) if stated.source == "declared" else None
    parsed = tool.parse_text and seen.shape.document != NOTHING
    in_text = seen.shape.texts or seen.shape.document != NOTHING
    if kind is None or parsed or seen.shape.results or seen.shape.value != NOTHING or not in_text:
        return None
    what = "a text" if seen.shape.texts else "JSON text, of which JSON.parse makes a value"
    results = "its one result" if seen.samples == 1 else f"each of {seen.samples} results"
    said = f"Declared by the server as an {kind}, but {results} was {what}"
    made = ToolOutput(
        source="observed",
        note=f"{said}. {_observed_from(seen)}.",
        document=None if seen.shape.texts else to_schema(seen.shape.document),
        text=seen.shape.texts,
        disagreement=f"{seen.samples} of {seen.samples} results were texts",
    )
    return _with_counts(made, seen)


def _structured_kind(schema: JsonSchema | None) -> str | None:
    """Gives `object` or `array`, where a schema says that it is one."""
    if not isinstance(schema, Mapping):
        return None
    kind = schema.get("type", "object" if "properties" in schema else "array" if "items" in schema else None)
    return kind if kind in ("object", "array") else None


def _with_counts(made: ToolOutput, seen: Observation) -> ToolOutput:
    return replace(
        made,
        samples=seen.samples,
        first_seen=_day(seen.first_seen),
        last_seen=_day(seen.last_seen),
        version=seen.version,
        sample=seen.sample,
    )


def _observed_from(seen: Observation) -> str:
    count = counted(seen.samples, "result")
    first, last = _day(seen.first_seen), _day(seen.last_seen)
    days = first if first == last else f"{first} to {last}"
    more = f" ({seen.skipped} more were too large to look at)" if seen.skipped else ""
    return f"Observed from {count}, {days}{more}"


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(at))
