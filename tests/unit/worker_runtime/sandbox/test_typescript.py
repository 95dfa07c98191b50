"""Runs the TypeScript tests below this folder (`*_test.ts`) with no permission at all."""

import re
import subprocess
from pathlib import Path

import deno
import pytest


@pytest.mark.slow
def test_typescript() -> None:
    # No --allow-*: what a worker cannot do, its unit tests cannot do either. Types are checked by scripts/check.
    flags = ["--no-prompt", "--no-config", "--no-lock", "--no-remote", "--no-npm", "--no-check"]
    files = sorted(map(str, Path(__file__).parent.rglob("*_test.ts")))
    done = subprocess.run(
        [deno.find_deno_bin(), "test", *flags, *files],
        env={"NO_COLOR": "1", "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ran = [int(count) for count in re.findall(r"^running (\d+) tests? from ", done.stdout, re.MULTILINE)]
    assert len(ran) == len(files) and all(ran), done.stdout
