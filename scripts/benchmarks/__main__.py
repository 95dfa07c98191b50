"""Runs a measurement by its name, or lists all. See `scripts/bench`."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
NAMES: Final = (
    "caps",
    "durable",
    "feedback",
    "memory",
    "options",
    "persons",
    "search",
    "start",
    "tokens",
    "trees",
)
"""Lists what a user or a maintainer measures again; the scripts `loadtest`, `soak` and `upgrade` have their own."""


def line_of(name: str) -> str:
    """Returns the first line of what a measurement says of itself."""
    says = ast.get_docstring(ast.parse((HERE / f"{name}.py").read_text("utf-8"))) or ""
    return says.splitlines()[0]


def main(arguments: Sequence[str]) -> int:
    """Returns the measurement's exit code; 2 when the name is of none."""
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        print("usage: bash scripts/bench NAME [ARGUMENT...]\n")
        print("\n".join(f"  {one:<10} {line_of(one)}" for one in NAMES))
        return 0
    if name not in NAMES:
        print(f"error: there is no measurement {name!r}; there are {', '.join(NAMES)}", file=sys.stderr)
        return 2
    return importlib.import_module(f"benchmarks.{name}").main(arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
