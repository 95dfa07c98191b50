"""Configuration files that commands change: whole or not at all, with a copy of the old one beside it."""

from __future__ import annotations

import difflib
import os
import re
import secrets
import stat
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from cellblock.app.cli.arguments import default_file
from cellblock.app.cli.config_check import check_source
from cellblock.app.config.edit import (
    REMOVED,
    EditFault,
    KeyPath,
    edited,
    format_of,
    given_back,
    object_in,
    text_of,
)
from cellblock.app.config.formats import SERVERS_KEY, normal, value_at
from cellblock.base.errors import ConfigError
from cellblock.base.secret_values import looks_secret
from cellblock.base.settings.problems import ConfigProblems, Problem, Source
from cellblock_worker.base.folders import Folder, InTheWay
from cellblock_worker.base.private_files import stamp_of, write_private

MAX_COPIES: Final = 3
"""Bounds the copies of older versions that stay beside a file."""

_PAIR: Final = re.compile(
    r"""(["']?(?<![\w.-])([\w.-]++)["']?\s*+[:=]\s*+["']?)([^"',{}\[\]\s][^"',{}\]]*)"""
)
"""Matches a key and its value in JSON, TOML or YAML."""
_QUOTED: Final = re.compile(r'"([^"]{8,})"')


class ConfigFile:
    """Holds a configuration file as it was read, Cellblock's own or a client's; it need not be there.

    Args:
        path: The file. A link of someone who manages their files elsewhere stays one.

    Raises:
        UnreadableFile: It cannot be read, or is not in the format that its name says.
    """

    def __init__(self, path: Path) -> None:
        self.path: Final = real_path(path)
        self._format: Final = format_of(path.name)
        self._stamp: Final = stamp_of(self.path)
        self._old: Final = text_of(self.path)
        self._mark: Final = "\ufeff" if (self._old or "").startswith("\ufeff") else ""
        self.before: Final = (self._old or "").removeprefix(self._mark)
        """Holds what the file says, without a byte order mark."""
        self.text = self.before
        """Holds what it will say."""
        self.data: Final[dict[str, Any]] = object_in(self.path, self.text, self._format)
        """Holds the file's content, parsed."""

    def change(self, changes: Mapping[KeyPath, Any]) -> None:
        """Changes the file's `text` as `edited` does; nothing is written yet.

        Raises:
            ConfigError: That is not possible without a change to something else.
        """
        try:
            self.text = edited(self.text, self._format, changes)
        except EditFault as error:
            raise self._left(error) from None

    def without(self, ours: KeyPath, record: Sequence[str] | None) -> str:
        """Returns the text without the member at a path; with the texts before and after that came in, as `given_back`
        does. Raises as `change`."""
        try:
            if record is not None:
                old, new, *_ = record
                return given_back(old, new, self.before, self._format, ours)
            there = value_at(self.data, ours) is not None
            return edited(self.before, self._format, {ours: REMOVED}) if there else self.before
        except EditFault as error:
            raise self._left(error) from None

    @property
    def changed(self) -> bool:
        return self._mark + self.text != (self._old or "")

    def difference(self, shown: str) -> list[str]:
        """Returns the lines of a unified difference, without what looks like a secret; `shown` names the file in it."""
        old, new = self.before.splitlines(), self.text.splitlines()
        before = shown if self._old is not None else "/dev/null"
        return [_masked(line) for line in difflib.unified_diff(old, new, before, shown, n=2, lineterm="")]

    def write(self, *, private: bool = False) -> Path | None:
        """Writes the file, with the permissions that it had; a new one is the user's alone. One without text goes.

        Args:
            private: Makes an old one the user's alone, too: what is new in it may be a secret.

        Returns:
            The copy of the old file, or None when there was none.

        Raises:
            ConfigError: The file has changed since it was read, or cannot be written.
        """
        try:
            if text_of(self.path) != self._old:
                raise self._changed()
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            mode = 0o600 if private or self._old is None else stat.S_IMODE(self.path.stat().st_mode)
            copy: Path | None = None
            with Folder.named(self.path.parent) as folder:
                if self._old is not None:
                    stamp = time.strftime("%Y%m%d-%H%M%S")
                    copy = self.path.with_name(f"{self.path.name}.{stamp}-{secrets.token_hex(2)}.bak")
                    write_private(folder, copy.name, self._old.encode())
                    copies = re.compile(re.escape(self.path.name) + r"\.\d{8}-\d{6}-[0-9a-f]{4}\.bak")
                    older = [name for name in folder.names() if copies.fullmatch(name) and name != copy.name]
                    for name in older[: 1 - MAX_COPIES]:
                        folder.remove(name)
                if not self.text:
                    folder.remove(self.path.name)
                    return copy
                if not write_private(
                    folder,
                    self.path.name,
                    (self._mark + self.text).encode(),
                    mode=mode,
                    replace=self._old is not None,
                    only=self._stamp,
                ):
                    raise self._changed()
        except (OSError, InTheWay) as error:
            why = error.strerror or str(error)
            hint = "See whose file it is."
            if not self.path.parent.is_dir():
                hint = f"Its folder {self.path.parent} cannot be made. Is HOME your own folder?"
            raise ConfigError(f"Cannot write {self.path}: {why}.", hint=hint) from None
        return copy

    def _left(self, error: EditFault) -> ConfigError:
        return ConfigError(f"{self.path} was left as it is: {error}", hint="Edit it by hand.")

    def _changed(self) -> ConfigError:
        return ConfigError(f"{self.path} has changed meanwhile.", hint="Try again.")


# ---- inside ------------------------------------------------------------------------------------------


def _masked(line: str) -> str:
    """Returns a line without what looks like a secret: other servers' entries stand beside the one that changes."""
    line = _PAIR.sub(lambda found: found[1] + "…" if looks_secret(found[2], found[3]) else found[0], line)
    return _QUOTED.sub(lambda found: '"…"' if looks_secret("", found[1]) else found[0], line)


def real_path(path: Path) -> Path:
    """Returns where links lead. A link that leads to itself stays, and whoever opens it is told."""
    return Path(os.path.realpath(path.expanduser()))  # `resolve` raises of such a link before Python 3.13


class OwnFile(ConfigFile):
    """Holds Cellblock's configuration file, the one that `--config` names or the user's own; it need not be there.

    Args:
        config: What `--config` says.

    Raises:
        ConfigError: It cannot be read or parsed.
    """

    def __init__(self, config: str | Path | None) -> None:
        super().__init__(Path(config) if config else default_file())
        known = normal(self.data)
        self.servers: Final = known.entries()
        """Holds the entries of the servers that the file has already."""
        self._origins = known.origins
        self._known = set(map(_key, self._problems()))

    def place(self, name: str) -> KeyPath:
        """Returns the keys to a server, there or not: beside the others, where a client keeps them elsewhere."""
        other = next(iter(self._origins.values()), (SERVERS_KEY, ""))
        return tuple(map(str, self._origins.get(name, (*other[:-1], name))))

    def check(self, hint: str | None = None) -> list[Problem]:
        """Returns what is to be told of the changed file: all of it, as every command tells it.

        Args:
            hint: What to do where the change makes something wrong; None: what the problem itself says.

        Raises:
            ConfigError: The change makes something in it wrong.
        """
        problems = self._problems()
        new = [one for one in problems if one.severity == "error" and _key(one) not in self._known]
        if new:
            raise ConfigError(
                f"Nothing was written: {ConfigProblems(str(self.path), new).message}",
                hint=hint or new[0].hint,
            )
        return problems

    def _problems(self) -> list[Problem]:
        """Returns the problems that the changed file will have; none for a file that is not there yet."""
        if not self.text.strip():
            return []
        return check_source(Source(str(self.path), self.text, toml=self._format == "toml")).problems


def _key(problem: Problem) -> tuple[object, str]:
    return problem.path, problem.message
