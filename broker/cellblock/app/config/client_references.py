"""Reads the references of MCP clients' files as Cellblock's own. All else there is text, also where it
looks like a reference of ours: such a file may be a stranger's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_NAME: Final = r"[A-Za-z_]\w*"
_EDITOR: Final = rf"env:{_NAME}|userHome|workspaceFolder(?:Basename)?|pathSeparator|/"
_SHELL: Final = re.compile(rf"\$(?:\{{({_NAME}(?::-[^{{}}]*)?)\}}|({_NAME}))")

FORMS: Final[Mapping[str, re.Pattern[str]]] = {
    "claude-code": re.compile(rf"\$\{{({_NAME}(?::-[^{{}}]*)?)\}}"),
    "cursor": re.compile(rf"\$\{{({_EDITOR})\}}"),
    "vscode": re.compile(rf"\$\{{({_EDITOR}|input:[^{{}}]+)\}}"),
    "windsurf": re.compile(rf"\$\{{(env:{_NAME})\}}"),
    "gemini": _SHELL,
    "goose": _SHELL,
    "opencode": re.compile(r"\{((?:env|file):[^{}]+)\}"),
}
"""Matches each client's references; what is between their braces is the same in ours. The others have none."""

_LOOKS_OURS: Final = re.compile(r"\$(?=\{[^{}]*\})")
_ESCAPED: Final = re.compile(r"\$\$(?=\{[^{}]*\})")


def literal(text: str) -> str:
    """Escapes what looks like a reference of ours."""
    return _LOOKS_OURS.sub("$$", text)


def unescaped(text: str) -> str:
    """Returns what `literal` was given."""
    return _ESCAPED.sub("$", text)


def variable(name: object, default: str = "") -> str:
    """Returns a reference to an environment variable that a client's file names; text where that is no name."""
    made = f"${{env:{name}{default}}}"
    return made if re.fullmatch(_NAME, str(name)) else literal(made)


def translated(client: str, text: str, file: Path) -> str:
    """Returns the text of a client's file in our grammar; paths of references are relative to the file."""
    if (form := FORMS.get(client)) is None:
        return literal(text)
    made, at = "", 0
    for found in form.finditer(text):
        kind, colon, name = (found[1] or found[2]).partition(":")
        if client == "opencode":
            name = name.strip() if kind == "env" else str(file.parent / Path(name.strip()).expanduser())
        made += f"{literal(text[at : found.start()])}${{{kind}{colon}{name}}}"
        at = found.end()
    return made + literal(text[at:])
