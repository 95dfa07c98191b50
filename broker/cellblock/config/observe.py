"""Settings of observation say what can be seen of a daemon: logs, audit, metrics, traces, dashboard."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from cellblock.config.sections import MIB, HttpUrl, Positive, Section

LogLevel = Literal["debug", "info", "warning", "error"]

MIN_FILE_BYTES = 4096


class LogSettings(Section):
    """Sets what the daemon says of itself, on stderr or in a file. Secrets of the configuration are taken out."""

    format: Literal["text", "json"] = "text"
    """Says how a line looks: `text` for people, `json` for a collector, one object a line."""

    level: LogLevel = "error"
    """Names the lowest level that is logged. `info` has one line for each run. The environment's CELLBLOCK_LOG goes
    first."""

    file: Path | None = None
    """Names the file that the log goes to instead of stderr; it is made with mode 0600."""

    max_bytes: Annotated[int, Field(ge=MIN_FILE_BYTES)] = 10 * MIB
    """Caps the file, before it is put aside and a new one begun."""

    keep: Annotated[int, Field(ge=1, le=1000)] = 3
    """Caps the files put aside; the oldest is removed."""


class AuditSettings(Section):
    """Sets what is written to `audit.jsonl` in the state directory: who ran what when, and which tools were called.
    One JSON object a line."""

    enabled: bool | None = None
    """Says whether there is an audit log. Absent: with `serve --http`, which others may use; not where the broker
    has one user."""

    inputs: bool = False
    """Says whether scripts and the inputs of tool calls are in the audit log."""

    outputs: bool = False
    """Says whether results and the outputs of tool calls are in the audit log."""

    max_value_bytes: Positive = 16 * 1024
    """Caps one script, input or output, in UTF-8 bytes; what is longer is cut, and marked as cut."""

    max_bytes: Annotated[int, Field(ge=MIN_FILE_BYTES)] = 10 * MIB
    """Caps the file, before it is put aside and a new one begun."""

    keep: Annotated[int, Field(ge=1, le=1000)] = 9
    """Caps the files put aside; the oldest is removed: 100 MiB in all, about 400,000 lines."""


class MetricsSettings(Section):
    """Sets what `/metrics` of `serve --http` shows, in the text format of Prometheus."""

    enabled: bool = True
    """Says whether `serve --http` has the page `/metrics`."""

    token: bool = True
    """Says whether the page asks for the bearer token, as everything else does. Without it, whoever reaches the
    address reads the names of servers and tools, and how often they are called."""

    max_tools: Positive = 1_000
    """Caps the tools that have numbers of their own: those called first. The others are counted together as
    `other`."""


class TraceSettings(Section):
    """Exports traces by OpenTelemetry: one span for each run, below it one for each tool call. Needs `pip install
    'cellblock[otel]'`."""

    endpoint: HttpUrl | None = None
    """Names a collector, OTLP over HTTP with its whole path, such as `http://127.0.0.1:4318/v1/traces`; no traces when
    absent."""

    headers: dict[str, str] = Field(default_factory=dict[str, str])
    """Holds the headers that are sent along, such as an API key."""

    service_name: Annotated[str, Field(min_length=1, max_length=200)] = "cellblock"
    """Sets the `service.name` of every span."""

    sample_ratio: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Sets the share of runs that are traced, where the client has not decided that already."""

    export_timeout_ms: Positive = 5_000
    """Bounds one export, and how long a stopping daemon waits for the last one, in milliseconds."""


class DashboardSettings(Section):
    """Sets what the page of `serve --http` and `cellblock top` show."""

    enabled: bool | None = None
    """Says whether there is a dashboard. Absent: unless `http.oauth` is set, since everybody who may run scripts
    sees the runs of all."""

    recent_runs: Annotated[int, Field(ge=1, le=10_000)] = 100
    """Caps the runs that are remembered after their end, in memory."""

    logs: bool = True
    """Says whether console output of scripts is kept with them and shown."""

    show_scripts: bool = False
    """Says whether scripts are shown, too, up to 20,000 characters each. Whoever may open the dashboard sees those of
    all clients."""
