"""Tells a client how its run is getting on: by progress, so that the client does not give up, and by the script's log
messages."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Final, get_args

import mcp_types as types
from mcp_types import LOG_LEVEL_META_KEY
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from cellblock.base.errors import counted, shorten
from cellblock.base.kept import Newest
from cellblock.base.visible import visible
from cellblock.run.events import Observer
from cellblock.run.response import Level, LogEntry, TraceEntry
from cellblock.serve.service import Context, OwnerOf

logger = logging.getLogger("cellblock.serve")

MAX_SHOWN_CHARS: Final = 160
"""Bounds the last log message in a progress message: one line in a client's window."""

MAX_LOG_CHARS: Final = 8_000
"""Bounds one log message that is streamed; the response has it whole."""

MAX_WAITING: Final = 200
"""Bounds the messages that wait for a client that reads slowly; the oldest is dropped, which it is told. The response
has all logs."""

PROGRESS_SECONDS: Final = 1.0
"""Sets the pause between two progress notifications: clients give up after 60 s without one."""

FAREWELL_SECONDS: Final = 1.0
"""Bounds the time for messages that have not been sent when the run has ended."""

MAX_CLIENTS: Final = 1_024
"""Bounds the sessions whose log level is kept."""

LOGGER_NAME: Final = "script"

Message = Callable[[Context], Awaitable[None]]
"""Sends something to the client of a request."""

_SEVERITIES: Final[tuple[types.LoggingLevel, ...]] = get_args(types.LoggingLevel)

_LEVELS: Final[dict[Level, types.LoggingLevel]] = {
    "debug": "debug",
    "log": "info",
    "warn": "warning",
    "error": "error",
}


class LogLevels:
    """Remembers what each client wants to see of logs: nothing, until it has said so.

    Before 2026-07-28 a session says it once (`logging/setLevel`), since then each request for itself.
    """

    def __init__(self, owner_of: OwnerOf) -> None:
        self._owner_of = owner_of
        self._levels = Newest[str, types.LoggingLevel](MAX_CLIENTS)

    async def set(self, context: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
        self._levels[self._owner_of(context).client] = params.level
        return types.EmptyResult()

    def level_for(self, context: Context) -> types.LoggingLevel | None:
        """Returns the level for a request; None: no log messages."""
        if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            wanted: object = (context.meta or {}).get(LOG_LEVEL_META_KEY)
            return next((level for level in _SEVERITIES if level == wanted), None)
        return self._levels.get(self._owner_of(context).client)


def wants_progress(context: Context) -> bool:
    """Says whether the client of a request has asked for progress."""
    return "progress_token" in (context.meta or {})


class LiveRun:
    """Tells a client of one run.

    Args:
        level: Of log messages; None for none.
        interval: Seconds between two progress notifications of the run itself; None for none.
        wants_progress: Whether servers are to report progress.
    """

    def __init__(
        self,
        level: types.LoggingLevel | None,
        interval: float | None = PROGRESS_SECONDS,
        *,
        wants_progress: bool = True,
    ) -> None:
        self._from = len(_SEVERITIES) if level is None else _SEVERITIES.index(level)
        self._interval, self.wants_progress = interval, wants_progress
        self._began = time.monotonic()
        self._calls = 0
        self._last = ""
        self._step = ""
        self._waiting: deque[Message] = deque(maxlen=MAX_WAITING)
        self._left_out = 0
        self._wake = asyncio.Event()
        self._over = False
        self.observer = Observer(on_log=self._on_log, on_call=self._on_call)

    @contextlib.asynccontextmanager
    async def reporting(self, context: Context) -> AsyncGenerator[None]:
        """Tells the client of this request, until the block ends."""
        self._over = False
        sender = asyncio.create_task(self._tell(context))
        try:
            yield
            self._over = True
            self._wake.set()
            await asyncio.wait({sender}, timeout=FAREWELL_SECONDS)
        finally:
            sender.cancel()

    def wants(self, level: types.LoggingLevel) -> bool:
        """Says whether the client wants log messages of a level."""
        return _SEVERITIES.index(level) >= self._from

    def progress_text(self) -> str:
        """Says what is known of the run in one line; what a script has logged cannot break it."""
        text = f"{time.monotonic() - self._began:.0f} s, {counted(self._calls, 'tool call')}{self._step}"
        return f"{text}; last log: {self._last}" if self._last else text

    def call_progress(
        self, server: str, tool: str, progress: float, total: float | None, message: str | None
    ) -> None:
        """Notes what a server reports of a call that is under way; shown until a call ends."""
        share = f"{progress:g}" if total is None else f"{progress:g} of {total:g}"
        self._step = "; " + one_line(f"{server}.{tool}: {share} {message or ''}")

    def call_logged(self, params: types.LoggingMessageNotificationParams) -> None:
        """Does not pass on what servers log: a client takes a run's log messages for the script's."""

    def say(self, message: Message) -> None:
        """Has the client told, as soon as it has taken what comes before."""
        self._left_out += len(self._waiting) == MAX_WAITING
        self._waiting.append(message)
        self._wake.set()

    # ---- inside --------------------------------------------------------------------------------------

    def _on_log(self, entry: LogEntry) -> None:
        self._last = one_line(entry.message)
        if self.wants(_LEVELS[entry.level]):
            self.say(partial(_send_log, entry))

    def _on_call(self, _entry: TraceEntry) -> None:
        self._calls += 1
        self._step = ""

    async def _tell(self, context: Context) -> None:
        try:
            await self._tell_until_over(context)
        except Exception as error:  # noqa: BLE001 - a client that cannot be told anything still gets its result
            logger.debug("a client cannot be told of its run or call: %s", error)

    async def _tell_until_over(self, context: Context) -> None:
        loop = asyncio.get_running_loop()
        due = None if self._interval is None else loop.time() + self._interval
        while True:
            while self._waiting:
                if self._left_out and self.wants("warning"):
                    said = f"[{counted(self._left_out, 'message')} left out: they came faster than you take them]"
                    self._left_out = 0
                    await _send_log(LogEntry(level="warn", message=said, time_ms=0), context)
                await self._waiting.popleft()(context)
            if self._over:
                return
            if due is not None and self._interval is not None and loop.time() >= due:
                due = loop.time() + self._interval
                elapsed = round(time.monotonic() - self._began, 3)
                # Does nothing where the client has given no token.
                await context.session.report_progress(elapsed, None, self.progress_text())
            self._wake.clear()
            if self._waiting or self._over:
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._wake.wait()


class LiveCall(LiveRun):
    """Tells a client what the server says during its one call, as it comes: progress, and log messages."""

    def call_progress(
        self, server: str, tool: str, progress: float, total: float | None, message: str | None
    ) -> None:
        """Passes a report of a call's progress on."""
        self.say(lambda context: context.session.report_progress(progress, total, message))

    def call_logged(self, params: types.LoggingMessageNotificationParams) -> None:
        """Passes a message on, if the client wants those of its level."""
        if self.wants(params.level):
            message = types.LoggingMessageNotification(params=params)
            self.say(lambda context: context.session.send_notification(message, context.request_id))


async def _send_log(entry: LogEntry, context: Context) -> None:
    params = types.LoggingMessageNotificationParams(
        level=_LEVELS[entry.level], logger=LOGGER_NAME, data=shorten(entry.message, MAX_LOG_CHARS)
    )
    # With the request's id: over HTTP it belongs into this request's own stream.
    await context.session.send_notification(
        types.LoggingMessageNotification(params=params), context.request_id
    )


def one_line(text: str) -> str:
    """Returns a text on one line, without characters that do something, and no longer than `MAX_SHOWN_CHARS`."""
    line = " ".join(text[: 4 * MAX_SHOWN_CHARS].split())
    return shorten(visible(line), MAX_SHOWN_CHARS)
