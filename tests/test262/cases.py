"""Language cases: files in the format of test262, made into programs that a worker and bare Deno both take.

No registry has the suite itself. So there are this project's own cases, written for the purpose, and a checkout of
the suite can be read too. A case is one JavaScript file with optional front matter (`/*--- flags, includes,
negative ---*/`, as test262's INTERPRETING.md defines them). Cellblock runs ES modules, so a program is the harness
files and the case in one module text. Cases that are no module code (`noStrict`, `raw`) or that need hooks that
neither engine has (`$262`) are skipped, and the reason is kept for counting.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent

AREAS: Final = ("promise", "dynamic_import", "json", "proxy", "reflect")
"""Folders of this project's own cases."""

TEST262_AREAS: Final = (
    "built-ins/Promise",
    "language/expressions/dynamic-import",
    "built-ins/JSON",
    "built-ins/Proxy",
    "built-ins/Reflect",
)
"""The same folders of the suite, under its `test/`."""

_FRONT_MATTER: Final = re.compile(r"/\*---(.*?)---\*/", re.DOTALL)
_LIST: Final = r"^{name}:\s*(?:\[([^\]]*)\]|((?:\s*\n\s+-\s*\S+)+))"
_NEGATIVE: Final = re.compile(r"^negative:\s*\n((?:[ \t]+\S.*\n?)+)", re.MULTILINE)
_ERROR_TYPE: Final = re.compile(r"^\s+type:\s*(\S+)", re.MULTILINE)

_BESIDE: Final = re.compile(r"""['"]\./""")

DONE: Final = "\n;await $DONE.settled;\n"
"""Ends the program of an `async` case: a module that has settled has ended, so it must wait for `$DONE`."""


@dataclass(frozen=True, slots=True)
class Case:
    """One file.

    `name` is its path under the suite, without the suffix; `program` the whole module text; `throws` the name of
    the error class that it must end with, if it must; `skip` why it cannot be run as a module, if so; `fixtures`
    says that it imports files beside it, which then have to lie beside `path`'s program too; `rejections` whether an
    unhandled rejection fails it, which the suite does not ask of a host.
    """

    name: str
    path: Path
    program: str
    throws: str | None = None
    skip: str | None = None
    fixtures: bool = False
    rejections: bool = True


def own_cases() -> list[Case]:
    """All of this project's own cases, in order of name."""
    return [
        _read(file, HERE, HERE / "harness") for area in AREAS for file in sorted((HERE / area).glob("*.js"))
    ]


def suite_cases(suite: Path, areas: Sequence[str] = TEST262_AREAS) -> list[Case]:
    """The cases of a test262 checkout in some folders of its `test/`, in order of name.

    Raises:
        FileNotFoundError: `suite` holds no such folder.
    """
    root = suite / "test"
    files: list[Path] = []
    for area in areas:
        if not (root / area).is_dir():
            raise FileNotFoundError(f"{root / area} is no folder: is {suite} a checkout of test262?")
        files += sorted(file for file in (root / area).rglob("*.js") if "_FIXTURE" not in file.name)
    return [replace(_read(file, root, suite / "harness"), rejections=False) for file in files]


def sample(cases: Sequence[Case], size: int) -> list[Case]:
    """So many cases, or fewer: every n-th, so that the same ones are chosen each time."""
    return list(cases[:: max(1, -(-len(cases) // size))])


def _read(file: Path, root: Path, harness: Path) -> Case:
    source = _text(file)
    found = _FRONT_MATTER.search(source)
    meta = found[1].replace("\r\n", "\n").replace("\r", "\n") if found else ""
    flags = _names(meta, "flags")
    features = _names(meta, "features")
    negative = _NEGATIVE.search(meta)
    error_type = _ERROR_TYPE.search(negative[1]) if negative else None
    return Case(
        name=str(file.relative_to(root).with_suffix("")),
        path=file,
        # What must not even start needs no harness, whose names could only get in its way.
        program=source
        if negative and "runtime" not in negative[1]
        else _program(source, flags, _names(meta, "includes"), harness),
        throws=error_type[1] if error_type else None,
        skip=_skip_reason(source, flags, features),
        fixtures=_BESIDE.search(source) is not None,
    )


def _names(meta: str, name: str) -> list[str]:
    found = re.search(_LIST.format(name=name), meta, re.MULTILINE)
    if found is None:
        return []
    if found[1] is None:
        return re.findall(r"-\s*(\S+)", found[2])
    return [item.strip() for item in found[1].split(",") if item.strip()]


def _skip_reason(source: str, flags: list[str], features: list[str]) -> str | None:
    for flag in ("noStrict", "raw"):
        if flag in flags:
            return flag
    if "$262" in source or "cross-realm" in features:
        return "$262"
    return None


def _program(source: str, flags: list[str], includes: list[str], harness: Path) -> str:
    # Our own: the suite's Test262Error is no Error, and its $DONE prints, where ours ends the module.
    pieces = [_text(HERE / "harness" / "sta.js"), _text(harness / "assert.js")]
    for name in includes:
        own = HERE / "harness" / name
        pieces.append(_text(own if own.exists() else harness / name))
    pieces.append(source)
    if "async" in flags:
        pieces.append(DONE)
    return "\n".join(pieces)


def _text(file: Path) -> str:
    # Not as text: some cases are about their line ends.
    return file.read_bytes().decode("utf-8")
