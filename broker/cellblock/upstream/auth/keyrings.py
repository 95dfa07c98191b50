"""The system's keyring, where there is one that keeps secrets and answers in time.

`keyring` is imported only here and only when a login is kept or read: it takes 0.1 s to find its backend.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeVar, cast

from cellblock.base.threads import is_done_within, start_daemon
from cellblock.upstream.auth.errors import LoginStoreError

SERVICE: Final = "cellblock"
"""Names the service under which entries stand in the keyring."""

_KEEPS_NOTHING: Final = ("keyring.backends.fail", "keyring.backends.null", "keyrings.alt.")
"""Backends that refuse, forget, or write plain files of their own."""

T = TypeVar("T")


class _Backend(Protocol):
    def get_password(self, service: str, username: str) -> str | None: ...

    def set_password(self, service: str, username: str, password: str) -> None: ...

    def delete_password(self, service: str, username: str) -> None: ...


class Keyring:
    """Entries by name, each a text.

    Args:
        bound: Longest wait for an answer, in seconds.
    """

    def __init__(self, bound: float) -> None:
        self._bound = bound

    async def find(self) -> str | None:
        """Returns the name of the keyring, or None when there is none that keeps secrets."""
        try:
            backend = await _in_thread(_backend, self._bound)
        except LoginStoreError:
            return None
        return None if backend is None else type(backend).__module__.removeprefix("keyring.backends.")

    async def get(self, entry: str) -> str | None:
        """Returns an entry's text; None when it is not there.

        Raises:
            LoginStoreError: No keyring, or it is locked or hangs.
        """
        return await _in_thread(lambda: _needed().get_password(SERVICE, entry), self._bound)

    async def set(self, entry: str, text: str) -> None:
        """Writes an entry and reads it back. Raises as `get`."""

        def work() -> None:
            backend = _needed()
            backend.set_password(SERVICE, entry, text)
            if backend.get_password(SERVICE, entry) != text:
                raise LoginStoreError(
                    "The keyring has not kept what it was given.", hint="Check the keyring."
                )

        await _in_thread(work, self._bound)

    async def delete(self, entry: str) -> None:
        """Removes an entry. Raises as `get`; not when it is not there."""

        def work() -> None:
            backend = _needed()
            if backend.get_password(SERVICE, entry) is not None:
                backend.delete_password(SERVICE, entry)

        await _in_thread(work, self._bound)


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
        raise LoginStoreError("There is no keyring any more.", hint="Log in again.")
    return backend


async def _in_thread(work: Callable[[], T], bound: float) -> T:
    """The result of blocking work. Its thread is a daemon: one that hangs must not keep the process alive."""
    future = start_daemon("cellblock-keyring", work)
    if not await is_done_within(future, bound):
        raise LoginStoreError(
            f"The keyring has not answered within {bound:g} s.",
            hint="Unlock it, or set cellblock.auth.keyring to off and log in again.",
        )
    try:
        return future.result()
    except LoginStoreError:
        raise
    except BaseException as error:  # noqa: BLE001 - backends raise what they like, in their thread
        # Only its kind: a backend may quote what it was given.
        raise LoginStoreError(
            f"The keyring has failed: {type(error).__name__}.",
            hint="Unlock it, or set cellblock.auth.keyring to off and log in again.",
        ) from None
