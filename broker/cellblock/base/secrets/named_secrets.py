"""Named secrets stand in the system's keyring, for references such as `${keyring:GITHUB_TOKEN}`.

A keyring does not say what is in it, so an empty file for each name stands in the user's state directory. It is written
anew with the secret, and tells a daemon that follows its configuration.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from cellblock.base.errors import ConfigError
from cellblock.base.secrets.keyrings import Keyring
from cellblock.base.settings.plain_state_dir import default_state_dir
from cellblock.base.state_dir import in_the_way, prepare_state_dir
from cellblock_worker.base.folders import Folder, InTheWay
from cellblock_worker.base.private_files import write_private

NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}")
"""Matches the names of secrets; they are names of files, too."""

NAME_RULE: Final = (
    "A name has letters, digits, `_`, `-` and `.`, begins with a letter, and has up to 100 characters."
)

BOUND_SECONDS: Final = 10.0
"""Bounds one answer of the keyring for commands that a person waits for."""

_FOLDER: Final = "secrets"
_PREFIX: Final = "secret:"


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
        return self._keyring.find_now()

    def get(self, name: str) -> str | None:
        """Returns a secret; None when there is none of this name.

        Raises:
            KeyringError: There is no keyring, or it is locked or hangs.
        """
        return self._keyring.get_now(_PREFIX + name)

    def put(self, name: str, value: str) -> None:
        """Keeps a secret, in the place of an older one. Raises KeyringError as `get`, and ConfigError."""
        prepare_state_dir(default_state_dir())
        self._keyring.set_now(_PREFIX + name, value)
        with _folder() as folder:
            write_private(folder, name, b"")

    def remove(self, name: str) -> bool:
        """Forgets a secret, and says whether there was one. Raises KeyringError as `get`, and ConfigError."""
        known = name in self.names() or self.get(name) is not None
        self._keyring.delete_now(_PREFIX + name)
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
