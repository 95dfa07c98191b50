"""Sees to it that with `--reuse` runs do have used processes: if none had, every test would pass in fresh ones."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cellblock import Broker
from cellblock.run.events import RunFacts, Watcher
from support.entries import REUSE

FEW = 20
"""Of fewer runs than this nothing can be said: one or two cases were selected."""


@dataclass(slots=True)
class Tally(Watcher):
    """Counts runs, and those in a process that had served others."""

    runs: int = 0
    used: int = 0

    def run_ended(self, run: RunFacts) -> None:
        """Counts a broker's run."""
        if run.response is not None:
            self.take(run.response.as_json())

    def take(self, response: Any) -> None:
        """Counts a response."""
        self.runs += 1
        self.used += (response.get("usage", {}).get("reused") or 0) > 0


@contextlib.contextmanager
def reusing(share: float, broker: Broker | None = None) -> Iterator[Tally]:
    """Fails at its end, with `--reuse`, where less than this share of the runs had a used process.

    Args:
        share: From 0 to 1.
        broker: Whose runs are counted; None: those that the tally is given.
    """
    tally = Tally()
    if broker is not None:
        broker.events.add(tally)
    yield tally
    if REUSE and tally.runs >= FEW:
        assert tally.used >= share * tally.runs, f"{tally.used} of {tally.runs} runs had a used process"
