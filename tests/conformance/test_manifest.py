"""The suite itself: every MUST has a test, every SHOULD a test or an argument, and the table is current."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from support.clauses import load_manifest, mapping_of, render

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TABLE = ROOT / "docs" / "conformance.md"


def pytest_run(*arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    """A pytest process of its own, in the checkout."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), **env}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=100)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The table of what can be collected in this folder, whatever the present run has selected."""
    file = tmp_path_factory.mktemp("table") / "conformance.md"
    done = pytest_run(HERE, "--collect-only", "-q", "-q", "--clauses-table", file)
    assert done.returncode == 0, done.stdout + done.stderr
    return file.read_text(encoding="utf-8")


def by_clause(rows: Iterable[str]) -> dict[str, list[str]]:
    """Clause to its tests, read back from the table's rows."""
    return {row.split("**")[1]: re.findall(r"`([^`]+::[^`]+)`", row) for row in rows}


def test_every_clause_is_proven_or_argued(table: str) -> None:
    """M rows need a test; S rows a test or an exemption; nothing that is tested is exempt."""
    tests = by_clause(mapping_of(table))
    for clause in load_manifest().values():
        if clause.exempt is not None:
            assert clause.level == "S" and len(clause.exempt) > 20, clause
            assert not tests[clause.id], f"{clause.id} is exempt and has tests"
        else:
            assert tests[clause.id], f"no test names {clause.id}: {clause.text}"


def test_the_manifest_is_well_formed() -> None:
    """Unique ids in the order of the specification, levels M and S, and a text each."""
    rows = json.loads((ROOT / "tests" / "requirements.json").read_text(encoding="utf-8"))
    ids = [row["id"] for row in rows]
    assert len(set(ids)) == len(ids) == 78
    assert {row["level"] for row in rows} == {"M", "S"}
    assert all(set(row) <= {"id", "level", "text", "exempt"} and row["text"] for row in rows)


def test_the_table_in_the_documentation_is_current(table: str) -> None:
    """`scripts/conformance` rewrites it."""
    assert mapping_of(TABLE.read_text(encoding="utf-8")) == mapping_of(table)


def test_an_unknown_clause_fails_the_collection(tmp_path: Path) -> None:
    """And says which test named what."""
    file = tmp_path / "test_sample.py"
    file.write_text(
        'import pytest\n@pytest.mark.clause("2.1", "99.z")\ndef test_it(): pass\n', encoding="utf-8"
    )
    words = ("-p", "support.clauses", "--rootdir", tmp_path, "-c", os.devnull, file)
    done = pytest_run(*words, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout + done.stderr
    assert "'99.z'" in done.stdout + done.stderr and "test_it" in done.stdout + done.stderr


def test_outcomes_are_told_as_they_were() -> None:
    """A failing or skipped test shows in the table."""
    manifest = load_manifest()
    tests = {"2.1": ["test_a.py::test_x", "test_a.py::test_y"], "1.4": ["test_a.py::test_z"]}
    text = render(
        manifest,
        tests,
        {"test_a.py::test_x": "passed", "test_a.py::test_y": "failed", "test_a.py::test_z": "passed"},
    )
    rows = {row.split("**")[1]: row for row in text.splitlines() if row.startswith("- **")}
    assert rows["2.1"].endswith("failed: `test_a.py::test_y`")
    assert rows["1.4"].endswith("(`test_a.py::test_z`)")
