"""Write adds servers to a configuration file: whole or not at all, for the user alone, with a copy of the old one."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cellblock.base.errors import ConfigError
from cellblock.base.json import is_object
from cellblock.config.file.entry_keys import ignored_keys
from cellblock.config.file.formats import SERVERS_KEY, normal
from cellblock.config.file.problems import Source
from cellblock.config.settings import parse_source, read_source
from cellblock_worker.base.folders import Folder
from cellblock_worker.base.private_files import write_private


class Target:
    """A target is a configuration file as it was read; what it does not say yet can be added.

    Args:
        path: The file; it need not be there.

    Raises:
        ConfigError: It is TOML, or cannot be read or parsed.
    """

    def __init__(self, path: Path) -> None:
        # A link of someone who manages their files elsewhere stays one.
        self.path = path.expanduser().resolve()
        self._source: Source | None = None
        self._raw: dict[str, Any] = {}
        if self.path.exists():
            self._source = read_source(self.path)
            if self._source.toml:
                raise ConfigError(
                    f"{path} is TOML, which is not written.", hint="Give --config with a JSON file."
                )
            self._raw = parse_source(self._source)
        known = normal(self._raw)
        self.servers = known.entries()
        """Holds the entries that are there already."""
        self.ignored = ignored_keys(known)
        """Holds the keys of entries that the file says are another program's."""

    def add(self, entries: Mapping[str, Mapping[str, Any]]) -> Path | None:
        """Writes the file with further servers.

        Returns:
            The copy of the old file, or None when there was none.

        Raises:
            ConfigError: The file has changed since it was read, or cannot be written.
        """
        before = self._raw.get(SERVERS_KEY)
        servers = {**(before if is_object(before) else {}), **entries}
        text = json.dumps({**self._raw, SERVERS_KEY: servers}, ensure_ascii=False, indent=2) + "\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            copy = self._copied()
            _replace(self.path, text)
        except OSError as error:
            raise ConfigError(
                f"Cannot write {self.path}: {error.strerror}.", hint="Give another --config."
            ) from None
        return copy

    def _copied(self) -> Path | None:
        if self._source is None:
            if self.path.exists():
                raise ConfigError(f"{self.path} has come into being meanwhile.", hint="Try again.")
            return None
        if read_source(self.path).text != self._source.text:
            raise ConfigError(f"{self.path} has changed meanwhile.", hint="Try again.")
        stamp = time.strftime("%Y%m%d-%H%M%S")
        copy = self.path.with_name(f"{self.path.name}.{stamp}-{secrets.token_hex(2)}.bak")
        _replace(copy, self._source.text or "")
        return copy


def _replace(path: Path, text: str) -> None:
    with Folder.named(path.parent) as folder:
        write_private(folder, path.name, text.encode())
