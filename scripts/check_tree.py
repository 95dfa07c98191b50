"""Two rules on files that no other tool checks: their length, and no path of a developer's machine.

A source file over 400 lines is a warning, over 450 a failure (generated ``*.gen.*`` files excepted): one idea
a file. A path such as the place of somebody's checkout works on one machine only and tells who was there.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

SOURCE_SUFFIXES = {".py", ".pyi", ".ts", ".tsx", ".js", ".mjs"}
WARN_LINES, MAX_LINES = 400, 450
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


def length_findings(root: Path, files: Iterable[Path]) -> tuple[list[str], list[str]]:
    """Return (warnings, failures), one line each, for source files that are too long."""
    warnings: list[str] = []
    failures: list[str] = []
    for file in files:
        if file.suffix not in SOURCE_SUFFIXES or ".gen." in file.name:
            continue
        count = len((root / file).read_bytes().splitlines())
        if count > MAX_LINES:
            failures.append(f"{file}: {count} lines, at most {MAX_LINES}: split it")
        elif count > WARN_LINES:
            warnings.append(f"{file}: {count} lines, aim for {WARN_LINES}")
    return warnings, failures


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
        "rule", choices=("length", "paths", "list"), help="`list`: file names, NUL after each"
    )
    parser.add_argument("--suffix", help="with `list`: only files that end so")
    arguments = parser.parse_args()
    root = Path(__file__).resolve().parent.parent
    files = checkout_files(root)
    if arguments.rule == "list":
        chosen = [file for file in files if file.name.endswith(arguments.suffix or "")]
        sys.stdout.write("".join(f"{file}\0" for file in chosen))
        return 0
    warnings: list[str] = []
    if arguments.rule == "length":
        warnings, failures = length_findings(root, files)
    else:
        failures = machine_path_findings(root, files)
    for line in warnings:
        print(f"warning: {line}")
    for line in failures:
        print(f"error: {line}")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
