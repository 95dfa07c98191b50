"""Write adds servers to Cellblock's configuration file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from cellblock.cli.config_file import ConfigFile
from cellblock.cli.importing.plan import Plan
from cellblock.config.file.edit import KeyPath
from cellblock.config.file.entry_keys import ignored_keys
from cellblock.config.file.formats import SECTION_KEY, SERVERS_KEY, normal
from cellblock.config.secrets.named_secrets import NamedSecrets

_BOUNDS: Final = (SECTION_KEY, "upstream", "servers")


class Target(ConfigFile):
    """A target is Cellblock's configuration file; what it does not say yet can be added.

    Args:
        path: The file; it need not be there.

    Raises:
        ConfigError: It cannot be read or parsed.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        known = normal(self.data)
        self.servers = known.entries()
        """Holds the entries that are there already."""
        self.ignored = ignored_keys(known)
        """Holds the keys of entries that the file says are another program's."""

    def add(self, plan: Plan) -> Path | None:
        """Writes the file with the servers of a plan, and its secrets into the keyring before that.

        Returns:
            The copy of the old file, or None when there was none.

        Raises:
            ConfigError: The file has changed since it was read, or cannot be written.
            KeyringError: The keyring does not keep a secret; the file is left as it was.
        """
        changes: dict[KeyPath, Any] = {(SERVERS_KEY, name): entry for name, entry in plan.added.items()}
        for name, bounds in plan.bounds.items():
            changes |= {(*_BOUNDS, name, setting): value for setting, value in bounds.items()}
        self.change(changes)
        if plan.values:
            secrets = NamedSecrets()
            for name, value in plan.values.items():
                secrets.put(name, value)
        return self.write(private=True)
