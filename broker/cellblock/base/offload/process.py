"""The process apart takes tasks on stdin and answers on stdout, one after the other, each within bounds of its own.

It has no credential and an empty environment, and its death costs one task. What it imports for a task it keeps.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import math
import os
import resource
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

from cellblock.base.memory import give_back_free_memory, resident_bytes
from cellblock_worker.base.lifetime import LINUX, die_with_parent
from cellblock_worker.confinement import cgroup_files

HEAD: Final = struct.Struct(">I")
"""Stands before each message: the length of its JSON, which says how many parts follow, and how long they are."""

RETIRE_BYTES: Final = 160 * 1024 * 1024
"""Bounds the memory with which a process may go on after its answer; a larger one ends. What it imports for messages
takes 70 MiB."""

NICENESS: Final = 5
"""Leaves to the loop and the workers, which are waited for, what they want."""

ERROR_CHARS: Final = 300

Work = Callable[..., tuple[Mapping[str, Any], Sequence[bytes]]]
"""Does the work that a task names: takes facts and parts, and gives facts and parts."""


def message(head: Mapping[str, Any], parts: Sequence[bytes | memoryview]) -> bytes:
    """Returns the beginning of a message, which its parts follow."""
    text = json.dumps({**head, "sizes": [len(part) for part in parts]}).encode()
    return HEAD.pack(len(text)) + text


def _read(stdin: BinaryIO, size: int) -> bytes:
    data = stdin.read(size)
    if len(data) < size:
        os._exit(0)  # The broker has closed it.
    return data


def _bound(kind: int, soft: int) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def _cpu_ms() -> int:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return round((used.ru_utime + used.ru_stime) * 1000)


def _held_bytes() -> int:
    """Returns how many bytes the process holds when it has given back what it can."""
    if not LINUX:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    give_back_free_memory()
    return resident_bytes()


def _work(name: str) -> Work:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def main() -> None:
    """Serves until stdin ends, or the process has grown too large."""
    die_with_parent()
    if os.getppid() != int(sys.argv[1]):
        return
    for group in sys.argv[2:]:
        # 0 is the writer itself. What cannot be joined is as on machines that have no groups.
        with contextlib.suppress(OSError):
            cgroup_files.write(Path(group), "0")
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # What is decoded has no cycles, and a collection would look through all of it.
    gc.disable()
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    # What a module prints must not get between the answers.
    sys.stdout = sys.stderr
    while True:
        size = HEAD.unpack(_read(stdin, HEAD.size))[0]
        used = _cpu_ms()
        head: dict[str, Any] = json.loads(_read(stdin, size))
        parts = [_read(stdin, size) for size in head["sizes"]]
        _bound(resource.RLIMIT_CPU, math.ceil(_cpu_ms() / 1000) + head["cpu_seconds"])
        if LINUX:
            _bound(resource.RLIMIT_DATA, head["memory_bytes"])
        answer: dict[str, Any]
        out: Sequence[bytes]
        try:
            facts, out = _work(head["work"])(head["facts"], *parts)
            answer = {"facts": facts}
        except MemoryError:
            os._exit(1)
        except Exception as error:  # noqa: BLE001 - a fault of Cellblock's own: the broker logs it
            answer, out = {"error": f"{type(error).__name__}: {error}"[:ERROR_CHARS]}, ()
        del parts
        answer["cpu_ms"] = _cpu_ms() - used
        answer["last"] = last = _held_bytes() - sum(map(len, out)) > RETIRE_BYTES
        stdout.write(message(answer, out))
        for part in out:
            stdout.write(part)
        stdout.flush()
        if last:
            # What it holds need not be freed piece by piece.
            os._exit(0)
        del out


if __name__ == "__main__":
    main()
