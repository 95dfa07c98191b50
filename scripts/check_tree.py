"""The rule on files that no other tool checks: a path such as the place of somebody's checkout works on one machine
only and tells who was there.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

# Written as alternatives so that this file does not match itself. Not after a letter, dot or slash: those are
# parts of a relative path or a URL.
MACHINE_PATH = re.compile(r"(?<![\w./-])/(?:work|tmp/lab)/")


def checkout_files(root: Path) -> list[Path]:
    """Return the files that git tracks or would, relative to ``root``."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, check=True).stdout
    names = {os.fsdecode(name) for name in listed.split(b"\0") if name}
    # The index also names files that were deleted but not yet staged as such.
    return sorted(Path(name) for name in names if (root / name).is_file())


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
    parser.add_argument("rule", choices=("paths", "list"), help="`list`: file names, NUL after each")
    parser.add_argument("--suffix", help="with `list`: only files that end so")
    arguments = parser.parse_args()
    root = Path(__file__).resolve().parent.parent
    files = checkout_files(root)
    if arguments.rule == "list":
        chosen = [file for file in files if file.name.endswith(arguments.suffix or "")]
        sys.stdout.write("".join(f"{file}\0" for file in chosen))
        return 0
    failures = machine_path_findings(root, files)
    print("".join(f"error: {line}\n" for line in failures), end="")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
