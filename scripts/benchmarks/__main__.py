"""Runs a measurement by its name, or lists all. See `scripts/bench`."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
SHARED: Final = {"__init__", "__main__", "harness", "plots"}


def measurements() -> dict[str, Path]:
    """Returns the file with `main` of each measurement, by its name."""
    files = {file.stem: file for file in HERE.glob("*.py") if file.stem not in SHARED}
    files |= {file.parent.name: file for file in HERE.glob("*/__main__.py")}
    return dict(sorted(files.items()))


def main(arguments: Sequence[str]) -> int:
    """Returns the measurement's exit code; 2 when the name is of none."""
    files = measurements()
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        print("usage: bash scripts/bench NAME [ARGUMENT...]\n")
        for one, file in files.items():
            says = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
            print(f"  {one:<14} {says.splitlines()[0]}")
        return 0
    if name not in files:
        print(f"error: there is no measurement {name!r}; there are {', '.join(files)}", file=sys.stderr)
        return 2
    package = "" if files[name].parent == HERE else ".__main__"
    return importlib.import_module(f"benchmarks.{name}{package}").main(arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
