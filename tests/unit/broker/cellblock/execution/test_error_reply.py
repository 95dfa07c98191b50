"""An error in a reply: all of it where it fits, and never over the cap nor lost, whatever it quotes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cellblock.base.errors import (
    MAX_MESSAGE_CHARS,
    CallDenied,
    Certainty,
    ScriptError,
    ToolCallError,
    ToolNotFound,
)
from cellblock.execution.error_reply import encode_error

LEAST_CAP = 4096
"""The least `max_message_bytes` that the configuration allows."""


def nested(depth: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(depth):
        made = [made]
    return made


def test_all_of_it_where_it_fits() -> None:
    error = ToolCallError("m", hint="h", certainty=Certainty.COMPLETED, result={"a": [1]}, serverId="s")
    assert json.loads(encode_error(error, LEAST_CAP)) == error.as_json()


@pytest.mark.parametrize("result", [{"text": "x" * 5000}, nested(200)], ids=["long", "deep"])
def test_a_result_that_is_too_much_is_left_out_and_nothing_else(result: Any) -> None:
    error = ToolCallError("m", hint="h", result=result, serverId="s")
    said = json.loads(encode_error(error, LEAST_CAP))
    assert said == {name: value for name, value in error.as_json().items() if name != "result"}


@pytest.mark.parametrize("letter", ["x", "\x00", "é", "\U0001f600", "\ud800"])
@pytest.mark.parametrize("details", [{}, {"example": "x" * 9000}, {"received": nested(300)}])
def test_whatever_it_says_it_is_within_the_least_cap(letter: str, details: dict[str, Any]) -> None:
    error = ToolNotFound(letter * 100_000, hint=letter * 100_000, **details)
    body = encode_error(error, LEAST_CAP)
    assert len(body) <= LEAST_CAP
    said = json.loads(body)
    assert said["errorClass"] == "ToolNotFoundError" and len(said["message"]) >= 100


def test_what_is_certain_is_said_at_any_length() -> None:
    error = CallDenied("x" * 9000, hint="y", code="APPROVAL_DENIED")
    said = json.loads(encode_error(error, LEAST_CAP))
    assert (said["certainty"], said["code"], said["fault"]) == ("not_started", "APPROVAL_DENIED", "script")


def test_a_message_to_a_script_has_a_most() -> None:
    error = ScriptError("x" * 1_000_000, hint="y" * 1_000_000)
    assert (len(error.message), len(error.hint)) == (MAX_MESSAGE_CHARS, MAX_MESSAGE_CHARS)
