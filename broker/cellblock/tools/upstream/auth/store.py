"""Keeps one server's login: in the system's keyring, else a private file; or where brokers share it, sealed.

What lies on the shelf holds the login, or the name of its entry in the keyring. So a server without a login costs one
look, and its change tells every process to read anew. A token that was renewed is the only one that is still good: one
that cannot be written because PostgreSQL is away is held, and written when it is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from cellblock.base.database import StoreError
from cellblock.base.keyrings import KEYRING_SECONDS, Keyring, KeyringError
from cellblock.base.settings.server import AuthSettings
from cellblock.base.store import NotShared, Stamp, Store
from cellblock.base.tasks import start_daemon
from cellblock.tools.upstream.auth.authority import object_in
from cellblock.tools.upstream.auth.errors import LoginStoreError
from cellblock.tools.upstream.auth.record import LoginRecord
from cellblock.tools.upstream.definitions import file_stem
from cellblock_worker.base.folders import InTheWay
from cellblock_worker.base.private_files import OpenToOthers, TooLarge

logger = logging.getLogger("cellblock.tools.upstream.auth")

KIND: Final = "logins"

AUTH_DIR: Final = "auth"
"""Names the folder of logins in the state directory."""

HASH_CHARS: Final = 16

MAX_BYTES: Final = 256 * 1024
"""Caps the size of one login; it takes a few KiB."""

LOCK_BOUND_SECONDS: Final = 40.0
"""Bounds the wait for another process that is renewing the login that is to be replaced."""

AGAIN_SECONDS: Final = 1.0
"""Separates two tries to write a login while PostgreSQL is away."""

T = TypeVar("T")


class LoginStore:
    """Keeps the login of one server at one URL: another URL is another login, so that no token goes astray.

    Args:
        store: Where.
        server: The server's name in `mcpServers`.
        url: Its URL there.
        settings: Whether the keyring is used, and how long it is waited for.
        person: Whose login it is, as `person_of` has it; nothing: the one that all share, and of the user of this
            machine.
        patient: Whether a login that cannot be written is held until it can be: this process goes on.
        name: What it is kept as, where that is known and no more: it is read and removed, of whatever URL it is.

    Attributes:
        server: The server's name; what is plain in it where no more is known.
        kept_in: Where the last record read or written is: `keyring`, `file` or `postgresql`.
    """

    def __init__(
        self,
        store: Store,
        server: str,
        url: str,
        settings: AuthSettings,
        *,
        person: str = "",
        patient: bool = False,
        name: str = "",
    ) -> None:
        self.kept_in: str | None = None
        self._store, self.server, self._url, self._patient = store, server, url, patient
        self._person, whose = person, f"\0{person}" if person else ""
        self.name = name or file_stem(server, f"{server}\0{url}{whose}", HASH_CHARS)
        self._shelf = store.shelf(KIND, MAX_BYTES, folder=AUTH_DIR)
        self._settings = settings
        self._keyring = Keyring(KEYRING_SECONDS)
        self._writing: asyncio.Task[None] | None = None

    @classmethod
    def all(cls, store: Store, settings: AuthSettings) -> list[LoginStore]:
        """Returns the places of all logins that there are. Raises LoginStoreError: They cannot be listed."""
        try:
            names = store.shelf(KIND, MAX_BYTES, folder=AUTH_DIR).names()
        except OSError as error:
            said = f"The logins cannot be listed: {error.strerror or error}."
            raise LoginStoreError(said, hint="Check --state-dir, or state.url.") from None
        return [cls(store, name[: -HASH_CHARS - 1], "", settings, name=name) for name in names]

    @property
    def where(self) -> str:
        """Says where the login is kept, for people."""
        if self._store.is_shared:
            return "where brokers share it, in PostgreSQL"
        return (
            "in the system's keyring" if self.kept_in == "keyring" else f"in {self._shelf.where(self.name)}"
        )

    def stamp(self) -> Stamp | None:
        """Changes whenever the login does; None without one."""
        return self._shelf.stamp(self.name)

    @contextlib.asynccontextmanager
    async def locked(self, bound: float) -> AsyncGenerator[None]:
        """Keeps other processes and brokers from renewing or replacing this login. Raises LoginStoreError after
        `bound` seconds."""

        def locked() -> contextlib.ExitStack:
            with contextlib.ExitStack() as stack:
                stack.enter_context(self._store.lock(f"login {self.name}", bound))
                self._shelf.refresh()
                return stack.pop_all()

        # Not one of the loop's threads: many that wait for other brokers would take them all.
        locking = start_daemon("login lock", locked)
        with self._worded("locked"):
            try:
                held = await asyncio.wrap_future(locking)
            except asyncio.CancelledError:
                locking.add_done_callback(_given_up)
                raise
        # In this thread: it says goodbye and waits for nothing.
        with held:
            yield

    async def load(self) -> LoginRecord | None:
        """Returns the login, or None; inside of `locked` as nobody can change it.

        Raises:
            LoginStoreError: It is not private, cannot be read, is damaged, or the keyring does not give it.
        """
        envelope = self._envelope()
        if envelope is None:
            return None
        if isinstance(entry := envelope.get("entry"), str):
            with self._worded("read"):
                text = await _asked(self._keyring.get, entry)
            if text is None:
                return None
            self.kept_in = "keyring"
        else:
            text = json.dumps(envelope.get("record", envelope))
            self.kept_in = "postgresql" if self._store.is_shared else "file"
        try:
            record = LoginRecord.model_validate_json(text)
        except ValidationError:
            raise self._damaged() from None
        own = self._url, record.of("", self._person).person
        return record if not self._url or own == (record.server_url, record.person) else None

    async def save(self, record: LoginRecord) -> None:
        """Keeps the login. A keyring that fails is left for the file: a rotated token must not be lost.

        Raises:
            LoginStoreError: It cannot be kept.
        """
        if self._writing is not None:
            # What it holds is older.
            self._writing.cancel()
            self._writing = None
        record = record.of(self.server, self._person)
        text, is_shared = record.model_dump_json(exclude_none=True), self._store.is_shared
        self.kept_in = "postgresql" if is_shared else "file"
        entry = self._entry()
        is_for_keyring = self._settings.keyring == "auto" and not is_shared
        if is_for_keyring and (entry or await _asked(self._keyring.find)):
            name = entry or f"{self.name}-{secrets.token_hex(4)}"
            try:
                await _asked(self._keyring.set, name, text)
            except KeyringError as error:
                logger.warning("a login is kept in a file: %s", error.message)
            else:
                self.kept_in, text = "keyring", json.dumps({"version": 1, "entry": name})
        with self._worded("written"):
            await self._write(record, text)

    async def delete(self) -> None:
        """Forgets the login. Raises LoginStoreError: It is still there."""
        entry = self._entry()
        with self._worded("removed"):
            with contextlib.suppress(FileNotFoundError):
                await asyncio.to_thread(self._shelf.remove, self.name)
            if entry is not None:
                await _asked(self._keyring.delete, entry)

    # ---- inside --------------------------------------------------------------------------------------

    async def _write(self, record: LoginRecord, text: str) -> None:
        was_there = self.stamp() is not None
        try:
            await asyncio.to_thread(self._shelf.write, self.name, text.encode(), replace=True)
        except NotShared as error:
            if not error.is_away or not self._patient:
                raise
            logger.warning(
                "the login of %s is written when PostgreSQL is back: %s", self.server, error.strerror
            )
            later = self._write_later(record, text, was_there)
            self._writing = asyncio.create_task(later, name=f"login of {self.server}")

    async def _write_later(self, record: LoginRecord, text: str, was_there: bool) -> None:
        why = "this broker has ended"
        while not self._shelf.is_closed:
            await asyncio.sleep(AGAIN_SECONDS)
            try:
                if await asyncio.to_thread(self._is_settled, record, text, was_there):
                    return
            except NotShared as error:
                if not error.is_away:
                    why = error.strerror
                    break
        logger.error("the login of %s is lost, as it could not be written: %s", self.server, why)

    def _is_settled(self, record: LoginRecord, text: str, was_there: bool) -> bool:
        """Writes a login over what it was renewed from, or where none was there, unless a person has logged in or out
        since; blocks. Says whether nothing is left to be written. Raises NotShared."""
        self._shelf.refresh()
        stamp = self.stamp()
        if stamp is None and was_there:
            return True
        # One that is damaged is replaced.
        with contextlib.suppress(ValidationError, FileNotFoundError):
            held = LoginRecord.model_validate_json(self._shelf.read(self.name))
            if held.since > record.since:
                return True
        return self._shelf.write(self.name, text.encode(), replace=stamp is not None, only=stamp)

    def _envelope(self) -> dict[str, Any] | None:
        """Returns what is on the shelf; what is damaged holds nothing."""
        with self._worded("read"):
            try:
                return object_in(self._shelf.read(self.name))
            except FileNotFoundError:
                return None

    def _entry(self) -> str | None:
        try:
            entry: object = (self._envelope() or {}).get("entry")
        except LoginStoreError:
            # It is about to be replaced or removed.
            return None
        return entry if isinstance(entry, str) else None

    def _damaged(self) -> LoginStoreError:
        if self._store.is_shared:
            return LoginStoreError(f"The login of {self.server} is damaged.", hint="Log in anew.")
        file = self._shelf.where(self.name)
        return LoginStoreError(f"The login file {file} is damaged.", hint=f"Log in anew: rm {file}.")

    @contextlib.contextmanager
    def _worded(self, what: str) -> Generator[None]:
        try:
            yield
        except (OSError, StoreError, KeyringError) as error:
            raise self._failed(what, error) from None

    def _failed(self, what: str, error: Exception) -> LoginStoreError:
        if self._store.is_shared:
            why = error.strerror if isinstance(error, OSError) else error
            text = f"The login of {self.server} cannot be {what}: {why}."
            return LoginStoreError(text, hint="Try again when PostgreSQL is back.")
        file = self._shelf.where(self.name)
        match error:
            case KeyringError():
                hint = "Unlock the keyring, or set cellblock.auth.keyring to off and log in again."
                return LoginStoreError(error.message, hint=hint)
            case InTheWay():
                return LoginStoreError(f"{error}.", hint="Move it away.")
            case OpenToOthers():
                return LoginStoreError(
                    f"Others may read the login file {file} (mode {error.mode:04o}).",
                    hint=f"Log in anew: rm {file}. To keep this login: chmod 600 {file}.",
                )
            case TooLarge():
                return LoginStoreError(f"The login file {file} is too large.", hint=f"Remove it: rm {file}.")
            case OSError():
                hint = f"Remove it: rm {file}." if what == "read" else "Check the state directory."
                text = f"The login file {file} cannot be {what}: {error.strerror}."
                return LoginStoreError(text, hint=hint)
            case _:
                text = f"The login file {file} cannot be {what}: {error}."
                return LoginStoreError(text, hint="Try again in a moment.")


async def _asked(work: Callable[..., T], *args: object) -> T:
    """Asks the keyring beside the loop."""
    return await asyncio.wrap_future(start_daemon("cellblock-keyring", work, *args))


def _given_up(locking: Future[contextlib.ExitStack]) -> None:
    if not locking.cancelled() and locking.exception() is None:
        locking.result().close()
