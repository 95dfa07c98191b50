"""A script settles with what it has come to by itself: a result, or a failure."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from cellblock.base import payload
from cellblock.base.raw_json import is_light
from cellblock.run.context import RunContext
from cellblock.run.failure import diagnose, places_in_stacks
from cellblock.run.journaled import another_run
from cellblock.run.outcome import no_result
from cellblock.run.plan import imported_exports, imported_withheld
from cellblock.run.response import Diagnostic
from cellblock.run.results import UnreadableResult, not_json, not_read, read_result
from cellblock_worker.wire import protocol

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
