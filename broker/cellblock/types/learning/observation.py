"""An observation is what has been observed of one tool: the record that is merged, stored and shown."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, cast

from cellblock.types.learning.fading import NOT_FADING, Fading, Forms

MAX_DISAGREEMENT_CHARS: Final = 300


class ToolKey(NamedTuple):
    """Names a tool in one definition. `fingerprint` is of its definition: what was observed of another definition is
    not this tool's."""

    server: str
    tool: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class GivenCheck:
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


@dataclass(frozen=True, slots=True)
class Observation(Forms):
    """Holds the shape of one or many results of a tool, and their number.

    Attributes:
        samples: Results looked at.
        skipped: Results that were too large or too deep to look at.
        first_seen: Seconds since the epoch.
        last_seen: Seconds since the epoch.
        version: Counts up whenever the shape changes; 1 at first.
        disagreements: Results that do not fit the declared schema.
        disagreement: How the newest of them does not fit; it quotes no value.
        sample: The newest small result, where keeping samples was asked for.
        given: How results fit what the user gives.
        fading: What is about to fade of it, and what has.
    """

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

    @property
    def shape(self) -> Forms:
        """Gives the shapes that make a version."""
        return Forms(self.value, self.document, self.texts, self.results)

    def together(self, newer: Observation) -> Observation:
        """Joins two observations of results that come after each other and have not been merged with what is known."""
        return self._counted(newer)._formed(self.shape.joined(newer.shape))

    def begun(self) -> Observation:
        """Makes the observation the first that is known of a tool."""
        return replace(self, fading=Fading(self.shape, float(self.samples), self.last_seen))

    def merged(self, newer: Observation) -> Observation:
        """Gives what is known after newer results: old shapes fade. Versions count its changes."""
        if not self.samples:
            return self.together(newer).begun()
        if not newer.samples:
            return self.together(newer)
        forms, fading = self.fading.after(self.shape, newer.shape, newer.samples, newer.last_seen)
        made = replace(self._counted(newer)._formed(forms), fading=fading)
        return replace(made, version=self.version + 1) if forms != self.shape else made

    def _formed(self, forms: Forms) -> Observation:
        return replace(
            self, value=forms.value, document=forms.document, texts=forms.texts, results=forms.results
        )

    def _counted(self, newer: Observation) -> Observation:
        return replace(
            self,
            samples=self.samples + newer.samples,
            skipped=self.skipped + newer.skipped,
            first_seen=min(self.first_seen or newer.first_seen, newer.first_seen),
            last_seen=max(self.last_seen, newer.last_seen),
            disagreements=self.disagreements + newer.disagreements,
            disagreement=newer.disagreement or self.disagreement,
            sample=newer.sample if newer.sample is not None else self.sample,
            given=self.given.merged(newer.given),
        )


def tool_key(server: str, tool: str, of_definition: str) -> ToolKey:
    """Gives the key of a tool. A lone surrogate has no place in a database: such a name is kept in its escaped form."""
    server, tool = (text.encode("utf-8", "backslashreplace").decode("utf-8") for text in (server, tool))
    return ToolKey(server, tool, of_definition)


def fingerprint(input_schema: object, output_schema: object) -> str:
    """Gives a short hash of a tool's definition; equal for equal definitions, in every process."""
    if isinstance(input_schema, Mapping):
        # The user's examples are put into the schema, and change nothing of the tool.
        known = cast("Mapping[str, Any]", input_schema)
        input_schema = {key: part for key, part in known.items() if key != "examples"}
    try:
        text = json.dumps([input_schema, output_schema], sort_keys=True, default=_plain)
    except (TypeError, ValueError, RecursionError):
        text = "a definition that is no JSON"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _plain(value: object) -> Any:
    if isinstance(value, Mapping):
        return dict(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    raise TypeError(type(value).__name__)
