"""What clients and their models are shown of a run, and kept outputs, in a file and where brokers share them: who reads
them, that caps hold, and that they go."""

import asyncio
import contextlib
import json
import re
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given, strategies as st

from cellblock.base.errors import ConfigError
from cellblock.base.settings.sections import MIB, OutputSettings
from cellblock.base.settings.settings import FrontendSettings
from cellblock.base.state_dir import OUTPUTS
from cellblock.base.store import LocalStore
from cellblock.fleet.postgresql import PostgresServer
from cellblock.fleet.shared_state import SharedState
from cellblock.run.events import WAITS
from cellblock.run.response import Diagnostic, LogEntry, RunResponse, TraceEntry, Usage
from cellblock.serve import kept_outputs
from cellblock.serve.kept_outputs import PREFIX, KeptOutput, KeptOutputs, NotKept, Output, keeping
from cellblock.serve.run_output import SHOWN_TO_MODELS, Form, form_for, preview, tool_result
from cellblock.serve.service import Owner
from support.postgresql import Postgres
from support.shared_rows import KEY, AnyStore
from support.waits import until_found

ANN, SAME_ANN, BOB = Owner("oauth:ann", "one"), Owner("oauth:ann", "two"), Owner("oauth:bob", "one")

SETTINGS = OutputSettings(inline_bytes=1024, total_bytes=8 * MIB, expire_ms=3_600_000)


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_outputs, "PAGE_BYTES", 1024)


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[KeptOutputs]:
    async with keeping(SETTINGS, LocalStore(tmp_path)) as made:
        yield made
    assert sizes(tmp_path) == []


async def keep(kept: KeptOutputs, owner: Owner, text: str) -> KeptOutput:
    (made,) = await kept.keep(owner, [Output("result", "application/json", text.encode())])
    return made


def files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def pages_of(kept: KeptOutputs, owner: Owner, one: KeptOutput) -> list[str]:
    return [(await kept.read(owner, one.output_id, page))[1] for page in range(1, one.pages + 1)]


async def whole(kept: KeptOutputs, owner: Owner, one: KeptOutput) -> str:
    return "".join(await pages_of(kept, owner, one))


def sizes(folder: Path) -> list[int]:
    """Of all that is in the file."""
    with contextlib.closing(sqlite3.connect(folder / OUTPUTS)) as file:
        rows = "SELECT sum(length(body)) FROM outputs JOIN output_pages ON output = id GROUP BY id"
        return [size for (size,) in file.execute(rows)]


async def test_ids_are_random(kept: KeptOutputs) -> None:
    made = [await keep(kept, ANN, "x") for _ in range(50)]
    assert len({one.output_id for one in made}) == 50
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{32}", one.output_id) for one in made)


async def test_a_slow_disk_has_its_bound(kept: KeptOutputs, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(kept_outputs, "ASK_SECONDS", 0.05)
    monkeypatch.setattr(kept, "_write", lambda *_: go_on.wait(20))
    try:
        with pytest.raises(TimeoutError):
            await keep(kept, ANN, "x")
    finally:
        go_on.set()
    assert kept.list_for(ANN) == []
    monkeypatch.undo()
    await whole(kept, ANN, await keep(kept, ANN, "y"))


async def test_the_file_is_private_and_gives_the_disk_back(tmp_path: Path) -> None:
    async with keeping(SETTINGS, LocalStore(tmp_path)) as kept:
        await keep(kept, ANN, "the secret of Ann" + "x" * MIB)
        assert {file.stat().st_mode & 0o777 for file in files(tmp_path)} == {0o600}
    (file,) = files(tmp_path)
    assert file.stat().st_size < MIB // 4 and b"secret" not in file.read_bytes()


async def test_what_is_in_the_way_is_told(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"")
    (tmp_path / OUTPUTS).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="symbolic link"):
        async with keeping(SETTINGS, LocalStore(tmp_path)):
            pass
    assert (tmp_path / "elsewhere").read_bytes() == b""


async def test_daemons_that_share_a_state_folder_leave_each_other_alone(tmp_path: Path) -> None:
    async with keeping(SETTINGS, LocalStore(tmp_path)) as first:
        one = await keep(first, ANN, "x")
        async with (
            keeping(SETTINGS, LocalStore(tmp_path)) as second,
            keeping(OutputSettings(), LocalStore(tmp_path)),
        ):
            with pytest.raises(NotKept):
                await second.read(ANN, one.output_id, 1)
            assert await second.listed(ANN) == []
        assert await whole(first, ANN, one) == "x"


async def test_the_file_is_made_when_the_first_one_is_kept(tmp_path: Path) -> None:
    async with keeping(OutputSettings(), LocalStore(tmp_path)) as kept:
        assert await kept.listed(ANN) == []
        with pytest.raises(NotKept):
            await kept.read(ANN, "x", 1)
        assert files(tmp_path) == []
        assert await whole(kept, ANN, await keep(kept, ANN, "x")) == "x"


@given(st.text(st.sampled_from("aé€𝄞"), max_size=3_000))
async def test_pages_are_the_whole(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with keeping(SETTINGS, LocalStore(Path(folder))) as kept:
            pages = await pages_of(kept, ANN, await keep(kept, ANN, text))
        assert "".join(pages) == text
        assert all(len(page.encode()) <= 1024 + 3 for page in pages)


HUNG = """
import asyncio, pathlib, sys, threading
from cellblock.base.store import LocalStore
from cellblock.base.settings.sections import OutputSettings
from cellblock.serve.service import Owner
from cellblock.serve import kept_outputs
from cellblock.serve.kept_outputs import Output

kept_outputs.CLOSE_SECONDS = 0.2
kept_outputs.ASK_SECONDS = 0.1
kept_outputs.KeptOutputs._write = lambda *_: threading.Event().wait()


async def main():
    beats = 0

    async def beat():
        nonlocal beats
        while True:
            await asyncio.sleep(0.01)
            beats += 1

    kept = kept_outputs.KeptOutputs(OutputSettings(inline_bytes=1024), LocalStore(pathlib.Path(sys.argv[1])))
    try:
        await kept.keep(Owner("a", "a"), [Output("result", "text/plain", b"x")])
    except TimeoutError:
        pass
    beating = asyncio.create_task(beat())
    await kept.close()
    print("closed, and the loop went on:", beats > 3)
    beating.cancel()


asyncio.run(main())
"""


@pytest.mark.slow
def test_a_disk_that_hangs_holds_neither_the_loop_nor_the_exit(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HUNG, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "closed, and the loop went on: True\n"


Made = Callable[..., KeptOutputs]


@pytest.fixture
async def make(store_of_broker: Callable[[], AnyStore]) -> AsyncIterator[Made]:
    """Makes the place where a front-end keeps outputs."""
    async with contextlib.AsyncExitStack() as stack:

        def made(settings: OutputSettings = SETTINGS) -> KeptOutputs:
            place = KeptOutputs(settings, store_of_broker())
            stack.push_async_callback(place.close)
            return place

        yield made


def ids(found: list[KeptOutput]) -> list[str]:
    return [one.output_id for one in found]


async def test_only_its_own_client_reads_and_lists(make: Made) -> None:
    place, told = make(), list[bool]()
    place.watch(lambda: told.append(True))
    text = "€" * 1000 + "x"
    one = await keep(place, ANN, text)
    assert told and (one.size, one.pages) == (3001, 3)
    assert await whole(place, ANN, one) == text
    for stranger in (SAME_ANN, BOB):
        with pytest.raises(NotKept):
            await place.read(stranger, one.output_id, 1)
        assert await place.listed(stranger) == place.list_for(stranger) == []
    assert ids(await place.listed(ANN)) == ids(place.list_for(ANN)) == [one.output_id]
    for page in (0, 4):
        with pytest.raises(IndexError, match=r"^3$"):
            await place.read(ANN, one.output_id, page)
    for bad in ("", "x", "\0", "\ud800", one.output_id[:-1]):
        with pytest.raises(NotKept):
            await place.read(ANN, bad, 1)
    odd = Owner("token:\0", "\ud800")
    assert await whole(place, odd, await keep(place, odd, "")) == ""


async def test_the_oldest_go_first(make: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    place = make()
    of_bob = await keep(place, BOB, "b")
    half = "a" * (MIB // 2)
    made = [await keep(place, ANN, half) for _ in range(5)]
    assert ids(await place.listed(ANN)) == ids(made[:0:-1])
    # Sessions are free to make, and are no way around the cap.
    await keep(place, SAME_ANN, half)
    assert ids(await place.listed(ANN)) == ids(made[:1:-1])
    assert ids(await place.listed(BOB)) == [of_bob.output_id]
    # All together stay within the total: what goes is of those who keep most.
    others = [Owner(f"token:{name}", "one") for name in "cdef"]
    for other in others:
        for _ in range(4):
            await keep(place, other, half)
    assert ids(await place.listed(BOB)) == [of_bob.output_id]
    left = [len(await place.listed(one)) for one in (ANN, *others)]
    # Of the first, one more is another connection's.
    assert sum(left) < SETTINGS.total_bytes // (MIB // 2) and left[0] == 1 and min(left[1:]) == 3, left
    with pytest.raises(OSError, match=r"that a client may keep"):
        await keep(place, ANN, "a" * (2 * MIB + 1))
    monkeypatch.setattr(kept_outputs, "MAX_KEPT", 3)
    small = [await keep(place, BOB, str(number)) for number in range(5)]
    assert ids(await place.listed(BOB)) == ids(place.list_for(BOB)) == ids(small[:1:-1])


async def test_what_has_expired_is_gone(make: Made) -> None:
    place = make(replace(SETTINGS, expire_ms=200))
    one = await keep(place, ANN, "soon")

    async def gone() -> bool:
        try:
            await place.read(ANN, one.output_id, 1)
        except NotKept:
            return True
        return False

    await until_found(gone, "it has expired", pause=0.05)
    assert await place.listed(ANN) == place.list_for(ANN) == []


async def test_another_broker_reads_it_to_its_client_and_the_database_to_nobody(
    shared_state: SharedState, postgres: Postgres, postgres_url: str
) -> None:
    async with keeping(SETTINGS, shared_state) as here:
        one = await keep(here, ANN, "the secret of Ann")
    with contextlib.closing(SharedState(PostgresServer(postgres_url), (KEY,))) as state:
        async with keeping(SETTINGS, state) as there:
            assert await whole(there, ANN, one) == "the secret of Ann"
            assert ids(await there.listed(ANN)) == [one.output_id] and there.list_for(ANN) == []
            with pytest.raises(NotKept):
                await there.read(BOB, one.output_id, 1)
            other = await keep(there, BOB, "the secret of Bob")
            with psycopg.connect(
                postgres_url, autocommit=True, options="-c search_path=cellblock"
            ) as connection:
                rows = connection.execute("SELECT output, body FROM output_pages").fetchall()
                assert len(rows) == 2 and all(b"secret" not in body for _, body in rows)
                # Whoever can write there cannot have Bob read to Ann.
                taken = dict(rows)[other.output_id]
                connection.execute(
                    "UPDATE output_pages SET body = %s WHERE output = %s", (taken, one.output_id)
                )
                # Nor say that it is Ann's.
                given = "UPDATE outputs SET principal = %s, client = %s WHERE id = %s"
                connection.execute(given, (ANN.principal, ANN.client, other.output_id))
                for output in (one, other):
                    with pytest.raises(OSError, match="changed"):
                        await there.read(ANN, output.output_id, 1)
                connection.execute(given, (BOB.principal, BOB.client, other.output_id))
            with postgres.away():
                for asking in (there.read(BOB, other.output_id, 1), keep(there, BOB, "x")):
                    with pytest.raises(OSError, match="PostgreSQL"):
                        await asyncio.wait_for(asking, 60)
                assert ids(await there.listed(BOB)) == [other.output_id], "its own"
            assert await whole(there, BOB, other) == "the secret of Bob"


ME = Owner("cli", "here")


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[KeptOutputs]:
    """Takes what is over 2,000 bytes, in small pages."""
    async with keeping(OutputSettings(inline_bytes=2_000), LocalStore(tmp_path)) as made:
        yield made


def response(result: Any, *messages: str, diagnostics: list[Diagnostic] | None = None) -> RunResponse:
    logs = [LogEntry(level="log", message=message, time_ms=number) for number, message in enumerate(messages)]
    return RunResponse(logs=logs, result=result, diagnostics=diagnostics or [])


async def data_of(given: RunResponse, place: KeptOutputs | None) -> dict[str, Any]:
    result: Any = await tool_result(given, place, ME)
    return result.structured_content


async def text_of(place: KeptOutputs, uri: str) -> str:
    (one,) = [one for one in place.list_for(ME) if uri.endswith(one.output_id)]
    return await whole(place, ME, one)


async def test_the_larger_one_goes_first(place: KeptOutputs) -> None:
    data = await data_of(response("r" * 900, *["l" * 400] * 4), place)
    assert data["result"] == "r" * 900
    assert [output["part"] for output in data["outputs"]] == ["logs"]

    data = await data_of(response("r" * 3_000, *["l" * 700] * 4), place)
    assert [output["part"] for output in data["outputs"]] == ["result", "logs"]
    assert [one["code"] for one in data["diagnostics"]] == ["OUTPUT_KEPT"] * 2
    result_uri, logs_uri = (output["uri"] for output in data["outputs"])
    assert json.loads(await text_of(place, result_uri)) == "r" * 3_000
    assert [json.loads(line)["message"] for line in (await text_of(place, logs_uri)).splitlines()] == [
        "l" * 700
    ] * 4


async def test_a_failure_keeps_its_diagnostics_and_its_null(place: KeptOutputs) -> None:
    failed = Diagnostic(severity="error", code="UNCAUGHT", message="no")
    data = await data_of(response(None, "l" * 9_000, diagnostics=[failed]), place)
    assert data["result"] is None
    assert [one["code"] for one in data["diagnostics"]] == ["UNCAUGHT", "OUTPUT_KEPT"]
    shown, note = data["logs"]
    assert shown["message"] == "l" * 1_000 + "…"
    assert (note["level"], note["timeMs"]) == ("warn", 0) and "1 of 1 entries" in note["message"]


async def test_errors_and_both_ends_of_logs_are_shown(place: KeptOutputs) -> None:
    logs = [
        LogEntry(level="error" if number == 50 else "log", message=f"{number} {'x' * 100}", time_ms=number)
        for number in range(100)
    ]
    *shown, note = (await data_of(RunResponse(logs=logs, result=1, diagnostics=[]), place))["logs"]
    numbers = [entry["timeMs"] for entry in shown]
    assert numbers == sorted(numbers) and {0, 1, 50, 98, 99} <= set(numbers) and len(numbers) < 8
    assert f"{len(numbers)} of 100 entries" in note["message"]


async def test_a_lone_surrogate_is_what_json_has_for_it(place: KeptOutputs) -> None:
    data = await data_of(response("\ud800" * 1_000), place)
    assert data["result"].startswith('"\\ud800')
    assert json.loads(await text_of(place, data["outputs"][0]["uri"])) == "\ud800" * 1_000


async def test_many_short_entries_do_not_make_a_long_preview(place: KeptOutputs) -> None:
    data = await data_of(response(1, *[""] * 10_000), place)
    assert len(data["logs"]) < 25
    assert "10,000 entries" in data["logs"][-1]["message"]


async def test_without_a_place_or_need_responses_are_whole(place: KeptOutputs) -> None:
    for large, where in ((response("r" * 5_000), None), (response("r" * 1_500), place)):
        assert await data_of(large, where) == large.as_json()
    assert place.list_for(ME) == []


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
    result: Any = await tool_result(given, None, ME, declarations={"crm": "declare crm"}, form=form)
    (text,) = result.content
    return text.text, result.structured_content


CALLS = "calls:\ncrm.get 500 (5 failed)"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            busy({"a": [1, "é"]}, WARNING),
            '{"a":[1,"é"]}\n\nlogs:\n[warn] look\n\ndiagnostics:\nwarning NO_RESULT at a.js:1:2: nothing '
            f"Hint: Assign it.\n\n{CALLS}: no such row\n\ndeclarations:\ndeclare crm",
        ),
        (
            busy("line one\nline\u202e two"),
            f"line one\nline\\u202e two\n\nlogs:\n[warn] look\n\n{CALLS}: no such row\n\n"
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
    assert "calls:\ncrm.get 1\n" in said and "toolTrace" not in short


@pytest.mark.parametrize(("result", "is_told"), [(0, False), ([], False), ("", True), (None, True)])
@pytest.mark.parametrize("client", ["mcp", "claude-code"])
async def test_calls_are_told_where_one_has_failed_or_nothing_came_of_them(
    result: Any, is_told: bool, client: str
) -> None:
    """No text is empty. Else calls are in the whole response alone: a program's structured content, or by `trace`."""
    calls = [TraceEntry(server_id="crm", tool_name="get", duration_ms=1, ok=True)] * 3
    given = busy(result).model_copy(update={"tool_trace": calls, "failures": {}, "logs": []})
    said, beside = await shown(given, form_for(FrontendSettings(), client))
    told = "\n\ncalls:\ncrm.get 3" if is_told else ""
    first = json.dumps(result) if result != "" else ""
    assert said == (first + told + "\n\ndeclarations:\ndeclare crm").strip()
    if client == "mcp":
        assert len(beside["toolTrace"]) == 3 and "calls" not in beside
    else:
        assert beside.get("calls") == ({"crm.get": "3"} if is_told else None) and "toolTrace" not in beside
    for settings, trace in ((FrontendSettings(), "full"), (FrontendSettings(profile="strict"), None)):
        said, whole = await shown(given, form_for(settings, client, trace))
        assert json.loads(said)["toolTrace"] == whole["toolTrace"] == given.as_json()["toolTrace"]


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
    async with keeping(OutputSettings(), LocalStore(tmp_path)) as place:
        result: Any = await tool_result(given, place, ME, declarations={"crm": "d" * 15_000}, form=form)
    text, *links = result.content
    shown = text.text if client == "mcp" else json.dumps(result.structured_content)
    assert 20_000 < len(shown) < 75_000 and len(links) == 1 + has_result
    assert text.text.startswith("error UNCAUGHT") and "more diagnostics" in shown
    assert shown.count(PREFIX) >= 1 + has_result and "d" * 15_000 in shown
