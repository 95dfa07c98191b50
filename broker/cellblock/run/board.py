"""Board remembers the runs under way and the last ones, as plain data for the dashboard.

Of a run that has ended nothing is kept but this: no input, no output, and a script only where that is configured. Texts
are cut; who shows them must take them for hostile.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, Final

from cellblock.run.events import CallFacts, RunFacts, Watcher, call_outcome
from cellblock.run.response import LogEntry

RECENT_RUNS: Final = 100
"""Caps the ended runs that are kept in memory."""

MAX_LOGS: Final = 200
"""Bounds the console entries kept of a run: the newest."""

MAX_LOG_CHARS: Final = 2_000

MAX_SCRIPT_CHARS: Final = 20_000
"""Bounds the characters that are kept of a script."""

MAX_CALLS: Final = 500
"""Bounds the tool calls kept of a run: the first."""

MAX_NAME_CHARS: Final = 120

MAX_SECONDS: Final = 120
"""Bounds the seconds of which ended runs are counted."""

MAX_LIVE_SHOWN: Final = 200
"""Bounds the runs under way in one view; the others are counted."""

Data = dict[str, Any]


@dataclass(slots=True)
class LiveRun:
    """Holds what is shown of a run and not in its facts."""

    run: RunFacts
    logs: deque[LogEntry] = field(default_factory=lambda: deque[LogEntry](maxlen=MAX_LOGS))
    logged: int = 0


class Board(Watcher):
    """Remembers runs under way and the last `recent` ones, with their console output if `logs` says so, and their
    scripts if `scripts` does."""

    def __init__(self, recent: int, *, logs: bool = True, scripts: bool = False) -> None:
        self._keep_scripts = scripts
        self._live: dict[str, LiveRun] = {}
        self._most = recent
        self._recent: dict[str, tuple[str, Data]] = {}
        """Holds what ended, with its principal, by its id, the oldest first."""
        self._keep_logs = logs
        self.ended: dict[int, list[int]] = {}
        """Counts the runs that ended in a second of `time.monotonic`, the oldest first: all, and those that failed."""

    def run_accepted(self, run: RunFacts) -> None:
        """Takes the run for live."""
        self._live[run.id] = LiveRun(run)

    def run_logged(self, run: RunFacts, entry: LogEntry) -> None:
        live = self._live.get(run.id)
        if live is not None:
            live.logged += 1
            if self._keep_logs:
                live.logs.append(entry)

    def run_ended(self, run: RunFacts) -> None:
        live = self._live.pop(run.id, None) or LiveRun(run)
        self._recent[run.id] = run.principal, self._whole(live)
        if len(self._recent) > self._most:
            # The oldest of who has most: one principal's runs hide no other's.
            [(noisy, _)] = Counter(principal for principal, _ in self._recent.values()).most_common(1)
            del self._recent[next(key for key, (principal, _) in self._recent.items() if principal == noisy)]
        ended = self.ended.setdefault(int(run.ended or time.monotonic()), [0, 0])
        ended[0] += 1
        ended[1] += run.outcome not in ("ok", "parked")
        if len(self.ended) > MAX_SECONDS:
            del self.ended[next(iter(self.ended))]

    def live(self) -> list[Data]:
        """Returns the runs under way, the oldest first, in short."""
        return [_live_brief(one) for one in list(self._live.values())[:MAX_LIVE_SHOWN]]

    def recent(self) -> list[Data]:
        """Returns the runs that ended, the newest first, in short."""
        return [_short(whole) for _, whole in reversed(self._recent.values())]

    def run(self, run_id: str) -> Data | None:
        """Returns one run with its timeline and logs; None when it is not remembered."""
        live = self._live.get(run_id)
        if live is not None:
            return self._whole(live)
        return self._recent.get(run_id, (None, None))[1]

    def _whole(self, live: LiveRun) -> Data:
        whole = whole_run(live)
        if self._keep_scripts:
            code = live.run.code
            cut = len(code) - MAX_SCRIPT_CHARS
            whole["script"] = code if cut <= 0 else f"{code[:MAX_SCRIPT_CHARS]}\n… ({cut:,} characters more)"
        return whole

    def per_second(self, seconds: int) -> list[list[int]]:
        """Counts the runs that ended in each of the last `seconds` whole seconds, oldest first: `[all, failed]`."""
        # The second that is under way would always look slow.
        now = int(time.monotonic())
        return [self.ended.get(second, [0, 0]) for second in range(now - seconds, now)]


def _brief(run: RunFacts) -> Data:
    until = run.ended if run.ended is not None else time.monotonic()
    return {
        "id": run.id,
        "client": run.client[:MAX_NAME_CHARS],
        "state": run.state,
        "outcome": run.outcome,
        "acceptedAt": run.accepted_at,
        "elapsedMs": _ms(run.accepted, until),
        "queueMs": None if run.queued is None else _ms(run.queued, run.leased or until),
        "calls": len(run.calls),
        "failedCalls": sum(1 for call in run.calls if call.over and not call.ok),
        "workerEnd": run.worker_end,
    }


def _live_brief(live: LiveRun) -> Data:
    """Returns a run under way in short, with the call that it waits for, and what it has logged last."""
    waits = next((call for call in reversed(live.run.calls) if not call.over), None)
    called = {} if waits is None else {"call": f"{waits.server}.{waits.tool}"[:MAX_NAME_CHARS]}
    logged = {"lastLog": live.logs[-1].message[:MAX_NAME_CHARS]} if live.logs else {}
    return {**_brief(live.run), **called, **logged}


def _short(whole: Data) -> Data:
    long = ("steps", "timeline", "logs", "diagnostics", "script")
    return {key: value for key, value in whole.items() if key not in long}


def whole_run(live: LiveRun) -> Data:
    """Returns one run with its timeline and logs; what is open of it counts until now."""
    run = live.run
    response = run.response
    steps = {
        name: _ms(run.accepted, at)
        for name in ("queued", "leased", "started", "ended")
        if (at := getattr(run, name)) is not None
    }
    return {
        **_brief(run),
        "scriptChars": len(run.code),
        "steps": steps,
        "timeline": [_call(run, call) for call in run.calls[:MAX_CALLS]],
        "logs": [
            {"level": entry.level, "message": entry.message[:MAX_LOG_CHARS], "timeMs": entry.time_ms}
            for entry in live.logs
        ],
        "logsLeftOut": live.logged - len(live.logs),
        "diagnostics": [
            {"severity": entry.severity, "code": entry.code, "message": entry.message[:MAX_LOG_CHARS]}
            for entry in (response.diagnostics[:20] if response is not None else ())
        ],
        "usage": response.usage.model_dump(by_alias=True) if response is not None else None,
    }


def _call(run: RunFacts, call: CallFacts) -> Data:
    at = _ms(run.accepted, call.started)
    over = call.over or run.ended is not None
    return {
        "server": call.server[:MAX_NAME_CHARS],
        "tool": call.tool[:MAX_NAME_CHARS],
        "atMs": at,
        "durationMs": call.duration_ms if over else _ms(call.started, time.monotonic()),
        "outcome": call_outcome(call) if over else "running",
        "error": call.error if over else None,
    }


def _ms(since: float, until: float) -> float:
    return round((until - since) * 1000, 1)
