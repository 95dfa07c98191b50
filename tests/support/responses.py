"""Reads a run's response and fails with all of it where it is another than expected."""

from typing import Any

from cellblock import RunResponse


def succeeded(response: RunResponse) -> Any:
    """The result of a run without any error diagnostic."""
    assert response.ok, response.as_json()
    return response.result


def error_of(response: RunResponse, code: str) -> Any:
    """The first diagnostic, which must be an error with this code and a hint; the result must be null."""
    first = response.diagnostics[0]
    assert (first.severity, first.code) == ("error", code), response.as_json()
    assert first.hint
    assert response.result is None
    return first
