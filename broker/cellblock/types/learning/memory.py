"""Keeps what has been observed of all tools: known here at once, written to the store from time to time.

Several processes share a store, so what it holds after a write or a change by another is taken over. When the store
fails, learning goes on for this process alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from cellblock.base.database import Away, StoreError
from cellblock.base.store import Store
from cellblock.types.learning.observation import Observation, ToolKey
from cellblock.types.learning.store import MAX_TOOLS, TABLES, Observations

logger = logging.getLogger("cellblock.schemas")


class Memory:
    """Holds the observations of tools, by tool; all but `known` and `revision` belong to one thread.

    Args:
        store: Where they are kept; None: in this process only.
        forgotten: Called with the key of a tool that another process has forgotten.

    Attributes:
        known: What is known of each tool.
        revision: Counts up whenever that changes in more than counts and dates.
    """

    def __init__(self, store: Store | None, forgotten: Callable[[ToolKey], None]) -> None:
        self._where = store
        self._forgotten = forgotten
        self._store: Observations | None = None
        self._is_away = False
        self._unwritten: dict[ToolKey, list[Observation]] = {}
        self._batch: dict[ToolKey, Observation] = {}
        self._warned = False
        self.known: dict[ToolKey, Observation] = {}
        self.revision = 0

    @property
    def is_shared(self) -> bool:
        """Says whether there is a store, which other processes may change."""
        return self._store is not None or self._is_away

    @property
    def has_unwritten(self) -> bool:
        """Says whether observations wait to be written."""
        return bool(self._unwritten or self._batch)

    def open(self) -> None:
        """Opens the store and reads what it holds; a PostgreSQL that is away is tried again later."""
        if self._where is None:
            return
        self._is_away = False
        try:
            store = Observations(self._where.database(TABLES))
            self.known = store.load()
            self._store = store
            self.revision += 1
        except StoreError as error:
            self._is_away = isinstance(error, Away)
            self._warn(f"what tools return is not remembered: {error}")

    def close(self) -> None:
        """Closes the store."""
        if self._store is not None:
            self._store.close()

    def add(self, key: ToolKey, seen: Observation) -> Observation:
        """Merges an observation with what is known of its tool, and gives what is known then."""
        held = self.known.get(key)
        merged = seen.begun() if held is None else held.merged(seen)
        if held is None and len(self.known) >= MAX_TOOLS:
            del self.known[next(iter(self.known))]
        self.known[key] = merged
        # A step for each change, so that the store keeps what was before it.
        steps = self._unwritten.setdefault(key, [])
        if not steps or (held is not None and held.samples and held.shape != merged.shape):
            steps.append(seen)
        else:
            steps[-1] = steps[-1].together(seen)
        if held is None or held.shape != merged.shape:
            self.revision += 1
        return merged

    def write(self) -> bool:
        """Writes the observations that wait; False when the store cannot be written for now."""
        if self._is_away:
            self.open()
        if self._store is None:
            if not self._is_away:
                self._unwritten.clear()
            return not self._is_away
        written: dict[ToolKey, Observation] = {}
        try:
            while self.has_unwritten:
                if not self._batch:
                    self._batch = {key: steps[0] for key, steps in self._unwritten.items()}
                    self._unwritten = {
                        key: steps[1:] for key, steps in self._unwritten.items() if len(steps) > 1
                    }
                # Unless that was done when its connection was lost.
                held = self._store.load() if self._store.came_through() else self._store.merge(self._batch)
                written |= {key: held[key] for key in self._batch if key in held}
                self._batch = {}
        except StoreError as error:
            self._warn(f"what tools return is not remembered for now: {error}")
            return False
        # Others' results are in there too, and a tool that someone has forgotten begins anew.
        self._take_over(self.known | written)
        return True

    def refresh(self) -> None:
        """Takes over what other processes have done to the store; nothing may wait to be written."""
        if self._is_away:
            self.open()
        try:
            if self._store is not None and self._store.changed():
                self._take_over(self._store.load())
        except StoreError as error:
            self._warn(f"what other processes remember is not read for now: {error}")

    def _take_over(self, now: dict[ToolKey, Observation]) -> None:
        before, self.known = self.known, now
        if now.keys() != before.keys() or any(seen.shape != before[key].shape for key, seen in now.items()):
            self.revision += 1
        for key in before.keys() - now.keys():
            self._forgotten(key)

    def _warn(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("%s; results and scripts are not affected", text)
