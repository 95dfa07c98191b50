"""Journals writes and reads the journals of a broker's runs in a thread of its own.

Nothing here is in the way of a run: what cannot be written is told once, and the run goes on without being kept. While
a PostgreSQL is away, what is to be written waits in the thread's queue, and whoever asks is told at once.
Nothing is held of what was written, whatever number of runs is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final, TypeVar

from cellblock.base.budget import Budget, OverBudget
from cellblock.base.database import Away, StoreError
from cellblock.base.settings.server import AuthSettings
from cellblock.base.settings.state import JournalSettings
from cellblock.base.state_keys import KEY_BYTES, derived_key, keys_of
from cellblock.base.store import Store
from cellblock.base.tasks import DaemonThread, is_done_within
from cellblock.record.rows import KINDS, AnyPiece, Head, Kind, OneRunFailed, Piece
from cellblock.record.store import JOURNAL_TABLES, JournalStore

logger = logging.getLogger("cellblock.journal")

WAITING_BYTES: Final = 64 * 1024 * 1024
WAITING_OF_ONE_BYTES: Final = 48 * 1024 * 1024
"""Bound the bytes that wait to be written, of all and of one client, whose largest run and its result fit; a run for
which there is no room is not kept."""

SMALL_BYTES: Final = 4096
"""Estimates a run without its journal: its facts, or one small piece."""

WRITE_BOUND_SECONDS: Final = 5.0
"""Bounds how long a response, or a call, waits until the journal is written; a write takes about a millisecond."""

READ_BOUND_SECONDS: Final = 20.0
"""Bounds how long a person waits for what is kept; the keyring may take 5 s of it."""

RETRY_SECONDS: Final = 30.0
"""Passes before a file that failed is tried again: a disk may have room by then, a keyring be unlocked. Runs that
somebody goes on with do not wait so long: their calls would be refused."""

AWAY_SECONDS: Final = 0.5
"""Separates two tries to write while PostgreSQL is away."""

TIDY_SECONDS: Final = 60.0
"""Separates two looks for journals that are too old."""

CLOSE_BOUND_SECONDS: Final = 5.0
"""Bounds the wait for journals that are still to be written at the end; the thread then ends with the process."""

T = TypeVar("T")


class Journals:
    """Keeps the journals of brokers. Owns the thread, and the journals while they are open.

    Args:
        store: Where they are.
        auth: Whether a key that is made is in the keyring.
        settings: What is kept for how long.
    """

    def __init__(self, store: Store, auth: AuthSettings, settings: JournalSettings) -> None:
        self._state, self._auth = store, auth
        self._settings = settings
        self._thread = DaemonThread("cellblock-journals")
        self._store: JournalStore | None = None
        self._keys: Sequence[bytes] = ()
        self._room = threading.Lock()
        self._waiting = Budget(
            WAITING_OF_ONE_BYTES, WAITING_BYTES, "one client", "runs that wait for the disk"
        )
        self._next_try = 0.0
        self._next_tidy = 0.0
        self._failing = False
        self._hangs = False
        self._closing = threading.Event()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begins to remove what is too old, where runs are kept or were."""
        if self._settings.keeps or self._state.exists(JOURNAL_TABLES):
            self._tick()

    def use(self, settings: JournalSettings) -> None:
        """Takes over new bounds for the runs that are kept from now on, and for those that are kept already."""
        self._settings = settings
        self._next_tidy = 0.0
        if self._timer is None:
            self.start()

    def write(
        self,
        head: Head,
        pieces: Callable[[], Sequence[AnyPiece]],
        size: int = SMALL_BYTES,
        owner: str | None = None,
        *,
        client: str = "",
        refused: Callable[[str], object] = lambda why: None,
    ) -> Future[bool]:
        """Has a run written as `JournalStore.write` does; one whose state is `parked` as `park` does. Never raises.

        Args:
            head: The run.
            pieces: Makes what is new of it, in the thread; nothing that it looks at may change any more.
            size: About how many bytes it holds until then.
            owner: As for `JournalStore.write`.
            client: Whose it is.
            refused: Is told, in the thread, why this one run is not written where others are.

        Returns:
            What says whether it was written.
        """
        try:
            with self._room:
                self._waiting.take(client, size)
        except OverBudget as error:
            self._tell(str(error))
        else:

            def written() -> None:
                with self._room:
                    self._waiting.give_back(client, size)

            with contextlib.suppress(RuntimeError):
                return self._thread.submit(self._write, head, pieces, owner, written, refused)
        not_written: Future[bool] = Future()
        not_written.set_result(False)
        return not_written

    async def is_written(self, writing: Future[bool], bound: float = WRITE_BOUND_SECONDS) -> bool:
        """Waits for a write, at most `bound` seconds, and says whether it is certain that it was done.

        While the disk has let somebody wait in vain, or PostgreSQL is away, nobody else waits.
        """
        if not writing.done() and not self._hangs and self._state.trouble is None:
            self._hangs = not await is_done_within(writing, bound)
        return writing.done() and writing.result()

    async def asked(self, ask: Callable[[JournalStore], T], default: T) -> T:
        """Returns what the store answers, or `default` where there is none yet: a look makes nothing.

        Raises:
            StoreError: It cannot be used, or the disk, or the keyring, does not answer.
        """

        def work() -> T:
            if self._store is None and not self._state.exists(JOURNAL_TABLES):
                return default
            return ask(self._opened())

        if (trouble := self._state.trouble) is not None:
            raise Away(trouble)
        return await self._in_thread(work)

    async def read(
        self,
        run_id: str,
        show: Callable[[Head, list[Piece]], T],
        principal: str | None = None,
        kinds: Sequence[Kind] = KINDS,
    ) -> T | None:
        """Returns what `show` makes, in the thread, of a run that is kept; None where there is none. The rest is as for
        `JournalStore.read`."""

        def look(store: JournalStore) -> T | None:
            found = store.read(run_id, principal, kinds)
            return None if found is None else show(*found)

        return await self.asked(look, None)

    def do(self, work: Callable[[JournalStore], object]) -> None:
        """Has work done with the store, behind what was written before, unless the broker is stopping. Never
        raises."""

        def done() -> None:
            try:
                self._patiently(work)
            except StoreError as error:
                self._failed(error)

        with contextlib.suppress(RuntimeError):
            self._thread.submit(done)

    async def signing_keys(self, purpose: str) -> Sequence[bytes]:
        """Returns keys that are derived from the journals' for one purpose; they are made where there is none. The
        first signs, and what others have signed is accepted.

        Raises:
            StoreError: There can be none, or the keyring has not answered.
        """
        # Also while PostgreSQL is away: what is signed with another key now is good nowhere else later.
        return await self._in_thread(
            lambda: [derived_key(key, purpose, "", KEY_BYTES) for key in self._keys_of()]
        )

    async def close(self) -> None:
        """Writes the pieces that wait, and ends the thread, within `CLOSE_BOUND_SECONDS`."""
        if self._timer is not None:
            self._timer.cancel()
        done = self._thread.submit(self._close)
        self._thread.end()
        if (trouble := self._state.trouble) is not None:
            if self._waiting.total:
                logger.warning("the last runs are not kept: %s", trouble)
            self._closing.set()
        if not await is_done_within(done, CLOSE_BOUND_SECONDS):
            logger.warning("the last runs may not be kept: the disk, or PostgreSQL, has not answered")
        self._closing.set()

    # ---- inside -----------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TIDY_SECONDS, self._tick)
        with contextlib.suppress(RuntimeError):
            self._thread.submit(self._look)

    # ---- inside: the thread -----------------------------------------------------------------------------

    def _write(
        self,
        head: Head,
        pieces: Callable[[], Sequence[AnyPiece]],
        owner: str | None,
        written: Callable[[], None],
        refused: Callable[[str], object],
    ) -> bool:
        try:
            if owner is None and time.monotonic() < self._next_try:
                return False
            if head.state == "parked":
                # Not later: the run goes on here then, and nobody else is to have it.
                self._opened().park(head, pieces(), owner)
            else:
                self._patiently(lambda store: store.write(head, pieces(), owner))
        except StoreError as error:
            if isinstance(error, OneRunFailed):
                refused(str(error))
            self._failed(error)
            return False
        except Exception:
            logger.exception("a run could not be kept")
            return False
        finally:
            self._hangs = False
            written()
        self._failing = False
        self._tidy()
        return True

    def _look(self) -> None:
        try:
            if time.monotonic() < self._next_try:
                return
            if self._settings.keeps:
                # Here, and not while the first response waits for it: a keyring takes its time.
                self._keys_of()
            if self._state.exists(JOURNAL_TABLES):
                self._opened()
                self._tidy()
        except StoreError as error:
            self._failed(error)

    def _tidy(self) -> None:
        """Removes a page of what is too much; the next one in the thread's next turn, behind what waits."""
        store, now = self._store, time.monotonic()
        try:
            if store is None or (now < self._next_tidy and not store.is_over_now):
                return
            if store.tidy():
                with contextlib.suppress(RuntimeError):  # closing: the next broker goes on with it
                    self._thread.submit(self._tidy)
                return
            self._next_tidy = now + TIDY_SECONDS
        except StoreError as error:
            self._failed(error)

    def _opened(self) -> JournalStore:
        if self._store is None:
            database = self._state.database(JOURNAL_TABLES)
            self._store = JournalStore(database, self._keys_of, self._settings)
        self._store.settings = self._settings
        return self._store

    def _keys_of(self) -> Sequence[bytes]:
        self._keys = self._keys or keys_of(self._state, self._auth)
        return self._keys

    def _patiently(self, work: Callable[[JournalStore], object]) -> None:
        """Does a piece of work, again for as long as PostgreSQL is away; it is done once. Raises StoreError."""
        while True:
            try:
                work(self._opened())
                return
            except Away:
                if self._was_done():
                    return
                if self._closing.is_set():
                    raise

    def _was_done(self) -> bool:
        """Waits until PostgreSQL is back, or the end, and says whether what has failed was done all the same."""
        while not self._closing.wait(AWAY_SECONDS):
            with contextlib.suppress(Away):
                return self._store is not None and self._store.database.came_through()
        return False

    def _failed(self, error: StoreError) -> None:
        if isinstance(error, Away):
            return  # whoever keeps watch over PostgreSQL has told it
        self._tell(str(error))
        if not isinstance(error, OneRunFailed):
            # Opened anew the next time: a damaged file is set aside then.
            self._close()
            self._next_try = time.monotonic() + RETRY_SECONDS

    def _tell(self, why: str) -> None:
        if not self._failing:
            self._failing = True
            logger.warning("runs are not kept for now: %s; the runs themselves are not affected", why)

    def _close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    # ---- inside: the loop ------------------------------------------------------------------------------

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            future = self._thread.submit(work)
        except RuntimeError:
            raise StoreError("the broker is stopping") from None
        if not await is_done_within(future, READ_BOUND_SECONDS):
            future.cancel()
            raise StoreError(
                self._state.trouble
                or f"the disk, or the keyring, has not answered within {READ_BOUND_SECONDS:g} s"
            )
        return future.result()


def open_store(store: Store, auth: AuthSettings, settings: JournalSettings) -> JournalStore:
    """Returns the journals of a store for one look at them, in the caller's thread; the caller closes them.

    Raises:
        StoreError: They cannot be opened; FileNotFoundError where no run was kept yet.
    """
    if not store.exists(JOURNAL_TABLES):
        raise FileNotFoundError
    database = store.database(JOURNAL_TABLES, checked=False)
    return JournalStore(database, lambda: keys_of(store, auth, make=False), settings)
