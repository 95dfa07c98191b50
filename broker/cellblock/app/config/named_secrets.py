"""Keeps secrets by name, for references such as `${keyring:GITHUB_TOKEN}`: in the system's keyring, or where there is
none in encrypted files.

A keyring does not say what is in it: a file for each name stands in the user's state directory, empty where the keyring
has the secret. It is written anew with the secret, and tells a daemon that follows its configuration.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Final

from cellblock.base.database import StoreError
from cellblock.base.keyrings import Keyring, KeyringError, NoKeyring
from cellblock.base.settings.server import AuthSettings
from cellblock.base.state_dir import default_state_dir, prepare_state_dir
from cellblock.base.state_keys import StateKeys, load_key
from cellblock_worker.base.folders import Folder
from cellblock_worker.base.private_files import read_private, write_private

NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}")
"""Matches the names of secrets; they are names of files, too."""

NAME_RULE: Final = (
    "A name has letters, digits, `_`, `-` and `.`, begins with a letter, and has up to 100 characters."
)

BOUND_SECONDS: Final = 10.0
"""Bounds one answer of the keyring for commands that a person waits for."""

MAX_BYTES: Final = 256 * 1024 * 1024
"""Bounds what is sealed under one name."""

MAX_SECRET_CHARS: Final = 16 * 1024
"""Bounds what is taken for the secret of a server."""

_FOLDER: Final = "secrets"
_PREFIX: Final = "secret:"
_BOUND: Final = "0-bound"


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
    def place(self) -> str:
        """Says where new secrets are kept, for people."""
        found = self._keyring.find()
        return "in encrypted files: there is no keyring" if found is None else f"in the keyring ({found})"

    def get(self, name: str) -> str | None:
        """Returns a secret; None when there is none of this name.

        Raises:
            KeyringError: The keyring that has it is locked, hangs or is not here, or a file cannot be read.
        """
        if (sealed := opened(name)) is not None:
            return sealed.decode()
        try:
            return self._keyring.get(_PREFIX + name)
        except NoKeyring:
            if mark_of(name).exists():
                raise
            return None

    def put(self, name: str, value: str) -> None:
        """Keeps a secret for any server, in the place of an older one. Raises as `get`, and ConfigError."""
        free(name)
        try:
            self._keyring.set(_PREFIX + name, value)
        except NoKeyring:
            seal(name, value.encode())
        else:
            seal(name, b"")

    def remove(self, name: str) -> bool:
        """Forgets a secret, and says whether there was one. Raises KeyringError as `get`, and ConfigError."""
        known = name in self.names() or self.get(name) is not None
        with contextlib.suppress(NoKeyring):
            self._keyring.delete(_PREFIX + name)
        forget(name)
        free(name)
        return known

    def names(self) -> list[str]:
        """Returns the names of all secrets, sorted; the keyring is not asked."""
        try:
            found = [*mark_of("").iterdir()]
        except OSError:
            return []
        return sorted(file.name for file in found if NAME.fullmatch(file.name))


def every_secret() -> list[str]:
    """Returns the values of all secrets that there are, as far as they can be read."""
    found: list[str] = []
    secrets = NamedSecrets()
    for name in secrets.names():
        with contextlib.suppress(KeyringError, OSError):
            # What is longer is no secret of a server: files of clients are kept so, too.
            if (secret := secrets.get(name) or "") and len(secret) <= MAX_SECRET_CHARS:
                found.append(secret)
    return found


def bound() -> dict[str, list[str]]:
    """Maps secrets that were taken out of servers' entries to the origins of those. Raises KeyringError."""
    with contextlib.suppress(FileNotFoundError), _folder() as folder:
        return json.loads(read_private(folder, _BOUND, MAX_BYTES))
    return {}


def bind(name: str, origin: str) -> None:
    """Lets a secret go to one origin more, and to none that was not named so. Raises KeyringError."""
    known = bound()
    _write_bound({**known, name: sorted({*known.get(name, ()), origin})})


def free(name: str) -> None:
    """Lets a secret go anywhere. Raises KeyringError."""
    if name in (known := bound()):
        del known[name]
        _write_bound(known)


def seal(name: str, data: bytes) -> None:
    """Writes a file with encrypted data; an empty one for none. Raises KeyringError, and ConfigError."""
    prepare_state_dir(default_state_dir())
    sealed = _keys().sealed((_FOLDER, name), data) if data else b""
    with _folder(make=True) as folder:
        write_private(folder, name, sealed)


def opened(name: str) -> bytes | None:
    """Returns what was sealed; None where there is no file, or an empty one. Raises KeyringError."""
    with contextlib.suppress(FileNotFoundError), _folder() as folder:
        if sealed := read_private(folder, name, MAX_BYTES):
            return _keys().opened((_FOLDER, name), sealed)
    return None


def forget(name: str) -> None:
    with contextlib.suppress(FileNotFoundError), _folder() as folder:
        folder.remove(name)


# ---- inside ------------------------------------------------------------------------------------------


def _write_bound(known: Mapping[str, list[str]]) -> None:
    with _folder(make=True) as folder:
        write_private(folder, _BOUND, json.dumps(known).encode())


def _keys() -> StateKeys:
    return StateKeys((load_key(default_state_dir(), AuthSettings()),))


@contextlib.contextmanager
def _folder(*, make: bool = False) -> Generator[Folder]:
    """Opens the folder of secrets. Raises FileNotFoundError, and KeyringError for what else fails in it."""
    try:
        with Folder.inside(mark_of(""), make=make) as folder:
            yield folder
    except FileNotFoundError:
        raise
    except (OSError, StoreError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise KeyringError(
            f"{mark_of('')} cannot be used: {why}.", hint="See whose it is. Is HOME your own folder?"
        ) from None
