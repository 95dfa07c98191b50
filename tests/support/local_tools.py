"""Python tools of the server `local` for runs that are parked, and how often each was called."""

from __future__ import annotations

from collections import Counter

from cellblock import tool

MADE: Counter[str] = Counter()
"""Counts calls by tool and number, such as `write 1`; a test clears it before it counts."""

IMPORTS = 'import { read, write } from "@codemode/servers/local";\n'


@tool()
def write(n: int) -> int:
    "Writes."
    MADE[f"write {n}"] += 1
    return n * 10


@tool()
def read(n: int) -> int:
    "Reads."
    MADE[f"read {n}"] += 1
    return n
