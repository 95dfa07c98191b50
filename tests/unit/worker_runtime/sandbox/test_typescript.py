"""Runs the TypeScript tests below this folder (`*_test.ts`) with no permission at all."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import deno
import pytest

HERE = Path(__file__).parent


@pytest.mark.parametrize("path", sorted(HERE.rglob("*_test.ts")), ids=lambda path: path.stem)
def test_typescript(path: Path) -> None:
    flags = ["--no-prompt", "--no-config", "--no-lock", "--no-remote", "--no-npm", "--no-check"]
    done = subprocess.run(
        [deno.find_deno_bin(), "test", *flags, str(path)],
        env={"NO_COLOR": "1", "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    passed = re.search(r"ok \| (\d+) passed", done.stdout)
    assert done.returncode == 0 and passed is not None, done.stdout + done.stderr
    assert int(passed[1]) > 0
