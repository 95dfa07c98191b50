"""`scripts/bench` lists what it can measure, and each of it says what its arguments are."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from benchmarks import __main__ as bench
from benchmarks import harness

NAMES = bench.measurements()


def test_all_are_listed_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main([]) == bench.main(["--help"]) == 0
    out = capsys.readouterr().out
    listed = {
        line.split()[0]: line.split(maxsplit=1)[1] for line in out.splitlines() if line.startswith("  ")
    }
    assert list(listed) == list(NAMES) and {"caps", "hostile", "load", "store"} <= listed.keys()


def test_an_unknown_name_is_refused_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["speed"]) == 2
    assert "no measurement 'speed'" in capsys.readouterr().err


@pytest.mark.parametrize("name", NAMES)
def test_each_explains_its_arguments(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.main([name, "--help"])
    assert ended.value.code == 0
    assert f"scripts/{'loadtest' if name == 'load' else f'bench {name}'}" in capsys.readouterr().out


def test_every_line_stands_alone() -> None:
    for name, file in NAMES.items():
        package = "" if file.parent == bench.HERE else ".__main__"
        doc = importlib.import_module(f"benchmarks.{name}{package}").__doc__
        assert doc and doc.splitlines()[0].endswith("."), f"{file}: its first line is its line in the list"


def test_turns_and_percentiles() -> None:
    order: list[str] = []
    found = harness.in_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 2)
    assert order == ["a", "b", "a", "b"] and {name: len(values) for name, values in found.items()} == {
        "a": 2,
        "b": 2,
    }
    assert harness.median_and(99, range(1, 101)) == (50.5, 100)
    assert harness.median_and(100, [3.0]) == (3.0, 3.0)


def test_a_result_is_written_with_its_pictures(tmp_path: Path) -> None:
    files = harness.write(tmp_path / "new", "soak", {"a": 1}, "# Soak\n", _="<svg/>", tail="<svg/>")
    assert [file.name for file in files] == ["soak.json", "soak.md", "soak.svg", "soak-tail.svg"]
    assert all(file.read_text("utf-8") for file in files)
