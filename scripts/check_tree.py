"""Three rules on files that no other tool checks: length, paths of a developer's machine, docstrings' first words.

- ``length``: a source file over 600 lines is a warning (generated ``*.gen.*`` files excepted). One idea a file is the
  rule; the number only asks.
- ``paths``: a path such as the place of somebody's checkout works on one machine only and tells who was there.
- ``words``: the first sentence of a docstring of the product has a subject and a verb and can be read alone. What can
  be checked of that is how it begins: not with one of ``NO_FIRST_WORD`` ("Of one run.", "Whether it fits."); not with
  a verb and a pronoun that stands for nothing yet ("Closes it.", "Waits for its end."); not with a verb that has no
  object ("Does nothing: …", "Comes last."); and a function's or a value's with a verb in the third person, whose
  subject is the function or the value: "Returns names.", not "Names of tools.". A ``this`` without a noun stands for
  something that only its surroundings name ("Ends what this selects.").
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

SOURCE_SUFFIXES = {".py", ".pyi", ".ts", ".tsx", ".js", ".mjs"}
WARN_LINES = 600
PRODUCT = ("broker/", "worker_runtime/")
NO_FIRST_WORD = re.compile(
    r"\s*(of|what|who|whose|whether|which|where|when|why|how|it|its|they|their|as|in|on|at|by|from|for|to|with|without"
    r"|and|or|but|so|not|no|if|since|while|is|are)\b",
    re.IGNORECASE,
)
VERB_FIRST = re.compile(
    r"\s*(?!(?:always|these|this)\b|(?:bounds|bytes|calls|characters|definitions|fields|files|hours|items|keys|keywords|kinds|levels|lines"
    r"|logins|names|pages|parts|results|runs|seconds|threads|tools|values|words) (?:of|that|which)\b)[A-Z][a-z]*s\b",
    re.IGNORECASE,
)
# One docstring may stand below several values.
SEVERAL = re.compile(r"\s*(?:bound|give|name|read|set)\b", re.IGNORECASE)
NO_NOUN = re.compile(
    r"\s*[A-Z][a-z]*s\b,? (?:(?:about|all|as|at|both|by|for|from|how|if|in|into|much|of|often|on|that|to|until|what"
    r"|when|where|whether|which|why|with) )*(it|its|itself|them|they|their)\b",
    re.IGNORECASE,
)
NO_OBJECT = re.compile(
    r"\s*([A-Z][a-z]*s(?: (?:again|all|anew|away|back|down|everything|first|here|last|longer|more|no|not|nothing|now"
    r"|off|on|once|one|out|so|then|there|too|up|yes))*)(?=[.;:])"
)
BARE_THIS = re.compile(
    r"(?:[^.!?]|[.!?](?!\s|$))*?\b(this)\b"
    r"(?=[,;:]|[.!?](?:\s|$)|\s+(?:after|at|before|begins?|by|can|closes|ends?|for|from|gives|has|in|is|itself|lasts|may"
    r"|must|of|on|selects|stands|to|too|was|with)\b)",
    re.IGNORECASE,
)
TOOLS_OF_THE_DEMO = "broker/cellblock/cli/demo/"  # their docstrings are descriptions that agents read
# Written as alternatives so that this file does not match itself. Not after a letter, dot or slash: those are
# parts of a relative path or a URL.
MACHINE_PATH = re.compile(r"(?<![\w./-])/(?:work|tmp/lab)/")
IGNORED_DIRS = {
    ".git",
    ".venv",
    ".servers",
    ".clients",
    "node_modules",
    "__pycache__",
    "_bundle",
    "dist",
    "build",
}


def checkout_files(root: Path) -> list[Path]:
    """Return the files that git tracks or would, relative to ``root``; without git, all but known caches."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return sorted(_walk(root))
    names = {os.fsdecode(name) for name in done.stdout.split(b"\0") if name}
    # The index also names files that were deleted but not yet staged as such.
    return sorted(Path(name) for name in names if (root / name).is_file())


def _walk(root: Path) -> Iterator[Path]:
    for folder, dirs, files in os.walk(root):
        dirs[:] = [name for name in dirs if name not in IGNORED_DIRS and not name.endswith("_cache")]
        for name in files:
            yield (Path(folder) / name).relative_to(root)


def length_findings(root: Path, files: Iterable[Path]) -> list[str]:
    """Return a line for each source file that is longer than one idea mostly is."""
    found: list[str] = []
    for file in files:
        if file.suffix not in SOURCE_SUFFIXES or ".gen." in file.name:
            continue
        count = len((root / file).read_bytes().splitlines())
        if count > WARN_LINES:
            found.append(f"{file}: {count} lines: is it one idea?")
    return found


def word_findings(root: Path, files: Iterable[Path]) -> list[str]:
    """Return one ``file:line: text`` for each docstring of the product that cannot be read alone."""
    found: list[str] = []
    for file in files:
        if file.suffix != ".py" or not file.as_posix().startswith(PRODUCT):
            continue
        tree = ast.parse((root / file).read_bytes(), str(file))
        in_demo = file.as_posix().startswith(TOOLS_OF_THE_DEMO)
        for line, text, of in sorted(_docstrings(tree)):
            start = repr(text.strip()[:60])
            if (first := NO_FIRST_WORD.match(text)) is not None:
                found.append(f"{file}:{line}: a docstring begins with {first[1]!r}: {start}")
            elif (first := NO_NOUN.match(text)) is not None:
                found.append(
                    f"{file}:{line}: a docstring says {first[1]!r} before it names anything: {start}"
                )
            elif (first := NO_OBJECT.match(text)) is not None:
                found.append(f"{file}:{line}: a docstring says {first[1]!r} and of what not: {start}")
            elif (first := BARE_THIS.match(text)) is not None:
                found.append(f"{file}:{line}: a docstring says {first[1]!r} without a noun: {start}")
            elif (
                of and not in_demo and not (VERB_FIRST.match(text) or (of == "value" and SEVERAL.match(text)))
            ):
                found.append(f"{file}:{line}: a {of}'s docstring begins with no verb: {start}")
    return found


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield line and text of each docstring, of modules, classes, functions, and of the assignment above it; and
    whether it is a function's or a value's."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        before: ast.stmt | None = None
        for number, statement in enumerate(node.body):
            if (
                isinstance(statement, ast.Expr)
                and isinstance(statement.value, ast.Constant)
                and isinstance(statement.value.value, str)
                and (number == 0 or isinstance(before, ast.Assign | ast.AnnAssign))
            ):
                of_function = number == 0 and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                of = "function" if of_function else "value" if number else ""
                yield statement.lineno, statement.value.value, of
            before = statement


def machine_path_findings(root: Path, files: Iterable[Path]) -> list[str]:
    """Return one ``file:line: text`` for each line of a text file that holds a path of one machine."""
    found: list[str] = []
    for file in files:
        content = (root / file).read_bytes()
        if b"\0" in content:
            continue  # binary
        for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), start=1):
            if MACHINE_PATH.search(line):
                found.append(f"{file}:{number}: path of one machine: {line.strip()[:100]}")
    return found


def main() -> int:
    """Print the findings of the named rule; return 1 when there is a failure."""
    parser = argparse.ArgumentParser(prog="scripts/check_tree.py")
    parser.add_argument(
        "rule", choices=("length", "paths", "words", "list"), help="`list`: file names, NUL after each"
    )
    parser.add_argument("--suffix", help="with `list`: only files that end so")
    arguments = parser.parse_args()
    root = Path(__file__).resolve().parent.parent
    files = checkout_files(root)
    if arguments.rule == "list":
        chosen = [file for file in files if file.name.endswith(arguments.suffix or "")]
        sys.stdout.write("".join(f"{file}\0" for file in chosen))
        return 0
    if arguments.rule == "length":
        print("".join(f"warning: {line}\n" for line in length_findings(root, files)), end="")
        return 0
    failures = (machine_path_findings if arguments.rule == "paths" else word_findings)(root, files)
    print("".join(f"error: {line}\n" for line in failures), end="")
    if arguments.rule == "words":
        print(f"{len(failures)} docstrings cannot be read alone")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
