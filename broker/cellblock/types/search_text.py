"""Turns catalog text into search terms: splits identifiers, folds, and caps what an upstream may put in.

Everything here is a pure function over untrusted text. Time is linear in the capped input.
"""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from cellblock.base.json import is_array, is_object
from cellblock.tools.catalog.model import JsonSchema, ServerEntry, ToolEntry

MAX_QUERY_CHARS = 1_000
"""Bounds the characters of a query that are read; the rest is ignored (an agent's query is one sentence)."""
MAX_QUERY_TERMS = 16
"""Bounds the distinct words of a query that are searched for."""
MAX_TERM_CHARS = 48
"""Bounds the characters kept of one term; longer runs are keys or base64, not words."""
MAX_NAME_CHARS = 256
"""Bounds the characters of a tool, server or property name that are indexed."""
MAX_TEXT_CHARS = 4_000
"""Bounds the characters of one tool's description, and of all its property descriptions, that are indexed."""
MAX_PROPERTIES = 200
"""Bounds the properties of one tool's input schema that are indexed, nested ones included."""
MAX_SCHEMA_NODES = 1_000
"""Bounds the schemas within one tool's input schema that are looked at."""
MAX_SCHEMA_DEPTH = 8
"""Bounds the levels of nesting of an input schema that are indexed."""

_WORD = re.compile(r"[^\W_]+")
_HUMP = re.compile(
    r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[A-Za-z])(?=[0-9])|(?<=[0-9])(?=[A-Za-z])"
)
_UNSPACED = re.compile(r"([\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+)")
_SENTENCE_END = re.compile(r"[.!?]\s|\n\s*\n|[。！？]")

_STOP_WORDS = """
a about all already also am an and another any anything are as at be been but by can could did do does each
ever every everything for from had has have here how i if in into is it its just lately like me more most
much my need never of on one only or other our own please really same should so some somebody something still
than that the their them then there these they this those to too us very want was we were what when where
which while who whom whose why will with would you your
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""Holds the English words that say nothing about which tool is meant; dropped from a query unless it has no others."""


class ToolText(NamedTuple):
    """Holds the searchable text of one tool: each field is a string of terms parted by single spaces."""

    name: str
    server: str
    summary: str
    details: str
    properties: str
    notes: str


def fold(text: str) -> str:
    """Gives compatibility-normalised text, so that a full-width, ligature or accented spelling of Latin is the plain
    one."""
    if text.isascii():
        return text
    whole = unicodedata.normalize("NFKC", text)
    bases = (unicodedata.normalize("NFD", character)[0] for character in whole)
    return "".join(
        base if base.isascii() else character for base, character in zip(bases, whole, strict=True)
    )


@lru_cache(maxsize=8_192)
def stem(word: str) -> str:
    """Gives an English word without the endings of plurals, `-ed` and `-ing`, and without a last `e`; others as they
    are.

    Porter's further steps find less here: they make one of words that name different tools.
    """
    if len(word) < 4 or not (word.isascii() and word.isalpha()) or word.endswith("ss"):
        return word
    if word.endswith("ies"):
        word = f"{word[:-3]}y"
    elif word.endswith("s") and not word.endswith("us"):
        word = word[:-1]
    for ending in ("ed", "ing"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word.removesuffix(ending)
            if word[-1] == word[-2] and word[-1] not in "lsz":
                word = word[:-1]
            break
    return word[:-1] if word.endswith("e") and len(word) > 3 else word


def terms(text: str) -> list[str]:
    """Gives the lower-case terms of `text` in order.

    Identifiers are split at `_`, `-`, case changes and digits, and a word that was split is there as a
    whole as well. Scripts written without spaces become overlapping pairs of characters. A term holds
    letters and digits only: no quote, NUL or lone surrogate.
    """
    found: list[str] = []
    for word in _WORD.findall(fold(text)):
        if word.isascii() and word.islower() and word.isalpha():
            found.append(word[:MAX_TERM_CHARS])  # nearly every word of a description
        elif not word.isascii() and _UNSPACED.search(word):
            for run in filter(None, _UNSPACED.split(word)):
                found.extend(_pairs(run) if _UNSPACED.match(run) else (run.lower()[:MAX_TERM_CHARS],))
        else:
            parts = _HUMP.split(word)
            if len(parts) > 1:
                found.extend(part.lower()[:MAX_TERM_CHARS] for part in parts)
            found.append(word.lower()[:MAX_TERM_CHARS])
    return found


def name_key(name: str) -> str:
    """Gives `name` without case and separators, to tell a query that is a name, in whatever spelling."""
    return "".join(_WORD.findall(fold(name[:MAX_NAME_CHARS]).lower()))


def tool_text(server: ServerEntry, tool: ToolEntry) -> ToolText:
    """Splits one tool into its weighted fields. `summary` is the description's first sentence."""
    title = tool.annotations.get("title") if tool.annotations else None
    description = (tool.description or "")[:MAX_TEXT_CHARS].strip()
    end = _SENTENCE_END.search(description)
    cut = end.end() if end else len(description)
    lead = f"{title[:MAX_NAME_CHARS]} {description[:cut]}" if isinstance(title, str) else description[:cut]
    names: list[str] = []
    notes: list[str] = []
    budget = MAX_TEXT_CHARS
    for name, note in _properties(tool.input_schema):
        names.append(name[:MAX_NAME_CHARS])
        notes.append(note[:budget])
        budget -= len(notes[-1])
    server_names = dict.fromkeys((server.server_id, server.server_name, server.config_name))
    return ToolText(
        name=_joined((tool.tool_name[:MAX_NAME_CHARS],)),
        server=_joined(name[:MAX_NAME_CHARS] for name in server_names),
        summary=_joined((lead,)),
        details=_joined((description[cut:],)),
        properties=_joined(names),
        notes=_joined(notes),
    )


def _joined(texts: Iterable[str]) -> str:
    return " ".join(term for text in texts for term in terms(text))


def _pairs(run: str) -> Iterator[str]:
    if len(run) == 1:
        yield run
    for index in range(len(run) - 1):
        yield run[index : index + 2]


def _properties(schema: JsonSchema | None) -> Iterator[tuple[str, str]]:
    """Yields (name, description and enumerated strings) of an untrusted schema's properties, breadth first."""
    queue: deque[tuple[int, object]] = deque([(0, schema)])
    left = MAX_PROPERTIES
    for _ in range(MAX_SCHEMA_NODES):
        if not queue:
            return
        depth, value = queue.popleft()
        if not is_object(value) or depth >= MAX_SCHEMA_DEPTH:
            continue
        queue.append((depth + 1, value.get("items")))
        for keyword in ("anyOf", "oneOf", "allOf"):
            if is_array(branches := value.get(keyword)):
                queue.extend((depth + 1, branch) for branch in branches[:left])
        if is_object(properties := value.get("properties")):
            for name, below in islice(properties.items(), left):
                left -= 1
                queue.append((depth + 1, below))
                yield str(name), _note(below)


def _note(schema: object) -> str:
    if not is_object(schema):
        return ""
    values = schema.get("enum")
    words = [schema.get("description"), *(values[:20] if is_array(values) else ())]
    return " ".join(word for word in words if isinstance(word, str))
