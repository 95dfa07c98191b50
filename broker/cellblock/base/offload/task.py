"""Describes what a process apart is asked to do, and what comes of it; nothing here needs such a process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cellblock.base.errors import CellblockError


@dataclass(frozen=True, slots=True)
class Task:
    """A task is a kind of work.

    Attributes:
        work: A function, as `module:name`: takes the facts and the parts, and gives the same.
        subject: What is worked on, for messages; begins a sentence.
        cpu_seconds: What one may take. A process that takes more is killed.
        memory_bytes: The same of memory. Linux only.
    """

    work: str
    subject: str
    cpu_seconds: int = 5
    memory_bytes: int = 1024 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer is what a task gave.

    Attributes:
        facts: Plain JSON data that is small.
        parts: Bytes that are not to be decoded here.
        error: Of Cellblock's own, in place of both.
        last: Whether the process takes no other task.
    """

    facts: dict[str, Any]
    parts: list[bytes]
    error: str | None = None
    last: bool = False


class ApartFailed(CellblockError):
    """Tells that a process did not give an answer: it was over a bound, or was killed. The task has had no effect."""


class TookTooLong(ApartFailed):
    """Tells that the answer of a process did not come in time."""
