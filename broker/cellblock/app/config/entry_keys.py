"""Tells the keys of a server's entry apart: ours, those that other clients keep there, and slips of the pen."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cellblock.app.config.formats import (
    APPROVALS,
    NEAR_MISS,
    ON_KEYS,
    SERVERS_KEY,
    TOOL_KEYS,
    URL_KEYS,
    Normal,
)
from cellblock.base.json import is_array, is_object
from cellblock.base.settings.positions import Path as KeyPath
from cellblock.base.settings.problems import Problem, nearest

SILENT_KEYS: Final = frozenset(
    [
        *("alwaysLoad", "autoStart", "bundled", "description", "gallery", "icon", "id", "logoUrl", "name"),
        *("note", "provider", "providerUrl", "registryUrl", "required", "scope", "source", "tags", "title"),
        *("transportType", "trust", "version"),
    ]
)
"""Names the keys of other clients that change nothing of what a server may do, or how it is reached."""

FOREIGN_KEYS: Final = SILENT_KEYS | frozenset(
    [
        # Claude Code and Claude Desktop
        *("headersHelper", "oauth", "timeout"),
        # Cursor
        "auth",
        # VS Code and Copilot
        *("dev", "sandbox", "sandboxEnabled"),
        # Cline, Roo Code, Kilo Code, Kiro
        *("networkTimeout", "watchPaths"),
        # Gemini
        *("authProviderType", "extensionName", "targetAudience", "targetServiceAccount"),
        # Codex
        *("bearer_token_env_var", "env_http_headers", "env_vars", "http_headers", "oauth_resource", "scopes"),
        *("startup_timeout_ms", "startup_timeout_sec", "tool_timeout_sec"),
        # Others
        *("longRunning", "roots", "settings", "transport"),
    ]
)
"""Names keys that other clients put into an entry: none of them is a slip of the pen, however alike it is to one of
ours."""


IGNORED_KEY: Final = "ignored_server_keys"
"""Names the setting that names further keys of other programs."""


def slips(entry: Mapping[str, Any], known: Sequence[str]) -> dict[str, str]:
    """Returns the keys of an entry that are near misses of known ones, each with the one that was probably meant."""
    found: dict[str, str] = {}
    for key in entry:
        meant = None if _is_other(key, known) else _meant(key, known)
        if meant is not None:
            found[key] = meant
    return found


def places_of_slipped_transports(made: Normal, known: Sequence[str]) -> set[KeyPath]:
    """Returns the entries in the file that say how their server is reached, but for a slip of the pen."""
    return {
        made.origins[name]
        for name, entry in made.entries().items()
        if is_object(entry) and {"command", "url"} & {*slips(entry, known).values()}
    }


def ignored_keys(made: Normal) -> frozenset[str]:
    """Returns the keys that the configuration says are another program's. Read before the section is validated."""
    ignored = made.section.get(IGNORED_KEY) if is_object(made.section) else None
    return frozenset(map(str, ignored)) if is_array(ignored) else frozenset()


def slip_hint(meant: str) -> str:
    return f"Did you mean {meant}? Rename it, or take it out."


def entry_problems(made: Normal, known: Sequence[str]) -> list[Problem]:
    """Returns what is wrong with the keys of the servers' entries, and with those that the entries stand under.

    Those that nobody is known to read are errors: what they were to say would be left unsaid. A user who knows who
    reads one names it in `cellblock.ignored_server_keys`.
    """
    found: list[Problem] = []
    ignored = ignored_keys(made)
    for name, entry in made.entries().items():
        origin = made.origins.get(name, (SERVERS_KEY, name))
        if not name.strip():
            found.append(Problem(origin, "a server has no name here", "Give it one.", at_key=True))
        if not is_object(entry):
            continue
        wrong = slips(entry, known)
        if (words := _shell_words(entry)) is not None:
            hint = f'Write "command": {json.dumps(words[0])}, "args": {json.dumps(words[1:])}.'
            message = "there is no such program: arguments go into args, and no shell reads this"
            found.append(Problem((*origin, "command"), message, hint, "warning"))
        for key in entry:
            if key in ignored:
                continue
            path = (*origin, key)
            if key in wrong:
                found.append(Problem(path, "unknown key", slip_hint(wrong[key]), at_key=True))
            elif key == "sandboxEnabled" and entry[key]:
                message, hint = "this sandbox of the server is not put up", "Start it in one of your own."
                found.append(Problem(path, message, hint, "warning", at_key=True))
            elif not _is_other(key, known):
                hint = (
                    f"Keys here: {', '.join(known)}. If another program reads it, name it in "
                    f"cellblock.{IGNORED_KEY}; notes begin with _ or //."
                )
                found.append(Problem(path, "unknown key", hint, at_key=True))
    return found


# ---- inside ------------------------------------------------------------------------------------------


def _shell_words(entry: Mapping[str, Any]) -> list[str] | None:
    """Returns the words of a `command` that is a whole line for a shell, and no program's name with blanks in it."""
    command = entry.get("command")
    if not isinstance(command, str) or " " not in command.strip() or shutil.which(command) is not None:
        return None
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    args = entry.get("args")
    return [*words, *map(str, args)] if is_array(args) else words


def _is_other(key: str, known: Sequence[str]) -> bool:
    """Says whether there is nothing to say of a key: it is one of ours or of another client, or stands for a note."""
    # `_args`, `//args` and `$comment` are how people write notes, and take keys out, where there are no comments.
    ours = key in known or key in URL_KEYS or key in TOOL_KEYS or key in ON_KEYS or key in APPROVALS
    return ours or key in FOREIGN_KEYS or not key[:1].isalpha()


def _meant(key: str, known: Sequence[str]) -> str | None:
    """Returns the known key that was probably meant: a similar one, or one of the same letters."""
    letters = sorted(key.lower())
    return nearest(key, known, NEAR_MISS) or next(
        (one for one in known if sorted(one.lower()) == letters), None
    )
