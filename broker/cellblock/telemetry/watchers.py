"""Adds what the configuration asks for: a line for each run, the audit log, traces. What is off is not imported. And
what libraries may log is bounded, in an embedder's process, too."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from cellblock.config.settings import Settings
from cellblock.execution.events import RunEvents
from cellblock.telemetry.libraries import tame_libraries

ENDS_LOGGER = "cellblock.run"


def start_watchers(
    settings: Settings, events: RunEvents, stack: contextlib.AsyncExitStack, *, version: str
) -> None:
    """Adds the watchers; each is closed with `stack`, off the loop and within its bound.

    Raises:
        ConfigError: A file cannot be written, or a package is missing.
    """
    tame_libraries()
    section = settings.cellblock
    if logging.getLogger(ENDS_LOGGER).isEnabledFor(logging.INFO):
        from cellblock.telemetry.logs import RunLog

        events.add(RunLog())
    if section.audit.enabled:
        from cellblock.telemetry.audit import AuditLog

        audit = AuditLog(section.audit, settings.state_dir)
        stack.push_async_callback(asyncio.to_thread, audit.close)
        events.add(audit)
    if section.traces.endpoint is not None:
        from cellblock.telemetry.traces import Tracer, make_exporter

        tracer = Tracer(section.traces, make_exporter(section.traces), version)
        stack.push_async_callback(asyncio.to_thread, tracer.close)
        events.add(tracer)
