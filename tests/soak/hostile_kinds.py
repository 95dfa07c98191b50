"""Hostile runs of the mix: scripts for the native attacker, and scripts that call hostile servers or send too much.

How those for the attacker end is its own affair; what they do to others is not.
"""

import random
from collections.abc import Mapping
from typing import Final

from benchmarks.hostile.workloads import (
    HALF,
    JOURNALED,
    LARGE_INPUTS,
    LARGE_RESULTS,
    LISTS,
    LOG_BLOCK,
    LOG_FRAME,
    MIB,
)
from security.native.harness import steps
from soak.load import KILLED, LIMIT, LONG_MS, UNCONNECTED, Kind, Planned, equals

MEMORY: Final = {"maxMemoryBytes": 64 * MIB}
SHORT: Final = {"timeoutMs": 1_500}

SHARED: Final = 0x21
TAKEN_MIB: Final = 200

FORGED: Final = (
    b"\x00\x00\x00\x10\x00\x0c\x83\xa1t\xa4call\xa2id\x01\x00\x00",
    b"\xff\xff\xff\xff\x00\x10",
    b"\x00\x00\x00\x08\x00\x06\x81\xa1t\xa4done",
    bytes(range(256)),
)
"""Calls without names, a frame without end, a result without a body, and no frames."""

NATIVE: Final[list[tuple[str, Mapping[str, int]]]] = [
    (steps(("notices", 3, 8 * MIB - 1024)), SHORT),
    (steps(("repeat", LOG_FRAME * LOG_BLOCK, len(LOG_FRAME) * LOG_BLOCK, 1_000)), SHORT),
    (steps(("raw", HALF, len(HALF)), ("sleep", 60_000)), SHORT),
    (steps(("fill", TAKEN_MIB, SHARED), ("sleep", 300)), MEMORY),
    (steps(("fill", TAKEN_MIB, 0), ("sleep", 300)), MEMORY),
    (
        steps(
            ("shmget", 0, TAKEN_MIB * MIB, 0o1600), ("shmat", "$0", 0, 0), ("touch", "$1", TAKEN_MIB * MIB)
        ),
        MEMORY,
    ),
    (steps(("forks", 50), ("sleep", 300)), SHORT),
    (steps(("threads", 50), ("sleep", 300)), SHORT),
    (steps(("prctl", 1, 0), ("sleep", 300)), SHORT),
    (steps("spin"), SHORT),
    (steps("done", ("sleep", 60_000)), SHORT),
    *((steps(("raw", frame, len(frame)), ("sleep", 60_000)), SHORT) for frame in FORGED),
]


def _native(_: int, chance: random.Random) -> Planned:
    code, limits = chance.choice(NATIVE)
    return Planned("native attacks", {"code": code, "limits": dict(limits)}, right=frozenset({"*"}))


def _large_results(_: int, __: random.Random) -> Planned:
    limits = {"timeoutMs": LONG_MS}
    right = KILLED | UNCONNECTED | LIMIT
    return Planned("12 MB results", {"code": LARGE_RESULTS, "limits": limits}, right=right)


def _large_inputs(_: int, __: random.Random) -> Planned:
    limits = {"timeoutMs": LONG_MS}
    right = KILLED | UNCONNECTED | LIMIT
    return Planned("inputs of four million numbers", {"code": LARGE_INPUTS, "limits": limits}, right=right)


def _journals(_: int, __: random.Random) -> Planned:
    arguments = {"code": JOURNALED, "limits": {"timeoutMs": LONG_MS}, "durable": True}
    return Planned("durable runs of 30 MB", arguments, right=KILLED | UNCONNECTED | LIMIT)


def _lists(_: int, __: random.Random) -> Planned:
    """Honest, but for its haste."""
    limits = {"timeoutMs": LONG_MS}
    # A server whose connection ends meanwhile is not found any more.
    right = KILLED | UNCONNECTED | LIMIT | {"UNCAUGHT_EXCEPTION"}
    return Planned("300 lists at once", {"code": LISTS, "limits": limits}, right=right, result=equals(300))


NATIVE_KIND: Final = Kind(5, _native)
LARGE_KINDS: Final = (Kind(1, _large_results), Kind(1, _large_inputs), Kind(1, _journals), Kind(1, _lists))
