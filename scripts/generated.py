"""What the generators end with: their files are written, or with `--check` only compared."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def write_or_compare(files: Mapping[Path, str], generator: str) -> int:
    """Writes the files that are not as they are to be; with `--check` names them. Returns the exit code."""
    stale = [file for file, text in files.items() if not file.exists() or file.read_text("utf-8") != text]
    if "--check" in sys.argv[1:]:
        for file in stale:
            sys.stderr.write(f"{file.relative_to(ROOT)} is not current: run scripts/{generator}\n")
        return 1 if stale else 0
    for file in stale:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(files[file], "utf-8")
    return 0
