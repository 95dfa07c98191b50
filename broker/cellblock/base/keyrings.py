"""Asks the system's keyring, where there is one that keeps secrets and answers in time: for logins and for named
secrets.

`keyring` is imported only here and only when something is kept or read: it takes 0.1 s to find its backend. Named
secrets are for references such as `${keyring:GITHUB_TOKEN}`. A keyring does not say what is in it, so an empty file for
each name stands in the user's state directory. It is written anew with the secret, and tells a daemon that follows its
configuration.
"""

from __future__ import annotations

import concurrent.futures
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, TypeVar, cast

from cellblock.base.errors import CellblockError, ConfigError
from cellblock.base.state_dir import default_state_dir, in_the_way, prepare_state_dir
from cellblock.base.threads import start_daemon
from cellblock_worker.base.folders import Folder, InTheWay
from cellblock_worker.base.private_files import write_private

SERVICE: Final = "cellblock"
"""Names the service under which entries stand in the keyring."""

KEYRING_SECONDS: Final = 5.0
"""Bounds the wait for an answer where nobody is asked to wait: a locked keyring may ask a person who is away."""

_KEEPS_NOTHING: Final = ("keyring.backends.fail", "keyring.backends.null", "keyrings.alt.")
"""Names backends that refuse, forget, or write plain files of their own."""

NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}")
"""Matches the names of secrets; they are names of files, too."""

NAME_RULE: Final = (
    "A name has letters, digits, `_`, `-` and `.`, begins with a letter, and has up to 100 characters."
)

BOUND_SECONDS: Final = 10.0
"""Bounds one answer of the keyring for commands that a person waits for."""

_FOLDER: Final = "secrets"
_PREFIX: Final = "secret:"

T = TypeVar("T")


class KeyringError(CellblockError):
    """Tells that there is no keyring, or that it is locked, or hangs."""


class _Backend(Protocol):
    def get_password(self, service: str, username: str) -> str | None: ...

    def set_password(self, service: str, username: str, password: str) -> None: ...

    def delete_password(self, service: str, username: str) -> None: ...


class Keyring:
    """Keeps entries by name, each a text. All of it blocks; a keyring that hangs keeps no process alive.

    Args:
        bound: Longest wait for an answer, in seconds.
    """

    def __init__(self, bound: float) -> None:
        self._bound = bound

    def find(self) -> str | None:
        """Returns the name of the keyring, or None when there is none that keeps secrets."""
        try:
            return self._asked(_name)
        except KeyringError:
            return None

    def get(self, entry: str) -> str | None:
        """Returns an entry's text; None when it is not there.

        Raises:
            KeyringError: No keyring, or it is locked or hangs.
        """
        return self._asked(_get, entry)

    def set(self, entry: str, text: str) -> None:
        """Writes an entry and reads it back. Raises as `get`."""
        self._asked(_set, entry, text)

    def delete(self, entry: str) -> None:
        """Removes an entry. Raises as `get`; not when it is not there."""
        self._asked(_delete, entry)

    # ---- inside --------------------------------------------------------------------------------------

    def _asked(self, work: Callable[..., T], *args: str) -> T:
        future = start_daemon("cellblock-keyring", work, *args)
        concurrent.futures.wait([future], self._bound)
        if not future.done():
            raise KeyringError(f"The keyring has not answered within {self._bound:g} s.", hint="Unlock it.")
        try:
            return future.result()
        except KeyringError:
            raise
        except BaseException as error:  # noqa: BLE001 - backends raise what they like, in their thread
            # Only its kind: a backend may quote what it was given.
            raise KeyringError(
                f"The keyring has failed: {type(error).__name__}.", hint="Unlock it."
            ) from None


def _backend() -> _Backend | None:
    import keyring

    found = keyring.get_keyring()
    # A chain is as good as the first member, which is the one that is written to.
    members = cast("list[object]", getattr(found, "backends", None) or [found])
    module = type(members[0]).__module__
    return None if f"{module}.".startswith(_KEEPS_NOTHING) else cast("_Backend", found)


def _needed() -> _Backend:
    backend = _backend()
    if backend is None:
        raise KeyringError(
            "There is no keyring on this machine that keeps secrets.",
            hint="Install and unlock one, such as GNOME Keyring or KWallet, or refer to a file that only you can "
            "read with ${file:/path}.",
        )
    return backend


def _name() -> str | None:
    backend = _backend()
    return None if backend is None else type(backend).__module__.removeprefix("keyring.backends.")


def _get(entry: str) -> str | None:
    return _needed().get_password(SERVICE, entry)


def _set(entry: str, text: str) -> None:
    backend = _needed()
    backend.set_password(SERVICE, entry, text)
    if backend.get_password(SERVICE, entry) != text:
        raise KeyringError("The keyring has not kept what it was given.", hint="Check the keyring.")


def _delete(entry: str) -> None:
    backend = _needed()
    if backend.get_password(SERVICE, entry) is not None:
        backend.delete_password(SERVICE, entry)


def mark_of(name: str) -> Path:
    """Returns the file that is written anew when a secret is."""
    return default_state_dir() / _FOLDER / name


class NamedSecrets:
    """Keeps all secrets of this user.

    Args:
        bound: Longest wait for each answer of the keyring, in seconds.
    """

    def __init__(self, bound: float = BOUND_SECONDS) -> None:
        self._keyring = Keyring(bound)

    @property
    def place(self) -> str | None:
        """Names the keyring; None when there is none that keeps secrets."""
        return self._keyring.find()

    def get(self, name: str) -> str | None:
        """Returns a secret; None when there is none of this name.

        Raises:
            KeyringError: There is no keyring, or it is locked or hangs.
        """
        return self._keyring.get(_PREFIX + name)

    def put(self, name: str, value: str) -> None:
        """Keeps a secret, in the place of an older one. Raises KeyringError as `get`, and ConfigError."""
        prepare_state_dir(default_state_dir())
        self._keyring.set(_PREFIX + name, value)
        with _folder() as folder:
            write_private(folder, name, b"")

    def remove(self, name: str) -> bool:
        """Forgets a secret, and says whether there was one. Raises KeyringError as `get`, and ConfigError."""
        known = name in self.names() or self.get(name) is not None
        self._keyring.delete(_PREFIX + name)
        if known and mark_of(name).exists():
            with _folder() as folder:
                folder.remove(name)
        return known

    def names(self) -> list[str]:
        """Returns the names of all secrets, sorted; the keyring is not asked."""
        try:
            found = [*(default_state_dir() / _FOLDER).iterdir()]
        except OSError:
            return []
        return sorted(file.name for file in found if NAME.fullmatch(file.name))


def _folder() -> Folder:
    path = default_state_dir() / _FOLDER
    try:
        return Folder.inside(path, make=True)
    except InTheWay as error:
        raise in_the_way(error) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}.", hint="See whose it is.") from None
