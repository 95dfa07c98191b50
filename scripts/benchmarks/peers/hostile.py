"""Loops that a script should not get away with, and what became of the system that ran one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from benchmarks.load.scenarios import BODIES, Body
from benchmarks.peers.process import Gone, Peer, TooLarge

SURVIVED: Final = "survived"
NOT_THERE: Final = ""
"""In place of a script in a language that has no such thing."""

LOOPS: Final = {
    "endless loop": Body("for (;;);", "while True:\n    pass", None),
    "endless microtasks": Body(
        "for (;;) await null;", "async def tick():\n    return 1\nwhile True:\n    await tick()", None
    ),
    "memory bomb": Body(
        "const kept = []; for (;;) kept.push(new Array(1e5).fill(1.5));",
        "kept = []\nwhile True:\n    kept.append([1.5] * 100000)",
        None,
    ),
    "memory bomb, buffers": Body(
        "const kept = []; for (;;) kept.push(new Uint8Array(1 << 20).fill(7));",
        "kept = []\nwhile True:\n    kept.append(b'7' * (1024 * 1024))",
        None,
    ),
    "deep recursion": Body(
        "const deep = (n) => deep(n + 1) + 1;\nreturn deep(0);",
        "def deep(n):\n    return deep(n + 1) + 1\nreturn deep(0)",
        None,
    ),
    "Atomics.wait": Body(
        "return Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0);", NOT_THERE, None
    ),
}
NEIGHBOUR_SECONDS: Final = 0.3
"""After a loop has begun comes another's run."""

LOOKS: Final = 3
LOOK_SECONDS: Final = 1.0
COMPUTING: Final = 0.05
"""Of a core, in every look at a system that has nothing to do: little, as a busy machine gives it no more."""


async def try_loop(
    start: Callable[[], Awaitable[Peer]], loop: str, trivial: str, *, bound: float
) -> dict[str, Any]:
    """Runs a loop in a fresh system, another's run beside it and one after it.

    `verdict` is `survived` (the loop was ended or refused, the other's run and the next one are right), `died` (also
    where the system starts again by itself, and the other's run is lost), `took all memory` (the harness ended it), or
    `hung` (no answer to one of the three within `bound` seconds). `neighbour_s` is how long the other's run took, None
    for no answer; `computing` says that the system computes on when all is answered.
    """
    peer = await start()
    found: dict[str, Any] = {"neighbour_s": None, "computing": False}
    beside: asyncio.Task[float] | None = None
    try:
        await _right(peer, trivial, bound)
        peer.watch()
        running = asyncio.create_task(_timed(peer.ask(loop)))
        await asyncio.sleep(NEIGHBOUR_SECONDS)
        beside = asyncio.create_task(_right(peer, trivial, bound))
        async with asyncio.timeout(bound):
            seconds, answer = await running
        found |= {"seconds": round(seconds, 2), "said": " ".join(str(answer.get("error", "")).split())[:160]}
        await beside
        await _right(peer, trivial, bound)
        found |= {"computing": await _computes(peer), "verdict": SURVIVED}
    except TooLarge as error:
        found |= {"verdict": "took all memory", "said": str(error)}
    except Gone as error:
        found |= {"verdict": "died", "said": str(error)}
    except TimeoutError:
        found["verdict"] = "hung"
    if beside is not None:
        await asyncio.wait([beside])
        found["neighbour_s"] = None if beside.exception() else beside.result()
    await peer.stop()
    return found


async def _computes(peer: Peer) -> bool:
    for _ in range(LOOKS):
        before = peer.cpu_seconds()
        await asyncio.sleep(LOOK_SECONDS)
        if peer.cpu_seconds() - before < COMPUTING * LOOK_SECONDS:
            return False
    return True


async def _timed(asked: Awaitable[dict[str, Any]]) -> tuple[float, dict[str, Any]]:
    began = time.perf_counter()
    answer = await asked
    return time.perf_counter() - began, answer


async def _right(peer: Peer, trivial: str, bound: float) -> float:
    """Seconds of a trivial run that gives what it should. Raises Gone and TimeoutError."""
    async with asyncio.timeout(bound):
        seconds, answer = await _timed(peer.ask(trivial))
    if answer.get("result") != BODIES["trivial"].gives:
        raise Gone(f"answered a trivial run with {str(answer)[:120]}")
    return round(seconds, 3)
