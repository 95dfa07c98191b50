"""Programs that have Cellblock as a library: one that embeds it passes both type checkers at their strictest, and runs;
and a pytest of its own, in another folder, with recordings that are replayed and that are not.
"""

import json
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from cellblock import Broker, tool
from cellblock.testing import read_recording, record, write_recording
from support.entries import write_config
from support.waits import within

pytestmark = pytest.mark.thorough

SERVICE = Path(__file__).parents[1] / "consumer" / "service.py"
WRONG = 'from cellblock import Broker\nbroker: Broker = Broker.from_config("x", tools=3)\nbroker.runs()\n'


def ran(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    done = [sys.executable, "-m", *command]
    return subprocess.run(done, cwd=cwd, capture_output=True, text=True, timeout=280, check=False)


@pytest.fixture
def checked(tmp_path: Path) -> Path:
    """A folder with the program, and beside it one that is wrong."""
    (tmp_path / "service.py").write_text(SERVICE.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "wrong.py").write_text(WRONG, encoding="utf-8")
    return tmp_path


@pytest.mark.slow
def test_mypy_finds_nothing_in_it_and_what_is_wrong_elsewhere(checked: Path) -> None:
    done = ran("mypy", "--strict", "--cache-dir", "cache", "service.py", "wrong.py", cwd=checked)
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert [line.partition(":")[0] for line in errors] == ["wrong.py", "wrong.py"], done.stdout + done.stderr
    assert "[arg-type]" in errors[0] and "[attr-defined]" in errors[1]


@pytest.mark.slow
def test_pyright_finds_nothing_in_it_and_what_is_wrong_elsewhere(checked: Path) -> None:
    settings = {"typeCheckingMode": "strict", "include": ["."]}
    (checked / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    done = ran("pyright", "--outputjson", "--pythonpath", sys.executable, cwd=checked)
    found = [(Path(one["file"]).name, one["rule"]) for one in json.loads(done.stdout)["generalDiagnostics"]]
    assert {name for name, _ in found} == {"wrong.py"}, done.stdout
    assert {"reportArgumentType", "reportAttributeAccessIssue"} <= {rule for _, rule in found}


def test_it_runs(tmp_path: Path) -> None:
    config = write_config(tmp_path, {}, state_dir=str(tmp_path / "state"))
    command = [sys.executable, str(SERVICE), str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    first, *between, last = done.stdout.splitlines()
    assert (first, sorted(between), last) == (
        "['buy', 'price']",
        ["buy True", "log 55", "price True"],
        "165 ['default local.price: completed', 'default local.buy: completed']",
    )


PLUGIN = "cellblock.testing_plugin"
ROOT = Path(__file__).parents[2]

SCRIPT = """import { price } from "@codemode/servers/local";
globalThis.__codemode_result__ = { tea: (await price({ item: "tea" })).result, at: Date.now() };
"""
TESTS = """
from cellblock.testing import read_recording

def test_same(cellrun):
    assert cellrun("good.cellrun").response.result["tea"] == 3.5

async def asynchronously(cellrun):
    assert cellrun("good.cellrun").same

def test_in_a_loop(cellrun):
    import asyncio
    asyncio.run(asynchronously(cellrun))

def test_until(cellrun):
    assert cellrun("good.cellrun", until=1).response.result is None

def test_fixed(cellrun):
    script = read_recording(__file__.replace("test_runs.py", "good.cellrun")).code
    assert cellrun("good.cellrun", script=script.replace("tea:", "cup:")).response.result["cup"] == 3.5

def test_differs(cellrun):
    cellrun("changed.cellrun")

def test_diverges(cellrun):
    cellrun("good.cellrun", script='import { price } from "@codemode/servers/local"; await price({ item: "milk" });')
"""


@tool()
def price(item: str) -> float:
    """Says what something costs."""
    return 3.5


def pytest_said(folder: Path) -> str:
    done = ran("pytest", "-p", PLUGIN, "-p", "no:cacheprovider", "--no-header", "-q", cwd=folder)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


async def test_tests_replay_recordings(tmp_path: Path) -> None:
    async with Broker.from_config(None, tools=[price]) as broker:
        _, recording = await within(record(broker, SCRIPT))
    write_recording(recording, tmp_path / "good.cellrun")
    result = recording.response["result"] | {"tea": 4}
    write_recording(
        replace(recording, response=recording.response | {"result": result}), tmp_path / "changed.cellrun"
    )
    assert read_recording(tmp_path / "good.cellrun") == recording
    (tmp_path / "test_runs.py").write_text(TESTS)
    said = pytest_said(tmp_path)
    assert "2 failed, 4 passed" in said, said
    assert "changed.cellrun does not come to the recorded response:\n  /result/tea\n" in said
    assert "    recorded: 4\n    replayed: 3.5" in said
    assert "good.cellrun fails with the other script:\n  REPLAY_DIVERGED at script.js:1:" in said


def test_who_does_not_use_it_pays_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(
        "import sys\n\ndef test_light():\n    assert 'cellblock.app.broker' not in sys.modules\n"
    )
    assert "1 passed" in pytest_said(tmp_path)


def test_the_distribution_names_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    # Under the module's own name: `-p` with it finds the same plugin.
    assert project["entry-points"]["pytest11"] == {PLUGIN: PLUGIN}
