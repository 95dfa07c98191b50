"""What the model of a client is shown of a run."""

import json
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest

from cellblock.base.settings.sections import OutputSettings
from cellblock.base.settings.settings import FrontendSettings
from cellblock.base.store import LocalStore
from cellblock.run.events import WAITS
from cellblock.run.response import Diagnostic, LogEntry, RunResponse, TraceEntry, Usage
from cellblock.serve.kept_outputs import PREFIX, keeping
from cellblock.serve.run_output import SHOWN_TO_MODELS, Form, form_for, tool_result
from cellblock.serve.service import Owner

ME = Owner("cli", "here")
WARNING = Diagnostic(
    severity="warning", code="NO_RESULT", message="nothing", hint="Assign it.", path="a.js:1:2"
)
ERROR = Diagnostic(severity="error", code="UNCAUGHT", message="no such row", error_class="ToolCallError")


def response(result: Any, *diagnostics: Diagnostic) -> RunResponse:
    trace = [
        TraceEntry(server_id="crm", tool_name="get", duration_ms=1, ok=number % 100 != 0)
        for number in range(500)
    ]
    return RunResponse(
        logs=[LogEntry(level="warn", message="look", time_ms=3)],
        result=result,
        diagnostics=list(diagnostics),
        tool_trace=trace,
        usage=Usage(tool_calls=500),
        failures={"crm.get": "no such row"},
    )


async def shown(given: RunResponse, form: Form) -> tuple[str, dict[str, Any]]:
    result = await tool_result(given, None, ME, declarations={"crm": "declare crm"}, form=form)
    (text,) = result.content
    assert isinstance(text, types.TextContent) and result.structured_content is not None
    return text.text, result.structured_content


CALLS = "calls:\ncrm.get 500 (5 failed)"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            response({"a": [1, "é"]}, WARNING),
            '{"a":[1,"é"]}\n\nlogs:\n[warn] look\n\ndiagnostics:\nwarning NO_RESULT at a.js:1:2: nothing '
            f"Hint: Assign it.\n\n{CALLS}\ncrm.get failed: no such row\n\ndeclarations:\ndeclare crm",
        ),
        (
            response("line one\nline\u202e two"),
            f"line one\nline\\u202e two\n\nlogs:\n[warn] look\n\n{CALLS}\ncrm.get failed: no such row\n\n"
            "declarations:\ndeclare crm",
        ),
        (
            response(None, WARNING, ERROR),
            "error UNCAUGHT (ToolCallError): no such row\nwarning NO_RESULT at a.js:1:2: nothing Hint: Assign it.\n\n"
            f"logs:\n[warn] look\n\n{CALLS}\n\ndeclarations:\ndeclare crm",
        ),
    ],
)
async def test_the_result_comes_first_then_what_needs_an_eye(given: RunResponse, text: str) -> None:
    """A failed run begins with its error; what that says already is not said again."""
    said, whole = await shown(given, Form())
    assert said == text
    assert len(whole["toolTrace"]) == 500 and whole["usage"]["toolCalls"] == 500
    assert whole["result"] == given.result and len(whole["logs"]) == 1
    # Where a model is shown structured content, it has what the text has; section 3.3 names three members.
    said, short = await shown(given, form_for(FrontendSettings(), "claude-code"))
    assert said == text and "usage" not in short
    assert [short[key] for key in ("result", "logs", "declarations")] == [
        whole[key] for key in ("result", "logs", "declarations")
    ]
    assert len(short["diagnostics"]) == len(given.diagnostics)
    assert short["calls"] == {"crm.get": "500 (5 failed)"} and "toolTrace" not in short
    assert len(json.dumps(short)) < 900 < 20_000 < len(json.dumps(whole))


async def test_a_call_that_waits_for_the_user_has_not_failed() -> None:
    waits = TraceEntry(server_id="crm", tool_name="get", duration_ms=1, ok=False, error=WAITS)
    given = response(None).model_copy(update={"tool_trace": [waits], "failures": {}})
    said, _ = await shown(given, Form())
    assert "calls:\ncrm.get 1\n" in said


@pytest.mark.parametrize(
    ("settings", "trace"), [(FrontendSettings(strict=True), None), (FrontendSettings(), "full")]
)
@pytest.mark.parametrize("client", ["mcp", *sorted(SHOWN_TO_MODELS)[:2]])
async def test_the_whole_is_there_for_who_asks(
    settings: FrontendSettings, trace: object, client: str
) -> None:
    said, whole = await shown(response(1), form_for(settings, client, trace))
    assert json.loads(said) == whole == response(1).as_json() | {"declarations": {"crm": "declare crm"}}


@pytest.mark.parametrize("client", ["mcp", "claude-code"])
@pytest.mark.parametrize("has_result", [True, False])
async def test_a_text_is_shorter_than_what_clients_cut_whatever_is_in_it(
    tmp_path: Path, client: str, has_result: bool
) -> None:
    """Messages are cut, and the rest of diagnostics counted; where a whole output is stays."""
    page = "A page. " * 2_000
    warnings = [WARNING.model_copy(update={"message": f"{n} {page}", "hint": page}) for n in range(400)]
    given = response("r" * 200_000 if has_result else None, *warnings, ERROR).model_copy(
        update={
            "logs": [LogEntry(level="log", message=page, time_ms=1)] * 10,
            "failures": {f"crm.t{number}": page for number in range(300)},
        }
    )
    form = form_for(FrontendSettings(), client)
    async with keeping(OutputSettings(), LocalStore(tmp_path)) as kept:
        result = await tool_result(given, kept, ME, declarations={"crm": "d" * 15_000}, form=form)
    text, *links = result.content
    assert isinstance(text, types.TextContent) and result.structured_content is not None
    shown = text.text if client == "mcp" else json.dumps(result.structured_content)
    assert 20_000 < len(shown) < 75_000 and len(links) == 1 + has_result
    assert text.text.startswith("error UNCAUGHT") and "more diagnostics" in shown
    assert shown.count(PREFIX) >= 1 + has_result and "d" * 15_000 in shown
