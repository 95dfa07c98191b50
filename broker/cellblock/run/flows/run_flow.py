"""A run's flow is what is known of the data that the run has seen: it judges each call by that, and takes each result's
label before the result goes on to the script."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

import msgspec

from cellblock.base.json import is_object
from cellblock.base.raw_json import RawJson
from cellblock.run.flows.labels import NOTHING, UNSAID, Label, Stated, stated_by_server
from cellblock.run.flows.rules import FlowRules, Judged, rule_for
from cellblock.run.policy.asking import FlowQuestion
from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry
from cellblock.tools.upstream.requester import CallOrigin
from cellblock.tools.upstream.wire.messages import fields_of
from cellblock.tools.upstream.wire.repair import carried
from cellblock.tools.upstream.wire.results import ResourceResult, ToolResult

MAX_META_BYTES: Final = 64 * 1024
"""Bounds what is read of a server's own labels; a larger one counts as the strictest."""

KEPT_RESULTS: Final = 32
KEPT_BYTES: Final = 8 * 1024
"""Bound what is kept of a run's results to be found again in what it sends: so many of the last, so much of each."""

MAX_SOURCES: Final = 6
"""Bounds the tools that a question names as sources."""

MIN_CHARS: Final = 12
"""Takes shorter texts for chance."""

MAX_INPUT_CHARS: Final = 16 * 1024
"""Bounds what is looked at of an input."""

_JSON: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))

MAX_MARKS: Final = 5
MAX_MARK_CHARS: Final = 200


class FlowMemory(Protocol):
    """Keeps what principals' models have read, from run to run; `record.flow_labels` does."""

    async def of(self, reader: str) -> Label:
        """Gives the label of what a reader has read. Never raises: what cannot be known is the strictest."""
        ...

    def rises(self, reader: str, label: Label) -> None:
        """Hears that a run of a reader knows more: what it logs may be read before it ends."""

    async def read(self, reader: str, label: Label) -> None:
        """Hears that a reader is about to read what has this label; others know it when this returns, or within a
        bound. Never raises."""


class RunFlow:
    """Follows the data of one run, or of one call without a run.

    Args:
        rules: The policy's.
        label: Of what the run's author has read before.
        catalog: The run's: definitions in it that nobody has approved are strangers' words.
        risen: Told the label each time that the run has seen what was not in it before.

    Attributes:
        rules: The policy's.
        label: Of all that the run knows.
        has_risen: Whether that is more than it knew at its start.
    """

    def __init__(
        self,
        rules: FlowRules,
        label: Label,
        catalog: Catalog,
        risen: Callable[[Label], object],
    ) -> None:
        self.rules = rules
        self._risen = risen
        if any(server.unpinned for server in catalog.servers.values()):
            label |= Label(trusted=False)
        self.label, self.has_risen = label, False
        self._sources = dict[str, Label]()
        self._seen = deque[bytes](maxlen=KEPT_RESULTS)

    def takes(self, label: Label, source: str = "") -> None:
        """Joins what the run is about to see. Call it before anything of that goes on to the script."""
        if source and source not in self._sources and not label.within(NOTHING):
            self._sources[source] = label
        if not label.within(self.label):
            self.label |= label
            self.has_risen = True
            self._risen(self.label)

    def answered(self, server: ServerEntry, tool: ToolEntry, result: object) -> Label:
        """Takes what a call of a tool came to: a result, or an error with words of its server. Returns its label."""
        flow, body = self.rules.of(server, tool), _body_of(result)
        is_said = b'"ifc"' in body and not isinstance(result, RawJson)
        label = flow.result(_said_by_server(body)) if is_said else flow.plain
        if self._sources.get(flow.name) is not label:
            self.takes(label, flow.name)
        if body:
            self._seen.append(body[:KEPT_BYTES])
        return label

    def recorded(self, server: ServerEntry | None, tool: ToolEntry | None, packed: str) -> None:
        """Takes the answer of a call that is recorded with its label; without one, what the tool's results are now."""
        if packed or server is None or tool is None:
            self.takes(Label.unpack(packed))
        else:
            self.takes(self.rules.of(server, tool).result())

    def origin(self, origin: CallOrigin, server: ServerEntry, tool: ToolEntry) -> CallOrigin:
        """Returns what a call comes from, whose server is told nothing that it may not know by the client's model: that
        has read what the run's author has, and what it says goes to that server."""
        return replace(origin, may_sample=lambda: self.rules.may_know(server, tool, self.label))

    async def question(
        self, server: ServerEntry, tool: ToolEntry, arguments: Any, judged: Judged
    ) -> FlowQuestion:
        """Makes what a question about a call shows."""
        label = self.label
        sources = [name for name, own in self._sources.items() if not own.within(NOTHING)]
        named = ", ".join(sources[:MAX_SOURCES]) + (" and others" if len(sources) > MAX_SOURCES else "")
        of = f"This run has read {named}." if named else "What was read before this run counts."
        said = f"What the script knows is {label}; {judged.why}. {of}"
        found = await marks(arguments, [*self._seen])
        rule = json.dumps(rule_for(server.server_id, tool, label, arguments), ensure_ascii=False)
        return FlowQuestion(said=said, found=found, rule=rule, label=label.pack())


def _body_of(result: object) -> bytes:
    """Returns the JSON of what a call has come to, or that of a result which is passed on as it is."""
    if isinstance(result, RawJson):
        return result.raw
    if isinstance(result, (ToolResult, ResourceResult)):
        return result.body
    meta: object = getattr(result, "meta", None)
    return carried(meta) or (msgspec.json.encode({"_meta": meta}) if is_object(meta) else b"")


def _said_by_server(body: bytes) -> Stated:
    """Reads the label that a server has put on a result."""
    raw = bytes(fields_of(body).get("_meta", b"{}"))
    try:
        meta: object = msgspec.json.decode(raw) if len(raw) <= MAX_META_BYTES else {"ifc": None}
    except (msgspec.DecodeError, RecursionError):
        meta = {"ifc": None}
    return stated_by_server(meta) if is_object(meta) else UNSAID


async def marks(arguments: Any, seen: Sequence[bytes]) -> tuple[str, ...]:
    """Returns texts of results, whose beginnings are given as JSON, that stand in an input, the longest first. Found in
    a thread: others have their turn."""
    return await asyncio.to_thread(_marks, arguments, seen) if seen else ()


def _marks(arguments: Any, seen: Sequence[bytes]) -> tuple[str, ...]:
    text = _beginning(arguments)
    starts = {text[at : at + MIN_CHARS]: at for at in range(len(text) - MIN_CHARS, -1, -1)}
    found = set[str]()
    for body in seen:
        result = body.decode("utf-8", "replace")
        at = 0
        while at <= len(result) - MIN_CHARS:
            start = starts.get(result[at : at + MIN_CHARS])
            size = 0 if start is None else _same(result, at, text, start)
            if size and result[at : at + size].strip('{}[]",: \\'):
                found.add(result[at : at + size].strip('{}[]",: \\')[:MAX_MARK_CHARS])
            at += max(1, size)
    ordered = sorted((one for one in found if len(one) >= MIN_CHARS), key=lambda one: (-len(one), one))
    kept: list[str] = []
    for one in ordered:
        if not any(one in longer for longer in kept):
            kept.append(one)
    return tuple(kept[:MAX_MARKS])


def _beginning(arguments: Any) -> str:
    """Returns the beginning of an input, as JSON without blanks: what is large is not encoded to its end."""
    parts, size = list[str](), 0
    for part in _JSON.iterencode(arguments):
        parts.append(part)
        size += len(part)
        if size > MAX_INPUT_CHARS:
            break
    return "".join(parts)[:MAX_INPUT_CHARS]


def _same(one: str, at: int, other: str, start: int) -> int:
    """Counts the characters that two texts share from two places on."""
    most = min(len(one) - at, len(other) - start)
    size = MIN_CHARS
    while size < most and one[at + size] == other[start + size]:
        size += 1
    return size
