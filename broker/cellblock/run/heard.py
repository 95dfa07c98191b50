"""What a run hears of its script: log entries and notices, each within what the host must keep, and at last what it has
come to by itself: a result, or a failure."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from cellblock.base import payload
from cellblock.base.json import is_object
from cellblock.base.raw_json import is_light
from cellblock.run.context import RunContext
from cellblock.run.events import RunWatch
from cellblock.run.failure import diagnose, places_in_stacks
from cellblock.run.hook import RunJournal
from cellblock.run.journaled import another_run
from cellblock.run.outcome import no_result
from cellblock.run.plan import imported_exports, imported_withheld
from cellblock.run.response import Diagnostic, LogEntry
from cellblock.run.results import UnreadableResult, not_json, not_read, read_result
from cellblock.script.source import Script
from cellblock_worker.wire import protocol
from cellblock_worker.wire.protocol import MAX_LOG_ENTRIES, MAX_NOTICES

LOG_NOTE_BYTES: Final = 1024
"""Bounds what a host may send over `maxLogBytes`: the entry that says that it was cut. The host keeps the cap;
who sends more lies."""


class RunLog:
    """Collects the logs and notices of one run.

    Args:
        script: Positions in stacks are told in its author's terms; nothing else is touched.
        max_log_bytes: The run's `maxLogBytes`.
        watch: Told each entry.
        journal: Knows of each entry whether it was told before; None for a run that is not journaled.

    Attributes:
        entries: In the order in which they came.
        notices: The sandbox's warnings, and what it only wants known.
    """

    def __init__(
        self, script: Script, max_log_bytes: int, watch: RunWatch, journal: RunJournal | None = None
    ) -> None:
        self.entries: list[LogEntry] = []
        self.notices: list[Diagnostic] = []
        self._script = script
        self._max = max_log_bytes
        self._watch = watch
        self._journal = journal
        self._bytes = 0
        self._noticed = 0
        self._held = False

    def log(self, message: protocol.Log, body: bytes) -> str | None:
        """Takes one entry; gives what the host has done wrong, if it has."""
        self._bytes += len(body)
        if self._bytes > self._max + LOG_NOTE_BYTES or len(self.entries) > MAX_LOG_ENTRIES:
            return "it sent more logs than a run may have"
        text = places_in_stacks(body, self._script).decode("utf-8", "replace")
        entry = LogEntry(level=message.level, message=text, time_ms=message.ms)
        self.entries.append(entry)
        if self._journal is None or self._journal.logged():
            self._watch.logged(entry)
        return None

    def held(self) -> None:
        """Tells the watchers, once, that further entries come at the run's end; the response need not say so."""
        if not self._held:
            self._held = True
            said = f"[the last logs come when the run ends, as many as maxLogBytes = {self._max} bytes has room for]"
            time_ms = self.entries[-1].time_ms if self.entries else 0
            self._watch.logged(LogEntry(level="warn", message=said, time_ms=time_ms))

    def notice(self, body: bytes) -> str | None:
        """Takes one notice, which anything may be written in; gives what the host has done wrong, if it has."""
        self._noticed += 1
        if self._noticed > MAX_NOTICES:
            return "it sent more notices than a run may have"
        try:
            notice: object = payload.decode(places_in_stacks(body, self._script))
        except payload.PayloadError:
            return None
        if not is_object(notice):
            return None
        texts = {key: value for key, value in notice.items() if isinstance(value, str)}
        self.notices.append(
            Diagnostic(
                severity="info" if texts.get("severity") == "info" else "warning",
                code=texts.get("code", "NOTICE")[:64],
                message=texts.get("message", "")[:1000],
                hint=texts.get("hint", "")[:500] or None,
                path=texts.get("path", "")[:500] or None,
            )
        )
        return None


logger = logging.getLogger("cellblock.run")


class Settled:
    """Holds the outcome of one run's script, once it has one.

    Args:
        context: What the run is made of.
    """

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._script = context.plan.script
        self._reading: asyncio.Task[None] | None = None
        self.result: Any = None
        self.diagnostics: list[Diagnostic] = []
        self.failed = False
        """Says whether the script ended without a result."""
        self.is_so = False
        """Says whether the script has ended by itself."""

    def take(self, outcome: protocol.Outcome, body: bytes, *, logged: bool) -> None:
        """Takes what the script's worker says with its end; `none` is no outcome.

        Args:
            outcome: How the script has settled.
            body: The result or the failure, untrusted.
            logged: Whether the script has logged anything.
        """
        if outcome == "none":
            return
        self.is_so = True
        if outcome != "done":
            self._on_failed(outcome, body)
        elif not body:
            self.diagnostics.append(no_result(self._script, logged=logged))
        elif not is_light(body):
            self._reading = asyncio.create_task(self._read(body), name="a large result")
        else:
            try:
                self.result = payload.decode(places_in_stacks(body, self._script))
            except payload.PayloadError as error:
                self._no_result(not_json(str(error)))

    async def is_read(self) -> None:
        """Waits until a large result has been read."""
        if self._reading is not None:
            await self._reading

    async def _read(self, body: bytes) -> None:
        try:
            self.result = await read_result(body, self._script, self._context.account)
        except UnreadableResult as error:
            self._no_result(error.diagnostic)
        except Exception:
            logger.exception("a large result could not be read")
            self._no_result(not_read("Cellblock failed while it read the result.", "Report this."))

    def _no_result(self, why: Diagnostic) -> None:
        self.failed = True
        self.diagnostics.append(why)

    def _on_failed(self, kind: protocol.FailureKind, body: bytes) -> None:
        try:
            failure: object = payload.decode(body) if is_light(body) else None
        except payload.PayloadError:
            failure = None
        script, catalog, most = self._script, self._context.catalog, self._context.limits.max_memory_bytes
        if kind == "diverged":
            self._no_result(another_run(failure, script))
            return
        names, withheld = imported_exports(script, catalog), imported_withheld(script, catalog)
        self._no_result(diagnose(kind, failure, script, most, names, withheld, catalog))
