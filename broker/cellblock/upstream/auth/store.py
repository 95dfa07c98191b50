"""Keeps one server's login: the system's keyring, else a private file, which is replaced whole.

The file `auth/NAME-HASH.json` in the state directory exists in both cases: it holds the login, or the name of its entry
in the keyring. So a server without a login costs one `stat`, and its change tells every process to read anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import secrets
from collections.abc import AsyncGenerator, Awaitable, Generator
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from pydantic import ValidationError

from cellblock.base.json import is_object
from cellblock.base.shelf import Stamp
from cellblock.config.auth import AuthSettings
from cellblock.config.secrets.keyrings import KEYRING_SECONDS, Keyring, KeyringError
from cellblock.upstream.auth.errors import LoginStoreError
from cellblock.upstream.auth.record import LoginRecord
from cellblock.upstream.definitions import file_stem
from cellblock_worker.base.folders import Folder, InTheWay
from cellblock_worker.base.private_files import OpenToOthers, TooLarge, read_private, stamp_of, write_private

logger = logging.getLogger("cellblock.upstream.auth")

AUTH_DIR: Final = "auth"
"""Names the folder of logins in the state directory."""

HASH_CHARS: Final = 16

MAX_BYTES: Final = 256 * 1024
"""Caps the size of one login file; a login takes a few KiB."""

LOCK_PAUSE_SECONDS: Final = 0.05

T = TypeVar("T")


class LoginPlace(Protocol):
    """Keeps the login of one server at one URL: another URL is another login, so that no token goes astray;
    `LoginStore` and `SharedLogin` do.

    Attributes:
        kept_in: Where the last record read or written is: `keyring`, `file` or `postgresql`.
    """

    kept_in: str | None

    @property
    def where(self) -> str:
        """Says where the login is kept, for people."""
        ...

    def stamp(self) -> Stamp | None:
        """Changes whenever the login does; None without one."""
        ...

    def locked(self, bound: float) -> contextlib.AbstractAsyncContextManager[None]:
        """Keeps other processes and brokers from renewing or replacing this login. Raises LoginStoreError after
        `bound` seconds."""
        ...

    async def load(self) -> LoginRecord | None:
        """Returns the login, or None; inside of `locked` as nobody can change it. Raises LoginStoreError."""
        ...

    async def save(self, record: LoginRecord) -> None:
        """Keeps the login. Raises LoginStoreError: It cannot be kept."""
        ...

    async def delete(self) -> None:
        """Forgets the login. Raises LoginStoreError: It is still there."""
        ...


class LoginStore:
    """Keeps a login in the system's keyring or a file; a `LoginPlace`.

    Args:
        state_dir: Cellblock's state directory.
        server: The server's name in `mcpServers`.
        url: Its URL there.
        settings: Whether the keyring is used.
    """

    def __init__(self, state_dir: Path, server: str, url: str, settings: AuthSettings) -> None:
        self.file = state_dir / AUTH_DIR / f"{login_stem(server, url)}.json"
        self.kept_in: str | None = None
        self._url = url
        self._settings = settings
        self._keyring = Keyring(KEYRING_SECONDS)

    @property
    def where(self) -> str:
        """Says where the login is kept, for people."""
        return "in the system's keyring" if self.kept_in == "keyring" else f"in {self.file}"

    def stamp(self) -> Stamp | None:
        """Changes whenever the login does; None without one."""
        return stamp_of(self.file)

    def locked(self, bound: float) -> contextlib.AbstractAsyncContextManager[None]:
        """Keeps other processes from renewing or replacing this login. Raises LoginStoreError after `bound` seconds."""
        return locked(self.file.with_suffix(".lock"), bound)

    async def load(self) -> LoginRecord | None:
        """Returns the login, or None.

        Raises:
            LoginStoreError: It is not private, cannot be read, is damaged, or the keyring does not give it.
        """
        envelope = self._envelope()
        if envelope is None:
            return None
        entry: object = envelope.get("entry")
        if isinstance(entry, str):
            text = await _login(self._keyring.get(entry))
            if text is None:
                return None
            self.kept_in = "keyring"
        else:
            text = json.dumps(envelope.get("record"))
            self.kept_in = "file"
        try:
            record = LoginRecord.model_validate_json(text)
        except ValidationError:
            raise self._damaged() from None
        return record if record.server_url == self._url else None

    async def save(self, record: LoginRecord) -> None:
        """Keeps the login. A keyring that fails is left for the file: a rotated token must not be lost.

        Raises:
            LoginStoreError: The file cannot be written.
        """
        text = record.model_dump_json(exclude_none=True)
        entry = self._entry()
        if self._settings.keyring == "auto" and (entry or await self._keyring.find()):
            name = entry or f"{self.file.stem}-{secrets.token_hex(4)}"
            try:
                await self._keyring.set(name, text)
            except KeyringError as error:
                logger.warning("a login is kept in a file: %s", error.message)
            else:
                self.kept_in = "keyring"
                write_login(self.file, json.dumps({"version": 1, "entry": name}).encode())
                return
        self.kept_in = "file"
        write_login(self.file, json.dumps({"version": 1, "record": json.loads(text)}).encode())

    async def delete(self) -> None:
        """Forgets the login.

        Raises:
            LoginStoreError: The file cannot be removed, or the keyring keeps its entry.
        """
        entry = self._entry()
        try:
            with Folder.inside(self.file.parent) as folder:
                folder.remove(self.file.name)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise LoginStoreError(
                f"The login file {self.file} cannot be removed: {error.strerror}.", hint="Remove it by hand."
            ) from None
        if entry is not None:
            await _login(self._keyring.delete(entry))

    # ---- inside --------------------------------------------------------------------------------------

    def _envelope(self) -> dict[str, Any] | None:
        data = read_login(self.file)
        if data is None:
            return None
        try:
            envelope: object = json.loads(data)
        except (ValueError, RecursionError):
            raise self._damaged() from None
        if not is_object(envelope):
            raise self._damaged()
        return envelope

    def _entry(self) -> str | None:
        try:
            entry: object = (self._envelope() or {}).get("entry")
        except LoginStoreError:
            # It is about to be replaced or removed.
            return None
        return entry if isinstance(entry, str) else None

    def _damaged(self) -> LoginStoreError:
        return LoginStoreError(
            f"The login file {self.file} is damaged.", hint=f"Log in anew: rm {self.file}."
        )


def login_stem(server: str, url: str) -> str:
    """Returns what a server's login at a URL is called."""
    return file_stem(server, f"{server}\0{url}", HASH_CHARS)


def read_login(file: Path) -> bytes | None:
    """Returns the bytes of a login file; None when there is none.

    Raises:
        LoginStoreError: It is no plain file, is another user's, others may read it, or it is too large.
    """
    with _worded(f"The login file {file} cannot be read", f"Remove it: rm {file}."):
        try:
            with Folder.inside(file.parent) as folder:
                return read_private(folder, file.name, MAX_BYTES)
        except FileNotFoundError:
            return None
        except OpenToOthers as error:
            raise LoginStoreError(
                f"Others may read the login file {file} (mode {error.mode:04o}).",
                hint=f"Log in anew: rm {file}. To keep this login: chmod 600 {file}.",
            ) from None
        except TooLarge:
            raise LoginStoreError(
                f"The login file {file} is too large.", hint=f"Remove it: rm {file}."
            ) from None


def write_login(file: Path, data: bytes) -> None:
    """Replaces a login file in one step. Raises LoginStoreError."""
    with (
        _worded(f"The login file {file} cannot be written", "Check the state directory."),
        Folder.inside(file.parent, make=True) as folder,
    ):
        write_private(folder, file.name, data)


@contextlib.asynccontextmanager
async def locked(file: Path, bound: float) -> AsyncGenerator[None]:
    """Holds the lock that this file stands for; it ends with its process at the latest.

    Raises:
        LoginStoreError: Another process has held it for `bound` seconds, or it cannot be made.
    """
    with (
        _worded(f"The lock {file} cannot be made", "Check the state directory."),
        Folder.inside(file.parent, make=True) as folder,
    ):
        descriptor = folder.open(file.name, os.O_RDWR | os.O_CREAT)
    try:
        deadline = asyncio.get_running_loop().time() + bound
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if asyncio.get_running_loop().time() >= deadline:
                    raise LoginStoreError(
                        f"Another process has held {file} for {bound:g} s.", hint="Try again in a moment."
                    ) from None
                await asyncio.sleep(LOCK_PAUSE_SECONDS)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _worded(what: str, hint: str) -> Generator[None]:
    """Words an OSError of the block as a LoginStoreError: `what` failed, and the hint."""
    try:
        yield
    except InTheWay as error:
        raise LoginStoreError(f"{error}.", hint="Move it away.") from None
    except OSError as error:
        raise LoginStoreError(f"{what}: {error.strerror}.", hint=hint) from None


async def _login(answer: Awaitable[T]) -> T:
    """Returns what the keyring answers; its errors are those of a login."""
    try:
        return await answer
    except KeyringError as error:
        hint = "Unlock the keyring, or set cellblock.auth.keyring to off and log in again."
        raise LoginStoreError(error.message, hint=hint) from None
