"""A keyring in memory."""

import threading
from collections.abc import Iterator

import keyring
import pytest
from keyring.backend import KeyringBackend

from support.waits import WAIT_BOUND_SECONDS


class Ring(KeyringBackend):
    """Keeps entries; `waits` has it hang, as one does that asks a person who is away, and `locked` has it refuse."""

    priority = 1  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.entries: dict[tuple[str, str], str] = {}
        self.waits: threading.Event | None = None
        self.locked = False
        self.asked = 0

    def get_password(self, service: str, username: str) -> str | None:
        self.asked += 1
        self._open()
        return self.entries.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self._open()
        self.entries[service, username] = password

    def _open(self) -> None:
        if self.locked:
            raise RuntimeError("locked")
        if self.waits is not None:
            self.waits.wait(WAIT_BOUND_SECONDS)

    def delete_password(self, service: str, username: str) -> None:
        del self.entries[service, username]


@pytest.fixture
def ring() -> Iterator[Ring]:
    """Is the keyring of this process."""
    before, made = keyring.get_keyring(), Ring()
    keyring.set_keyring(made)
    yield made
    if made.waits is not None:
        made.waits.set()
    keyring.set_keyring(before)
