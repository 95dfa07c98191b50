"""Flow_labels keeps, from run to run and at all brokers that share a state, the label of what each principal's models
have read. A person resets it, or it expires; a new connection does neither."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final

from cellblock.base.database import StoreError
from cellblock.base.kept import Newest
from cellblock.base.store import Stamp, Store
from cellblock.base.tasks import TaskSet
from cellblock.run.flows.labels import NOTHING, STRICTEST, Label

logger = logging.getLogger("cellblock.flows")

EXPIRY_SECONDS: Final = 7 * 86_400.0
"""Passes since a reader has last read something of its label, before the label is forgotten."""

FRESH_SECONDS: Final = 3_600.0
"""Passes before it is written down again that something of the same label was read."""

STORE_SECONDS: Final = 5.0
"""Bounds the wait for what is kept; it takes milliseconds."""

MAX_BYTES: Final = 64 * 1024
"""Bounds what is kept of one reader."""

MAX_KNOWN: Final = 1_024
"""Bounds the readers of whom is known here what is kept."""

_LOCK: Final = "flows"


@dataclass(frozen=True, slots=True)
class ReaderLabel:
    """Tells what is kept of one reader.

    Args:
        reader: Whose models have read it.
        label: Of all that they have read.
        since: When that began, Unix time in seconds.
        at: When they have last read something of it.
    """

    reader: str
    label: Label
    since: float
    at: float


class FlowLabels:
    """Keeps labels in a store; implements `run.flows.run_flow.FlowMemory`.

    Args:
        store: Where they are kept.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._shelf = store.shelf("flows", MAX_BYTES)
        self._unwritten = dict[str, Label]()
        self._known = Newest[str, tuple[Stamp | None, ReaderLabel]](MAX_KNOWN)
        self._writing, self._turn = TaskSet(), asyncio.Lock()

    async def close(self) -> None:
        """Waits for what is being written; bounded, as each write is."""
        await self._writing.ended()

    async def of(self, reader: str) -> Label:
        """Gives the label of what a reader has read. Never raises: what cannot be known is the strictest."""
        own = self._unwritten.get(reader, NOTHING)
        try:
            if self._shelf.is_shared:
                async with asyncio.timeout(STORE_SECONDS):
                    await asyncio.to_thread(self._shelf.refresh)
            kept = self._kept(_name(reader))
        except (OSError, TimeoutError, ValueError) as error:
            logger.warning("what %s has read is not known, and counts as all: %s", reader, error)
            return STRICTEST
        return own if kept is None else own | kept.label

    def rises(self, reader: str, label: Label) -> None:
        """Hears that a run of a reader knows more, and writes it down beside the run."""
        self._unwritten[reader] = self._unwritten.get(reader, NOTHING) | label
        self._writing.start(self.read(reader, label), name="flow label")

    async def read(self, reader: str, label: Label) -> None:
        """Notes that a reader has read what has this label. Never raises: what cannot be written counts here."""
        if label.within(NOTHING):
            return
        label |= self._unwritten.get(reader, NOTHING)
        try:
            if self._shelf.is_shared or not self._is_kept(_name(reader), label):
                async with asyncio.timeout(STORE_SECONDS), self._turn:
                    await asyncio.to_thread(self._write, reader, label)
        except (OSError, StoreError, TimeoutError, ValueError) as error:
            logger.warning("what %s has read is known to this process alone: %s", reader, error)
            self._unwritten[reader] = self._unwritten.get(reader, NOTHING) | label
            return
        if self._unwritten.get(reader, STRICTEST).within(label):
            self._unwritten.pop(reader, None)

    def all(self) -> list[ReaderLabel]:
        """Lists what is kept, of each reader. Blocks. Raises OSError."""
        self._shelf.refresh()
        return sorted(self._by_name().values(), key=lambda one: one.reader)

    def reset(self, principal: str | None = None) -> list[str]:
        """Forgets what a principal's models have read, or everybody's. Returns whose that was. Blocks. Raises OSError,
        StoreError."""
        with self._store.lock(_LOCK, STORE_SECONDS):
            forgotten: list[str] = []
            self._shelf.refresh()
            for name, one in self._by_name().items():
                if principal in (None, one.reader, one.reader.partition(" ")[0]):
                    self._shelf.remove(name)
                    forgotten.append(one.reader)
        return forgotten

    # ---- inside ------------------------------------------------------------------------------------------

    def _by_name(self) -> dict[str, ReaderLabel]:
        """Lists what is kept by the names of the shelf; what is damaged has no other name."""
        found = dict[str, ReaderLabel]()
        for name in self._shelf.names():
            try:
                kept = self._kept(name)
            except ValueError:
                kept = ReaderLabel(name, STRICTEST, 0.0, 0.0)
            if kept is not None:
                found[name] = kept
        return found

    def _kept(self, name: str) -> ReaderLabel | None:
        """Reads what is kept of a reader, as it is now; None where that is nothing. Raises OSError, ValueError."""
        stamp = self._shelf.stamp(name)
        known = self._known.get(name)
        if known is None or known[0] != stamp:
            try:
                # Its stamp was taken before: what is written meanwhile is read at the next look.
                known = stamp, self._read(name)
            except FileNotFoundError:
                return None
            self._known[name] = known
        return known[1] if time.time() < known[1].at + EXPIRY_SECONDS else None

    def _read(self, name: str) -> ReaderLabel:
        try:
            data: dict[str, Any] = json.loads(self._shelf.read(name))
            return ReaderLabel(data["reader"], Label.unpack(data["label"]), data["since"], data["at"])
        except (KeyError, TypeError):
            raise ValueError(f"{self._shelf.where(name)} is damaged") from None

    def _is_kept(self, name: str, label: Label) -> bool:
        """Says whether a label is written down, and not long ago."""
        kept = self._kept(name)
        return kept is not None and label.within(kept.label) and time.time() < kept.at + FRESH_SECONDS

    def _write(self, reader: str, label: Label) -> None:
        now, name = time.time(), _name(reader)
        with self._store.lock(_LOCK, STORE_SECONDS):
            self._shelf.refresh()
            kept = self._kept(name)
            joined = label if kept is None else kept.label | label
            since = now if kept is None else kept.since
            data = {"reader": reader, "label": joined.pack(), "since": since, "at": now}
            self._shelf.write(name, json.dumps(data).encode(), replace=True)


@lru_cache(MAX_KNOWN)
def _name(reader: str) -> str:
    """Returns the name of a reader's file or row: names of clients may be any text."""
    return sha256(reader.encode("utf-8", "surrogatepass")).hexdigest()[:40]
