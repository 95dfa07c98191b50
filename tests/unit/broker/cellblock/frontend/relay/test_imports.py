"""What `cellblock connect` imports before its client's first answer."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

NEEDED = ("cellblock.cli.main", "cellblock.frontend.stdio.connect", "cellblock.config.file.plain_state_dir")
SLOW = ("mcp", "mcp_types", "pydantic", "pydantic_core", "httpx2", "starlette")


@pytest.mark.parametrize("module", NEEDED)
def test_a_relay_imports_nothing_slow(module: str) -> None:
    code = f"import json, sys, {module}; print(json.dumps(sorted({{m.split('.')[0] for m in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
    imported = json.loads(done.stdout)
    assert "cellblock" in imported
    assert not set(SLOW) & set(imported)
