"""What an agent is shown of large outputs."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock.base.settings.sections import OutputSettings
from cellblock.base.store import LocalStore
from cellblock.run.response import Diagnostic, LogEntry, RunResponse
from cellblock.serve import kept_outputs
from cellblock.serve.kept_outputs import KeptOutputs, keeping
from cellblock.serve.run_output import preview, tool_result
from cellblock.serve.service import Owner

ME = Owner("cli", "here")

SETTINGS = OutputSettings(inline_bytes=2_000)


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_outputs, "PAGE_BYTES", 1024)


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[KeptOutputs]:
    async with keeping(SETTINGS, LocalStore(tmp_path)) as made:
        assert made is not None
        yield made


def response(result: Any, *messages: str, diagnostics: list[Diagnostic] | None = None) -> RunResponse:
    logs = [LogEntry(level="log", message=message, time_ms=number) for number, message in enumerate(messages)]
    return RunResponse(logs=logs, result=result, diagnostics=diagnostics or [])


async def data_of(result: types.CallToolResult) -> dict[str, Any]:
    assert result.structured_content is not None
    return result.structured_content


async def text_of(kept: KeptOutputs, uri: str) -> str:
    (one,) = [one for one in kept.list_for(ME) if uri.endswith(one.output_id)]
    return "".join([(await kept.read(ME, one.output_id, page))[1] for page in range(1, one.pages + 1)])


async def test_the_larger_one_goes_first(kept: KeptOutputs) -> None:
    result = await tool_result(response("r" * 900, *["l" * 400] * 4), kept, ME)
    data = await data_of(result)
    assert data["result"] == "r" * 900
    assert [output["part"] for output in data["outputs"]] == ["logs"]

    data = await data_of(await tool_result(response("r" * 3_000, *["l" * 700] * 4), kept, ME))
    assert [output["part"] for output in data["outputs"]] == ["result", "logs"]
    assert [one["code"] for one in data["diagnostics"]] == ["OUTPUT_KEPT"] * 2
    result_uri, logs_uri = (output["uri"] for output in data["outputs"])
    assert json.loads(await text_of(kept, result_uri)) == "r" * 3_000
    assert [json.loads(line)["message"] for line in (await text_of(kept, logs_uri)).splitlines()] == [
        "l" * 700
    ] * 4


async def test_a_failure_keeps_its_diagnostics_and_its_null(kept: KeptOutputs) -> None:
    failed = Diagnostic(severity="error", code="UNCAUGHT", message="no")
    data = await data_of(await tool_result(response(None, "l" * 9_000, diagnostics=[failed]), kept, ME))
    assert data["result"] is None
    assert [one["code"] for one in data["diagnostics"]] == ["UNCAUGHT", "OUTPUT_KEPT"]
    shown, note = data["logs"]
    assert shown["message"] == "l" * 1_000 + "…"
    assert (note["level"], note["timeMs"]) == ("warn", 0)
    assert "1 of 1 entries" in note["message"]


async def test_errors_and_both_ends_of_logs_are_shown(kept: KeptOutputs) -> None:
    logs = [
        LogEntry(level="error" if number == 50 else "log", message=f"{number} {'x' * 100}", time_ms=number)
        for number in range(100)
    ]
    given = RunResponse(logs=logs, result=1, diagnostics=[])
    *shown, note = (await data_of(await tool_result(given, kept, ME)))["logs"]
    numbers = [entry["timeMs"] for entry in shown]
    assert numbers == sorted(numbers) and {0, 1, 50, 98, 99} <= set(numbers) and len(numbers) < 8
    assert f"{len(numbers)} of 100 entries" in note["message"]


async def test_a_lone_surrogate_is_what_json_has_for_it(kept: KeptOutputs) -> None:
    data = await data_of(await tool_result(response("\ud800" * 1_000), kept, ME))
    assert data["result"].startswith('"\\ud800')
    assert json.loads(await text_of(kept, data["outputs"][0]["uri"])) == "\ud800" * 1_000


async def test_many_short_entries_do_not_make_a_long_preview(kept: KeptOutputs) -> None:
    data = await data_of(await tool_result(response(1, *[""] * 10_000), kept, ME))
    assert len(data["logs"]) < 25
    assert "10,000 entries" in data["logs"][-1]["message"]


async def test_without_a_place_or_need_responses_are_whole(kept: KeptOutputs) -> None:
    large = response("r" * 5_000)
    assert (await tool_result(large, None, ME)).structured_content == large.as_json()
    small = response("r" * 1_500)
    assert (await tool_result(small, kept, ME)).structured_content == small.as_json()
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
