"""Benchmarks: what they measure and compare. Load tests; of `--peers`: what became of a system that ran a loop is
told, and one that is missing is a row. The hostile parts of `scripts/soak`: the watch sees a stall, neighbours count
from when they were due, servers and attacker do what they are there for, and words follow the figures."""

import asyncio
import contextlib
import importlib
import io
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks import __main__ as bench, client, harness, search as measuring, upgrade
from benchmarks.drive import LEAD_SECONDS, Outcome, closed, paced
from benchmarks.hostile import loop_watch, neighbours, stage
from benchmarks.load import __main__ as load, fronts, sweep, targets
from benchmarks.load.scenarios import BODIES, NO_IMPORT, ROWS, SCRIPTS, TRIVIAL, Scenario
from benchmarks.load.yardsticks import BareDeno
from benchmarks.peers import measure, report
from benchmarks.peers.hostile import LOOPS, try_loop
from benchmarks.peers.process import Gone, Peer
from cellblock import Broker
from cellblock.types.search import SearchIndex
from security.native.harness import Native, let_loose
from soak import __main__ as soak
from support.documents import ROOT
from support.entries import plain_server, settings
from support.http_server import Answering, serving
from support.responses import succeeded
from support.virtual_time import in_virtual_time


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

    class Handler(Answering):
        def do_POST(self) -> None:
            self.body()
            response = {"result": {"structuredContent": {"result": result(), "diagnostics": []}}}
            self.answer(200, json.dumps(response).encode())

    with serving(Handler) as address:
        yield int(address.partition(":")[2])


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


def test_an_earlier_result_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert load.main(["--result", str(ROOT / "docs/benchmarks/load-2026-12-01.json")]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("# Load test") and "## Targets" in shown


def test_a_file_that_is_no_result_is_refused_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.json").write_text("[]")
    for name, said in (
        ("none.json", "cannot be read"),
        ("other.json", "is no JSON result of scripts/loadtest"),
    ):
        with pytest.raises(SystemExit, match=r"^2$"):
            load.main(["--result", str(tmp_path / name)])
        output, errors = capsys.readouterr()
        assert output == "" and f"{tmp_path / name} {said}" in errors


async def test_the_bare_process_gives_what_each_script_gives(tmp_path: Path) -> None:
    bare = BareDeno(tmp_path)
    for scenario in (NO_IMPORT, *SCRIPTS.values()):
        assert (await bare.run(scenario))["result"] == scenario.gives, scenario.name


async def test_a_paced_client_that_still_waits_misses_its_turns() -> None:
    async def work(_: int) -> None:
        await asyncio.sleep(0.1)

    outcome = await paced(work, clients=2, period=0.01, seconds=0.2)
    # Twenty were due of each client.
    assert 2 <= outcome.latencies.count <= 6 and outcome.latencies.at(0) >= 90


def test_a_closed_load_is_not_credited_with_what_was_booted_before_it() -> None:
    booted, ends = 8, list[float]()

    async def work(_: int) -> dict[str, Any]:
        nonlocal booted
        booted -= 1
        await asyncio.sleep(0 if booted >= 0 else 0.02)
        return {"usage": {"cpuMs": 3}}

    async def whole() -> Outcome:
        outcome = Outcome()
        outcome.edge = lambda: ends.append(asyncio.get_running_loop().time())
        return await closed(work, clients=2, seconds=0.4, lead=LEAD_SECONDS, outcome=outcome)

    outcome = in_virtual_time(whole())
    assert outcome.latencies.at(0) == pytest.approx(20, rel=0.01)
    assert outcome.per_second == pytest.approx(100) and outcome.seconds == pytest.approx(0.4)
    assert ends == pytest.approx([LEAD_SECONDS, LEAD_SECONDS + 0.4])
    assert outcome.worker_ms == 3 * outcome.latencies.count


def test_a_cell_gives_the_median_of_its_rounds_and_the_sum_of_what_is_counted() -> None:
    turns = [
        {"per_second": rate, "seconds": 2.0, "latency": {"p50_ms": p50, "count": 10, "points": [[50, p50]]}}
        for rate, p50 in ((90.0, 4.0), (10.0, 99.0), (100.0, 3.0))
    ]
    assert sweep.medians(turns) == {
        "per_second": 90.0,
        "seconds": 6.0,
        "latency": {"p50_ms": 4.0, "count": 30, "points": [[50, 4.0]]},
    }


class Counting:
    """A way that takes 20 ms for a run, and tells what is asked of it."""

    pid = 0

    def __init__(self, name: str, told: list[str]) -> None:
        self.name, self._told = name, told

    async def run(self, scenario: Scenario, *, client: str = "") -> dict[str, Any]:
        if self._told[-1:] != [self.name]:
            self._told.append(self.name)
        await asyncio.sleep(0.02)
        return {"result": scenario.gives, "diagnostics": []}

    async def rested(self) -> None:
        self._told.append(f"{self.name} has rested")


def test_a_way_has_rested_before_the_next_ones_turn() -> None:
    told: list[str] = []
    ways = {name: Counting(name, told) for name in (sweep.BARE, "never")}
    work = sweep.measure(ways, quick=False, say=told.append, among=lambda: iter([sweep.SATURATED]))
    (bare, never) = in_virtual_time(work)
    one_round = [sweep.BARE, f"{sweep.BARE} has rested", "never", "never has rested"]
    # The first line says which cell it is; each way then runs once, so that it has compiled the script.
    assert told[1:] == [sweep.BARE, "never", *one_round * 3]
    assert [len(row["rounds"]) for row in (bare, never)] == [3, 3]
    assert bare["per_second"] == pytest.approx(400, rel=0.05)


async def test_the_brokers_cpu_is_without_what_the_harness_takes_itself() -> None:
    """The load's answers are made to cost the harness 100 milliseconds each."""

    class Answer:
        def as_json(self) -> dict[str, Any]:
            until = time.thread_time() + 0.1
            while time.thread_time() < until:
                pass
            return {"result": TRIVIAL.gives, "diagnostics": [], "usage": {"cpuMs": 1}}

    class Daemon:
        host_pid = None

        async def run(self, *_: Any, **__: Any) -> Answer:
            await asyncio.sleep(0)
            return Answer()

    row = await sweep.turn(fronts.Embedded(cast("Any", Daemon())), sweep.WARM, 0.06, lambda _: None)
    assert row["latency"]["count"] > 0 and row["cpu_ms"]["worker"] == 1
    assert row["cpu_ms"]["broker"] < 100


@pytest.mark.slow
async def test_an_embedded_broker_has_rested_when_its_workers_are_replaced(tmp_path: Path) -> None:
    async with fronts.embedded(tmp_path) as front:
        await asyncio.gather(*(front.run(TRIVIAL) for _ in range(6)))
        await front.rested()
        assert front.broker.warm_workers >= front.broker.settings.cellblock.pool.warm


@pytest.mark.parametrize(("mode", "warm_ms", "met"), [("never", 3.0, True), ("principal", 7.0, False)])
def test_targets_come_from_the_load_beside_the_bare_process(mode: str, warm_ms: float, met: bool) -> None:
    def row(cell: sweep.Cell, way: str, per_second: float, p50: float) -> dict[str, Any]:
        latency = {"p50_ms": p50, "p99_ms": 2 * p50}
        cpu = {"broker": 1.1, "host": 2.0, "worker": 2.0}
        return {"way": way, **sweep.key(cell), "per_second": per_second, "latency": latency, "cpu_ms": cpu}

    rows = [row(cell, way, *figures) for cell in sweep.cells() for way, figures in
            ((sweep.BARE, (125.0, 20.0)), (mode, (100.0, warm_ms)))]  # fmt: skip
    found = targets.of_sweep(rows, mode)
    by_what = {one.what.removesuffix("; reuse principal"): one for one in found}
    for what, measured in (
        ("warm p50 / bare deno p50", warm_ms / 20),
        ("bare rate / runs per second, 8 clients", 1.25),
    ):
        assert (by_what[what].measured, by_what[what].met) == (pytest.approx(measured), met)
    assert any(one.number == "2c" for one in found) == (mode == "principal")


SYSTEM = """
import asyncio, os, threading
from serve import serve

async def run(code):
    if code == "die":
        os._exit(3)
    if code == "hang":
        await asyncio.Event().wait()
    if code == "refuse":
        raise ValueError("not with me")
    if code == "compute":
        threading.Thread(target=spin, daemon=True).start()
    if code == "lose":
        lost.append(0)
        return 0
    return lost.pop() if lost else 499500

def spin():
    while True:
        pass

lost = []
asyncio.run(serve(run))
"""


async def start(folder: Path, program: str = SYSTEM) -> Peer:
    (folder / "rows.json").write_text(json.dumps(ROWS[:1]), "utf-8")
    (folder / "peer.py").write_text(program, "utf-8")
    systems = Path(measure.__file__).parent / "systems"
    environment = {"PYTHONPATH": str(systems), "PATH": os.environ["PATH"]}
    return await Peer.start(
        [sys.executable, "peer.py", "rows.json", "1000"], environment, folder, folder / "log"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loop", "verdict", "computing", "said"),
    [
        ("refuse", "survived", False, "ValueError: not with me"),
        ("compute", "survived", True, ""),
        ("die", "died", False, "exit code 3"),
        ("lose", "died", False, "answered a trivial run with"),
    ],
)
async def test_what_became_of_a_system(
    tmp_path: Path, loop: str, verdict: str, computing: bool, said: str
) -> None:
    found = await try_loop(lambda: start(tmp_path), loop, "trivial", bound=60.0)
    assert (found["verdict"], found["computing"]) == (verdict, computing) and said in found["said"]
    assert (found["neighbour_s"] is not None) == (verdict == "survived")


@pytest.mark.slow
async def test_a_system_that_does_not_answer_hangs_and_still_serves_its_neighbour(tmp_path: Path) -> None:
    found = await try_loop(lambda: start(tmp_path), "hang", "trivial", bound=5.0)
    assert found["verdict"] == "hung"


async def test_one_that_does_not_start_says_its_own_words(tmp_path: Path) -> None:
    with pytest.raises(Gone, match=r"exit code 1: ImportError: no such addon"):
        await start(tmp_path, "raise ImportError('no such addon')")


def test_a_row_for_each_system_and_the_reason_of_a_missing_one() -> None:
    def load(system: str, per_second: float) -> list[dict[str, Any]]:
        latency = {"count": 1, "p50_ms": 1.5}
        return [
            {"system": system, "scenario": name, "clients": n, "per_second": per_second, "latency": latency}
            for name in BODIES
            for n in measure.CLIENTS
        ]

    survived = {"verdict": "survived", "seconds": 2.0, "computing": False, "neighbour_s": 0.01, "said": ""}
    hung = {"verdict": "hung", "computing": False, "neighbour_s": None}
    row = {"version": "1.0", "isolates": "a wall", "missing": None}
    result = {
        "machine": {
            "date": "2026-11-24T00:00", "cores": 2, "memory_gib": 1, "system": "", "python": "", "deno": "",
            "load_average_before": [],
        },
        "quick": True,
        "systems": [{**row, "name": "slow"}, {**row, "name": "fast"}, {**row, "name": "none", "missing": "no addon"}],
        "load": [*load("slow", 10), *load("fast", 900)],
        "loops": [{"system": "slow", "loop": loop, **survived} for loop in LOOPS]
        + [{"system": "fast", "loop": loop, **hung} for loop in LOOPS],
    }  # fmt: skip
    text = report.markdown(result)
    assert "| none | 1.0 | a wall | no addon |" in text
    assert f"| fast |{' 900 |' * len(BODIES)}" in text
    assert f"| fast |{' **hung**; neighbour not answered |' * len(LOOPS)}" in text
    assert f"| slow |{' survived, 2.0 s; neighbour 0.01 s |' * len(LOOPS)}" in text
