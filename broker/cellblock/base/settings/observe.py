"""Settings of observation say what can be seen of a daemon: logs, audit, metrics, traces, dashboard."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from cellblock.base.settings.sections import HttpUrl, Section

LogLevel = Literal["debug", "info", "warning", "error"]

MIN_FILE_BYTES = 4096


class LogSettings(Section):
    """Sets the daemon's own log, on stderr or in a file. Secrets of the configuration are redacted."""

    format: Literal["text", "json"] = "text"
    """Sets the form of a line: `text` for people, `json` for a collector, one object a line."""

    level: LogLevel = "error"
    """Names the lowest level that is logged. `info` has one line for each run. The environment variable CELLBLOCK_LOG
    overrides it."""

    file: Path | None = None
    """Names the file that gets the log instead of stderr. Its mode is 0600."""


class AuditSettings(Section):
    """Sets what `audit.jsonl` in the state directory records: who ran what when, and which tools were called. It has
    one JSON object a line."""

    enabled: bool | None = None
    """Says whether there is an audit log. Absent: there is one with `serve --http`, which others may use, and none
    where the broker has one user."""

    values: list[Literal["inputs", "outputs"]] = Field(default=[])
    """Names the values that are in the audit log: `inputs` are scripts and the inputs of tool calls, `outputs` results
    and the outputs of tool calls."""


Metrics = Literal["token", "open"]

Dashboard = Literal["off", "runs", "logs", "scripts"]


class TraceSettings(Section):
    """Exports traces by OpenTelemetry: one span for each run, below it one for each tool call. Needs `pip install
    'cellblock[otel]'`."""

    endpoint: HttpUrl | None = None
    """Names a collector for OTLP over HTTP, with its whole path, such as `http://127.0.0.1:4318/v1/traces`. Absent:
    no traces."""

    headers: dict[str, str] = Field(default_factory=dict[str, str])
    """Holds the headers that are sent along, such as an API key."""
