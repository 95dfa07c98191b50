"""Learns what tools return: takes references to results, looks at them in a thread of its own, and keeps what it saw.

Nothing here is in the way of a result: `offer` costs a dictionary look-up and an append, and what cannot be looked at
in time is dropped. A tool's results are all looked at until they show nothing new, then one of so many. A look waits
while runs are at work, except for a small share of the time, or when someone asks. `sample` looks at one result, and
`store` keeps what was seen.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cellblock.base.kept import KeptByIdentity
from cellblock.base.settings.policy import person_of
from cellblock.base.settings.settings import SchemaSettings
from cellblock.base.store import Store
from cellblock.tools.catalog.model import JsonSchema, ResultKind, ToolEntry
from cellblock.tools.schemas.example import ValidatorCache
from cellblock.tools.schemas.validation import InputValidator
from cellblock.types.learning.observation import Observation, ToolKey, fingerprint, tool_key
from cellblock.types.learning.sample import GivenOutput, observe
from cellblock.types.learning.shape import LOCAL, SEVERAL
from cellblock.types.learning.store import Memory

logger = logging.getLogger("cellblock.schemas")

STABLE_AFTER: Final = 20
"""Sets the number of results in a row that change nothing, after which only some are looked at."""

SAMPLE_EVERY: Final = 16
"""Sets that one result in so many is looked at from then on."""

BYTES_OF_ONE_SAMPLE: Final = 8 * 1024
"""Sets the size from which a large result counts as several on the way to `STABLE_AFTER`: it holds many records, and
costs as many looks."""

LINGER_SECONDS: Final = 0.1
"""Delays looking at a result: the run that it belongs to goes first, and what comes together is read together."""

WRITE_EVERY_SECONDS: Final = 1.0
"""Sets the pause between two writes; the results that were seen in between are one write."""

RETRY_MAX_SECONDS: Final = 60.0
"""Sets the longest pause between two tries of a store that cannot be written."""

MAX_FINGERPRINTS: Final = 4_096
"""Bounds the tool definitions whose hash is held; those of all connected servers, as a rule."""

REFRESH_SECONDS: Final = 2.0
"""Separates two looks at whether another process has changed the store: what `cellblock schemas clear` forgets, and
what other brokers learn, reaches this one within it. A look takes 20 µs."""

CLOSE_BOUND_SECONDS: Final = 3.0
"""Bounds the wait from closing to giving up on what still waits; the thread then ends with the process."""


def mark_of(principal: str) -> str:
    """Returns the mark under which a principal's results are kept: one for all of the user of this machine."""
    person = person_of(principal)
    return hashlib.sha256(person.encode("utf-8", "surrogatepass")).hexdigest()[:16] if person else LOCAL


class Learner:
    """Looks at results in a thread of its own.

    Args:
        settings: Whether and how to learn.
        store: Where it is kept; None: in this process only.
    """

    def __init__(self, settings: SchemaSettings, store: Store | None) -> None:
        self._settings = settings
        self._paces = Paces()
        self._memory = Memory(store, lambda key: self._paces.changed(key.server, key.tool))
        self._offers = Offers()
        self._validators = ValidatorCache()
        self._turns = Turns()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._loaded = threading.Event()
        self._fingerprints = KeptByIdentity[ToolEntry, str](
            lambda tool: fingerprint(tool.input_schema, tool.output_schema), MAX_FINGERPRINTS
        )
        self._disagreed: set[ToolKey] = set()
        # A daemon: a write that hangs on a dead file system must not keep the process.
        self._thread = threading.Thread(target=self._work, name="cellblock-schemas", daemon=True)

    def make_way_for(self, busy: Callable[[], bool]) -> None:
        """Sets what says, from any thread, whether runs are at work; looking at results then keeps to its share."""
        self._turns.busy = busy

    def start(self) -> None:
        """Starts to read the store and to learn."""
        self._thread.start()

    async def loaded(self, bound: float) -> None:
        """Waits until what was learnt earlier is known, at most `bound` seconds."""
        await self._wait_for(self._loaded, bound)

    async def close(self) -> None:
        """Looks at the results that wait, writes what is learnt, and ends the thread, within `CLOSE_BOUND_SECONDS`."""
        self._closing.set()
        self._turns.wanted.set()
        self._wake.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, CLOSE_BOUND_SECONDS)

    def offer(self, server: str, tool: ToolEntry, kind: ResultKind, body: bytes, principal: str = "") -> None:
        """Takes one successful result, or passes it by. Never blocks, never raises for what is in it.

        Args:
            server: The server's name in the configuration.
            tool: The tool, as the run saw it.
            kind: What the script got.
            body: The JSON that it got.
            principal: Whose run it was; nothing: the user's of this machine.
        """
        # First: of most results it is all that is asked.
        if not self._paces.wants(server, tool.tool_name) or not self._settings.learns(server):
            return
        by = SEVERAL if self._settings.shares(server) else mark_of(principal)
        if self._offers.put(Offer(server, tool, kind, body, by)):
            self._wake.set()

    @property
    def revision(self) -> int:
        """Counts up whenever what is known of a tool changes in more than its counts and dates."""
        return self._memory.revision

    def known(self, server: str, tool: ToolEntry) -> Observation | None:
        """Gives what has been observed of a tool with exactly this definition."""
        return self._memory.known.get(self._key(server, tool))

    async def wait_until_learnt(self, bound: float) -> None:
        """Waits until everything offered so far is looked at, whether written or not, at most `bound` seconds."""
        await self._wait_for(self._offers.all_looked_at, bound)

    async def wait_for_writes(self, bound: float) -> None:
        """Waits until everything offered so far is looked at and written, at most `bound` seconds."""
        await self._wait_for(self._offers.all_written, bound)

    async def _wait_for(self, event: threading.Event, bound: float) -> None:
        if not event.is_set():
            self._turns.wanted.set()
            await asyncio.to_thread(event.wait, bound)

    # ---- inside ------------------------------------------------------------------------------------------

    def _key(self, server: str, tool: ToolEntry) -> ToolKey:
        return tool_key(server, tool.tool_name, self._fingerprints.get_or_make(tool))

    # ---- inside: the thread -----------------------------------------------------------------------------

    def _work(self) -> None:
        offers, memory = self._offers, self._memory
        memory.open()
        self._loaded.set()
        pause, next_write = WRITE_EVERY_SECONDS, 0.0
        try:
            while True:
                closing = self._closing.is_set()
                self._read_all()
                offers.tell(offers.all_looked_at, None if closing else self._turns.wanted)
                if memory.has_unwritten and (closing or time.monotonic() >= next_write):
                    pause = WRITE_EVERY_SECONDS if memory.write() else min(pause * 2, RETRY_MAX_SECONDS)
                    next_write = time.monotonic() + pause
                if closing:
                    return
                if memory.has_unwritten:
                    self._wake.wait(max(0.0, next_write - time.monotonic()))
                else:
                    offers.tell(offers.all_written)
                    if not self._wake.wait(REFRESH_SECONDS if memory.is_shared else None):
                        memory.refresh()
                self._wake.clear()
                self._turns.wanted.wait(LINGER_SECONDS)
        finally:
            offers.all_written.set()
            offers.all_looked_at.set()
            memory.close()

    def _read_all(self) -> None:
        # This thread alone takes them out.
        while self._offers:
            self._turns.wait()
            offer = self._offers.take()
            started = time.thread_time()
            try:
                self._read(offer)
            except Exception:
                # One odd result must not end learning; the script has its result long since.
                logger.exception("a result of %r could not be looked at", offer.server)
            self._turns.took(time.thread_time() - started)

    def _read(self, offer: Offer) -> None:
        server, name = offer.server, offer.tool.tool_name
        key = self._key(server, offer.tool)
        held = self._memory.known.get(key)
        seen = self._observed(offer)
        merged = self._memory.add(key, seen)
        if merged.disagreements and key not in self._disagreed:
            self._disagreed.add(key)
            logger.warning(
                "a result of %s.%r does not fit what is declared (told once): %s",
                *(server, name, merged.disagreement),
            )
        if held is None or held.shape != merged.shape:
            self._paces.changed(server, name)
            if held is not None and held.samples:
                changed = "; ".join(held.shape.changes_to(merged.shape))
                logger.info(
                    "what %s.%r returns has changed (version %d): %s",
                    *(server, name, merged.version, changed),
                )
        elif merged.fading.recent is None or merged.shape.refreshed(merged.fading.recent) == merged.shape:
            # One that was not looked at has confirmed nothing.
            self._paces.unchanged(server, name, seen.samples * (1 + len(offer.body) // BYTES_OF_ONE_SAMPLE))
        else:
            # Something may fade: then all count.
            self._paces.changed(server, name)

    def _observed(self, offer: Offer) -> Observation:
        declared, given, output = offer.tool.output_schema, offer.tool.given, None
        if given is not None and given.output_schema is not None:
            of = fingerprint(given.output_schema, given.json_text)
            validator = self._validator(offer, given.output_schema, "given output")
            output = GivenOutput(of, validator, given.json_text)
        return observe(
            offer.kind,
            offer.body,
            time.time(),
            declared=None if declared is None else self._validator(offer, declared, "output"),
            given=output,
            keep_sample=self._settings.keeps_samples(offer.server),
            by=offer.by,
        )

    def _validator(self, offer: Offer, schema: JsonSchema, which: str) -> InputValidator:
        label = f"{offer.server}.{offer.tool.tool_name} ({which})"
        return self._validators.get_or_make(schema, label).validator


MAX_WAITING: Final = 256
"""Bounds the results that may wait to be looked at; more are dropped."""

MAX_WAITING_BYTES: Final = 32 * 1024 * 1024
"""Bounds the bytes of the results that wait: the memory that learning may hold."""

GOLDEN_RATIO: Final = 0.618034
"""Places the result, one of so many, that is looked at: in no step with shapes that take turns, all of which must be
met."""

BUSY_SHARE: Final = 0.01
"""Bounds the share of the processor's time that looking takes while runs are at work, and no one waits for what is
learnt."""

MAX_PAUSE_SECONDS: Final = 5.0
"""Sets the longest pause for that: a look during which Python happened to collect its garbage can take 60 ms."""

TURN_SECONDS: Final = 0.1
"""Separates two looks at whether runs are still at work."""


@dataclass(frozen=True, slots=True)
class Offer:
    """An offer is one result that waits to be looked at."""

    server: str
    tool: ToolEntry
    kind: ResultKind
    body: bytes
    by: str


class Offers:
    """Queues the results that wait, and never blocks whoever offers one; one thread takes them.

    Attributes:
        all_looked_at: Set by the taking thread once all that was offered is looked at.
        all_written: Set by it once all that was offered is looked at and written.
    """

    def __init__(self) -> None:
        self._waiting: deque[Offer] = deque()
        self._bytes = 0
        self._lock = threading.Lock()
        self.all_looked_at = threading.Event()
        self.all_looked_at.set()
        self.all_written = threading.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, offer: Offer) -> bool:
        """Adds a result; False where it is dropped."""
        with self._lock:
            if len(self._waiting) >= MAX_WAITING or self._bytes + len(offer.body) > MAX_WAITING_BYTES:
                return False
            self._bytes += len(offer.body)
            self._waiting.append(offer)
            self.all_written.clear()
            self.all_looked_at.clear()
        return True

    def take(self) -> Offer:
        """Takes the oldest of the results that wait out."""
        with self._lock:
            offer = self._waiting.popleft()
            self._bytes -= len(offer.body)
            return offer

    def tell(self, event: threading.Event, wanted: threading.Event | None = None) -> None:
        """Sets `all_looked_at` or `all_written`, and clears what asks for it, unless another result waits by now."""
        with self._lock:
            if not self._waiting:
                event.set()
                if wanted is not None:
                    wanted.clear()


class Turns:
    """Times the looks of one thread.

    Attributes:
        busy: Says whether runs are at work; called in that thread.
        wanted: Set by whoever waits for what is learnt.
    """

    def __init__(self) -> None:
        self.busy: Callable[[], bool] = lambda: False
        self.wanted = threading.Event()
        self._next = 0.0

    def wait(self) -> None:
        """Waits until there may be another look, at most `MAX_PAUSE_SECONDS` after the last one."""
        while (left := self._next - time.monotonic()) > 0 and self.busy():
            if self.wanted.wait(min(left, TURN_SECONDS)):
                return

    def took(self, seconds: float) -> None:
        """Notes what a look has cost, in seconds of processor time."""
        self._next = time.monotonic() + min(seconds / BUSY_SHARE, MAX_PAUSE_SECONDS)


class Paces:
    """Chooses which results of each tool are looked at."""

    def __init__(self) -> None:
        self._unchanged: Counter[tuple[str, str]] = Counter()
        self._passed: Counter[tuple[str, str]] = Counter()

    def wants(self, server: str, tool: str) -> bool:
        """Says whether the next result of a tool is to be looked at, and counts it."""
        if self._unchanged[server, tool] < STABLE_AFTER:
            return True
        turn, place = divmod(self._passed[server, tool], SAMPLE_EVERY)
        self._passed[server, tool] += 1
        return place == int(turn * GOLDEN_RATIO % 1 * SAMPLE_EVERY)

    def unchanged(self, server: str, tool: str, results: int) -> None:
        """Counts results of a tool that showed nothing new."""
        self._unchanged[server, tool] += results

    def changed(self, server: str, tool: str) -> None:
        """Begins to look at all results of a tool again."""
        self._unchanged.pop((server, tool), None)
