"""Parses scripts without holding the broker's event loop: small ones at once, others in a process apart.

The parser is C code that holds Python's lock, and frees a large tree in one go (150 ms for 1 MiB): in a thread it
would still hold the loop.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from typing import Any, Final

from cellblock.base.admission import Room
from cellblock.base.errors import HostUnavailable
from cellblock.base.offload.share import Share
from cellblock.base.offload.task import Answer, ApartFailed, Task, TookTooLong
from cellblock.script import imports
from cellblock.script.conventions import Entry
from cellblock.script.imports import Imports, Span, TooComplex, TooSlow, find_imports
from cellblock.script.unawaited import Unawaited

INLINE_BYTES: Final = 8 * 1024
"""Bounds the scripts that are parsed on the loop: ordinary code of this size takes 4 ms. Larger scripts are rare; a
process costs them 100 ms. With text made to be slow the parser asks too seldom whether to go on: 16 KiB hold the loop
for 44 ms of CPU, 8 KiB for 18."""

INLINE_SECONDS: Final = 0.012
"""Sets the CPU time after which text made to be slow goes to a process too."""

PARSE: Final = Task(
    work="cellblock.script.source_apart:parse",
    subject="This script",
    cpu_seconds=5,
    # 1 MiB of source takes 200 MiB at the worst that was seen.
    memory_bytes=2 * 1024 * 1024 * 1024,
)


async def analysed(source: bytes, share: Share, room: Room | None = None) -> Imports:
    """Finds imports as `find_imports` does, with the event loop held for at most about `INLINE_SECONDS`.

    Args:
        source: The script.
        share: Of the run's client.
        room: Where it counts while it waits for a process: in the queue of runs.

    Raises:
        TooComplex: As `find_imports` does.
        Overloaded: Too many scripts wait for a process, or this one has waited too long.
        HostUnavailable: Cellblock stops meanwhile, or no process can be started.
    """
    if len(source) <= INLINE_BYTES:
        with contextlib.suppress(TooSlow):
            return find_imports(source, INLINE_SECONDS)
    try:
        answer = await share.do(PARSE, {}, source, room=room)
    except TookTooLong:
        raise TooSlow(f"it cannot be parsed within {imports.PARSE_BOUND_SECONDS:g} s") from None
    except ApartFailed:
        raise TooComplex("its parser ran out of time or memory") from None
    except OSError as error:
        message = f"No process can be started to read the script ({error})."
        raise HostUnavailable(message, hint="Try again in a moment.") from None
    return _decoded(answer)


def _decoded(answer: Answer) -> Imports:
    facts = answer.facts
    if "refused" in facts:
        raise TooComplex(facts["refused"])
    statics, dynamics, calls = (
        tuple(Span(span["start"], span["end"], span["is_string"]) for span in facts[kind])
        for kind in ("statics", "dynamics", "calls")
    )
    javascript = answer.parts[0].decode() if answer.parts else None
    entry = Entry(**facts["entry"]) if facts["entry"] is not None else None
    unawaited = tuple(Unawaited(**call) for call in facts["unawaited"])
    media_type, fix = facts["media_type"], facts["fix"]
    return Imports(media_type, statics, dynamics, javascript, entry, fix, unawaited, calls)


def parse(_facts: dict[str, Any], source: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Does the work of `PARSE`."""
    try:
        found = asdict(find_imports(source, imports.PARSE_BOUND_SECONDS, imports.BLANK_BOUND_SECONDS))
    except TooComplex as error:
        return {"refused": str(error)}, []
    javascript: str | None = found.pop("javascript")
    return found, [] if javascript is None else [javascript.encode()]
