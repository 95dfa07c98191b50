"""Benchmarks: what they measure and compare."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as bench
from benchmarks import harness, upgrade
from benchmarks import search as measuring
from benchmarks.load import __main__ as load
from cellblock.types.search import SearchIndex
from soak import __main__ as soak
from support.entries import plain_server


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
