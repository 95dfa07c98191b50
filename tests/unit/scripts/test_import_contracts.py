"""Each import contract of `pyproject.toml` is broken by one import that it forbids."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FORBIDDEN = {
    "The worker host never imports the broker": ("cellblock_worker/base", "cellblock.base"),
    "The worker host does without Pydantic": ("cellblock_worker/base", "pydantic"),
    "One direction of imports between the broker's rooms": ("cellblock/base", "cellblock.app"),
    "The core knows no fleet": ("cellblock/serve", "cellblock.fleet"),
    "A run knows no storage": ("cellblock/run", "cellblock.record"),
    "Tools know no runs": ("cellblock/tools", "cellblock.run"),
    "One direction of imports between the worker host's rooms": (
        "cellblock_worker/wire",
        "cellblock_worker.host",
    ),
}
LINT_BOUND_SECONDS = 120


def test_each_contract_is_broken_by_one_import_that_it_forbids(tmp_path: Path) -> None:
    for package in ("broker/cellblock", "worker_runtime/cellblock_worker"):
        shutil.copytree(
            ROOT / package,
            tmp_path / Path(package).name,
            ignore=lambda folder, names: {
                name for name in names if not name.endswith(".py") and not Path(folder, name).is_dir()
            },
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for number, (room, module) in enumerate(FORBIDDEN.values()):
        (tmp_path / room / f"forbidden_{number}.py").write_text(f"import {module}\n", encoding="utf-8")
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]

    said = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path), "NO_COLOR": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=LINT_BOUND_SECONDS,
        check=False,
    )

    broken = re.findall(r"^(.+) BROKEN$", said.stdout, re.MULTILINE)
    assert len(broken) == len(contracts) == len(FORBIDDEN), said.stdout + said.stderr
    assert all(any(name.startswith(start) for name in broken) for start in FORBIDDEN)
    # Each by the import that was put there.
    assert all(f"forbidden_{number}" in said.stdout for number in range(len(FORBIDDEN)))
