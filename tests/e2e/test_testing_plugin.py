"""The pytest plugin: a pytest of its own, in another folder, with recordings that are replayed and that are not."""

import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from cellblock import Broker, tool
from cellblock.testing import read_recording, record, write_recording
from support.waits import within

pytestmark = pytest.mark.thorough

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


def ran(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider", "--no-header", "-q", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
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
    said = ran(tmp_path)
    assert "2 failed, 4 passed" in said, said
    assert "changed.cellrun does not come to the recorded response:\n  /result/tea\n" in said
    assert "    recorded: 4\n    replayed: 3.5" in said
    assert "good.cellrun fails with the other script:\n  REPLAY_DIVERGED at script.js:1:" in said


def test_who_does_not_use_it_pays_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(
        "import sys\n\ndef test_light():\n    assert 'cellblock.app.broker' not in sys.modules\n"
    )
    assert "1 passed" in ran(tmp_path)


def test_the_distribution_names_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    # Under the module's own name: `-p` with it finds the same plugin.
    assert project["entry-points"]["pytest11"] == {PLUGIN: PLUGIN}
