"""Asks the system's keyring, where there is one that keeps secrets and answers in time.

`keyring` is imported only here and only when something is kept or read: it takes 0.1 s to find its backend.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar, cast

from cellblock.base.errors import CellblockError
from cellblock.base.tasks import start_daemon

if TYPE_CHECKING:
    from keyring.backend import KeyringBackend

SERVICE: Final = "cellblock"
"""Names the service under which entries stand in the keyring."""

KEYRING_SECONDS: Final = 5.0
"""Bounds the wait for an answer where nobody is asked to wait: a locked keyring may ask a person who is away."""

_KEEPS_NOTHING: Final = ("keyring.backends.fail", "keyring.backends.null", "keyrings.alt.")
"""Names backends that refuse, forget, or write plain files of their own."""

T = TypeVar("T")


class KeyringError(CellblockError):
    """Tells that there is no keyring, or that it is locked, or hangs."""


class NoKeyring(KeyringError):
    """Tells that there is no keyring that keeps secrets."""


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
        return self._asked(lambda: _needed().get_password(SERVICE, entry))

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


def _backend() -> KeyringBackend | None:
    import keyring

    found = keyring.get_keyring()
    # A chain is as good as the first member, which is the one that is written to.
    members = cast("list[object]", getattr(found, "backends", None) or [found])
    module = type(members[0]).__module__
    return None if f"{module}.".startswith(_KEEPS_NOTHING) else found


def _needed() -> KeyringBackend:
    backend = _backend()
    if backend is None:
        raise NoKeyring(
            "There is no keyring on this machine that keeps secrets.",
            hint="Install and unlock one, such as GNOME Keyring or KWallet, or refer to a file that only you can "
            "read with ${file:/path}.",
        )
    return backend


def _name() -> str | None:
    backend = _backend()
    return None if backend is None else type(backend).__module__.removeprefix("keyring.backends.")


def _set(entry: str, text: str) -> None:
    backend = _needed()
    backend.set_password(SERVICE, entry, text)  # pyright: ignore[reportUnknownMemberType]
    if backend.get_password(SERVICE, entry) != text:
        raise KeyringError("The keyring has not kept what it was given.", hint="Check the keyring.")


def _delete(entry: str) -> None:
    backend = _needed()
    if backend.get_password(SERVICE, entry) is not None:
        backend.delete_password(SERVICE, entry)
