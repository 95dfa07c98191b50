"""What clients and their models are shown of a run, and of one with large outputs."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock.base.settings.sections import OutputSettings
from cellblock.base.settings.settings import FrontendSettings
from cellblock.base.store import LocalStore
from cellblock.run.events import WAITS
from cellblock.run.response import Diagnostic, LogEntry, RunResponse, TraceEntry, Usage
from cellblock.serve import kept_outputs
from cellblock.serve.kept_outputs import PREFIX, KeptOutputs, keeping
from cellblock.serve.run_output import SHOWN_TO_MODELS, Form, form_for, preview, tool_result
from cellblock.serve.service import Owner

ME = Owner("cli", "here")


@pytest.fixture
async def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KeptOutputs]:
    """Takes what is over 2,000 bytes, in small pages."""
    monkeypatch.setattr(kept_outputs, "PAGE_BYTES", 1024)
    async with keeping(OutputSettings(inline_bytes=2_000), LocalStore(tmp_path)) as made:
        assert made is not None
        yield made


def response(result: Any, *messages: str, diagnostics: list[Diagnostic] | None = None) -> RunResponse:
    logs = [LogEntry(level="log", message=message, time_ms=number) for number, message in enumerate(messages)]
    return RunResponse(logs=logs, result=result, diagnostics=diagnostics or [])


async def data_of(given: RunResponse, kept: KeptOutputs | None) -> dict[str, Any]:
    data = (await tool_result(given, kept, ME)).structured_content
    assert data is not None
    return data


async def text_of(kept: KeptOutputs, uri: str) -> str:
    (one,) = [one for one in kept.list_for(ME) if uri.endswith(one.output_id)]
    return "".join([(await kept.read(ME, one.output_id, page))[1] for page in range(1, one.pages + 1)])


async def test_the_larger_one_goes_first(kept: KeptOutputs) -> None:
    data = await data_of(response("r" * 900, *["l" * 400] * 4), kept)
    assert data["result"] == "r" * 900
    assert [output["part"] for output in data["outputs"]] == ["logs"]

    data = await data_of(response("r" * 3_000, *["l" * 700] * 4), kept)
    assert [output["part"] for output in data["outputs"]] == ["result", "logs"]
    assert [one["code"] for one in data["diagnostics"]] == ["OUTPUT_KEPT"] * 2
    result_uri, logs_uri = (output["uri"] for output in data["outputs"])
    assert json.loads(await text_of(kept, result_uri)) == "r" * 3_000
    assert [json.loads(line)["message"] for line in (await text_of(kept, logs_uri)).splitlines()] == [
        "l" * 700
    ] * 4


async def test_a_failure_keeps_its_diagnostics_and_its_null(kept: KeptOutputs) -> None:
    failed = Diagnostic(severity="error", code="UNCAUGHT", message="no")
    data = await data_of(response(None, "l" * 9_000, diagnostics=[failed]), kept)
    assert data["result"] is None
    assert [one["code"] for one in data["diagnostics"]] == ["UNCAUGHT", "OUTPUT_KEPT"]
    shown, note = data["logs"]
    assert shown["message"] == "l" * 1_000 + "…"
    assert (note["level"], note["timeMs"]) == ("warn", 0) and "1 of 1 entries" in note["message"]


async def test_errors_and_both_ends_of_logs_are_shown(kept: KeptOutputs) -> None:
    logs = [
        LogEntry(level="error" if number == 50 else "log", message=f"{number} {'x' * 100}", time_ms=number)
        for number in range(100)
    ]
    *shown, note = (await data_of(RunResponse(logs=logs, result=1, diagnostics=[]), kept))["logs"]
    numbers = [entry["timeMs"] for entry in shown]
    assert numbers == sorted(numbers) and {0, 1, 50, 98, 99} <= set(numbers) and len(numbers) < 8
    assert f"{len(numbers)} of 100 entries" in note["message"]


async def test_a_lone_surrogate_is_what_json_has_for_it(kept: KeptOutputs) -> None:
    data = await data_of(response("\ud800" * 1_000), kept)
    assert data["result"].startswith('"\\ud800')
    assert json.loads(await text_of(kept, data["outputs"][0]["uri"])) == "\ud800" * 1_000


async def test_many_short_entries_do_not_make_a_long_preview(kept: KeptOutputs) -> None:
    data = await data_of(response(1, *[""] * 10_000), kept)
    assert len(data["logs"]) < 25
    assert "10,000 entries" in data["logs"][-1]["message"]


async def test_without_a_place_or_need_responses_are_whole(kept: KeptOutputs) -> None:
    for whole, place in ((response("r" * 5_000), None), (response("r" * 1_500), kept)):
        assert await data_of(whole, place) == whole.as_json()
    assert kept.list_for(ME) == []


@given(st.text(st.characters(exclude_categories=())), st.integers(0, 200))
def test_a_preview_is_short_and_has_nothing_that_acts(text: str, bound: int) -> None:
    shown = preview(text, bound)
    assert len(shown.removesuffix("…").encode()) <= bound or text.endswith("…")
    assert shown.isprintable()
    shown.encode()


def test_a_preview_of_json_still_says_what_it_said() -> None:
    value = "a\x00\x1b[31m\x7f\x9b\u202e\u2066\u200b\ufeff\ue000é𝄞\U000e0041"
    shown = preview(json.dumps(value, ensure_ascii=False), 1_000)
    assert shown.isprintable()
    assert json.loads(shown) == value


# ---- what a model is shown -----------------------------------------------------------------------------

WARNING = Diagnostic(
    severity="warning", code="NO_RESULT", message="nothing", hint="Assign it.", path="a.js:1:2"
)
ERROR = Diagnostic(severity="error", code="UNCAUGHT", message="no such row", error_class="ToolCallError")


def busy(result: Any, *diagnostics: Diagnostic) -> RunResponse:
    """Of a run of 500 calls."""
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
            busy({"a": [1, "é"]}, WARNING),
            '{"a":[1,"é"]}\n\nlogs:\n[warn] look\n\ndiagnostics:\nwarning NO_RESULT at a.js:1:2: nothing '
            f"Hint: Assign it.\n\n{CALLS}\ncrm.get failed: no such row\n\ndeclarations:\ndeclare crm",
        ),
        (
            busy("line one\nline\u202e two"),
            f"line one\nline\\u202e two\n\nlogs:\n[warn] look\n\n{CALLS}\ncrm.get failed: no such row\n\n"
            "declarations:\ndeclare crm",
        ),
        (
            busy(None, WARNING, ERROR),
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
    assert short["calls"] == {"crm.get": "500 (5 failed)"}
    # Without what the tool said, which is output (3.3.2).
    assert short["toolTrace"] == [call for call in whole["toolTrace"] if not call["ok"]]
    assert len(short["toolTrace"]) == 5 and "no such row" not in json.dumps(short["toolTrace"])
    assert len(json.dumps(short)) < 1_300 < 20_000 < len(json.dumps(whole))


async def test_a_call_that_waits_for_the_user_has_not_failed() -> None:
    waits = TraceEntry(server_id="crm", tool_name="get", duration_ms=1, ok=False, error=WAITS)
    given = busy(None).model_copy(update={"tool_trace": [waits], "failures": {}})
    said, short = await shown(given, form_for(FrontendSettings(), "claude-code"))
    assert "calls:\ncrm.get 1\n" in said and short["toolTrace"] == []


@pytest.mark.parametrize(
    ("settings", "trace"), [(FrontendSettings(profile="strict"), None), (FrontendSettings(), "full")]
)
@pytest.mark.parametrize("client", ["mcp", *sorted(SHOWN_TO_MODELS)[:2]])
async def test_the_whole_is_there_for_who_asks(
    settings: FrontendSettings, trace: object, client: str
) -> None:
    said, whole = await shown(busy(1), form_for(settings, client, trace))
    assert json.loads(said) == whole == busy(1).as_json() | {"declarations": {"crm": "declare crm"}}


@pytest.mark.parametrize("client", ["mcp", "claude-code"])
@pytest.mark.parametrize("has_result", [True, False])
async def test_a_text_is_shorter_than_what_clients_cut_whatever_is_in_it(
    tmp_path: Path, client: str, has_result: bool
) -> None:
    """Messages are cut, and the rest of diagnostics counted; where a whole output is stays."""
    page = "A page. " * 2_000
    warnings = [WARNING.model_copy(update={"message": f"{n} {page}", "hint": page}) for n in range(400)]
    given = busy("r" * 200_000 if has_result else None, *warnings, ERROR).model_copy(
        update={
            "logs": [LogEntry(level="log", message=page, time_ms=1)] * 10,
            "failures": {f"crm.t{number}": page for number in range(300)},
            "tool_trace": [TraceEntry(server_id="crm", tool_name="t", duration_ms=1, ok=False)] * 1_000,
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
