"""Bounds the declaration generator: what one hostile tool may cost at most, and what one compilation has spent of it.

Past a budget the declaration gets wider (`unknown` and a warning), never narrower.
"""

from __future__ import annotations

from cellblock.tools.schemas.document import Location
from cellblock.types.typescript.text import one_line

MAX_TOOL_DESCRIPTION = 4_000
"""Bounds the characters of a tool's or server's description that reach its doc comment."""

MAX_PROPERTY_DESCRIPTION = 1_000
"""Bounds the characters of a property's description that reach its doc comment."""

MAX_DOC_CHARS_PER_TOOL = 40_000
"""Bounds the characters of property documentation in one schema; later properties go without comment."""

MAX_DOC_VALUE = 200
"""Bounds the characters of one default, example or constraint value in a doc comment."""

MAX_EXAMPLES = 3
"""Bounds the examples shown for one property."""

MAX_DEPTH = 32
"""Bounds the levels of nested values described; deeper values are `unknown`."""

MAX_NODES = 4_000
"""Bounds the schema locations compiled for one schema; later ones are `unknown`."""

MAX_ENUM_MEMBERS = 400
"""Bounds the literals in one enum; a longer one is declared as the kinds of its values."""

MAX_LITERAL_CHARS = 512
"""Bounds the characters in one string literal type; a longer one is declared as `string`."""

MAX_LITERAL_NODES = 200
"""Bounds the values inside one object or array literal of a const or enum."""

MAX_KEY_CHARS = 256
"""Bounds the characters in one declared property key; longer ones are left out and their object is left open."""

MAX_TUPLE = 32
"""Bounds the positions of one tuple that get a type each."""

MAX_PADDING = 8
"""Bounds the positions spelt out only because of minItems or maxItems."""

MAX_TEXT = 200_000
"""Bounds the characters of one declared type, aliases included; a longer one is `unknown`."""

MAX_WARNINGS = 20
"""Bounds the warnings kept for one schema."""

_MAX_PLACE = 100
"""Bounds the characters of the JSON Pointer that a warning shows, from its end."""


class Budget:
    """Counts compiled locations and collects warnings for one schema."""

    def __init__(self) -> None:
        self._warnings: list[str] = []
        self._unplaced: list[str] = []
        self._nodes = 0

    def spend(self, nodes: int = 1) -> bool:
        """Counts locations; False once there are too many."""
        self._nodes += nodes
        return self._nodes <= MAX_NODES

    def warn(self, message: str, at: Location | None = None) -> None:
        """Keeps one plain sentence, once; it is safe for a comment from here on."""
        place = "/" + "/".join(at.pointer) if at is not None and at.pointer else "the root"
        if len(place) > _MAX_PLACE:
            place = "…" + place[-_MAX_PLACE:]
        sentence = one_line(f"At {place}: {message}" if at is not None else message, 300)
        if sentence not in self._warnings and len(self._warnings) >= MAX_WARNINGS:
            sentence = "There are more warnings; they are left out."
        if sentence not in self._warnings:
            self._warnings.append(sentence)
            self._unplaced.append(sentence)

    def take_unplaced(self) -> list[str]:
        """Gives the warnings that no doc comment carries yet; they count as placed afterwards."""
        taken, self._unplaced = self._unplaced, []
        return taken
