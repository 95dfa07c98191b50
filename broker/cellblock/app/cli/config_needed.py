"""Config_needed reads the few values of a configuration that commands need which look at a daemon, or start one.

The secrets of the servers are in the daemon's environment and not in theirs, and the daemon says itself what is wrong
with its file: so no reference is resolved but in these values, unless that environment is known, and other problems are
warnings.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from cellblock.app.config.formats import value_at
from cellblock.app.config.load import as_normal, parse_source, read_settings, read_source, validated
from cellblock.app.config.references import Resolver
from cellblock.base.errors import ConfigError
from cellblock.base.settings.problems import SECTION_KEY, ConfigProblems, Problem, Source, of_validation
from cellblock.base.settings.settings import Settings

STATE_DIR: Final = ("state_dir",)
"""Names where a daemon keeps its token."""

SERVICE: Final = (("http", "drain_ms"),)
"""Names the settings that a service's unit needs beside the state directory."""


def load_needed(
    path: str | os.PathLike[str] | None,
    *,
    further: Sequence[tuple[str, ...]] = (),
    state_dir: Path | None = None,
    has_token_file: bool = False,
    environment: Mapping[str, str] | None = None,
) -> tuple[Settings, list[str]]:
    """Reads settings that hold these values and are the defaults elsewhere, and a sentence for each problem let pass.

    Args:
        path: The configuration file; None: the defaults.
        further: Settings to read beside `state_dir`, by their keys below `cellblock`.
        state_dir: Stands for the file's.
        has_token_file: Whether nothing of the state directory is wanted.
        environment: Variables that the daemon is going to have: all references are resolved, and what stands for
            nothing is a problem. None: they are not known.

    Raises:
        ConfigError: The file cannot be read.
        ConfigProblems: Its `state_dir` cannot be used. Both only where the file's is wanted.
    """
    if path is None:
        return Settings().with_state_dir(state_dir), []
    wanted = state_dir is None and not has_token_file
    try:
        source = read_source(path)
    except ConfigError as error:
        if wanted:
            raise
        return Settings().with_state_dir(state_dir), [str(error)]

    def sentences(problems: Sequence[Problem]) -> list[str]:
        return [f"{problem.text(source.name)} {problem.hint}" for problem in problems]

    try:
        raw = parse_source(source)
    except ConfigProblems as error:
        return Settings().with_state_dir(state_dir), sentences(error.problems)
    values, broken = _values(raw.get(SECTION_KEY), (STATE_DIR, *further), source)
    unusable = [problem for problem in broken if problem.path[1:2] == STATE_DIR]
    if wanted and unusable:
        raise ConfigProblems(source.name, source.placed(unusable))
    made = as_normal(raw)
    if environment is None:
        _, elsewhere = validated(made.as_settings(), made)
        elsewhere = [problem for problem in elsewhere if problem.severity == "error"]
    else:
        _, elsewhere, _ = read_settings(raw, source, environment)
    told = {problem.path for problem in elsewhere}
    problems = [*elsewhere, *(problem for problem in broken if problem.path not in told)]
    settings = Settings.model_validate({SECTION_KEY: values}).with_state_dir(state_dir)
    return settings, sentences(source.placed(problems))


# ---- inside ------------------------------------------------------------------------------------------


def _values(
    section: object, wanted: Sequence[tuple[str, ...]], source: Source
) -> tuple[dict[str, Any], list[Problem]]:
    """Returns the section with these settings alone, as far as they can be used, and what is wrong with the others."""
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    for keys in wanted:
        value = value_at(section, keys)
        if value is None:
            continue
        resolver = Resolver(Path(source.name))
        value = resolver.resolve(value, (SECTION_KEY, *keys))
        problems += resolver.faults
        if resolver.faults:
            continue
        one: Any = value
        for key in reversed(keys):
            one = {key: one}
        try:
            Settings.model_validate({SECTION_KEY: one})
        except ValidationError as error:
            problems += of_validation(error, Settings)
            continue
        # At most two levels, and no two of these settings share the upper one.
        values |= one
    return values, problems
