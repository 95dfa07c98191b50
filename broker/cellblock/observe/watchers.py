"""Watchers adds what the configuration asks for: a line for each run, the audit log, traces.

What is off is not imported. What libraries may log is bounded, in an embedder's process, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path

from cellblock.base.settings.settings import Audit
from cellblock.observe.libraries import tame_libraries
from cellblock.run.events import RunEvents

ENDS_LOGGER = "cellblock.run"


def start_watchers(
    audit: Audit,
    traces: str | None,
    state_dir: Path,
    events: RunEvents,
    stack: contextlib.AsyncExitStack,
) -> None:
    """Adds the watchers; each is closed with `stack`, off the loop and within its bound.

    Raises:
        ConfigError: A file cannot be written, or a package is missing.
    """
    tame_libraries()
    if logging.getLogger(ENDS_LOGGER).isEnabledFor(logging.INFO):
        from cellblock.observe.logs import RunLog

        events.add(RunLog())
    if "calls" in audit:
        from cellblock.observe.audit import AuditLog

        log = AuditLog(audit, state_dir)
        stack.push_async_callback(asyncio.to_thread, log.close)
        events.add(log)
    if traces is not None:
        from importlib.metadata import version

        from cellblock.observe.traces import Tracer, make_exporter

        tracer = Tracer(make_exporter(traces), version("cellblock"))
        stack.push_async_callback(asyncio.to_thread, tracer.close)
        events.add(tracer)
