"""Compares two summaries of the MCP conformance suite: a server alone, and behind `cellblock serve --profile proxy`.

    python scripts/conformance_compared.py ALONE BEHIND LISTED

Prints a line a scenario. The exit code is 1 when one that passes alone fails behind and is not listed under `proxy` in
the YAML file LISTED, or is listed and passes.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML


def passed(log: str) -> dict[str, bool]:
    """The scenarios of a log by name, and whether each passed."""
    summary = Path(log).read_text(encoding="utf-8").partition("=== SUMMARY ===")[2]
    found = re.findall(r"^([✓✗]) ([\w-]+): (\d+) passed", summary, re.M)
    return {name: sign == "✓" for sign, name, _ in found}


def main(alone: str, behind: str, listed: str) -> int:
    """Prints the comparison."""
    reader: Any = YAML(typ="safe", pure=True)
    expected: set[str] = set(reader.load(Path(listed).read_text(encoding="utf-8"))["proxy"])
    first, second = passed(alone), passed(behind)
    wrong = 0
    for name, fine in first.items():
        behind_it = second.get(name, False)
        said = "passes" if behind_it else "fails, as listed" if name in expected else "FAILS"
        print(f"{name}: {'passes' if fine else 'fails'} alone, {said} behind")
        wrong += fine and behind_it is (name in expected)
    both = sum(fine and second.get(name, False) for name, fine in first.items())
    print(
        f"alone {sum(first.values())} of {len(first)} pass; of these {both} behind, {len(expected)} are listed"
    )
    return 1 if wrong or not first else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
