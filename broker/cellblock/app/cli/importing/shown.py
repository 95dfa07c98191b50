"""What a person is shown of a server before they agree to it: all of it, with references in place of secrets."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from cellblock.app.cli.importing.plan import Secrets, Step
from cellblock.app.config.references import references_in
from cellblock.base.json import is_array, is_object
from cellblock.base.settings.problems import dotted
from cellblock.base.terminal import Painter, spelled_out

_CHANGES_CODE: Final = re.compile(
    r"(?:LD|DYLD)_\w+|PATH|PYTHON\w+|NODE_\w+|BASH_ENV|ENV|(?:PERL5|RUBY)(?:LIB|OPT)|GIT_\w+"
    r"|(?:_|JDK_)?JAVA_(?:TOOL_)?OPTIONS",
    re.I,
)
"""Matches variables that have a program run, or load, something else."""

_IS_CODE: Final = frozenset({"-c", "-e", "--eval", "--require", "--import"})
"""Names options behind which code stands."""


def entry_lines(step: Step, paint: Painter) -> list[str]:
    """Returns the whole entry, line by line; what decides which code runs is marked."""
    lines: list[str] = []
    for text, marked in _lines(step):
        shown = spelled_out(text)
        lines.append(f"    {paint('!', 'yellow')} {paint(shown, 'yellow')}" if marked else f"      {shown}")
    return lines


def _lines(step: Step) -> Iterator[tuple[str, bool]]:
    entry, _ = Secrets().taken_out(step.found.name, step.entry)
    reached = str(entry.get("url", ""))
    if isinstance(command := entry.get("command"), str):
        reached = _program(command, entry)
        args = entry.get("args")
        words = [str(word) for word in (args if is_array(args) else ())]
        yield f"runs {' '.join(map(_word, (reached, *words)))}", any(word in _IS_CODE for word in words)
    for key, value in entry.items():
        if key in ("env", "headers") and is_object(value):
            for name, text in value.items():
                yield f"{key} {name}: {text}", key == "env" and bool(_CHANGES_CODE.fullmatch(name))
        elif key not in ("command", "args"):
            yield f"{dotted([key])} {value}", False
    if found := references_in(str(entry)):
        yield f"gives {', '.join(found)} to {_origin(reached)}", False


def _word(word: str) -> str:
    return shlex.quote(spelled_out(word))


def _origin(reached: str) -> str:
    try:
        parts = urlsplit(reached)
    except ValueError:
        return reached
    return f"{parts.scheme}://{parts.netloc}" if parts.netloc else reached


def _program(command: str, entry: Mapping[str, Any]) -> str:
    """Returns the path of what would be executed."""
    if "/" in command:
        return os.path.normpath(Path.cwd() / str(entry.get("cwd", "")) / command)
    env = entry.get("env")
    return shutil.which(command, path=env.get("PATH") if is_object(env) else None) or command
