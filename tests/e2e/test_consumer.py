"""A program that embeds Cellblock passes both type checkers at their strictest, and runs."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.entries import write_config

pytestmark = pytest.mark.thorough

SERVICE = Path(__file__).parents[1] / "consumer" / "service.py"
WRONG = 'from cellblock import Broker\nbroker: Broker = Broker.from_config("x", tools=3)\nbroker.runs()\n'


def ran(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    done = [sys.executable, "-m", *command]
    return subprocess.run(done, cwd=cwd, capture_output=True, text=True, timeout=110, check=False)


@pytest.mark.slow
def test_mypy_finds_nothing_in_it_and_what_is_wrong_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "service.py").write_text(SERVICE.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "wrong.py").write_text(WRONG, encoding="utf-8")
    cache = str(tmp_path / "cache")
    done = ran("mypy", "--strict", "--cache-dir", cache, "service.py", "wrong.py", cwd=tmp_path)
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert [line.partition(":")[0] for line in errors] == ["wrong.py", "wrong.py"], done.stdout + done.stderr
    assert "[arg-type]" in errors[0] and "[attr-defined]" in errors[1]


@pytest.mark.slow
def test_pyright_finds_nothing_in_it_and_what_is_wrong_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "service.py").write_text(SERVICE.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "wrong.py").write_text(WRONG, encoding="utf-8")
    settings = {"typeCheckingMode": "strict", "include": ["."]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    done = ran("pyright", "--outputjson", "--pythonpath", sys.executable, cwd=tmp_path)
    found = [(Path(one["file"]).name, one["rule"]) for one in json.loads(done.stdout)["generalDiagnostics"]]
    assert {name for name, _ in found} == {"wrong.py"}, done.stdout
    assert {"reportArgumentType", "reportAttributeAccessIssue"} <= {rule for _, rule in found}


async def test_it_runs(tmp_path: Path) -> None:
    config = write_config(tmp_path, {}, state_dir=str(tmp_path / "state"))
    command = [sys.executable, str(SERVICE), str(config)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "['buy', 'price']"
    assert sorted(lines[1:-1]) == ["buy True", "log 55", "price True"]
    assert lines[-1] == "165 ['default local.price: completed', 'default local.buy: completed']"
