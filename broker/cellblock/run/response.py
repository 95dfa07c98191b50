"""Describes the `codemode.run` response (Code Mode specification, section 3.3)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from cellblock.base.raw_json import RawJson
from cellblock.run.flows.labels import Label

Level = Literal["debug", "log", "warn", "error"]
Severity = Literal["error", "warning", "info"]


class _Part(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)


class LogEntry(_Part):
    """Describes one console entry; `time_ms` counts from the start of the sandbox (section 3.3.1)."""

    level: Level
    message: str
    time_ms: int


class TraceEntry(_Part):
    """Describes one tool call, without its input and output (section 3.3.2)."""

    server_id: str
    tool_name: str
    duration_ms: int
    ok: bool
    error: str | None = None
    within: str | None = None
    """Names the kept script that has made the call, when the run has called that. Absent for the run's own calls."""


class Diagnostic(_Part):
    """Says what went wrong or should be known (section 3.3.3)."""

    severity: Severity
    code: str
    message: str
    hint: str | None = None
    path: str | None = None
    error_class: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Gives the diagnostic as it is in a response."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def error_diagnostic(
    code: str, message: str, hint: str, path: str | None = None, error_class: str | None = None
) -> Diagnostic:
    """Makes a diagnostic for which a run has no result."""
    return Diagnostic(
        severity="error", code=code, message=message, hint=hint, path=path, error_class=error_class
    )


class Usage(_Part):
    """Counts what the run took. Times in milliseconds, memory in bytes (peak resident size of the worker)."""

    wall_ms: int = 0
    cpu_ms: int = 0
    """Counts the CPU time of the worker, and of the processes that read what is large for the run; `maxCpuMs`
    bounds the worker's alone."""
    peak_memory_bytes: int = 0
    queue_ms: int = 0
    tool_wait_ms: int = 0
    tool_calls: int = 0
    approval_wait_ms: int | None = None
    """Says how long the user was waited for; it does not count for `timeoutMs`. Absent when nothing was asked."""
    run_id: str | None = None
    """Names the run for `cellblock runs`. Absent when the run is not kept."""
    resumed: int | None = None
    """Says how often the run has gone on in another process, as it was parked or its process was lost. Absent when it
    has not."""
    reused: int | None = None
    """Says how many runs the worker's process had served before. Absent where each has a process of its own."""


class RunResponse(_Part):
    """Holds the whole response; `as_json` gives it as the wire has it."""

    logs: list[LogEntry]
    result: Any = None
    diagnostics: list[Diagnostic]
    tool_trace: list[TraceEntry] = Field(default_factory=list[TraceEntry])
    usage: Usage = Usage()
    parked: bool = Field(default=False, exclude=True)
    """Says whether the run waits for a person, and goes on later; not on the wire, where a diagnostic says it."""
    lost: bool = Field(default=False, exclude=True)
    """Says whether the run's host or worker was lost before the script had ended; not on the wire."""
    servers: tuple[str, ...] = Field(default=(), exclude=True)
    """Lists the ids of the servers that the script imports or requests; not on the wire."""

    failures: dict[str, str] = Field(default_factory=dict[str, str], exclude=True)
    """Says in tools' own words why calls failed, by server and tool; not on the wire."""

    label: Label | None = Field(default=None, exclude=True)
    """Holds the label of all that the run has seen; None where flows are off; not on the wire."""

    @property
    def ok(self) -> bool:
        """Says whether no diagnostic is an error."""
        return all(diagnostic.severity != "error" for diagnostic in self.diagnostics)

    def decoded(self) -> RunResponse:
        """Gives the same response with its result as data, where that is a `RawJson`."""
        if not isinstance(self.result, RawJson):
            return self
        return self.model_copy(update={"result": self.result.decoded()})

    def as_json(self) -> dict[str, Any]:
        """Gives the response as plain JSON data with the specification's names; a large result stays a `RawJson`."""
        data = self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"result"})
        return {"logs": data.pop("logs"), "result": self.result, **data}
