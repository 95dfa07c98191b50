"""Write adds servers to Cellblock's configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cellblock.cli.config_file import ConfigFile
from cellblock.config.file.entry_keys import ignored_keys
from cellblock.config.file.formats import SERVERS_KEY, normal


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

    def add(self, entries: Mapping[str, Mapping[str, Any]]) -> Path | None:
        """Writes the file with further servers. Returns the copy of the old one, or None when there was none.

        Raises:
            ConfigError: The file has changed since it was read, or cannot be written.
        """
        self.change({(SERVERS_KEY, name): entry for name, entry in entries.items()})
        return self.write(private=True)
