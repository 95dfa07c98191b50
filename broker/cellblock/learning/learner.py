"""Learns what tools return: takes references to results, looks at them in a thread of its own, and keeps what it saw.

Nothing here is in the way of a result: `offer` costs a dictionary look-up and an append, and what cannot be looked at
in time is dropped. The thread looks when it is its turn (`turns`); most looks are one question to a native validator.
It owns the store; when that fails, learning goes on for this process alone.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from cellblock.config.settings import SchemaSettings
from cellblock.learning.infer.fits import Fits
from cellblock.learning.observation import Kind, Observation, ToolKey, fingerprint, tool_key
from cellblock.learning.offers import LooksApart, Offer, Pace, ToolDefinition
from cellblock.learning.sample import UNREAD, check_given, observe
from cellblock.learning.store import MAX_TOOLS, Store, StoreError
from cellblock.learning.turns import Turns
from cellblock.schemas.cache import ValidatorCache

logger = logging.getLogger("cellblock.schemas")

MAX_WAITING: Final = 256
"""Results that may wait to be looked at; more are dropped."""

MAX_WAITING_BYTES: Final = 32 * 1024 * 1024
"""The same in bytes: the memory that learning may hold."""

MAX_VALUE_BYTES: Final = 2 * 1024 * 1024
"""Results that wait as they are besides their JSON, in bytes of the latter: they take about eight times as much."""

FITS_FROM_BYTES: Final = 2 * 1024
"""From this size on a result is first asked whether it adds anything; the shape of a smaller one is made as fast."""

MAX_FITS: Final = 256
"""Tools whose test of what is known is kept; one takes some KiB, and 0.4 ms to make."""

BYTES_OF_ONE_SAMPLE: Final = 8 * 1024
"""A large result counts as several on the way to `stable_after`: it holds many records, and costs as many looks."""

GOLDEN_RATIO: Final = 0.618034
"""Which of so many results is looked at: in no step with shapes that take turns, all of which must be met."""

LINGER_SECONDS: Final = 0.1
"""From a result to looking at it: the run that it belongs to goes first, and what comes together is read together."""

WRITE_EVERY_SECONDS: Final = 1.0
"""Pause between two writes; what was seen in between is one write."""

RETRY_MAX_SECONDS: Final = 60.0
"""Longest pause between two tries of a store that cannot be written."""

MAX_FINGERPRINTS: Final = 4_096
"""Tool definitions whose hash is held; those of all connected servers, as a rule."""

LOOK_EVERY_SECONDS: Final = 2.0
"""Between two looks at whether another process has changed the store: what `cellblock schemas clear` forgets, and what
other brokers learn, reaches this one within it. A look takes 20 µs."""

CLOSE_BOUND_SECONDS: Final = 3.0
"""From closing to giving up on what still waits; the thread then ends with the process."""


class Learner:
    """Owns the store and the thread that writes it.

    Args:
        settings: Whether and how to learn.
        path: The store's file; None learns for this process only.
    """

    def __init__(self, settings: SchemaSettings, path: Path | None) -> None:
        self._settings = settings
        self._path = path
        self._known: dict[ToolKey, Observation] = {}
        self._unwritten: dict[ToolKey, list[Observation]] = {}
        self._paces: dict[tuple[str, str], Pace] = {}
        self._waiting: deque[Offer] = deque()
        self._waiting_bytes = 0
        self._value_bytes = 0
        self._fits: dict[ToolKey, tuple[Fits, Fits]] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._turns = Turns()
        self._loaded = threading.Event()
        self._idle = threading.Event()
        self._looked = threading.Event()
        self._looked.set()
        self._validators = ValidatorCache()
        self._fingerprints: dict[int, tuple[ToolDefinition, str]] = {}
        self._warned = False
        self._disagreed: set[ToolKey] = set()
        self._revision = 0
        self._store: Store | None = None
        # A daemon: a write that hangs on a dead file system must not keep the process.
        self._thread = threading.Thread(target=self._work, name="cellblock-schemas", daemon=True)
        self.dropped = 0
        self.apart: LooksApart | None = None

    def make_way_for(self, busy: Callable[[], bool]) -> None:
        """Sets what says, from any thread, whether runs are at work; looking at results then keeps to its share."""
        self._turns.busy = busy

    def start(self) -> None:
        """Starts to read the store and to learn."""
        self._thread.start()

    async def loaded(self, bound: float) -> None:
        """Waits until what was learnt earlier is known, at most `bound` seconds."""
        await asyncio.to_thread(self._loaded.wait, bound)

    async def close(self) -> None:
        """Looks at what waits, writes it, and ends the thread, within `CLOSE_BOUND_SECONDS`."""
        self._closing.set()
        self._turns.wanted.set()
        self._wake.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, CLOSE_BOUND_SECONDS)

    def offer(self, server: str, tool: ToolDefinition, kind: Kind, body: bytes, value: Any = UNREAD) -> None:
        """Takes one successful result, or passes it by. Never blocks, never raises for what is in it.

        Args:
            server: The server's name in the configuration.
            tool: The tool, as the run saw it.
            kind: What the script got.
            body: The JSON that it got.
            value: What that was made from: plain data that no one changes any more.
        """
        rules = self._settings.of(server, tool.tool_name)
        if not rules.learn or not self._wants(server, tool.tool_name):
            return
        size = len(body)
        if len(self._waiting) >= MAX_WAITING or self._waiting_bytes + size > MAX_WAITING_BYTES:
            self.dropped += 1
            return
        with self._lock:
            if self._value_bytes + size > MAX_VALUE_BYTES:
                value = UNREAD
            elif value is not UNREAD:
                self._value_bytes += size
            self._waiting.append(Offer(server, tool, kind, body, rules.keep_samples, value))
            self._waiting_bytes += size
            self._idle.clear()
            self._looked.clear()
        self._wake.set()

    @property
    def revision(self) -> int:
        """Counts up whenever what is known of a tool changes in more than its counts and dates."""
        return self._revision

    def known(self, server: str, tool: ToolDefinition) -> Observation | None:
        """What has been observed of a tool with exactly this definition."""
        return self._known.get(self._key(server, tool))

    async def looked(self, bound: float) -> None:
        """Waits until everything offered so far is looked at, whether written or not, at most `bound` seconds."""
        if not self._looked.is_set():
            self._turns.wanted.set()
            await asyncio.to_thread(self._looked.wait, bound)

    async def learnt(self, bound: float) -> None:
        """Waits until everything offered so far is looked at and written, at most `bound` seconds."""
        if not self._idle.is_set():
            self._turns.wanted.set()
            await asyncio.to_thread(self._idle.wait, bound)

    # ---- inside: the pace -------------------------------------------------------------------------------

    def _wants(self, server: str, tool: str) -> bool:
        pace = self._paces.setdefault((server, tool), Pace())
        if pace.unchanged < self._settings.stable_after:
            return True
        every = self._settings.sample_every
        turn, place = divmod(pace.passed, every)
        pace.passed += 1
        return place == int(turn * GOLDEN_RATIO % 1 * every)

    def _key(self, server: str, tool: ToolDefinition) -> ToolKey:
        held = self._fingerprints.get(id(tool))
        if held is None or held[0] is not tool:
            if len(self._fingerprints) > MAX_FINGERPRINTS:
                self._fingerprints.clear()
            held = (tool, fingerprint(tool.input_schema, tool.output_schema))
            self._fingerprints[id(tool)] = held
        return tool_key(server, tool.tool_name, held[1])

    # ---- inside: the thread -----------------------------------------------------------------------------

    def _work(self) -> None:
        self._open()
        self._loaded.set()
        pause, next_write = WRITE_EVERY_SECONDS, 0.0
        try:
            while True:
                closing = self._closing.is_set()
                self._read_all()
                with self._lock:
                    if not self._waiting:
                        self._looked.set()
                        if not closing:
                            self._turns.wanted.clear()
                if self._unwritten and (closing or time.monotonic() >= next_write):
                    pause = WRITE_EVERY_SECONDS if self._write() else min(pause * 2, RETRY_MAX_SECONDS)
                    next_write = time.monotonic() + pause
                if closing:
                    return
                with self._lock:
                    if not self._waiting and not self._unwritten:
                        self._idle.set()
                if self._unwritten:
                    self._wake.wait(max(0.0, next_write - time.monotonic()))
                elif self._store is None:
                    self._wake.wait()
                elif not self._wake.wait(LOOK_EVERY_SECONDS):
                    self._look(self._store)
                self._wake.clear()
                self._turns.wanted.wait(LINGER_SECONDS)
        finally:
            self._idle.set()
            self._looked.set()
            if self._store is not None:
                self._store.close()

    def _open(self) -> None:
        if self._path is None:
            return
        try:
            self._store = Store(self._path)
            self._known = self._store.load()
            self._revision += 1
        except StoreError as error:
            self._warn(f"what tools return is not remembered: {error}")

    def _read_all(self) -> None:
        while True:
            if self._waiting:
                self._turns.wait()
            with self._lock:
                if not self._waiting:
                    return
                offer = self._waiting.popleft()
                self._waiting_bytes -= len(offer.body)
                if offer.value is not UNREAD:
                    self._value_bytes -= len(offer.body)
            started = time.thread_time()
            try:
                self._read(offer)
            except Exception:
                # One odd result must not end learning; the script has its result long since.
                logger.exception("a result of %r could not be looked at", offer.server)
            self._turns.took(time.thread_time() - started)

    def _read(self, offer: Offer) -> None:
        declared = offer.tool.output_schema
        validator = None
        if declared is not None and offer.kind == "value":
            label = f"{offer.server}.{offer.tool.tool_name} (output)"
            validator = self._validators.get(declared, label=label).validator
        key = self._key(offer.server, offer.tool)
        held = self._known.get(key)
        known, known_document = None, None
        if held is not None and len(offer.body) >= FITS_FROM_BYTES:
            known, known_document = self._fitting(key, held)
        seen = self.apart.observe(offer) if self.apart is not None else None
        seen = seen or observe(
            offer.kind,
            offer.body,
            time.time(),
            declared=declared,
            validator=validator,
            keep_sample=offer.keep_sample,
            value=offer.value,
            known=known,
            known_document=known_document,
        )
        given = offer.tool.given
        if given is not None and given.output_schema is not None and seen.samples and not seen.given.of:
            label = f"{offer.server}.{offer.tool.tool_name} (given output)"
            validator = self._validators.get(given.output_schema, label=label).validator
            fit = check_given(
                offer.kind, offer.body, offer.value, given.output_schema, validator, json_text=given.json_text
            )
            seen = replace(seen, given=fit)
        merged = seen.begun() if held is None else held.merged(seen)
        if held is None and len(self._known) >= MAX_TOOLS:
            del self._known[next(iter(self._known))]
        self._known[key] = merged
        if merged.disagreements and key not in self._disagreed:
            self._disagreed.add(key)
            logger.warning(
                "a result of %s.%r does not fit what is declared (told once): %s",
                offer.server,
                offer.tool.tool_name,
                merged.disagreement,
            )
        # A step for each change, so that the store keeps what was before it.
        steps = self._unwritten.setdefault(key, [])
        if not steps or (held is not None and held.samples and held.shape != merged.shape):
            steps.append(seen)
        else:
            steps[-1] = steps[-1].together(seen)
        pace = self._paces.setdefault((offer.server, offer.tool.tool_name), Pace())
        if held is not None and held.shape == merged.shape:
            # One that was not looked at has confirmed nothing; and while something may fade, all count.
            if not merged.fading.news:
                pace.unchanged += seen.samples * (1 + len(offer.body) // BYTES_OF_ONE_SAMPLE)
            return
        pace.unchanged = 0
        self._revision += 1
        if held is not None and held.samples:
            name, changed = offer.tool.tool_name, "; ".join(held.changes_to(merged))
            text = "what %s.%r returns has changed (version %d): %s"
            logger.info(text, offer.server, name, merged.version, changed)

    def _fitting(self, key: ToolKey, held: Observation) -> tuple[Fits, Fits]:
        # Of this window, and not of all that is known: what shows nothing else must not keep that from fading.
        recent = held.fading.recent
        made = self._fits.get(key)
        if made is None or made[0].shape != recent.value or made[1].shape != recent.document:
            if len(self._fits) >= MAX_FITS:
                self._fits.clear()
            made = self._fits[key] = (Fits(recent.value), Fits(recent.document))
        return made

    def _write(self) -> bool:
        if self._store is None:
            self._unwritten.clear()
            return True
        written: dict[ToolKey, Observation] = {}
        forgotten: set[ToolKey] = set()
        try:
            while self._unwritten:
                merged = self._store.merge({key: steps[0] for key, steps in self._unwritten.items()})
                forgotten |= self._unwritten.keys() - merged.keys()
                written |= merged
                self._unwritten = {key: steps[1:] for key, steps in self._unwritten.items() if len(steps) > 1}
        except StoreError as error:
            self._warn(f"what tools return is not remembered for now: {error}")
            return False
        for key in forgotten - written.keys():
            self._known.pop(key, None)
            self._paces.pop((key.server, key.tool), None)
        # Others' results are in there too, and a tool that someone has forgotten begins anew.
        if forgotten or any(self._shape(key) != seen.shape for key, seen in written.items()):
            self._revision += 1
        self._known.update(written)
        return True

    def _look(self, store: Store) -> None:
        """Takes over what other processes have done to the store; nothing waits to be written here."""
        try:
            if not store.changed():
                return
            loaded = store.load()
        except StoreError as error:
            self._warn(f"what other processes remember is not read for now: {error}")
            return
        if loaded.keys() != self._known.keys() or any(
            self._shape(key) != seen.shape for key, seen in loaded.items()
        ):
            self._revision += 1
        for key in self._known.keys() - loaded.keys():
            self._paces.pop((key.server, key.tool), None)
        self._known = loaded

    def _shape(self, key: ToolKey) -> object:
        held = self._known.get(key)
        return None if held is None else held.shape

    def _warn(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("%s; results and scripts are not affected", text)
