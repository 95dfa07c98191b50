"""An observation is what has been observed of one tool: the record that is merged, stored as it is, and shown."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from typing import Annotated, Final, NamedTuple

from msgspec import Meta, Struct
from msgspec.structs import replace

from cellblock.base.json import is_object
from cellblock.types.learning.render import changes
from cellblock.types.learning.shape import NOTHING, Shape, bounded, join, of_all, refreshed, shared

MAX_DISAGREEMENT_CHARS: Final = 300

WINDOW: Final = 50
"""Sets the number of results after which what none of them shows has faded, at first."""

MAX_WINDOW: Final = 64 * WINDOW


class ToolKey(NamedTuple):
    """Names a tool in one definition. `fingerprint` is of its definition: what was observed of another definition is
    not this tool's."""

    server: str
    tool: str
    fingerprint: str


class GivenCheck(Struct, frozen=True, omit_defaults=True):
    """Counts how results fit the output schema that the user gives.

    Attributes:
        of: The fingerprint of that schema; empty without one.
        checked: Results that were held against it.
        misfits: Those that did not fit.
        newest: How the newest of them did not; it quotes no value.
    """

    of: str = ""
    checked: int = 0
    misfits: int = 0
    newest: str = ""

    def merged(self, newer: GivenCheck) -> GivenCheck:
        """Adds two checks together; where the newer is of another schema, it counts alone."""
        if not newer.of or newer.of != self.of:
            return newer if newer.of else self
        return GivenCheck(
            self.of, self.checked + newer.checked, self.misfits + newer.misfits, newer.newest or self.newest
        )


NOT_GIVEN: Final = GivenCheck()


class Forms(Struct, frozen=True, omit_defaults=True):
    """Holds what results of one tool looked like, by the way in which scripts got them.

    Attributes:
        value: Shape of the structured results.
        document: Shape of the JSON in results that were one text block with a JSON object or array.
        texts: Whether another text was among them.
        results: Whether a whole MCP result was.
    """

    value: Shape = NOTHING
    document: Shape = NOTHING
    texts: bool = False
    results: bool = False

    def joined(self, other: Forms) -> Forms:
        """Joins both forms, kept small."""
        return Forms(
            bounded(join(self.value, other.value)),
            bounded(join(self.document, other.document)),
            self.texts or other.texts,
            self.results or other.results,
        )

    def refreshed(self, recent: Forms) -> Forms:
        """Gives these forms without what newer results do not show."""
        if recent == Forms():
            return self
        return Forms(
            NOTHING if recent.value == NOTHING else refreshed(self.value, recent.value),
            NOTHING if recent.document == NOTHING else refreshed(self.document, recent.document),
            recent.texts,
            recent.results,
        )

    def changes_to(self, newer: Forms) -> list[str]:
        """Says how newer shapes of results differ, in a sentence for each place."""
        found = changes(self.value, newer.value) if NOTHING not in (self.value, newer.value) else []
        if NOTHING not in (self.document, newer.document):
            found += [f"JSON text {sentence}" for sentence in changes(self.document, newer.document)]
        for what, was, now in (
            ("structured content", self.value != NOTHING, newer.value != NOTHING),
            ("a JSON text", self.document != NOTHING, newer.document != NOTHING),
            ("a text that is no JSON", self.texts, newer.texts),
            ("a whole MCP result", self.results, newer.results),
        ):
            if was != now:
                found.append(what if now else f"{what} no more")
        return found


class Fading(Struct, frozen=True, omit_defaults=True):
    """Holds how far the fading of one tool has come: a type says what results are like now.

    Results are looked at in windows, and what a whole window does not show goes. The next window is twice as long, so
    that shapes that take turns settle on a type that has all of them.

    Attributes:
        recent: What the results of this window looked like; None where that is what is known.
        count: Their number.
        window: After how many it ends.
    """

    recent: Forms | None = Forms()
    count: Annotated[int, Meta(ge=0)] = 0
    window: Annotated[int, Meta(ge=1)] = WINDOW

    def after(self, known: Forms, seen: Forms, samples: int) -> tuple[Forms, Fading]:
        """Gives what is known after some results, and how far the fading then has come."""
        joined, count = known.joined(seen), self.count + samples
        recent = joined if self.recent is None else self.recent.joined(seen)
        if count < self.window:
            return joined, Fading(None if recent == joined else recent, count, self.window)
        left = joined.refreshed(recent)
        return left, Fading(window=self.window if left == joined else min(2 * self.window, MAX_WINDOW))


NOT_FADING: Final = Fading()

_NOT_SHARED: Final = "another client's, which is not shown"


class Observation(Struct, frozen=True, omit_defaults=True):
    """Holds the shape of one or many results of a tool, and their number.

    Attributes:
        shape: What they looked like; other shapes make another version.
        samples: Results looked at.
        skipped: Results that were too large or too deep to look at.
        first_seen: Seconds since the epoch.
        last_seen: Seconds since the epoch.
        version: Counts up whenever the shape changes; 1 at first.
        disagreements: Results that do not fit the declared schema.
        disagreement: How the newest of them does not fit; it quotes no value.
        sample: The newest small result, where keeping samples was asked for.
        given: How results fit what the user gives.
        fading: What is about to fade of it.
        by: Whose the results are, as `shape.of_all` says.
    """

    shape: Forms = Forms()
    samples: int = 0
    skipped: int = 0
    first_seen: float = 0.0
    last_seen: float = 0.0
    version: int = 1
    disagreements: int = 0
    disagreement: str = ""
    sample: str | None = None
    given: GivenCheck = NOT_GIVEN
    fading: Fading = NOT_FADING
    by: str = ""

    def together(self, newer: Observation) -> Observation:
        """Joins two observations of results that come after each other and have not been merged with what is known."""
        return replace(
            self,
            shape=self.shape.joined(newer.shape),
            samples=self.samples + newer.samples,
            by=of_all(self.by, newer.by),
            skipped=self.skipped + newer.skipped,
            first_seen=min(self.first_seen or newer.first_seen, newer.first_seen),
            last_seen=max(self.last_seen, newer.last_seen),
            disagreements=self.disagreements + newer.disagreements,
            disagreement=newer.disagreement or self.disagreement,
            sample=newer.sample if newer.sample is not None else self.sample,
            given=self.given.merged(newer.given),
        )

    def begun(self) -> Observation:
        """Makes the observation the first that is known of a tool."""
        return replace(self, fading=Fading(None, self.samples))

    def merged(self, newer: Observation) -> Observation:
        """Gives what is known after newer results: old shapes fade. Versions count its changes."""
        made = self.together(newer)
        if not self.samples:
            return made.begun()
        if not newer.samples:
            return made
        shape, fading = self.fading.after(self.shape, newer.shape, newer.samples)
        return replace(made, shape=shape, fading=fading, version=self.version + (shape != self.shape))

    def shared(self, own: Collection[str]) -> Observation:
        """Gives what may be shown of it, as `shape.shared`: all of it where all results are of `own`."""
        if self.by in own:
            return self
        given = replace(self.given, newest=_NOT_SHARED) if self.given.newest else self.given
        shape = self.shape
        return replace(
            self,
            shape=replace(shape, value=shared(shape.value, own), document=shared(shape.document, own)),
            disagreement=_NOT_SHARED if self.disagreement else "",
            sample=None,
            given=given,
            fading=NOT_FADING,
        )


def tool_key(server: str, tool: str, of_definition: str) -> ToolKey:
    """Gives the key of a tool. A lone surrogate has no place in a database, nor has NUL in PostgreSQL: such a name is
    kept in its escaped form."""
    server, tool = (
        text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")
        for text in (server, tool)
    )
    return ToolKey(server, tool, of_definition)


def fingerprint(input_schema: object, output_schema: object) -> str:
    """Gives a short hash of a tool's definition; equal for equal definitions, in every process."""
    if is_object(input_schema):
        # The user's examples are put into the schema, and change nothing of the tool.
        input_schema = {key: part for key, part in input_schema.items() if key != "examples"}
    try:
        text = json.dumps([input_schema, output_schema], sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        text = "a definition that is no JSON"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
