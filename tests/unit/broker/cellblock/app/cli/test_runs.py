"""What people are shown: runs and tools. It fits, and its texts control nothing."""

import io
from typing import Any

import pytest

from cellblock.app.cli.runs import parts, title
from cellblock.app.cli.tools import search_text, tool_text
from cellblock.base.terminal import Painter, columns
from support.shown_runs import HOSTILE, bare, run_id, whole_run


def lines_of(heading: str, width: int = 100, **options: int | bool) -> list[str]:
    run = whole_run(**options)  # type: ignore[arg-type]
    return next(lines for name, lines in parts(run, width, Painter(None)).items() if name.startswith(heading))


@pytest.mark.parametrize("width", [1, 5, 20, 40, 80, 200])
@pytest.mark.parametrize("colours", [False, True])
@pytest.mark.parametrize("ended", [False, True])
def test_a_run_fits_any_window_and_its_texts_control_nothing(
    width: int, colours: bool, ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1" if colours else "")
    run = whole_run(logs=210, calls=510, ended=ended)
    shown = [line for lines in parts(run, width, Painter(io.StringIO())).values() for line in lines]
    assert colours == any("\x1b[" in line for line in shown)
    for line in shown:
        assert columns(bare(line)) <= width
        assert bare(line).isprintable()


def test_stages_and_calls_have_their_times() -> None:
    assert [" ".join(line.split()) for line in lines_of("TIMELINE", 100)[:6]] == [
        "AT TOOK OUTCOME",
        "plan 0.0 ms 100 ms",
        "queue 100 ms 100 ms",
        "worker 200 ms 100 ms",
        "script 300 ms 700 ms",
        "plain.tool0 500 ms 250 ms ok",
    ]


def test_a_failed_call_says_so_and_why() -> None:
    lines = lines_of("TIMELINE", 100)
    at = next(number for number, line in enumerate(lines) if "plain.tool2" in line)
    assert lines[at].endswith(" failed")
    assert "".join(lines[at + 1 :]).count("owned") == 1


def test_more_calls_than_are_kept_are_counted() -> None:
    assert lines_of("TIMELINE", 100, calls=510)[-1] == "  (10 later calls)"


def test_logs_are_whole_with_their_level_and_left_out_ones_are_counted() -> None:
    lines = lines_of("CONSOLE", 120, logs=201)
    assert lines[0] == "  log entries that are not shown: 1"
    assert "1 ms  warn  entry 1 " in lines[1]
    # The text's second line stands below, under the first.
    assert lines[2].strip() == "live ·gnp" and lines[2].index("live") == lines[1].index("entry")
    assert "entry 200" in lines[-2]


def test_a_narrow_window_shows_whole_texts() -> None:
    text = "".join(line.strip() for line in lines_of("CONSOLE", 20, logs=1))
    assert "entry 0 ·]0;owned" in text and "live ·gnp" in text
    text = "".join(line.strip() for line in lines_of("DIAGNOSTICS", 20))
    assert text.startswith("TOOL_ERROR: ·]0;owned")


def test_facts_and_nothing_to_say() -> None:
    text = "\n".join(lines_of("RUN"))
    assert "42 characters" in text and "CPU 12 ms" in text and "done" in text
    assert lines_of("DIAGNOSTICS", ended=False) == ["  none"]
    assert lines_of("CONSOLE", logs=0) == ["  nothing"]


def test_titles() -> None:
    assert title(run_id(7), whole_run()) == f"run {run_id(7)}: TOOL_ERROR, 1.0 s"
    assert HOSTILE not in title("x", whole_run())


def test_a_run_that_waits_says_so_and_has_no_times() -> None:
    call = {
        "server": "s",
        "tool": "t",
        "atMs": 0,
        "durationMs": 0,
        "outcome": "not_started",
        "error": "waits",
    }
    waits = {
        "state": "parked",
        "outcome": "parked",
        "steps": dict[str, float](),
        "timeline": [call],
        "calls": 1,
    }
    run: dict[str, Any] = whole_run() | waits
    assert title("x", run) == "run x: waits for you"
    shown = parts(run, 80, Painter(None))
    assert [line.split(maxsplit=1) for line in shown["RUN"][:2]] == [
        ["outcome", "waits for you"],
        ["state", "waits for you"],
    ]
    assert [" ".join(line.split()) for line in shown["TIMELINE (1 of 1 call)"][1:]] == [
        "s.t 0.0 ms <1 ms not sent",
        "waits",
    ]


HOSTILE_TOOL = {
    "serverId": "files",
    "toolName": "read\x1b[2Jfile",
    "exportName": "read_file",
    "module": "@codemode/servers/files",
    "description": "Reads.\nTwice \x1b]0;title\x07\u202e",
    "declaration": "/** Reads. */\nexport function read_file(): Promise<unknown>;\x9b2J\n",
    "note": "No output schema.",
    "warning": "Not as pinned\x1b[31m.",
    "examples": [{"input": {"a": "\x1b[0m"}}],
}


def test_one_tool() -> None:
    text = tool_text(HOSTILE_TOOL, Painter(None))
    assert all(char.isprintable() or char == "\n" for char in text)
    told = (
        "files.read",
        'import { read_file } from "@codemode/servers/files";',
        "No output schema.",
        "pinned",
    )
    assert all(part in text for part in told)


def test_results(monkeypatch: pytest.MonkeyPatch) -> None:
    text = search_text([HOSTILE_TOOL, {"serverId": "a", "toolName": "b"}], Painter(None))
    assert text.splitlines()[1] == "a.b"
    assert all(char.isprintable() or char == "\n" for char in text)
    assert search_text([], Painter(None)) == "nothing found"
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[1;36mb\x1b[0m" in search_text([{"serverId": "a", "toolName": "b"}], Painter(io.StringIO()))
