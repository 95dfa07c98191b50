"""Parses one script: source on stdin, what is found on stdout. The process has an empty environment, and bounds of its
own; its death costs one run."""

from __future__ import annotations

import gc
import os
import resource
import sys
from dataclasses import dataclass
from typing import Final

import msgspec

from cellblock.script import imports
from cellblock.script.imports import Imports, TooComplex, find_imports
from cellblock_worker.base.lifetime import LINUX, die_with_parent

CPU_SECONDS: Final = 5
MEMORY_BYTES: Final = 2 * 1024 * 1024 * 1024
"""Bounds the memory: 1 MiB of source takes 200 MiB at the worst that was seen."""

NICENESS: Final = 5
"""Leaves to the loop and the workers, which are waited for, what they want."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """Tells what is found, or why nothing can be, and the CPU time that it took."""

    imports: Imports | str
    cpu_ms: float


def main() -> None:
    """Parses one script."""
    die_with_parent()
    if os.getppid() != int(sys.argv[1]):
        return
    os.nice(NICENESS)
    _bound(resource.RLIMIT_CORE, 0)
    _bound(resource.RLIMIT_CPU, CPU_SECONDS)
    if LINUX:
        _bound(resource.RLIMIT_DATA, MEMORY_BYTES)
    gc.disable()
    source = sys.stdin.buffer.read()
    found: Imports | str
    try:
        found = find_imports(source, imports.PARSE_BOUND_SECONDS, imports.BLANK_BOUND_SECONDS)
    except TooComplex as error:
        found = str(error)
    used = resource.getrusage(resource.RUSAGE_SELF)
    sys.stdout.buffer.write(msgspec.json.encode(Parsed(found, (used.ru_utime + used.ru_stime) * 1000)))
    sys.stdout.flush()
    # What it holds need not be freed piece by piece.
    os._exit(0)


def _bound(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


if __name__ == "__main__":
    main()
