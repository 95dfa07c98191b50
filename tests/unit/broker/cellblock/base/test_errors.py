"""The taxonomy: every error says whose fault it is and what to do; script errors have their class."""

import pytest

from cellblock.base import errors
from cellblock.base.errors import (
    AuthenticationFailed,
    CellblockError,
    Certainty,
    ConfigError,
    Fault,
    HostUnavailable,
    InvalidRequest,
    Overloaded,
    RunLimitReached,
    SchemaValidationError,
    ScriptError,
    ServerNotFound,
    ToolCallError,
    ToolNotFound,
    counted,
)
from cellblock.tools.catalog.modules import ERROR_CLASSES

KINDS = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, CellblockError)
]
MORE = {errors.CallDenied: {"code": "NOT_GRANTED"}}
"""What a kind needs besides a message and a hint."""


def test_one_is_singular() -> None:
    said = [counted(number, "tool") for number in (0, 1, 2, 1500)]
    assert said == ["0 tools", "1 tool", "2 tools", "1,500 tools"]


def test_an_error_without_a_hint_ends_with_its_message() -> None:
    assert str(ConfigError("It broke.", hint="")) == "It broke."


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_has_a_message_a_hint_and_a_fault(kind: type[CellblockError]) -> None:
    error = kind("It broke.", hint="Mend it.", **MORE.get(kind, {}))
    assert (error.message, error.hint, str(error)) == ("It broke.", "Mend it.", "It broke. Mend it.")
    assert isinstance(error.fault, Fault) and isinstance(error.certainty, Certainty)


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        (ConfigError, Fault.CALLER),
        (InvalidRequest, Fault.CALLER),
        (Overloaded, Fault.CELLBLOCK),
        (HostUnavailable, Fault.CELLBLOCK),
        (SchemaValidationError, Fault.SCRIPT),
        (ToolNotFound, Fault.SCRIPT),
        (ToolCallError, Fault.UPSTREAM),
        (AuthenticationFailed, Fault.UPSTREAM),
    ],
)
def test_faults(kind: type[CellblockError], fault: Fault) -> None:
    assert kind("a", hint="b").fault is fault


def test_script_errors_are_exactly_the_classes_that_scripts_can_import() -> None:
    kinds = [kind for kind in KINDS if issubclass(kind, ScriptError)]
    assert {kind.error_class for kind in kinds} == set(ERROR_CLASSES)
    assert ScriptError("a", hint="b").error_class == "CodemodeError"
    assert RunLimitReached("a", hint="b").error_class == "SandboxLimitError"


def test_the_body_of_a_reply() -> None:
    error = ServerNotFound("No such server.", hint="List them.", serverId="x")
    assert error.as_json() == {
        "errorClass": "ServerNotFoundError",
        "message": "No such server.",
        "hint": "List them.",
        "serverId": "x",
    }


def test_a_tool_call_may_have_run_unless_it_is_known_better() -> None:
    assert ToolCallError("a", hint="b").as_json()["certainty"] == "may_have_run"
    known = AuthenticationFailed("a", hint="b", certainty=Certainty.NOT_STARTED, toolName="t")
    assert known.certainty is Certainty.NOT_STARTED
    assert known.as_json() == {
        "errorClass": "AuthenticationError",
        "message": "a",
        "hint": "b",
        "certainty": "not_started",
        "toolName": "t",
    }
