"""Own_file is Cellblock's own configuration file, as commands change it: checked before it is written."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cellblock.app.cli.arguments import default_file
from cellblock.app.cli.config_check import check_source
from cellblock.app.cli.config_file import ConfigFile
from cellblock.app.config.edit import KeyPath
from cellblock.app.config.entry_keys import ignored_keys
from cellblock.app.config.formats import SERVERS_KEY, normal
from cellblock.base.errors import ConfigError
from cellblock.base.settings.problems import ConfigProblems, Problem, Source


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
        self.ignored: Final = ignored_keys(known)
        """Holds the keys of entries that the file says are another program's."""
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
        errors = [one for one in problems if one.severity == "error"]
        new = [one for one in errors if _key(one) not in self._known]
        if new:
            error = ConfigProblems(str(self.path), new)
            raise ConfigError(f"Nothing was written: {error.message}", hint=hint or new[0].hint)
        return problems

    def _problems(self) -> list[Problem]:
        """Returns the problems that the changed file will have; none for a file that is not there yet."""
        if not self.text.strip():
            return []
        source = Source(str(self.path), self.text, toml=self._format == "toml")
        return check_source(source).problems


def _key(problem: Problem) -> tuple[object, str]:
    return problem.path, problem.message
