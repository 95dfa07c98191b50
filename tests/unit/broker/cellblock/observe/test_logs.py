"""The log: the audit log beside it, what the SDK and the web server may write into it, and lines on their way to
private, bounded files."""

import hashlib
import io
import json
import logging
import stat
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any, Literal
from unittest.mock import Mock

import mcp
import pytest

from cellblock.base.errors import ConfigError
from cellblock.base.settings.settings import LogSettings, ServerConfig
from cellblock.observe import files
from cellblock.observe.audit import FILE_NAME, AuditLog, outlasting
from cellblock.observe.files import LineWriter, PrivateFile
from cellblock.observe.logs import (
    BURST,
    LIBRARIES,
    LINE_SECONDS,
    Tamed,
    heard_from,
    level_of,
    logging_as_configured,
    tame_libraries,
)
from cellblock.run.events import Decision
from support.memory_host import HostedRun, MakeWorld, Play, World


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, put back as it was."""
    logger = logging.getLogger()
    before, level = list(logger.handlers), logger.level
    yield logger
    logger.handlers[:] = before
    logger.setLevel(level)


def started(file: Path, **settings: Any) -> AbstractContextManager[None]:
    server = ServerConfig(command="x", env={"API_KEY": "hunter2-hunter2"})
    return logging_as_configured(LogSettings(file=file, **{"level": "info", **settings}), [server])


def test_secrets_are_taken_out_wherever_they_stand(
    root: logging.Logger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-api-key=exporter-key-1")
    for kind in ("text", "json"):
        with started(tmp_path / kind, format=kind):
            log = logging.getLogger("somebody")
            facts = {"facts": {"a": "hunter2-hunter2"}}
            log.info("key %s and %s", "hunter2-hunter2", "exporter-key-1", extra=facts)
            log.error("failed", exc_info=ValueError("hunter2-hunter2"))
        text = (tmp_path / kind).read_text()
        assert "hunter2" not in text and "exporter-key" not in text
        assert text.count("[redacted]") >= 3 and "ValueError" in text


def test_json_lines(root: logging.Logger, tmp_path: Path) -> None:
    with started(tmp_path / "log", format="json"):
        logging.getLogger("a.b").warning("two\nlines %d", 7, extra={"facts": {"run": "r1", "n": 3}})
    (line,) = (tmp_path / "log").read_text().splitlines()
    entry = json.loads(line)
    assert entry.pop("time").endswith("Z")
    assert entry == {"level": "warning", "logger": "a.b", "message": "two\nlines 7", "run": "r1", "n": 3}


def test_a_text_cannot_feign_another_entry(root: logging.Logger, tmp_path: Path) -> None:
    with started(tmp_path / "log"):
        logging.getLogger("a").error("name %s", "x\n2026-01-01 root ERROR all is well\x1b[2K")
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert "x\\n2026" in line and "\x1b" not in line


def test_a_wrong_log_call_breaks_nobody(
    root: logging.Logger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with started(tmp_path / "log"):
        logging.getLogger("a").error("%d", "no number")
        logging.getLogger("a").error("next")
    assert "next" in (tmp_path / "log").read_text()


def test_the_root_logger_is_put_back(root: logging.Logger, tmp_path: Path) -> None:
    known = logging.NullHandler()
    root.handlers[:] = [known]
    root.setLevel(logging.CRITICAL)
    level = logging.getLogger("mcp").level
    with pytest.raises(KeyError), started(tmp_path / "log", level="debug"):
        assert known not in root.handlers and root.level == logging.getLogger("mcp").level == logging.DEBUG
        raise KeyError
    assert (root.handlers, root.level, logging.getLogger("mcp").level) == ([known], logging.CRITICAL, level)


def test_the_environment_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CELLBLOCK_LOG", raising=False)
    assert level_of(LogSettings()) == logging.ERROR
    for said, level in (("debug", logging.DEBUG), ("nonsense", logging.WARNING)):
        monkeypatch.setenv("CELLBLOCK_LOG", said)
        assert level_of(LogSettings(level="warning")) == level


def test_stderr_is_the_default(root: logging.Logger, capfd: pytest.CaptureFixture[str]) -> None:
    with logging_as_configured(LogSettings(), []):
        logging.getLogger("a").error("here")
    assert "a ERROR here" in capfd.readouterr().err


CODE = 'const secret = "in the script";'


async def play(run: HostedRun) -> None:
    run.log("in the log")
    await run.call(1, value={"text": "in the input"})
    await run.call(2, tool="missing")
    run.done({"text": "in the result"}, wall_ms=7, cpu_ms=3, peak_bytes=4096)


async def lines_of(
    world: World, folder: Path, played: Play = play, *values: Literal["inputs", "outputs"]
) -> list[dict[str, Any]]:
    with closing(AuditLog(["calls", *values], folder)) as audit:
        world.events.add(audit)
        await world.host(played)
        assert (await world.run(CODE)).ok
    return [json.loads(line) for line in (folder / FILE_NAME).read_text().splitlines()]


async def test_who_ran_what_without_inputs_and_outputs(make_world: MakeWorld, tmp_path: Path) -> None:
    lines = await lines_of(make_world(), tmp_path)
    assert all(line["time"].endswith("Z") for line in lines)
    times = ("time", "accepted", "duration_ms", "elapsed_ms", "queue_ms")
    of_run = {"run": lines[0]["run"], "client": "default", "principal": "embedding"}
    echo = {**of_run, "server": "tools", "tool": "echo", "call": 1}
    missing = {**of_run, "server": "tools", "tool": "missing", "call": 2}
    assert [{key: value for key, value in line.items() if key not in times} for line in lines] == [
        {
            "event": "run",
            **of_run,
            "script_bytes": len(CODE),
            "script_sha256": hashlib.sha256(CODE.encode()).hexdigest(),
        },
        {"event": "call", **echo},
        {"event": "call_end", **echo, "ok": True, "certainty": "completed", "error": None},
        {"event": "call_end", **missing, "ok": False, "certainty": "not_started", "error": "no such tool"},
        {
            "event": "run_end",
            **of_run,
            **{"outcome": "ok", "worker_end": "finished", "tool_calls": 2, "failed_calls": 1},
            **{"wall_ms": 7, "cpu_ms": 3, "peak_memory_bytes": 4096},
        },
    ]


async def test_refusals_that_repeat_are_told_once_and_counted(make_world: MakeWorld, tmp_path: Path) -> None:
    async def refused(run: HostedRun) -> None:
        for number in range(1, 91, 3):
            await run.call(number, tool="missing")
            await run.call(number + 1, tool=f"made_up_{number}")
            await run.call(number + 2, value="no object")
        await run.call(91, value={"text": "harm"})
        run.done()

    lines = await lines_of(make_world(), tmp_path, refused)
    assert [line["event"] for line in lines] == [
        *("run", "call_end", "call_end", "call", "call_end", "refused", "refused", "run_end")
    ]
    counted = {line["tool"]: (line["calls"], line["error"]) for line in lines if line["event"] == "refused"}
    assert {tool: calls for tool, (calls, _) in counted.items()} == {"": 60, "echo": 30}
    assert lines[3]["call"] == lines[4]["call"] == 91 and lines[4]["certainty"] == "completed"


def test_a_flood_evicts_nobody_elses_calls_nor_its_own_by_refusals(tmp_path: Path) -> None:
    def line(number: int, principal: str, event: str = "call", **more: Any) -> bytes:
        return json.dumps({"time": number, "event": event, "principal": principal, **more}).encode() + b"\n"

    file = PrivateFile(tmp_path / FILE_NAME, max_bytes=20_000, keep=3, outlasting=outlasting)
    first = [line(1, "harmed"), line(2, "flooding", tool="harmful"), line(3, "", "decision")]
    file.write(b"".join(first))
    kept = b"".join(first).decode().splitlines()
    # Ten times what the log may hold.
    for number in range(10_000):
        file.write(line(number, "flooding", "call_end", certainty="not_started"))
    assert lines_in(tmp_path, FILE_NAME)[:3] == kept
    for number in range(10_000):
        file.write(line(number, "flooding"))
    file.close()
    lines = lines_in(tmp_path, FILE_NAME)
    assert kept[0] in lines and kept[2] in lines and kept[1] not in lines
    assert sum(one.stat().st_size for one in tmp_path.iterdir()) <= 4 * 20_000 + 10_000


async def test_inputs_and_outputs_where_asked_for(make_world: MakeWorld, tmp_path: Path) -> None:
    lines = await lines_of(make_world(), tmp_path, play, "inputs", "outputs")
    assert [{key: line[key] for key in ("script", "input", "output") if key in line} for line in lines] == [
        {"script": CODE},
        {"input": '{"text": "in the input"}'},
        {"output": '{"text":"in the input"}'},
        {},
        {"output": '{"text": "in the result"}'},
    ]


async def test_a_decision_is_a_line_of_its_own(world: World, tmp_path: Path) -> None:
    with closing(AuditLog([], tmp_path)) as audit:
        world.events.add(audit)
        world.events.decided(Decision(run="a1", verdict="accepted", calls=(1, 2), by="token"))
    (line,) = [json.loads(line) for line in (tmp_path / FILE_NAME).read_text().splitlines()]
    assert line.pop("time").endswith("Z")
    assert line == {"event": "decision", "run": "a1", "verdict": "accepted", "calls": [1, 2], "by": "token"}


async def test_long_values_are_cut_and_marked(
    make_world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellblock.observe.audit.MAX_VALUE_BYTES", 5)
    lines = await lines_of(make_world(), tmp_path, play, "inputs")
    assert (lines[0]["script"], lines[0]["script_cut"]) == ("const", len(CODE))


FOLDER = str(mcp.__file__).rpartition("/")[0]


@pytest.fixture
def log(root: logging.Logger) -> Iterator[io.StringIO]:
    """What an embedder's log has written, at its most curious."""
    written = io.StringIO()
    root.addHandler(logging.StreamHandler(written))
    root.setLevel(logging.DEBUG)
    # What other tests have logged counts no more.
    for name in [*logging.Logger.manager.loggerDict]:
        logger = logging.getLogger(name)
        logger.filters[:] = [known for known in logger.filters if not isinstance(known, Tamed)]
    tame_libraries()
    with heard_from(logging.NOTSET):
        yield written


def say(name: str, level: int, text: str, *, of: str = FOLDER, error: Exception | None = None) -> None:
    """A record as a module of the SDK makes it."""
    info = (type(error), error, None) if error else None
    logger = logging.getLogger(name)
    logger.handle(logger.makeRecord(name, level, f"{of}/client/x.py", 1, text, (), info))


@pytest.mark.parametrize(
    "name", ["mcp.client.streamable_http", "mcp.server.streamable_http_manager", "client"]
)
def test_they_are_heard_from_warnings_on_unless_somebody_asks(log: io.StringIO, name: str) -> None:
    say(name, logging.INFO, "Received session ID: s3cret")
    say(name, logging.DEBUG, "anything")
    assert log.getvalue() == ""
    say(name, logging.WARNING, "careful")
    logging.getLogger("mcp").setLevel(logging.INFO)
    say(name, logging.INFO, "Received session ID: s3cret")
    assert log.getvalue() == "careful\nReceived session ID: [redacted]\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Session 5f3a crashed", "Session [redacted] crashed"),
        ("Session 5f3a idle timeout", "Session [redacted] idle timeout"),
        ("Terminating session: a/b=c", "Terminating session: [redacted]"),
        (
            "Rejecting request for session x: credential does",
            "Rejecting request for session [redacted] credential does",
        ),
        ("Created new transport with session ID: abc", "Created new transport with session ID: [redacted]"),
        ("Session termination failed: 500", "Session termination failed: 500"),
        ("StreamableHTTP session manager started", "StreamableHTTP session manager started"),
        ("Session already exists, handling", "Session already exists, handling"),
    ],
)
def test_no_id_of_a_session_is_written(log: io.StringIO, text: str, shown: str) -> None:
    say("mcp.server.streamable_http_manager", logging.ERROR, text)
    assert log.getvalue() == f"{shown}\n"


def test_a_flood_is_some_lines_and_a_number(log: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    tamed = Tamed("mcp", FOLDER, lambda: now[0])
    monkeypatch.setattr(logging.getLogger("mcp.client.streamable_http"), "filters", [tamed])
    for number in range(1000):
        say(
            "mcp.client.streamable_http",
            logging.ERROR,
            f"Error {number}" + "x" * 5000,
            error=ValueError("a\n" * 999),
        )
    lines = log.getvalue().splitlines()
    assert len(lines) == BURST and len(log.getvalue()) < BURST * 1100
    assert lines[0].endswith("[cut]") and "Traceback" not in lines[0]
    now[0] = LINE_SECONDS
    say("mcp.client.streamable_http", logging.ERROR, "Error", error=ValueError("quoted"))
    assert log.getvalue().splitlines()[BURST:] == [f"Error (ValueError) ({1000 - BURST} more were left out)"]


def test_an_embedders_own_logger_of_that_name_is_its_own(log: io.StringIO) -> None:
    for number in range(100):
        say("client", logging.DEBUG, f"session {number}", of="/home/me/app")
    assert len(log.getvalue().splitlines()) == 100


@pytest.mark.usefixtures("log")
def test_every_logger_of_a_library_is_tamed_once() -> None:
    tame_libraries()
    names = [name for name in logging.Logger.manager.loggerDict if name.partition(".")[0] in LIBRARIES]
    assert {"mcp.client.stdio", "mcp.server.sse", "uvicorn.error", "httpx2"} <= set(names)
    tamed = [sum(isinstance(one, Tamed) for one in logging.getLogger(name).filters) for name in names]
    assert max(tamed) == 1


def lines_in(folder: Path, name: str = "log") -> list[str]:
    """All lines, the oldest file first."""
    found = sorted(folder.glob(f"{name}*"), key=lambda file: file.name, reverse=True)
    return [line for file in found for line in file.read_text().splitlines()]


def test_lines_come_in_order_and_the_files_stay_small_and_private(tmp_path: Path) -> None:
    file = PrivateFile(tmp_path / "log", max_bytes=4096, keep=2)
    with closing(LineWriter(file, "log", max_batch_bytes=512)) as writer:
        for number in range(2000):
            writer.put(lambda number=number: f"line {number}")
    kept = sorted(tmp_path.iterdir())
    assert [file.name for file in kept] == ["log", "log.1", "log.2"]
    assert all(file.stat().st_size <= 4096 and stat.S_IMODE(file.stat().st_mode) == 0o600 for file in kept)
    said = lines_in(tmp_path)
    assert said == [f"line {number}" for number in range(2000 - len(said), 2000)]
    assert len(said) > 500


def test_it_goes_on_where_the_last_one_stopped(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("old\n")
    (tmp_path / "log").chmod(0o644)
    with closing(LineWriter(PrivateFile(tmp_path / "log", max_bytes=4096, keep=1), "log")) as writer:
        writer.put(lambda: "new")
    assert lines_in(tmp_path) == ["old", "new"]
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o600


def test_it_follows_when_another_one_puts_the_file_aside(tmp_path: Path) -> None:
    one, two = (closing(PrivateFile(tmp_path / "log", max_bytes=4096, keep=3)) for _ in range(2))
    with one as here, two as there:
        for number in range(300):
            (here if number % 3 else there).write(b"%029d\n" % number)
    assert lines_in(tmp_path) == [f"{number:029}" for number in range(300)]
    assert all(file.stat().st_size <= 4096 for file in tmp_path.iterdir())


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "log").symlink_to(tmp_path / "victim")
    with pytest.raises(ConfigError, match=r"log is a symbolic link.*Move it away"):
        PrivateFile(tmp_path / "log", max_bytes=4096, keep=1)
    assert (tmp_path / "victim").read_text() == "precious"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    with (
        Path("/dev/full").open("wb", buffering=0) as full,
        closing(LineWriter(full, "the log", max_batch_bytes=8)) as writer,
    ):
        for _ in range(50):
            writer.put(lambda: "a line")
    assert capfd.readouterr().err == "cellblock: the log cannot be written: No space left on device\n"


def test_a_hung_disk_costs_lines_and_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "QUEUE_LINES", 10)
    go_on, taken = threading.Event(), threading.Event()
    written: list[bytes] = []

    class Hung:
        def write(self, data: bytes) -> None:
            taken.set()
            assert go_on.wait(20)
            written.append(data)

        def close(self) -> None:
            pass

    writer = LineWriter(Hung(), "the log")
    writer.put(lambda: "first")
    assert taken.wait(20)
    for _ in range(100):
        writer.put(lambda: "more")
    assert writer.dropped == 90
    go_on.set()
    writer.close()
    assert b"".join(written) == b"first\n" + 10 * b"more\n"


def test_a_line_that_cannot_be_made_ends_nothing(tmp_path: Path) -> None:
    with closing(LineWriter(PrivateFile(tmp_path / "log", max_bytes=4096, keep=1), "log")) as writer:
        writer.put(Mock(side_effect=ValueError("secret text")))
        writer.put(lambda: "\ud800 lone")
    assert lines_in(tmp_path) == ["a line could not be made: ValueError", "? lone"]
