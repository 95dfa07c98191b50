"""Benchmarks: what they measure and compare. The hostile parts of `scripts/soak`: the watch sees a stall, neighbours
count from when they were due, servers and attacker do what they are there for, and words follow the figures."""

import asyncio
import contextlib
import http.server
import importlib
import io
import itertools
import json
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as bench
from benchmarks import client, harness, upgrade
from benchmarks import search as measuring
from benchmarks.hostile import loop_watch, neighbours, stage
from benchmarks.load import __main__ as load
from cellblock import Broker
from cellblock.types.search import SearchIndex
from security.native.harness import Native, let_loose
from soak import __main__ as soak
from support.entries import plain_server, settings
from support.responses import succeeded


def test_at_most_ten_are_listed_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main([]) == bench.main(["--help"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert [name for name, _ in (line.split(maxsplit=1) for line in lines)] == 2 * sorted(bench.NAMES)
    assert len(bench.NAMES) <= 10


def test_an_unknown_name_is_refused_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["speed"]) == 2
    assert "no measurement 'speed'" in capsys.readouterr().err


@pytest.mark.parametrize("name", bench.NAMES)
def test_each_explains_its_arguments(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        bench.main([name, "--help"])
    assert f"scripts/bench {name}" in capsys.readouterr().out
    doc = importlib.import_module(f"benchmarks.{name}").__doc__
    assert doc and doc.splitlines()[0].endswith((".", "?")), "its first line is its line in the list"


@pytest.mark.parametrize(
    ("name", "main"), [("loadtest", load.main), ("upgrade", upgrade.main), ("soak", soak.main)]
)
def test_so_do_the_others(
    name: str, main: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["--help"])
    assert f"usage: scripts/{name}" in capsys.readouterr().out


def test_turns_and_percentiles() -> None:
    order: list[str] = []
    found = harness.in_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 2)
    assert order == ["a", "b", "a", "b"] and {name: len(values) for name, values in found.items()} == {
        "a": 2,
        "b": 2,
    }
    assert harness.median_and(99, range(1, 101)) == (50.5, 100)
    assert harness.median_and(100, [3.0]) == (3.0, 3.0)


def test_a_missed_target_is_said_and_remembered(capsys: pytest.CaptureFixture[str]) -> None:
    targets = harness.Targets()
    met: list[bool] = []
    for what, measured in (("p50", 2.0), ("p99", 3.0), ("max", 1.0)):
        targets.judge(what, measured, 2.0, "ms")
        met.append(targets.are_met)
    assert met == [True, False, False]
    assert [line.rpartition("(")[2] for line in capsys.readouterr().out.splitlines()] == [
        "met)",
        "MISSED)",
        "met)",
    ]


def test_a_result_is_written_as_data_and_as_a_page(tmp_path: Path) -> None:
    files = harness.write(tmp_path / "new", "soak", {"a": 1}, "# Soak\n")
    assert [file.name for file in files] == ["soak.json", "soak.md"]
    assert all(file.read_text("utf-8") for file in files)


@pytest.mark.thorough
@pytest.mark.slow
def test_a_daemon_is_started_and_ended_and_one_that_does_not_start_says_why(tmp_path: Path) -> None:
    config = harness.configured(tmp_path, {"plain": plain_server()})
    with harness.daemon(config, tmp_path / "s") as served:
        assert served.token and served.port and served.process.poll() is None
    assert served.process.returncode == 0
    config.write_text("{", "utf-8")
    with pytest.raises(RuntimeError, match="did not start"), harness.daemon(config, tmp_path / "s"):
        pass


def half(held_out: bool) -> list[Any]:
    return [query for query in measuring.read_queries() if query.held_out is held_out]


SETS = {
    "tuned": (measuring.FOLDERS, half(False)),
    "held out": (measuring.FOLDERS, half(True)),
    "servers that came later": ((*measuring.FOLDERS, measuring.FRESH), measuring.read_queries("fresh")),
    "an outsider's": ((measuring.OUTSIDE,), measuring.read_queries("outside")),
}


def test_queries_are_sound() -> None:
    servers = measuring.read_catalog((*measuring.FOLDERS, measuring.FRESH, measuring.OUTSIDE)).servers
    tools = {f"{name}.{tool.tool_name}" for name, server in servers.items() for tool in server.tools}
    main = measuring.read_queries()
    asked = {tool.partition(".")[0] for query in main for tool in query.tools}
    assert len(main) >= 200 and len(asked) >= 12
    assert min(len(half(held_out)) for held_out in (False, True)) >= 0.45 * len(main)
    everything = [query for name in ("relevance", "seen", "fresh") for query in measuring.read_queries(name)]
    assert len({query.text for query in everything}) == len(everything)
    outside = measuring.read_queries("outside")
    asked = {tool.partition(".")[0] for query in outside for tool in query.tools}
    assert len({query.text for query in outside}) == len(outside) >= 100 and len(asked) >= 12
    assert all(query.tools and query.tools <= tools for query in [*everything, *outside])


@pytest.mark.parametrize(("folders", "queries"), SETS.values(), ids=SETS)
def test_search_finds_more_than_plain_fts5(folders: Any, queries: list[Any]) -> None:
    catalog = measuring.read_catalog(folders)
    search = measuring.within(measuring.search_rank(SearchIndex(catalog)), queries, 3)
    with measuring.plain_fts5(catalog, "unicode61") as plain:
        assert search >= measuring.within(plain, queries, 3) + measuring.MARGIN


HELD_SECONDS = 0.3


async def test_the_watch_sees_how_long_its_loop_was_held(tmp_path: Path) -> None:
    file = io.StringIO()
    loop_watch.LoopWatch(file).begin(asyncio.get_running_loop())
    begin = time.monotonic()
    await asyncio.sleep(0.02)
    time.sleep(HELD_SECONDS)  # noqa: ASYNC251 - the very point
    await asyncio.sleep(0.02)
    end = time.monotonic()
    written = tmp_path / "stalls"
    written.write_text(file.getvalue(), "ascii")
    assert max(stall.seconds for stall in loop_watch.stalls(written, begin, end)) > HELD_SECONDS / 2
    assert loop_watch.stalls(written, end + 1, end + 2) == []


@contextlib.contextmanager
def answering(result: Callable[[], Any]) -> Generator[int]:
    """The port of a server that answers every run with what `result` gives for it."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            response = {"result": {"structuredContent": {"result": result(), "diagnostics": []}}}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(response).encode())

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def slow_once() -> Callable[[], int]:
    """Gives the right result of every run, after its first has held all for `HELD_SECONDS`."""
    asked, free = threading.Event(), threading.Event()

    def result() -> int:
        if not asked.is_set():
            asked.set()
            time.sleep(HELD_SECONDS)
            free.set()
        free.wait()
        return 1

    return result


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the neighbours have addresses of 127.0.1.0/24"
)
def test_neighbours_count_from_when_a_run_was_due() -> None:
    with answering(slow_once()) as port:
        found = neighbours.visit(port, "token", runs=12, rate=100.0)
    assert (found.took.count, found.failures, found.unsent) == (12, [], 0)
    # Four were sent and held; those that were due meanwhile have waited as well, though their answers came at once.
    waited = [ms for ms in (found.took.at(percentile) for percentile in (25, 50, 75)) if ms > 100]
    assert len(waited) == 3, found.as_json()
    assert found.sent.at(50) < found.took.at(50)


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the neighbours have addresses of 127.0.1.0/24"
)
def test_neighbours_go_on_until_enough_runs_count() -> None:
    numbers = itertools.count()
    with answering(lambda: [neighbours.NATIVE] if next(numbers) % 3 else 1) as port:
        found = neighbours.visit(port, "token", runs=20, rate=1000.0)
    assert (found.took.count, found.failures, found.unsent) == (20, [], 0)
    assert found.others >= 36


@pytest.mark.slow
@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the neighbours have addresses of 127.0.1.0/24"
)
def test_neighbours_are_served_by_a_daemon_without_servers(tmp_path: Path) -> None:
    with harness.daemon(harness.configured(tmp_path), tmp_path / "s") as daemon:
        found = neighbours.visit(daemon.port, daemon.token, runs=4, rate=100.0)
    assert (found.took.count, found.failures, found.unsent) == (4, [], 0)


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["stdio", "http", "sse"])
async def test_a_hostile_server_is_one_and_gives_what_it_is_asked_for(transport: str, tmp_path: Path) -> None:
    code = """
        import * as evil from "@codemode/servers/evil";
        await evil.take({ values: [1, 2] });
        globalThis.__codemode_result__ = (await evil.results({})).rows.length;
    """
    with stage.upstream(transport, tmp_path / "go", "--bytes", "30000") as entry:
        async with Broker(
            settings(tmp_path / "state", {"evil": entry}, pool={"warm": 1}, isolation="off")
        ) as broker:
            await broker.settled()
            assert succeeded(await broker.run(code)) == 10_000


async def test_the_attacker_sends_notices_of_the_size_it_is_told(native_workers: Native) -> None:
    _, owner = await let_loose(("notices", 2, 3_001))
    await owner.end()
    notices = [body for header, body in owner.said if header["t"] == "notice"]
    assert [json.loads(body) for body in notices] == [[[]] * 1_000] * 2


@pytest.mark.parametrize("events", [False, True])
def test_a_response_is_found_in_json_and_in_events(events: bool) -> None:
    data = json.dumps({"result": {"structuredContent": {"result": 3}}}).encode()
    body = b"event: message\r\ndata: " + data + b"\r\n\r\n" if events else data
    assert client.response_in(body) == {"result": 3}
    with pytest.raises(ValueError, match="no response"):
        client.response_in(b'{"error": {}}')


def test_words_follow_the_figures() -> None:
    good = {"p99_ms": 60.0, "stall_ms": 100.0, "peak_mib": {"broker": 399.0}}
    assert set(neighbours.verdicts(good, 0, 0).values()) == {"met"}
    assert list(neighbours.verdicts(good, 0, 1).values()) == ["not met", "met", "met"]
    bad = {"p99_ms": 61.0, "stall_ms": 101.0, "peak_mib": {"broker": 400.0}}
    assert set(neighbours.verdicts(bad, 0, 0).values()) == {"not met"}
