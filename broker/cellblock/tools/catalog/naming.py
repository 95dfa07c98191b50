"""Makes the names that scripts use: module paths of servers and export names of tools (Code Mode specification,
sections 5.0.1 and 6.1)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Final

from cellblock.base.errors import ConfigError
from cellblock.base.visible import is_visible
from cellblock_worker.wire.protocol import MAX_NAME_CHARS

LOCAL_SERVER: Final = "local"
"""Holds the configuration name of the server made of Python tools."""

SCRIPTS_SERVER: Final = "scripts"

SCRIPT_NAME: Final = "[a-z][a-z0-9]*(?:_[a-z0-9]+)*"
"""Matches the name of a kept script, which has at most 64 characters."""

_RESERVED = """
break case class const continue debugger default delete do else export extends false finally for function
if import in instanceof new null return super switch this throw true try typeof var void while with yield
let static await
"""
RESERVED_WORDS: Final = frozenset(_RESERVED.split())
"""Holds the words of section 6.1."""

FURTHER_RESERVED: Final = frozenset({"then"})
"""Names exports that no tool may have: a module with an export `then` is a thenable, so that `await import(…)` would
call the tool."""

OWN_EXPORTS: Final = frozenset({"__meta__"})
"""Holds the exports that every server module has beside its tools."""

_NOT_PATH = re.compile(r"[^a-z0-9-]")
_DASHES = re.compile(r"-+")

FALLBACK_PATH: Final = "server"
"""Holds the path of a server whose name has no character that may stay."""


def module_path(name: str) -> str:
    """Gives the module path segment of a server's name, before collisions are resolved (section 5.0.1)."""
    return _DASHES.sub("-", _NOT_PATH.sub("-", name.lower())).strip("-") or FALLBACK_PATH


def module_paths(names: Iterable[str]) -> dict[str, str]:
    """Maps each name to its path; of equal paths the first stays clean, later ones get `--2`, `--3`."""
    return _disambiguated(((name, module_path(name)) for name in names), "--", frozenset())


def identifier(tool_name: str) -> str:
    """Gives the identifier of a tool's name, before collisions are resolved (section 6.1): letters of all scripts stay,
    composed as they are typed."""
    composed = unicodedata.normalize("NFC", tool_name)
    name = "".join(one if one == "$" or is_identifier(f"_{one}") else "_" for one in composed) or "_"
    if not is_identifier(name):
        name = "_" + name
    if name in RESERVED_WORDS or name in FURTHER_RESERVED:
        name += "_"
    return name


def is_identifier(name: str) -> bool:
    """Says whether a text is an identifier of JavaScript (reserved words are, too), of visible characters."""
    # What Python takes, JavaScript takes: the XID classes of Unicode are parts of its ID classes.
    return name.replace("$", "_").isidentifier() and all(map(is_visible, name))


def policy_ids(names: Iterable[str]) -> list[str]:
    """Returns the ids of servers that a policy may name: also those of Python tools and of kept scripts, which may be
    there without a word in the file."""
    return [*module_paths([*names, LOCAL_SERVER]).values(), SCRIPTS_SERVER]


def check_servers(names: Iterable[str], *, local: bool) -> None:
    """Raises ConfigError where a server would have the module path of the Python tools, if there are any (`local`)."""
    taken = [name for name in names if local and module_path(name) == LOCAL_SERVER]
    if taken:
        raise ConfigError(
            f"The server {taken[0]} would be imported as @codemode/servers/{LOCAL_SERVER}, as the Python tools are.",
            hint="Rename it in mcpServers.",
        )


def export_names(tool_names: Iterable[str]) -> dict[str, str]:
    """Maps each canonical tool name to its export, in alphabetical order of the names (section 6.1)."""
    ordered = sorted(set(tool_names))
    return _disambiguated(((name, identifier(name)) for name in ordered), "__", OWN_EXPORTS)


def _disambiguated(wanted: Iterable[tuple[str, str]], joint: str, taken: frozenset[str]) -> dict[str, str]:
    used = set(taken)
    chosen: dict[str, str] = {}
    for name, clean in wanted:
        candidate, number = clean, 2
        while candidate in used:
            candidate = f"{clean}{joint}{number}"
            number += 1
        used.add(candidate)
        chosen[name] = candidate
    return chosen


def check_tool_name(name: str) -> None:
    """Raises ConfigError unless `name` can be a Python tool's: something that can be sent, stored and read."""
    shown = ascii(name[:60]) + ("…" if len(name) > 60 else "")
    if not name.strip():
        raise ConfigError("A Python tool has an empty name.", hint="Give it one: @tool(name=…).")
    if len(name) > MAX_NAME_CHARS:
        raise ConfigError(
            f"The Python tool {shown} has a name of {len(name)} characters, over {MAX_NAME_CHARS}.",
            hint="Shorten it, or give another: @tool(name=…).",
        )
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"The Python tool {shown} has half of a surrogate pair in its name.",
            hint="Use whole characters, or give another name: @tool(name=…).",
        ) from None
