"""What the scripts' shell functions say when a machine lacks something."""

import os
import subprocess
import sys
from pathlib import Path

from support.documents import ROOT

SAYS = "No package index was reached."


def installed(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`pip_into` with an index that nobody serves."""
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    line = 'source "$0/scripts/_env.sh"; pip_into "$@"'
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    asks = {"PIP_INDEX_URL": "http://127.0.0.1:1/simple", "PIP_RETRIES": "1", "PIP_CONFIG_FILE": os.devnull}
    return subprocess.run(
        ["bash", "-c", line, str(ROOT), str(folder), *words],
        env={**kept, **asks, "NEEDS": "nothing"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_an_index_out_of_reach_is_told_apart_from_a_package_that_is_not_there(tmp_path: Path) -> None:
    away = installed(tmp_path / "a", "cellblock-of-nowhere")
    assert away.returncode == 1 and SAYS in away.stderr, away.stderr
    wrong = installed(tmp_path / "b", "--no-index", "cellblock-of-nowhere")
    assert wrong.returncode == 1 and "No matching distribution" in wrong.stderr and SAYS not in wrong.stderr
