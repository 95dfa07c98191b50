"""A budget counts what one compilation has spent, and collects what it has to tell the reader."""

from __future__ import annotations

from cellblock.catalog.typescript.document import Location
from cellblock.catalog.typescript.limits import MAX_NODES, MAX_WARNINGS
from cellblock.catalog.typescript.text import one_line

_MAX_PLACE = 100
"""Bounds the characters of the JSON Pointer that a warning shows, from its end."""


class Budget:
    """Counts compiled locations and collects warnings for one schema."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self._unplaced: list[str] = []
        self._nodes = 0

    def spend(self) -> bool:
        """Counts one location; False once there are too many."""
        self._nodes += 1
        return self._nodes <= MAX_NODES

    def warn(self, message: str, at: Location | None = None) -> None:
        """Keeps one plain sentence, once; it is safe for a comment from here on."""
        place = "/" + "/".join(at.pointer) if at is not None and at.pointer else "the root"
        if len(place) > _MAX_PLACE:
            place = "…" + place[-_MAX_PLACE:]
        sentence = one_line(f"At {place}: {message}" if at is not None else message, 300)
        if sentence in self.warnings:
            return
        if len(self.warnings) == MAX_WARNINGS:
            sentence = "There are more warnings; they are left out."
            if sentence in self.warnings:
                return
        if len(self.warnings) <= MAX_WARNINGS:
            self.warnings.append(sentence)
            self._unplaced.append(sentence)

    def take_unplaced(self) -> list[str]:
        """Gives the warnings that no doc comment carries yet; they count as placed afterwards."""
        taken, self._unplaced = self._unplaced, []
        return taken
