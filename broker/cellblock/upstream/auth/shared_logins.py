"""Shared_logins keep logins where brokers share them, sealed; one broker at a time renews one, and others wait.

A token that was renewed is the only one that is still good, so one that cannot be written is held, and written when
PostgreSQL is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

from cellblock.base.database import Away, StoreError
from cellblock.base.shared_rows import SharedRows
from cellblock.base.threads import start_daemon
from cellblock.upstream.auth.errors import LoginStoreError
from cellblock.upstream.auth.record import LoginRecord
from cellblock.upstream.auth.store import login_stem

if TYPE_CHECKING:
    from cellblock.base.postgresql import Connection

logger = logging.getLogger("cellblock.upstream.auth")

KIND: Final = "logins"

AGAIN_SECONDS: Final = 1.0
"""Separates two tries to write a login while PostgreSQL is away."""


class SharedLogin:
    """Keeps the login of one server at one URL; a `LoginPlace`.

    Args:
        rows: Where.
        server: The server's name in `mcpServers`.
        url: Its URL there.
        patient: Whether a login that cannot be written is held until it can be: this process goes on.
    """

    def __init__(self, rows: SharedRows, server: str, url: str, *, patient: bool) -> None:
        self.kept_in: str | None = None
        self._rows, self._server, self._url, self._patient = rows, server, url, patient
        self._name = login_stem(server, url)
        self._writing: asyncio.Task[None] | None = None

    @property
    def where(self) -> str:
        """Says where the login is kept, for people."""
        return "where brokers share it, in PostgreSQL"

    def stamp(self) -> int | None:
        """Changes whenever the login does; None without one."""
        return self._rows.version(KIND, self._name)

    @contextlib.asynccontextmanager
    async def locked(self, bound: float) -> AsyncGenerator[None]:
        """Keeps other brokers from renewing or replacing this login. See `LoginPlace`."""

        def lock() -> Connection:
            held = self._rows.lock(f"login {self._name}", bound)
            try:
                self._rows.read()
            except BaseException:
                held.close()
                raise
            return held

        # Not one of the loop's threads: many that wait for other brokers would take them all.
        taking = start_daemon("login lock", lock)
        try:
            with self._worded("locked"):
                held = await asyncio.wrap_future(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(_given_up)
            raise
        try:
            yield
        finally:
            # In this thread: it says goodbye and waits for nothing.
            held.close()

    async def load(self) -> LoginRecord | None:
        """Returns the login, or None. See `LoginPlace`."""
        with self._worded("read"):
            body = self._rows.body(KIND, self._name)
        if body is None:
            return None
        self.kept_in = "postgresql"
        try:
            record = _read(body)
        except ValidationError:
            raise LoginStoreError(f"The login of {self._server} is damaged.", hint="Log in anew.") from None
        return record if record.server_url == self._url else None

    async def save(self, record: LoginRecord) -> None:
        """Keeps the login. See `LoginPlace`."""
        if self._writing is not None:
            # What it holds is older.
            self._writing.cancel()
            self._writing = None
        self.kept_in = "postgresql"
        was_there = self.stamp() is not None
        try:
            await asyncio.to_thread(self._rows.put, KIND, self._name, _written(record))
        except Away as error:
            if not self._patient:
                raise self._failed("written", error) from None
            logger.warning("the login of %s is written when PostgreSQL is back: %s", self._server, error)
            self._writing = asyncio.create_task(
                self._write(record, was_there), name=f"login of {self._server}"
            )
        except StoreError as error:
            raise self._failed("written", error) from None

    async def delete(self) -> None:
        """Forgets the login. See `LoginPlace`."""
        with self._worded("removed"):
            await asyncio.to_thread(self._rows.remove, KIND, self._name)

    # ---- inside --------------------------------------------------------------------------------------

    async def _write(self, record: LoginRecord, was_there: bool) -> None:
        why = "this broker has ended"
        while not self._rows.is_closed:
            await asyncio.sleep(AGAIN_SECONDS)
            try:
                if await asyncio.to_thread(self._is_settled, record, was_there):
                    return
            except Away:
                continue
            except StoreError as error:
                why = str(error)
                break
        logger.error("the login of %s is lost, as it could not be written: %s", self._server, why)

    def _is_settled(self, record: LoginRecord, was_there: bool) -> bool:
        """Writes a login over what it was renewed from, or where none was there, unless a person has logged in or out
        since; blocks. Says whether nothing is left to be written. Raises StoreError."""
        self._rows.read()
        version, body = self._rows.version(KIND, self._name), self._rows.body(KIND, self._name)
        if body is None and was_there:
            return True
        # One that is damaged is replaced.
        with contextlib.suppress(ValidationError):
            if body is not None and _read(body).since > record.since:
                return True
        written = _written(record)
        return self._rows.put(KIND, self._name, written, replace=body is not None, only=version)

    @contextlib.contextmanager
    def _worded(self, what: str) -> Generator[None]:
        try:
            yield
        except StoreError as error:
            raise self._failed(what, error) from None

    def _failed(self, what: str, error: StoreError) -> LoginStoreError:
        return LoginStoreError(
            f"The login of {self._server} cannot be {what}: {error}.",
            hint="Try again when PostgreSQL is back.",
        )


def _written(record: LoginRecord) -> bytes:
    return record.model_dump_json(exclude_none=True).encode()


def _read(body: bytes) -> LoginRecord:
    return LoginRecord.model_validate_json(body)


def _given_up(taking: Future[Connection]) -> None:
    if not taking.cancelled() and taking.exception() is None:
        taking.result().close()
