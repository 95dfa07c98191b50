"""Steps has what is still to be written of a run that is written down as it goes.

What could not be written comes before what is new, so that what is kept of the run is always its beginning: whoever
goes on with it comes to where it was, or to before that, and never past something that is missing.
"""

from __future__ import annotations

from collections.abc import Callable

from cellblock.record.rows import Piece


class Steps:
    """Holds the steps of one run that are not written yet, in their order. The loop adds them, and the journals' thread
    takes them."""

    def __init__(self) -> None:
        self._unwritten: dict[int, tuple[Callable[[], Piece], int]] = {}
        self.last = 0
        """Numbers the last of all steps, written or not."""

    def add(self, make: Callable[[], Piece], size: int) -> None:
        """Takes a step that is to be written behind the earlier ones.

        Args:
            make: Makes its piece, in the journals' thread: packing a large input takes milliseconds.
            size: About how many bytes it has.
        """
        self.last += 1
        self._unwritten[self.last] = make, size

    @property
    def size(self) -> int:
        """Returns the bytes of the steps that are not written."""
        return sum(size for _, size in list(self._unwritten.values()))

    def unwritten(self) -> tuple[int, list[Piece]]:
        """Returns the number of the last step, and the steps that are not written."""
        found = list(self._unwritten.items())
        return found[-1][0] if found else 0, [make() for _, (make, _) in found]

    def written(self, last: int) -> None:
        """Hears that the steps up to this one are written."""
        for number in list(self._unwritten):
            if number <= last:
                del self._unwritten[number]
