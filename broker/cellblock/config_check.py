"""`cellblock config check`: everything that is wrong with a configuration file, and what it configures. No values."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from cellblock.config import SERVER_KEYS, ServerConfig, parse_source, read_settings, read_source
from cellblock.config_file.entry_keys import entry_problems
from cellblock.config_file.formats import Normal
from cellblock.config_file.problems import ConfigProblems, Problem, Source


@dataclass(slots=True)
class Checked:
    """What was found. `servers` says of each how it is reached, in one word."""

    file: str
    problems: list[Problem] = field(default_factory=list[Problem])
    servers: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def errors(self) -> int:
        """Problems that keep the file from being used."""
        return sum(problem.severity == "error" for problem in self.problems)

    @property
    def ok(self) -> bool:
        """Whether the file can be used."""
        return self.errors == 0

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "file": self.file,
            "ok": self.ok,
            "problems": [problem.as_json() for problem in self.problems],
            "servers": self.servers,
        }


def check_config(path: str | os.PathLike[str]) -> Checked:
    """Reads a configuration file as every command does, and goes on after the first error.

    Raises:
        ConfigError: The file cannot be read at all.
    """
    source = read_source(path)
    checked = Checked(source.name)
    try:
        raw = parse_source(source)
    except ConfigProblems as error:
        checked.problems += error.problems
        return checked
    settings, problems, made = read_settings(raw, source)
    checked.problems = source.placed([*problems, *_warnings(source, made)])
    if settings is not None:
        checked.servers = {name: _kind(config) for name, config in settings.servers.items()}
    return checked


def _warnings(source: Source, made: Normal) -> list[Problem]:
    positions = source.positions()
    duplicates = positions.duplicates if positions is not None else []
    found = [
        Problem(
            path,
            "this key is there twice, and the last one counts",
            "Take one of them out.",
            "warning",
            True,
            positions.at(offset),
        )
        for path, offset in duplicates
        if positions is not None
    ]
    found += [problem for problem in entry_problems(made, SERVER_KEYS) if problem.severity == "warning"]
    if not made.servers and made.section is None:
        found.append(
            Problem((), "it names no servers and no settings", 'Start with {"mcpServers": {…}}.', "warning")
        )
    return found


def _kind(config: ServerConfig) -> str:
    if config.disabled:
        return "disabled"
    if config.command is not None:
        return "stdio"
    return "sse" if config.type == "sse" else "http"
