"""Rules restrict the tools of one server of a client; an entry of ours says the same, or it cannot be said."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

from cellblock.base.json import is_array, is_object
from cellblock.config.client_rules.places import shown_path
from cellblock.config.file.edit import EditFault, Format, format_of, read
from cellblock.config.file.syntax import SyntaxFault
from cellblock.config.file.whole_file import NotRead, text_of

MAX_FILES: Final = 1000
"""Bounds the files of one folder that are looked at: agents, or parts of a policy."""

Effect = Literal["off", "ask", "on", "free", "server off", "unclear"]

_KEYS: Final[Mapping[Effect, str]] = {
    "off": "disabledTools",
    "ask": "askTools",
    "on": "enabledTools",
    "free": "autoApprove",
}
"""Maps what a rule does to the key of an entry that does the same."""

_WORDS: Final[Mapping[Effect, str]] = {
    "off": "off",
    "ask": "asked about",
    "on": "nothing but",
    "free": "asked about all but",
}


@dataclass(frozen=True, slots=True)
class Server:
    """Holds a server of a client: its entry in our keys, and the folder that is worked in; `own` says that it is of
    that folder, and not of the user."""

    name: str
    entry: Any
    project: Path
    own: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule says of one server's tools that they are off, asked about, the only ones, or need no question; or of the
    server that it is off. One that is `unclear` has no counterpart in an entry, and `why` says what it does.

    `place` is the key and the file, for people; `tool` is a tool's name with `*` for any characters.
    """

    effect: Effect
    place: str
    tool: str = "*"
    why: str = ""


@dataclass(frozen=True, slots=True)
class Restricted:
    """Holds an entry with the keys that its client's rules come to; `told` has a line for each place, and `trouble`
    says why the entry must not be used."""

    entry: Any
    told: tuple[str, ...] = ()
    trouble: str = ""


class Files:
    """Reads a client's files, each once. `unreadable` has those that say something which is not understood, and why."""

    def __init__(self) -> None:
        self.unreadable: Final[dict[Path, str]] = {}
        self._seen: Final[dict[Path, Mapping[str, Any]]] = {}
        self._folders: Final[dict[Path, None]] = {}

    @property
    def seen(self) -> list[Path]:
        """Returns the files and folders that were looked for, there or not."""
        return [*self._seen, *self._folders]

    def data(self, file: Path) -> Mapping[str, Any]:
        """Returns the content of a client's file, parsed; nothing where there is no file."""
        if file not in self._seen:
            self._seen[file] = self._read(file, lambda text: (text, format_of(file.name)))
        return self._seen[file]

    def frontmatter(self, file: Path) -> Mapping[str, Any]:
        """Returns what a Markdown file of an agent says above its text."""
        if file not in self._seen:
            self._seen[file] = self._read(file, lambda text: (_above(text), "yaml"))
        return self._seen[file]

    def value(self, file: Path, *keys: str) -> Any:
        """Returns what stands in a file under keys; None where nothing does."""
        below: Any = self.data(file)
        for key in keys:
            below = below.get(key) if is_object(below) else None
        return below

    def texts(self, file: Path, *keys: str) -> list[str]:
        """Returns a list of texts in a file; one that is something else makes the file unreadable."""
        found = self.value(file, *keys)
        if found is not None and not (is_array(found) and all(isinstance(one, str) for one in found)):
            self.unreadable.setdefault(file, f"{'.'.join(keys)} is no list of texts")
            return []
        return found or []

    def in_folder(self, folder: Path, pattern: str) -> list[Path]:
        """Returns the files of a folder whose names fit; too many make the folder unreadable."""
        self._folders[folder] = None
        try:
            found = sorted(islice(folder.glob(pattern), MAX_FILES + 1))
        except OSError as error:
            self.unreadable[folder] = error.strerror or str(error)
            return []
        if len(found) > MAX_FILES:
            self.unreadable[folder] = f"it has more than {MAX_FILES} files"
        return found[:MAX_FILES]

    def _read(self, file: Path, part: Callable[[str], tuple[str, Format]]) -> Mapping[str, Any]:
        try:
            text = text_of(file)
            data = None if text is None else read(*part(text.removeprefix("\ufeff")))
        except (NotRead, SyntaxFault, EditFault) as error:
            self.unreadable[file] = str(error).removesuffix(".")
            return {}
        if data is not None and not is_object(data):
            self.unreadable[file] = "it holds no object"
        return data if is_object(data) else {}


def restricted(entry: Any, rules: Iterable[Rule]) -> Restricted:
    """Returns a server's entry, in our keys, with what the rules say added to it."""
    if not is_object(entry):
        return Restricted(entry)
    made, told = dict(entry), dict[tuple[Effect, str], list[str]]()
    for rule in dict.fromkeys(rules):
        if rule.effect == "unclear":
            return Restricted(entry, (), f"{rule.place} {rule.why}")
        if rule.effect == "server off":
            made["disabled"] = True
            continue
        key = _KEYS[rule.effect]
        before = made.get(key, [])
        if rule.effect in ("on", "free") and key in entry:
            return Restricted(entry, (), f"{rule.place} and {key} both say which tools may be used")
        if is_array(before):
            made[key] = before if rule.tool in before else [*before, rule.tool]
        told.setdefault((rule.effect, rule.place), []).append(rule.tool)
    lines = [f"{_WORDS[effect]} {', '.join(tools)} ({place})" for (effect, place), tools in told.items()]
    return Restricted(made, tuple(lines))


def fits(pattern: str, text: str) -> bool:
    """Says whether a text is what a pattern with `*` says."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.S) is not None


def rest_of(pattern: str, start: str) -> list[str]:
    """Returns patterns of what may follow a text where the whole fits one with `*` and `?`; none where nothing may.

    What follows is to have one character at least, and `?` becomes `*`, so that a restriction is not made smaller.
    """
    rests = {pattern}
    for char in start:
        rests = _without_stars(rests)
        rests = {rest if rest[:1] == "*" else rest[1:] for rest in rests if rest[:1] in ("*", "?", char)}
    return sorted({rest.replace("?", "*") for rest in rests if rest})


def shown(file: Path, *keys: str) -> str:
    """Returns a place in a file for people."""
    return " in ".join(filter(None, (".".join(keys), shown_path(file))))


# ---- inside ------------------------------------------------------------------------------------------


def _without_stars(patterns: set[str]) -> set[str]:
    """Adds to patterns what is left of them where a star at their start stands for nothing."""
    found = set(patterns)
    for pattern in patterns:
        while pattern[:1] == "*":
            pattern = pattern[1:]
            found.add(pattern)
    return found


def _above(text: str) -> str:
    return text.split("\n---", 1)[0].removeprefix("---") if text.startswith("---") else ""
